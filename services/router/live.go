package router

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"

	"warmpath/schemas/decided"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
)

// attemptID names one attempt of one request.
func attemptID(requestID string, attempt uint32) string {
	return requestID + "/" + strconv.FormatUint(uint64(attempt), 10)
}

// runLoad follows the pool's load reports.
func (r *Router) runLoad(ctx context.Context) error {
	first, err := r.expect(ctx, partLoad, streams.LoadStream, "load."+r.cfg.Pool+".>")
	if err != nil {
		return err
	}
	defer first.stop()
	return streams.FollowLoad(ctx, r.nc, r.js, r.cfg.Pool, func(report *pb.LoadReport) {
		now := r.now()
		if used := report.KvUsed; used != nil && !(*used >= 0 && *used <= 1) { // NaN too
			r.metrics.reportsInvalid.Inc()
			report.KvUsed = nil
		}
		r.decide.Lock()
		r.decide.ledger.ApplyReport(report, now)
		r.decide.Unlock()
		r.metrics.reports.Inc()
		first.heard(report.Replica)
	})
}

// tail is where the history of ROUTE is read from, and its last message of this pool.
type tail struct{ from, end uint64 }

// runLive follows what gateways publish: first the tail of ROUTE, to know what is
// in flight, then live.
func (r *Router) runLive(ctx context.Context) error {
	// Whose cache is predicted from its requests, the fleet says.
	select {
	case <-ctx.Done():
		return nil
	case <-r.missing.one(partFleet):
	}
	t, err := atStart(ctx, r, "tail of "+streams.RouteStream, r.routeTail)
	if err != nil {
		return err
	}
	if t.end < t.from {
		r.missing.caughtUp(partRoute)
	}
	return streams.FollowLive(ctx, r.nc, r.js, r.cfg.Pool, t.from, func(e streams.Event) error {
		r.liveEvent(e)
		if e.Seq >= t.end {
			r.missing.caughtUp(partRoute)
		}
		return nil
	})
}

func (r *Router) routeTail(ctx context.Context) (tail, error) {
	from, err := streams.TailStart(ctx, r.js, streams.RouteStream, r.cfg.RouteTail)
	if err != nil {
		return tail{}, err
	}
	end, err := r.lastRoute(ctx)
	return tail{from, end}, err
}

// lastRoute asks for the sequence of the pool's newest message in ROUTE, 0 when
// there is none. The question is a direct get in the form that the router's role
// may ask: with the subject in the payload.
func (r *Router) lastRoute(ctx context.Context) (uint64, error) {
	question := fmt.Sprintf(`{"last_by_subj":%q}`, streams.RouteSubject(r.cfg.Pool, "*"))
	answer, err := r.nc.RequestWithContext(ctx, "$JS.API.DIRECT.GET."+streams.RouteStream, []byte(question))
	if err != nil {
		return 0, err
	}
	switch status := answer.Header.Get("Status"); status {
	case "":
		return strconv.ParseUint(answer.Header.Get("Nats-Sequence"), 10, 64)
	case "404":
		return 0, nil
	default:
		return 0, fmt.Errorf("direct get answered %s %s", status, answer.Header.Get("Description"))
	}
}

// liveEvent takes one message of ROUTE.
func (r *Router) liveEvent(e streams.Event) {
	if e.Schema == decided.Schema && r.confirm(e.Data) {
		r.metrics.routeEvents.WithLabelValues("decided").Inc()
		return
	}
	message, err := streams.DecodeChoice(e.Schema, e.Data)
	if err != nil {
		r.metrics.routeEvents.WithLabelValues("invalid").Inc()
		slog.Warn("a route message cannot be used", "router", r.cfg.Name, "subject", e.Subject, "seq", e.Seq, "error", err)
		return
	}
	switch m := message.(type) {
	case *pb.Decided:
		r.metrics.routeEvents.WithLabelValues("decided").Inc()
		r.liveDecided(m, min(r.now(), e.Time.UnixMicro()))
	case *pb.Moved:
		r.metrics.routeEvents.WithLabelValues("moved").Inc()
		r.liveMoved(m)
	case *pb.Finished:
		r.metrics.routeEvents.WithLabelValues("finished").Inc()
		r.liveFinished(m)
	default:
		r.metrics.routeEvents.WithLabelValues("unknown").Inc()
	}
}

// confirm says whether a decision is this router's own, as it was answered: it is
// counted already, and there is no need to read the rest of it.
func (r *Router) confirm(data []byte) bool {
	request, attempt, chosen, err := decided.Attempt(data)
	if err != nil {
		return false
	}
	id := attemptID(request, attempt)
	r.decide.Lock()
	defer r.decide.Unlock()
	if r.decide.own.chosen[id].replica != chosen || chosen == "" {
		return false
	}
	r.decide.own.take(id)
	return true
}

// liveDecided counts a decision from its own time on, so that one of the history
// does not get a new lease. A router's own decision is counted already, unless
// the gateway did something else: it fell back before the answer came.
func (r *Router) liveDecided(d *pb.Decided, at int64) {
	id := attemptID(d.RequestId, d.Attempt)
	r.decide.Lock()
	defer r.decide.Unlock()
	if chosen, ok := r.decide.own.take(id); ok {
		if chosen == d.Chosen {
			return
		}
		r.metrics.overruled.Inc()
		r.decide.ledger.ApplyMoved(&pb.Moved{Pool: d.Pool, RequestId: d.RequestId, Attempt: d.Attempt, From: chosen})
		r.predictions.Drop(id)
	}
	r.decide.ledger.ApplyDecided(d, at)
	r.predictions.Add(id, d.Chosen, created(d), at)
	r.noteSent(id, d, at)
}

func (r *Router) liveMoved(m *pb.Moved) {
	r.decide.Lock()
	r.decide.own.take(attemptID(m.RequestId, m.Attempt))
	r.decide.Unlock()
	r.Moved(m)
}

// Moved ends an attempt that was given up: for whoever decides in this process,
// and knows before it comes back on live.route. Applying it again, when it does,
// changes nothing. Safe for concurrent use.
func (r *Router) Moved(m *pb.Moved) {
	id := attemptID(m.RequestId, m.Attempt)
	r.decide.Lock()
	defer r.decide.Unlock()
	r.decide.ledger.ApplyMoved(m)
	r.predictions.Drop(id)
	delete(r.decide.sent, id)
}

func (r *Router) liveFinished(f *pb.Finished) {
	r.decide.Lock()
	r.decide.own.take(attemptID(f.RequestId, f.Attempt))
	r.decide.Unlock()
	r.Finished(f)
}

// Finished ends a request. The blocks it made are in the replica's events by now,
// so the prediction goes; of a replica without events they are learned. It is
// called as Moved is.
func (r *Router) Finished(f *pb.Finished) {
	id := attemptID(f.RequestId, f.Attempt)
	exact := r.publishesKV(f.Replica)
	r.decide.Lock()
	defer r.decide.Unlock()
	r.decide.ledger.ApplyFinished(f)
	learned := r.learn(id, f)
	if exact || learned || f.Status != pb.Status_STATUS_OK {
		r.predictions.Drop(id)
	}
}
