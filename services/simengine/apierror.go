package simengine

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"warmpath/engine"
)

// apiError is an error as the OpenAI API shows it.
type apiError struct {
	status int
	kind   string
	param  string // the field at fault, if one is
	code   string
	text   string
}

// Error implements error.
func (e *apiError) Error() string { return e.text }

// invalid is a fault of one field of the request.
func invalid(param, format string, args ...any) *apiError {
	return &apiError{
		status: http.StatusBadRequest, kind: "invalid_request_error", param: param,
		text: fmt.Sprintf(format, args...),
	}
}

// scanFault is an error of tokenize.ScanRequest, which begins with the field's
// name where it knows one.
func scanFault(err error) *apiError {
	param, _, found := strings.Cut(err.Error(), ":")
	if !found || strings.HasPrefix(param, "byte ") {
		param = ""
	}
	return invalid(param, "%s", err)
}

// engineFault is an error of the engine's Submit.
func engineFault(prompt string, err error) *apiError {
	switch {
	case errors.Is(err, engine.ErrTooLarge):
		e := invalid(prompt, "%s", err)
		e.code = "context_length_exceeded"
		return e
	case errors.Is(err, engine.ErrInvalid):
		return invalid(prompt, "%s", err)
	case errors.Is(err, engine.ErrOverloaded), errors.Is(err, errDraining):
		return unavailable(err)
	}
	return &apiError{status: http.StatusInternalServerError, kind: "server_error", text: err.Error()}
}

func unavailable(err error) *apiError {
	return &apiError{status: http.StatusServiceUnavailable, kind: "service_unavailable", code: "service_unavailable", text: err.Error()}
}

// body is the error object.
func (e *apiError) body() []byte {
	type object struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
	}
	o := object{Message: e.text, Type: e.kind}
	if e.param != "" {
		o.Param = &e.param
	}
	if e.code != "" {
		o.Code = &e.code
	}
	body, _ := json.Marshal(map[string]object{"error": o}) // strings always encode
	return body
}

func (e *apiError) write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.status)
	_, _ = w.Write(append(e.body(), '\n')) // the client may be gone
}
