package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"warmpath/routing/policy"
	pb "warmpath/schemas/warmpathv1"
)

// Response headers that say what was decided.
const (
	headerReplica   = "X-Warmpath-Replica"
	headerRequestID = "X-Warmpath-Request-Id"
	headerPredicted = "X-Warmpath-Predicted-Cached-Tokens"
	headerDecision  = "X-Warmpath-Decision-Us"
	headerAttempt   = "X-Warmpath-Attempt"
)

// bodyTimeout bounds how long a client may take to send a body: a slow one holds
// a slot and memory.
const bodyTimeout = time.Minute

// serve handles a completions or chat request.
func (g *Gateway) serve(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	g.active.Add(1)
	defer g.active.Add(-1)
	id := g.requestID(r.Header, start)
	w.Header().Set(headerRequestID, id)
	select {
	case g.slots <- struct{}{}:
	default:
		g.overload(w, fmt.Sprintf("the gateway serves %d requests already; try again, or raise --max-concurrent", g.cfg.MaxConcurrent))
		return
	}
	defer func() { <-g.slots }()
	g.metrics.inFlight.Inc()
	defer g.metrics.inFlight.Dec()
	reserved := g.bodyReservation(r)
	if !g.reserve(reserved) {
		g.overload(w, fmt.Sprintf("request bodies in flight take %d bytes already; try again, or raise --max-bodies", g.cfg.MaxBodies))
		return
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(start.Add(bodyTimeout)) // not every reader has one
	rq, failure := g.read(w, r, start, id)
	_ = control.SetReadDeadline(time.Time{}) // else the wait for the client's leaving would end by it
	if rq != nil {
		g.bodies.Add(int64(len(rq.body)) - reserved)
		reserved = int64(len(rq.body))
	}
	defer func() { g.bodies.Add(-reserved) }()
	if failure != nil {
		g.metrics.requests.WithLabelValues("refused").Inc()
		failure.write(w)
		return
	}
	x := &exchange{g: g, rq: rq, w: w, control: control, ctx: r.Context()}
	x.run()
}

func (g *Gateway) overload(w http.ResponseWriter, message string) {
	g.metrics.requests.WithLabelValues("overloaded").Inc()
	overloaded(message).write(w)
}

// exchange is one request from its first decision to its outcome. It belongs to
// the goroutine that serves the request.
type exchange struct {
	g       *Gateway
	rq      *request
	w       http.ResponseWriter
	control *http.ResponseController
	ctx     context.Context // ends when the client leaves

	decided    *pb.Decided // of the current attempt; nil before the first
	answer     answer
	httpStatus int // what the engine answered; 0 before it did
	recorded   bool
}

// failure is why an attempt brought no answer, before its first byte.
type failure struct {
	kind  string
	retry bool
	// The engine's own answer, when it gave one.
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
		d, address, err := x.g.decide(x.ctx, x.rq, attempt, exclude)
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
		x.decided = d
		x.g.view.decided(d, d.DecidedAtUs)
		x.g.publish(x.ctx, d.RequestId, d.Attempt, kindDecided, d)
		failed = x.try(address)
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

// move records that the current attempt is given up for the next one.
func (x *exchange) move(cause string) {
	d := x.decided
	m := &pb.Moved{
		Pool: d.Pool, Gateway: d.Gateway, RequestId: d.RequestId, Attempt: d.Attempt,
		MovedAtUs: time.Now().UnixMicro(), From: d.Chosen, Cause: cause,
	}
	x.g.view.moved(m)
	x.g.metrics.moved.WithLabelValues(cause).Inc()
	x.g.publish(x.ctx, m.RequestId, m.Attempt, kindMoved, m)
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
		status: http.StatusServiceUnavailable, kind: "overloaded_error", code: "no_replica", retryAfter: 1,
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
	x.headers()
	if failed.status != 0 {
		copyHeader(x.w.Header(), failed.header)
		x.w.Header().Del("Content-Length") // the body may have been cut
		x.w.WriteHeader(failed.status)
		_, _ = x.w.Write(failed.body) // the client may be gone
		return
	}
	status := http.StatusBadGateway
	if failed.kind == kindTimeout {
		status = http.StatusGatewayTimeout
	}
	(&apiError{
		status: status, kind: "upstream_error", code: failed.kind,
		message: fmt.Sprintf("replica %s gave no answer (%s), after %d attempts; try again, and look at the engine's log", x.decided.Chosen, failed.kind, x.decided.Attempt+1),
	}).write(x.w)
}

// headers puts what was decided on the response.
func (x *exchange) headers() {
	h := x.w.Header()
	h.Set(headerRequestID, x.rq.id)
	if d := x.decided; d != nil {
		h.Set(headerReplica, d.Chosen)
		h.Set(headerPredicted, strconv.FormatUint(d.PredictedCachedTokens, 10))
		h.Set(headerDecision, strconv.FormatUint(d.WaitUs, 10))
		h.Set(headerAttempt, strconv.FormatUint(uint64(d.Attempt), 10))
	}
}
