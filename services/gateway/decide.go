package gateway

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/zeebo/xxh3"
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

// decide finds the replica of one attempt: from the router, or when that is not
// heard, by itself. The error is policy.ErrNoReplica when there is none.
func (g *Gateway) decide(ctx context.Context, rq *request, attempt uint32, exclude []string) (*pb.Decided, string, error) {
	start := time.Now()
	d, address, cause := g.askRouter(ctx, rq, attempt, exclude)
	var err error
	if cause != "" {
		if ctx.Err() != nil {
			return nil, "", ctx.Err()
		}
		d, address, err = g.fallback(rq, attempt, exclude, cause)
	}
	wait := time.Since(start)
	g.metrics.routeWait.Observe(wait.Seconds())
	if err != nil {
		return nil, "", err
	}
	d.WaitUs = uint64(wait.Microseconds())
	return d, address, nil
}

// askRouter returns the router's decision, or why there is none.
func (g *Gateway) askRouter(ctx context.Context, rq *request, attempt uint32, exclude []string) (*pb.Decided, string, string) {
	if !rq.keyed {
		return nil, "", causeNoTokenIDs
	}
	answer, cause := g.router.ask(ctx, &pb.RouteRequest{
		Pool: g.cfg.Pool, Gateway: g.cfg.Name, RequestId: rq.id, Attempt: attempt,
		Model: rq.model, Lora: rq.lora, Keys: rq.keys, PromptTokens: rq.promptTokens,
		SessionId: rq.session, Exclude: exclude,
	})
	if cause != "" {
		return nil, "", cause
	}
	d := answer.Decision
	if d == nil {
		return nil, "", g.refused(rq, answer)
	}
	if d.RequestId != rq.id || d.Attempt != attempt || d.Chosen == "" || slices.Contains(exclude, d.Chosen) {
		g.log.Error("the router's answer does not fit the request", "request", rq.id, "attempt", attempt, "decider", d.Decider, "chosen", d.Chosen)
		return nil, "", causeBadAnswer
	}
	d.Pool, d.Gateway = g.cfg.Pool, g.cfg.Name
	if len(d.Keys) == 0 {
		d.Keys = rq.keys
	}
	address := answer.Address
	if address == "" {
		address = g.view.address(d.Chosen)
	}
	if address == "" {
		return nil, "", causeBadAnswer
	}
	return d, address, ""
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
func (g *Gateway) fallback(rq *request, attempt uint32, exclude []string, cause string) (*pb.Decided, string, error) {
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
			return nil, "", err
		}
		return nil, "", fmt.Errorf("decide without the router (%s): %w", cause, err)
	}
	d.DecideUs = uint64(time.Since(start).Microseconds())
	g.metrics.fallbacks.WithLabelValues(cause).Inc()
	return d, g.view.address(d.Chosen), nil
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
func (g *Gateway) publish(ctx context.Context, requestID string, attempt uint32, kind string, event proto.Message) {
	message, err := streams.NewMessage(streams.RouteSubject(g.cfg.Pool, g.cfg.Name), streams.RouteID(requestID, attempt, kind), event)
	if err == nil {
		wait := publishWait
		if g.blocked.Load() {
			wait = time.Millisecond // others have waited already
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(detached(ctx), wait)
		defer cancel()
		err = g.publisher.Publish(ctx, message)
		g.blocked.Store(err != nil)
	}
	if err != nil {
		g.metrics.lost.WithLabelValues(kind).Inc()
		g.log.Error("an event could not be published and is lost", "request", requestID, "kind", kind, "error", err)
	}
}
