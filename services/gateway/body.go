package gateway

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// bodyTimeout bounds how long a client may take to send a body: a slow one holds
// a slot and memory.
const bodyTimeout = time.Minute

// readBody reads the body within its limit.
func (g *Gateway) readBody(w http.ResponseWriter, r *http.Request) ([]byte, *apiError) {
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return nil, &apiError{
			status: http.StatusUnsupportedMediaType, kind: "invalid_request_error", code: "unsupported_encoding", reason: rejectedInvalid,
			message: fmt.Sprintf("the request body has Content-Encoding %.40q; send it without compression", encoding),
		}
	}
	if r.ContentLength > g.cfg.MaxBody {
		return nil, tooLarge(g.cfg.MaxBody)
	}
	var body []byte
	if r.ContentLength > 0 {
		body = make([]byte, 0, r.ContentLength+1) // one more, so that the end is seen without growing
	}
	limited := http.MaxBytesReader(w, r.Body, g.cfg.MaxBody)
	for {
		if len(body) == cap(body) {
			body = append(body, 0)[:len(body)]
		}
		n, err := limited.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case errors.Is(err, io.EOF):
			return body, nil
		case err != nil:
			var limit *http.MaxBytesError
			if errors.As(err, &limit) {
				return nil, tooLarge(g.cfg.MaxBody)
			}
			return nil, refuse("", fmt.Errorf("the request body ended early: %w; send it whole", err))
		}
	}
}

// reserve takes n bytes of the budget for bodies, or reports that there are none.
func (g *Gateway) reserve(n int64) bool {
	if g.bodies.Add(n) > g.cfg.MaxBodies {
		g.bodies.Add(-n)
		return false
	}
	return true
}

// bodyReservation is what a request's body may take: its length, or the limit
// when that is not known.
func (g *Gateway) bodyReservation(r *http.Request) int64 {
	if r.ContentLength >= 0 {
		return min(r.ContentLength, g.cfg.MaxBody)
	}
	return g.cfg.MaxBody
}
