package router

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/httpserver"
	"warmpath/streams"
)

// Limits of the HTTP side.
const (
	// maxBody holds a prompt of two million token ids as JSON, or its text.
	maxBody = 16 << 20
	// maxHTTP bounds requests read and answered at once, and so their memory.
	maxHTTP = 64
	// bodyTimeout is how long a caller may take to send its request.
	bodyTimeout = 10 * time.Second
)

// handler is the HTTP side of the router.
func (r *Router) handler() http.Handler {
	mux := httpserver.Mux(r.registry, r.health)
	slots := make(chan struct{}, maxHTTP)
	mux.HandleFunc("POST /v1/route", func(w http.ResponseWriter, req *http.Request) {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
			answer(w, req, r.routeHTTP(w, req))
		default:
			r.metrics.shed.WithLabelValues("http").Inc()
			answer(w, req, reply{RouteResponse: refused(overloaded())})
		}
	})
	mux.HandleFunc("GET /v1/state", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		out := json.NewEncoder(w)
		out.SetIndent("", "  ")
		_ = out.Encode(r.State()) // the caller went away
	})
	return mux
}

// routeHTTP reads a RouteRequest in protobuf's JSON form and answers it.
func (r *Router) routeHTTP(w http.ResponseWriter, req *http.Request) reply {
	if err := r.health(); err != nil {
		return r.turnDown(starting(err)) // without reading the prompt
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout)) // not every writer has one
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxBody))
	if err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return r.turnDown(invalid("body is larger than %d bytes; send keys instead", large.Limit))
		}
		return r.turnDown(invalid("body: %v; send it within %v", err, bodyTimeout))
	}
	q, err := decodeJSON(body)
	if err != nil {
		return r.turnDown(notJSON("body", err))
	}
	return r.answer(req.Context(), q)
}

// notJSON says what is wrong with a request in JSON. The decoder's words may hold
// a piece of the prompt, and go to whoever sent it only.
func notJSON(what string, err error) error {
	return invalid("%s is not a %s in protobuf JSON: %s", what, (*pb.RouteRequest)(nil).ProtoReflect().Descriptor().FullName(), reason(err))
}

// answer writes a RouteResponse with the status of its error code.
func answer(w http.ResponseWriter, req *http.Request, response reply) {
	body, contentType, err := encode(nil, response.RouteResponse, req.Header.Get("Accept") != contentProtobuf)
	if err != nil {
		http.Error(w, "encode answer: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", contentType)
	response.about(w.Header())
	if response.ErrorCode == pb.RouteErrorCode_ROUTE_ERROR_CODE_NOT_READY {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(status(response.ErrorCode))
	_, _ = w.Write(body) // the caller went away
}

// status is the HTTP status of an error code.
func status(code pb.RouteErrorCode) int {
	switch code {
	case pb.RouteErrorCode_ROUTE_ERROR_CODE_UNSPECIFIED:
		return http.StatusOK
	case pb.RouteErrorCode_ROUTE_ERROR_CODE_NOT_READY:
		return http.StatusServiceUnavailable
	case pb.RouteErrorCode_ROUTE_ERROR_CODE_NO_REPLICA:
		return http.StatusConflict
	}
	return http.StatusBadRequest
}

// reason is a decoding error without the library's prefix, whose space is
// deliberately not stable.
func reason(err error) string {
	text := strings.ReplaceAll(err.Error(), "\u00a0", " ")
	return strings.TrimPrefix(text, "proto: ")
}

// word is an enum value's name without its enum's, in lower case.
func word(name, prefix string) string { return strings.ToLower(strings.TrimPrefix(name, prefix)) }

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

func kvStream(r *Router) string { return streams.KVStream(r.cfg.Pool) }
