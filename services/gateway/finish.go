package gateway

import (
	"time"

	pb "warmpath/schemas/warmpathv1"
)

// finish records how the request ended: once, whatever happens after.
func (x *exchange) finish(status pb.Status, kind string) {
	if x.recorded {
		return
	}
	x.recorded = true
	f := x.outcome(status, kind, time.Now())
	x.g.view.finished(f)
	x.g.publish(x.ctx, x.rq, f.Attempt, kindFinished, f)
	x.measure(f)
	x.compare(f)
	if c := x.rq.client; c != nil {
		// The prompt's tokens were taken when they were known; an engine may count more.
		more := f.GetPromptTokens() - min(f.GetPromptTokens(), x.rq.promptTokens)
		c.Use(f.GetCompletionTokens()+more, time.Now())
	}
	if status != pb.Status_STATUS_OK {
		fail(x.span, kind)
	}
}

// outcome puts together what is known.
func (x *exchange) outcome(status pb.Status, kind string, now time.Time) *pb.Finished {
	a := &x.answer
	f := &pb.Finished{
		Pool: x.g.cfg.Pool, Gateway: x.g.cfg.Name, RequestId: x.rq.id,
		FinishedAtUs: now.UnixMicro(), Status: status, HttpStatus: uint32(x.httpStatus), ErrorKind: kind,
		PromptTokens: a.promptTokens, CompletionTokens: a.completionTokens, CachedTokens: a.cachedTokens,
		FinishReason: a.finishReason, Streamed: x.rq.stream,
		Clock: pb.Clock_CLOCK_WALL, E2EUs: micros(now.Sub(x.rq.start)),
	}
	if d := x.decided; d != nil {
		f.Attempt, f.Replica = d.Attempt, d.Chosen
	}
	if x.g.cfg.Clock == ClockModel {
		// The host's time says nothing of the modelled engine, so nothing but the
		// engine's own figures is taken, and absent ones stay absent.
		if t := a.timing; t != nil && t.E2EUS != nil {
			f.Clock, f.E2EUs = pb.Clock_CLOCK_MODEL, *t.E2EUS
			f.TtftUs, f.TpotUs, f.QueueUs = t.TTFTUS, t.TPOTUS, t.QueueUS
		}
		return f
	}
	f.GatewayQueueUs = new(micros(x.rq.queued))
	handed := x.handed.at()
	if !handed.IsZero() {
		f.DispatchUs = new(micros(handed.Sub(x.rq.start)))
	}
	if !a.firstAt.IsZero() {
		f.TtftUs = new(micros(a.firstAt.Sub(x.rq.start)))
		if !handed.IsZero() {
			f.EngineUs = new(*f.TtftUs - min(*f.TtftUs, *f.DispatchUs)) // the parts add up
		}
	}
	if n := f.GetCompletionTokens(); n >= 2 && a.lastAt.After(a.firstAt) {
		f.TpotUs = new(micros(a.lastAt.Sub(a.firstAt)) / (n - 1))
	}
	return f
}

func micros(d time.Duration) uint64 { return uint64(max(0, d.Microseconds())) }

// statusNames are the statuses as metrics name them.
var statusNames = map[pb.Status]string{
	pb.Status_STATUS_OK:             "ok",
	pb.Status_STATUS_CANCELLED:      "cancelled",
	pb.Status_STATUS_UPSTREAM_ERROR: "upstream_error",
	pb.Status_STATUS_NO_REPLICA:     "no_replica",
}

// measure puts an outcome into the metrics.
func (x *exchange) measure(f *pb.Finished) {
	m := x.g.metrics
	status := statusNames[f.Status]
	if f.ErrorKind == kindClient {
		status = "client_error"
	}
	m.requests.WithLabelValues(status).Inc()
	m.ofKey(x.rq.client, status)
	cache := "unknown"
	switch {
	case f.CachedTokens == nil || f.PromptTokens == nil:
	case *f.CachedTokens*2 >= f.GetPromptTokens():
		cache = "hit"
	default:
		cache = "miss"
	}
	if f.TtftUs != nil {
		m.ttft.WithLabelValues(cache).Observe(float64(*f.TtftUs) / 1e6)
	}
	if f.TpotUs != nil {
		m.tpot.Observe(float64(*f.TpotUs) / 1e6)
	}
	if f.Status != pb.Status_STATUS_OK {
		return
	}
	if f.CachedTokens == nil {
		m.unreported.Inc()
		return
	}
	// Sums over the same requests, so that their ratios mean something.
	m.cached.Add(float64(*f.CachedTokens))
	m.predicted.Add(float64(x.decided.GetPredictedCachedTokens()))
	if f.PromptTokens != nil {
		m.prompt.Add(float64(*f.PromptTokens))
	} else {
		m.prompt.Add(float64(x.rq.promptTokens))
	}
}
