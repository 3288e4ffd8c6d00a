package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// apiError is an answer in the shape of the OpenAI API's errors.
type apiError struct {
	status  int
	kind    string // the API's type, such as invalid_request_error
	code    string
	param   string
	message string
	// retryAfter is when to try again; 0 for not at all.
	retryAfter time.Duration
	// reason is how metrics name the rejection.
	reason string
}

func (e *apiError) Error() string { return e.message }

// refuse is a fault of the request: the message names the field and the remedy.
func refuse(param string, err error) *apiError {
	return &apiError{
		status: http.StatusBadRequest, kind: "invalid_request_error", code: "invalid_request", param: param,
		message: err.Error(), reason: rejectedInvalid,
	}
}

func tooLarge(limit int64) *apiError {
	return &apiError{
		status: http.StatusRequestEntityTooLarge, kind: "invalid_request_error", code: "body_too_large", reason: rejectedInvalid,
		message: fmt.Sprintf("the request body is larger than %d bytes; send less, or raise the gateway's --max-body", limit),
	}
}

func (e *apiError) write(w http.ResponseWriter) {
	type body struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    string  `json:"code"`
	}
	b := body{Message: e.message, Type: e.kind, Code: e.code}
	if e.param != "" {
		b.Param = &e.param
	}
	text, err := json.Marshal(map[string]body{"error": b})
	if err != nil { // strings always encode
		text = []byte(`{"error":{"message":"internal error"}}`)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	if e.status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	if e.retryAfter > 0 {
		// Whole seconds for everyone; the second one is finer, for OpenAI's clients.
		h.Set("Retry-After", strconv.FormatInt(int64((e.retryAfter+time.Second-1)/time.Second), 10))
		h.Set("Retry-After-Ms", strconv.FormatInt(max(1, e.retryAfter.Milliseconds()), 10))
	}
	w.WriteHeader(e.status)
	_, _ = w.Write(text) // the client may be gone
}

var (
	// errModelTimeout is why an upstream request was canceled: its engine was silent for too long.
	errModelTimeout = errors.New("the engine did not answer in time")
	// errStopped is why requests are canceled when a drain takes too long.
	errStopped = errors.New("the gateway stopped before the request finished")
)
