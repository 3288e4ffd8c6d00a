package simengine

import (
	"crypto/rand"
	"encoding/json"
	"net/http"
	"strconv"

	"warmpath/engine"
)

// routes adds the OpenAI API.
func (s *Server) routes(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) { s.complete(w, r, false) })
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) { s.complete(w, r, true) })
	mux.HandleFunc("GET /v1/models", s.models)
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	type model struct {
		ID          string `json:"id"`
		Object      string `json:"object"`
		Created     int64  `json:"created"`
		OwnedBy     string `json:"owned_by"`
		Root        string `json:"root"`
		MaxModelLen int    `json:"max_model_len"`
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{ // the client may be gone
		"object": "list",
		"data":   []model{{s.cfg.Model, "model", s.started.Unix(), "warmpath", s.cfg.Model, s.context}},
	})
}

// newRequestID names a request that came without an id.
func (s *Server) newRequestID() string { return rand.Text() }

// complete serves one request. When the client goes away, the engine drops it.
func (s *Server) complete(w http.ResponseWriter, r *http.Request, chat bool) {
	c, fault := s.read(w, r, chat)
	if fault != nil {
		fault.write(w)
		return
	}
	t, err := s.submit(c.requestID, c.request)
	if err != nil {
		engineFault(c.promptParam(), err).write(w)
		return
	}
	defer s.abort(t) // does nothing once it has finished
	w.Header().Set("X-Request-Id", c.requestID)
	a := newAnswer(c, s.cfg.Model, s.cfg.ModelTime || s.cfg.Timing)
	if c.stream {
		s.stream(w, r, t, a)
		return
	}
	for {
		out, ok := s.await(r, t)
		if !ok {
			unavailable(errDraining).write(w)
			return
		}
		if out.Finished {
			s.metrics.finished.WithLabelValues(c.finishReason).Inc()
			body := a.body(out)
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
			_, _ = w.Write(body) // the client may be gone
			return
		}
	}
}

// await returns the next progress of a request. It is false when there will be
// none: the client is gone, or the server stops.
func (s *Server) await(r *http.Request, t *ticket) (engine.Output, bool) {
	select {
	case <-t.progress:
		return t.latest(), true
	case <-r.Context().Done():
	case <-s.closing:
	}
	return engine.Output{}, false
}

// stream sends tokens as they come: each in a part of its own, or by a model
// clock, where nobody could see them come, the first and then the rest.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, t *ticket, a *answer) {
	flush := http.NewResponseController(w).Flush
	var buf []byte
	sent := 0
	for {
		out, ok := s.await(r, t)
		if !ok {
			if sent == 0 {
				unavailable(errDraining).write(w)
				return
			}
			// The headers are sent; an error part is what clients look for.
			_, _ = w.Write(append(append([]byte("data: "), unavailable(errDraining).body()...), "\n\n"...))
			return
		}
		buf = buf[:0]
		if sent == 0 {
			w.Header().Set("Content-Type", "text/event-stream")
			w.Header().Set("Cache-Control", "no-cache")
			if a.call.chat {
				buf = a.appendRole(buf)
			}
		}
		for sent < out.Tokens {
			to := out.Tokens
			if sent == 0 || !s.cfg.ModelTime {
				to = sent + 1
			}
			buf = a.appendDelta(buf, sent, to, out.Finished && to == out.Tokens)
			sent = to
		}
		if out.Finished {
			s.metrics.finished.WithLabelValues(a.call.finishReason).Inc()
			buf = a.appendEnd(buf, out)
		}
		if _, err := w.Write(buf); err != nil {
			return // the client is gone
		}
		if out.Finished {
			return
		}
		if flush() != nil {
			return
		}
	}
}
