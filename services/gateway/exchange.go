package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"warmpath/routing/policy"
	pb "warmpath/schemas/warmpathv1"
)

// Response headers that say what was decided. The last one comes as a trailer
// after a stream, because only its end tells it.
const (
	headerReplica   = "X-Warmpath-Replica"
	headerRequestID = "X-Warmpath-Request-Id"
	headerPredicted = "X-Warmpath-Predicted-Cached-Tokens"
	headerDecision  = "X-Warmpath-Decision-Us"
	headerAttempt   = "X-Warmpath-Attempt"
	headerCached    = "X-Warmpath-Cached-Tokens"
)

// exchange is one request from its first decision to its outcome. It belongs to
// the goroutine that serves the request.
type exchange struct {
	g       *Gateway
	rq      *request
	w       http.ResponseWriter
	control *http.ResponseController
	ctx     context.Context // ends when the client leaves
	span    trace.Span      // of the whole request

	// decided is of the current attempt, of its candidates with the chosen one at
	// least; nil before the first.
	decided    *pb.Decided
	handed     *handover // of the current attempt
	answer     answer
	httpStatus int // what the engine answered; 0 before it did
	recorded   bool
	// blame is set when the replica broke an answer that it had begun.
	blame bool
}

// failure is why an attempt brought no answer, before its first byte.
type failure struct {
	kind string
	// retry is set when another replica may do better, blame when the replica's
	// health counts it.
	retry, blame bool
	// advice replaces what the client is told by default.
	advice string
	// The engine's own answer, when it gave one to pass on.
	status int
	header http.Header
	body   []byte
}

func (x *exchange) run() {
	defer func() {
		if !x.recorded { // a panic on the way here must not lose the outcome
			x.finish(pb.Status_STATUS_UPSTREAM_ERROR, "internal")
		}
	}()
	var failed *failure
	var exclude []string
	for attempt := uint32(0); ; attempt++ {
		d, to, err := x.g.decide(x.ctx, x.rq, attempt, exclude)
		switch {
		case err != nil && x.ctx.Err() != nil:
			x.left()
			return
		case err != nil:
			x.noReplica(failed, err)
			return
		}
		if failed != nil {
			x.move(failed.kind)
		}
		x.decided = d.Decided
		x.g.view.decided(x.decided, d.DecidedAtUs)
		x.g.publishDecision(x.ctx, x.rq, d)
		failed = x.attempt(to)
		if failed == nil {
			return
		}
		if x.ctx.Err() != nil {
			x.fail(failed)
			return
		}
		x.g.log.Warn("a replica gave no answer", "request", x.rq.id, "replica", d.Chosen, "attempt", attempt, "kind", failed.kind)
		if !failed.retry || int(attempt)+1 >= x.g.cfg.MaxAttempts {
			x.fail(failed)
			return
		}
		exclude = append(exclude, d.Chosen)
	}
}

// attempt tries the chosen replica, and remembers how it fared.
func (x *exchange) attempt(to target) *failure {
	name := x.decided.Chosen
	ctx, span := x.g.tracer.start(x.ctx, spanUpstream, trace.SpanKindClient)
	defer span.End()
	if span.IsRecording() {
		span.SetAttributes(attribute.String("warmpath.replica", name), attribute.Int("warmpath.attempt", int(x.decided.Attempt)),
			attribute.String("server.address", to.address))
	}
	x.g.health.tried(name)
	x.blame = false
	defer x.judge(name)
	failed := x.try(ctx, to)
	x.blame = x.blame || failed != nil && failed.blame
	if failed != nil {
		fail(span, failed.kind)
	}
	if span.IsRecording() {
		span.SetAttributes(attribute.Int("http.response.status_code", x.httpStatus))
		if x.answer.cachedTokens != nil {
			span.SetAttributes(attribute.Int64("warmpath.cached_tokens", int64(*x.answer.cachedTokens)))
		}
	}
	return failed
}

// judge tells the replica's health how an attempt went.
func (x *exchange) judge(name string) {
	switch {
	case x.ctx.Err() != nil:
		x.g.health.left(name)
	case x.blame:
		x.g.health.missed(name, time.Now())
	default:
		x.g.health.answered(name)
	}
}

// move records that the current attempt is given up for the next one.
func (x *exchange) move(cause string) {
	d := x.decided
	m := &pb.Moved{
		Pool: d.Pool, Gateway: d.Gateway, RequestId: d.RequestId, Attempt: d.Attempt,
		MovedAtUs: time.Now().UnixMicro(), From: d.Chosen, Cause: cause,
	}
	x.g.view.moved(m)
	x.g.metrics.moved.WithLabelValues(cause).Inc()
	x.g.publish(x.ctx, x.rq, m.Attempt, kindMoved, m)
}

// left records a request that nobody waits for any more.
func (x *exchange) left() {
	if errors.Is(context.Cause(x.ctx), errStopped) {
		x.finish(pb.Status_STATUS_UPSTREAM_ERROR, "gateway_stopped")
		return
	}
	x.finish(pb.Status_STATUS_CANCELLED, "")
}

// noReplica ends a request that no replica can take, or none but those that failed.
func (x *exchange) noReplica(failed *failure, err error) {
	if failed != nil {
		x.fail(failed)
		return
	}
	if !errors.Is(err, policy.ErrNoReplica) {
		x.g.log.Error("no decision could be made", "request", x.rq.id, "error", err)
	}
	x.finish(pb.Status_STATUS_NO_REPLICA, "no_replica")
	(&apiError{
		status: http.StatusServiceUnavailable, kind: "overloaded_error", code: "no_replica", retryAfter: time.Second,
		message: fmt.Sprintf("no replica of pool %s can take the request; start one, or see GET /v1/models for what is served", x.g.cfg.Pool),
	}).write(x.w)
}

// fail ends a request whose last attempt failed: with the engine's own words
// when it had some.
func (x *exchange) fail(failed *failure) {
	if failed.status != 0 {
		x.httpStatus = failed.status
	}
	if x.ctx.Err() != nil {
		x.left()
		return
	}
	x.finish(pb.Status_STATUS_UPSTREAM_ERROR, failed.kind)
	if failed.status != 0 {
		copyHeader(x.w.Header(), failed.header)
		x.headers()                        // the engine's names of the request are not the client's
		x.w.Header().Del("Content-Length") // the body may have been cut
		x.w.WriteHeader(failed.status)
		_, _ = x.w.Write(failed.body) // the client may be gone
		return
	}
	x.headers()
	status := http.StatusBadGateway
	if failed.kind == kindTimeout {
		status = http.StatusGatewayTimeout
	}
	message := failed.advice
	if message == "" {
		message = fmt.Sprintf("replica %s gave no answer (%s), after %d attempts; try again, and look at the engine's log", x.decided.Chosen, failed.kind, x.decided.Attempt+1)
	}
	(&apiError{status: status, kind: "upstream_error", code: failed.kind, message: message}).write(x.w)
}

// headers puts what was decided on the response.
func (x *exchange) headers() {
	h := x.w.Header()
	x.rq.name(h)
	if d := x.decided; d != nil {
		h.Set(headerReplica, d.Chosen)
		h.Set(headerPredicted, strconv.FormatUint(d.PredictedCachedTokens, 10))
		h.Set(headerDecision, strconv.FormatUint(d.WaitUs, 10))
		h.Set(headerAttempt, strconv.FormatUint(uint64(d.Attempt), 10))
	}
}
