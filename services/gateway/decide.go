package gateway

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/zeebo/xxh3"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	"warmpath/routing/policy"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
)

// publishWait bounds how long a request waits for room in the publisher. Serving
// goes before recording: what does not fit is counted as lost.
const publishWait = time.Second

// Kinds of events, as message ids carry them.
const (
	kindDecided  = "decided"
	kindMoved    = "moved"
	kindFinished = "finished"
)

// target is where an attempt goes.
type target struct {
	address string
	rank    *uint32 // data-parallel rank to name; nil for none
}

// decide finds the replica of one attempt: from the router, or when that is not
// heard, by itself. Those that failed are not tried again, and those that fail
// others are not while another is left. The error is policy.ErrNoReplica when
// there is none.
func (g *Gateway) decide(ctx context.Context, rq *request, attempt uint32, failed []string) (*pb.Decided, target, error) {
	ctx, span := g.tracer.start(ctx, spanRoute, trace.SpanKindClient)
	defer span.End()
	start := time.Now()
	exclude := g.view.unfit(rq.lora, failed, g.health.skipped(start))
	d, to, err := g.decideAmong(ctx, rq, attempt, exclude)
	if errors.Is(err, policy.ErrNoReplica) && len(exclude) > len(failed) {
		d, to, err = g.decideAmong(ctx, rq, attempt, failed) // a bad replica is better than none
	}
	wait := time.Since(start)
	g.metrics.routeWait.Observe(wait.Seconds())
	if err != nil {
		fail(span, "no decision")
		return nil, target{}, err
	}
	d.WaitUs = uint64(wait.Microseconds())
	d.TokenSource = rq.source
	if span.IsRecording() {
		span.SetAttributes(attribute.String("warmpath.replica", d.Chosen), attribute.Int64("warmpath.predicted_cached_tokens", int64(d.PredictedCachedTokens)),
			attribute.Int("warmpath.attempt", int(attempt)), attribute.String("warmpath.reason", d.Reason.String()), attribute.String("warmpath.fallback_cause", d.FallbackCause))
	}
	return d, to, nil
}

func (g *Gateway) decideAmong(ctx context.Context, rq *request, attempt uint32, exclude []string) (*pb.Decided, target, error) {
	d, to, cause := g.askRouter(ctx, rq, attempt, exclude)
	if cause == "" {
		return d, to, nil
	}
	if ctx.Err() != nil {
		return nil, target{}, ctx.Err()
	}
	return g.fallback(rq, attempt, exclude, cause)
}

// askRouter returns the router's decision, or why there is none.
func (g *Gateway) askRouter(ctx context.Context, rq *request, attempt uint32, exclude []string) (*pb.Decided, target, string) {
	answer, cause := g.router.ask(ctx, &pb.RouteRequest{
		Pool: g.cfg.Pool, Gateway: g.cfg.Name, RequestId: rq.id, Attempt: attempt,
		Model: rq.model, Lora: rq.lora, Salt: rq.salt, Keys: rq.keys, PromptTokens: rq.promptTokens,
		SessionId: rq.session, Exclude: exclude,
	})
	if cause != "" {
		return nil, target{}, cause
	}
	d := answer.Decision
	if d == nil {
		return nil, target{}, g.refused(rq, answer)
	}
	if d.RequestId != rq.id || d.Attempt != attempt || d.Chosen == "" || slices.Contains(exclude, d.Chosen) {
		g.log.Error("the router's answer does not fit the request", "request", rq.id, "attempt", attempt, "decider", d.Decider, "chosen", d.Chosen)
		return nil, target{}, causeBadAnswer
	}
	d.Pool, d.Gateway = g.cfg.Pool, g.cfg.Name
	if len(d.Keys) == 0 {
		d.Keys = rq.keys
	}
	entry := g.view.entry(d.Chosen)
	to := target{address: answer.Address}
	if to.address == "" {
		to.address = entry.GetAddress()
	}
	if to.address == "" {
		return nil, target{}, causeBadAnswer
	}
	rank, ok, err := rankOf(d.Chosen, entry, answer.DataParallelRank)
	if err != nil {
		g.log.Error("the router's answer cannot be used", "request", rq.id, "error", err)
		return nil, target{}, causeBadAnswer
	}
	if ok {
		to.rank = &rank
	}
	return d, to, ""
}

// refused turns a router's error into a cause.
func (g *Gateway) refused(rq *request, answer *pb.RouteResponse) string {
	switch answer.ErrorCode {
	case pb.RouteErrorCode_ROUTE_ERROR_CODE_NOT_READY:
		return causeNotReady
	case pb.RouteErrorCode_ROUTE_ERROR_CODE_NO_REPLICA:
		return causeNoReplica
	case pb.RouteErrorCode_ROUTE_ERROR_CODE_INVALID:
		g.log.Error("the router refused a request", "request", rq.id, "error", answer.Error)
		return causeInvalid
	default:
		g.log.Error("the router could not decide", "request", rq.id, "code", answer.ErrorCode, "error", answer.Error)
		return causeFailed
	}
}

// fallback decides without the router.
func (g *Gateway) fallback(rq *request, attempt uint32, exclude []string, cause string) (*pb.Decided, target, error) {
	start := time.Now()
	d := &pb.Decided{
		Pool: g.cfg.Pool, Gateway: g.cfg.Name, RequestId: rq.id, Attempt: attempt,
		DecidedAtUs: start.UnixMicro(), Decider: g.cfg.Name, Model: rq.model, Lora: rq.lora,
		BlockTokens: rq.blockTokens, PromptTokens: rq.promptTokens, Keys: g.publishable(rq.keys),
		SessionKey: rq.sessionKey(), Seed: seed(rq.id, attempt),
	}
	g.view.candidates(d, exclude)
	if err := policy.Fallback(d, cause); err != nil {
		if errors.Is(err, policy.ErrNoReplica) {
			return nil, target{}, err
		}
		return nil, target{}, fmt.Errorf("decide without the router (%s): %w", cause, err)
	}
	d.DecideUs = uint64(time.Since(start).Microseconds())
	g.metrics.fallbacks.WithLabelValues(cause).Inc()
	entry := g.view.entry(d.Chosen)
	rank, ok, err := rankOf(d.Chosen, entry, nil)
	if err != nil {
		return nil, target{}, fmt.Errorf("decide without the router (%s): %w", cause, err)
	}
	to := target{address: entry.GetAddress()}
	if ok {
		to.rank = &rank
	}
	return d, to, nil
}

// publishable cuts the keys of a prompt that is too long for one message. The
// decision is then made by those that are left, so that it can be recomputed.
func (g *Gateway) publishable(keys []uint64) []uint64 {
	limit := g.nc.MaxPayload()
	if limit <= 0 {
		limit = 1 << 20 // the server's default; not connected yet
	}
	return keys[:min(len(keys), int(max(0, limit-payloadMargin)/8))]
}

// seed is a decision's own randomness, recorded in it.
func seed(requestID string, attempt uint32) uint64 {
	return xxh3.Hash(binary.LittleEndian.AppendUint32([]byte(requestID), attempt))
}

// publish hands an event to the publisher. It never fails a request: an event
// that the publisher has no room for is counted and logged as lost.
func (g *Gateway) publish(ctx context.Context, rq *request, attempt uint32, kind string, event proto.Message) {
	message, err := streams.NewMessage(streams.RouteSubject(g.cfg.Pool, g.cfg.Name), streams.RouteID(rq.message, attempt, kind), event)
	if err == nil {
		err = g.hand(ctx, message)
	}
	if err != nil {
		g.metrics.lost.WithLabelValues(kind).Inc()
		g.log.Error("an event could not be published and is lost", "request", rq.id, "kind", kind, "error", err)
	}
}

// hand gives a message to the publisher, waiting a little for room.
func (g *Gateway) hand(ctx context.Context, m streams.Message) error {
	wait := publishWait
	if g.blocked.Load() {
		wait = time.Millisecond // others have waited already
	}
	// What must be recorded outlives the client.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wait)
	defer cancel()
	err := g.publisher.Publish(ctx, m)
	g.blocked.Store(err != nil)
	return err
}
