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
	"warmpath/schemas/decided"
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
func (g *Gateway) decide(ctx context.Context, rq *request, attempt uint32, failed []string) (decided.Part, target, error) {
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
		return decided.Part{}, target{}, err
	}
	d.WaitUs = uint64(wait.Microseconds())
	d.TokenSource = rq.source
	if span.IsRecording() {
		span.SetAttributes(attribute.String("warmpath.replica", d.Chosen), attribute.Int64("warmpath.predicted_cached_tokens", int64(d.PredictedCachedTokens)),
			attribute.Int("warmpath.attempt", int(attempt)), attribute.String("warmpath.reason", d.Reason.String()), attribute.String("warmpath.fallback_cause", d.FallbackCause))
	}
	return d, to, nil
}

func (g *Gateway) decideAmong(ctx context.Context, rq *request, attempt uint32, exclude []string) (decided.Part, target, error) {
	d, to, cause := g.askRouter(ctx, rq, attempt, exclude)
	if cause == "" {
		return d, to, nil
	}
	if ctx.Err() != nil {
		return decided.Part{}, target{}, ctx.Err()
	}
	own, to, err := g.fallback(rq, attempt, exclude, cause)
	return decided.Whole(own), to, err
}

// askRouter returns the router's decision, or why there is none.
func (g *Gateway) askRouter(ctx context.Context, rq *request, attempt uint32, exclude []string) (decided.Part, target, string) {
	a, cause := g.router.ask(ctx, &pb.RouteRequest{
		Pool: g.cfg.Pool, Gateway: g.cfg.Name, RequestId: rq.id, Attempt: attempt,
		Model: rq.model, Lora: rq.lora, Salt: rq.salt, Keys: rq.keys, PromptTokens: rq.promptTokens,
		SessionId: rq.session, Exclude: exclude,
	})
	if cause != "" {
		return decided.Part{}, target{}, cause
	}
	d := a.decision
	if d.Decided == nil {
		return decided.Part{}, target{}, g.refused(rq, a.RouteResponse)
	}
	if d.RequestId != rq.id || d.Attempt != attempt || d.Chosen == "" || slices.Contains(exclude, d.Chosen) {
		g.log.Error("the router's answer does not fit the request", "request", rq.id, "attempt", attempt, "decider", d.Decider, "chosen", d.Chosen)
		return decided.Part{}, target{}, causeBadAnswer
	}
	d.Pool, d.Gateway = g.cfg.Pool, g.cfg.Name
	if len(d.Keys) == 0 {
		d.Keys = rq.keys
	}
	entry := g.view.entry(d.Chosen)
	to := target{address: a.Address}
	if to.address == "" {
		to.address = entry.GetAddress()
	}
	if to.address == "" {
		return decided.Part{}, target{}, causeBadAnswer
	}
	rank, ok, err := rankOf(d.Chosen, entry, a.DataParallelRank)
	if err != nil {
		g.log.Error("the router's answer cannot be used", "request", rq.id, "error", err)
		return decided.Part{}, target{}, causeBadAnswer
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
	message, err := streams.NewMessage(g.subject(), streams.RouteID(rq.message, attempt, kind), event)
	g.handOrLose(ctx, rq.id, kind, message, err)
}

// publishDecision is publish for a decision that may be known in part.
func (g *Gateway) publishDecision(ctx context.Context, rq *request, d decided.Part) {
	data, err := d.Append(nil)
	message := streams.Message{Subject: g.subject(), ID: streams.RouteID(rq.message, d.Attempt, kindDecided), Schema: decided.Schema, Data: data}
	g.handOrLose(ctx, rq.id, kindDecided, message, err)
}

func (g *Gateway) subject() string { return streams.RouteSubject(g.cfg.Pool, g.cfg.Name) }

// handOrLose gives a message to the publisher, unless it could not be made. request
// is the one that it is about, empty for none.
func (g *Gateway) handOrLose(ctx context.Context, request, kind string, message streams.Message, err error) {
	if err == nil {
		err = g.hand(ctx, message)
	}
	if err != nil {
		g.metrics.lost.WithLabelValues(kind).Inc()
		log := g.log
		if request != "" {
			log = log.With("request", request)
		}
		log.Error("an event could not be published and is lost", "kind", kind, "error", err)
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
