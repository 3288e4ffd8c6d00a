package follow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
)

var (
	// ErrNotReady says that the follower has not caught up with the streams, or can
	// not take more prompts to tokenize: decide in another way.
	ErrNotReady = errors.New("the follower cannot decide now")
	// ErrNoReplica says that no replica of the pool can take the request.
	ErrNoReplica = errors.New("no replica can take the request")
)

// RequestError is a request that cannot be decided as it is. Its text names the
// field, as pb.RouteRequest does, and the remedy.
type RequestError struct{ Text string }

// Error implements error.
func (e *RequestError) Error() string { return e.Text }

// Request is what a decision is about. The prompt is given in one form: Keys with
// PromptTokens, TokenIDs, Text, or Chat; with PromptTokens alone, load decides.
type Request struct {
	// ID names the request in all events, and stays the same over its attempts,
	// which count from 0.
	ID      string
	Attempt uint32
	// Model may be empty where the pool serves one. LoRA is the adapter, Salt what
	// keeps a tenant's blocks apart, Session any id of the conversation.
	Model, LoRA, Salt, Session string
	// Exclude are replicas that must not be chosen.
	Exclude []string
	// Keys are those of all full blocks, PromptTokens the prompt's length.
	Keys         []uint64
	PromptTokens uint64
	TokenIDs     []uint32
	// Text and Chat need Config.Tokenizer. Chat is the JSON body of a chat
	// completion request.
	Text string
	Chat []byte
	// TokenSource says in the decision where Keys or TokenIDs came from: in_process,
	// engine or client. Default: in_process.
	TokenSource string
	// DryRun decides without counting it: nothing will be sent or published.
	DryRun bool
}

// Decision says where a request goes.
type Decision struct {
	// Replica is the one chosen, Address the base URL of its engine, and Rank its
	// data-parallel rank to name in the request where the engine has several.
	Replica string
	Address string
	Rank    *uint32
	// PromptTokens is the prompt's length, PredictedCachedTokens how much of it the
	// replica is expected to have in its cache.
	PromptTokens, PredictedCachedTokens uint64
	// Record is the decision with all that it was made from, as it is published.
	// It must not be changed.
	Record *pb.Decided

	dry bool
}

// Decide finds the replica for a request. The decision counts for the next ones at
// once, so it must be followed by Finished, or by Moved and another attempt, or
// else its load stays until its lease is over. It takes some tens of microseconds
// and does no I/O, but where an engine must tokenize a text, for which ctx is.
//
// Errors are ErrNotReady, ErrNoReplica or a *RequestError.
func (f *Follower) Decide(ctx context.Context, q Request) (*Decision, error) {
	began := time.Now()
	answer := f.router.Decide(ctx, &pb.RouteRequest{
		Pool: f.cfg.Pool, Gateway: f.cfg.Gateway, RequestId: q.ID, Attempt: q.Attempt,
		Model: q.Model, Lora: q.LoRA, Salt: q.Salt, SessionId: q.Session, Exclude: q.Exclude,
		Keys: q.Keys, PromptTokens: q.PromptTokens, TokenIds: q.TokenIDs, Prompt: q.Text, Chat: q.Chat, DryRun: q.DryRun,
	})
	d := answer.Decision
	if d == nil {
		switch answer.ErrorCode {
		case pb.RouteErrorCode_ROUTE_ERROR_CODE_NOT_READY:
			return nil, fmt.Errorf("%w: %s", ErrNotReady, answer.Error)
		case pb.RouteErrorCode_ROUTE_ERROR_CODE_NO_REPLICA:
			return nil, fmt.Errorf("%w: %s", ErrNoReplica, answer.Error)
		}
		return nil, &RequestError{answer.Error}
	}
	d.WaitUs = uint64(time.Since(began).Microseconds())
	if d.TokenSource == "" { // they were made by who asks
		d.TokenSource = cmp.Or(q.TokenSource, "in_process")
	}
	return &Decision{
		Replica: d.Chosen, Address: answer.Address, Rank: answer.DataParallelRank,
		PromptTokens: d.PromptTokens, PredictedCachedTokens: d.PredictedCachedTokens, Record: d, dry: q.DryRun,
	}, nil
}

// finished fills in whose outcome it is.
func (d *Decision) finished(outcome *pb.Finished) *pb.Finished {
	f := proto.Clone(outcome).(*pb.Finished)
	f.Pool, f.Gateway, f.RequestId, f.Attempt = d.Record.Pool, d.Record.Gateway, d.Record.RequestId, d.Record.Attempt
	f.Replica = d.Replica
	if f.FinishedAtUs == 0 {
		f.FinishedAtUs = time.Now().UnixMicro()
	}
	if f.Clock == pb.Clock_CLOCK_UNSPECIFIED {
		f.Clock = pb.Clock_CLOCK_WALL
	}
	return f
}

// publish hands an event to the publisher, if there is one.
func (f *Follower) publish(ctx context.Context, d *Decision, kind string, event proto.Message) error {
	if f.publisher == nil {
		return nil
	}
	if d.dry {
		return fmt.Errorf("%s of request %s: it was decided as a dry run; decide without DryRun what is sent", kind, d.Record.RequestId)
	}
	m, err := streams.NewMessage(streams.RouteSubject(f.cfg.Pool, f.cfg.Gateway), streams.RouteID(d.Record.RequestId, d.Record.Attempt, kind), event)
	if err != nil {
		return err
	}
	return f.publisher.Publish(ctx, m)
}
