package gateway

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"warmpath/services/gateway/apikey"
	"warmpath/services/httpserver"
)

func (g *Gateway) routes(reg *prometheus.Registry) http.Handler {
	mux := httpserver.Mux(reg, g.ready)
	for path, kind := range endpoints {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) { g.serve(w, r, kind) })
	}
	mux.HandleFunc("GET /v1/models", g.serveModels)
	mux.HandleFunc("GET /v1/models/{id...}", g.serveModels)
	mux.HandleFunc("GET /v1/mismatches", g.serveMismatches)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		(&apiError{
			status: http.StatusNotFound, kind: "invalid_request_error", code: "not_found",
			message: fmt.Sprintf("%s %.80s is not served here; POST %s, %s or %s, or GET /v1/models, /health, /metrics", r.Method, r.URL.Path, completionsPath, chatPath, embeddingsPath),
		}).write(w)
	})
	return mux
}

// serve handles a request that an engine is to answer.
func (g *Gateway) serve(w http.ResponseWriter, r *http.Request, kind endpoint) {
	rq := &request{start: time.Now(), kind: kind, path: r.URL.Path, query: r.URL.RawQuery, header: r.Header}
	g.active.Add(1)
	defer g.active.Add(-1)
	rq.identity = g.identify(r.Header)
	rq.name(w.Header())
	ctx, span := g.tracer.request(r, rq.echo)
	defer span.End()
	client, failure := g.authorize(r.Header)
	if failure == nil {
		failure = begin(client, rq.start)
	}
	if failure != nil {
		fail(span, failure.reason)
		g.reject(w, client, failure)
		return
	}
	if client != nil {
		defer client.Done()
		rq.client = client
	}
	failure = g.admission.enter(ctx)
	if rq.queued = time.Since(rq.start); failure != nil {
		fail(span, failure.reason)
		g.reject(w, client, failure)
		return
	}
	g.metrics.queueWait.Observe(rq.queued.Seconds())
	defer g.admission.leave()
	g.admitted(ctx, span, w, r, rq)
}

// admitted handles a request that has its place.
func (g *Gateway) admitted(ctx context.Context, span trace.Span, w http.ResponseWriter, r *http.Request, rq *request) {
	reserved := g.bodyReservation(r)
	if !g.reserve(reserved) {
		fail(span, rejectedBodies)
		g.reject(w, rq.client, overloaded(rejectedBodies, fmt.Sprintf("request bodies in flight take %d bytes already; try again, or raise --max-bodies", g.cfg.MaxBodies), time.Second))
		return
	}
	defer func() { g.bodies.Add(-reserved) }()
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout)) // not every reader has one
	failure := g.read(ctx, w, r, rq)
	_ = control.SetReadDeadline(time.Time{}) // else the wait for the client's leaving would end by it
	if failure != nil {
		fail(span, failure.reason)
		g.reject(w, rq.client, failure)
		return
	}
	g.bodies.Add(int64(len(rq.body)) - reserved)
	reserved = int64(len(rq.body))
	if rq.client != nil {
		rq.client.Use(rq.promptTokens, time.Now())
	}
	g.single(&rq.identity, time.Now())
	rq.name(w.Header())
	x := &exchange{g: g, rq: rq, w: w, control: control, ctx: ctx, span: span}
	x.run()
}

// reject answers a request that no engine will see.
func (g *Gateway) reject(w http.ResponseWriter, client *apikey.Client, e *apiError) {
	status := "refused"
	if e.status == http.StatusServiceUnavailable {
		status = "overloaded"
	}
	g.metrics.requests.WithLabelValues(status).Inc()
	g.metrics.rejected.WithLabelValues(e.reason).Inc()
	g.metrics.ofKey(client, status)
	e.write(w)
}

// name puts a request's names on its response.
func (r *request) name(h http.Header) {
	h.Set("X-Request-Id", r.echo)
	h.Set(headerRequestID, r.id)
}
