package zmq

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/go-zeromq/zmq4"
)

const (
	// An engine looks at its replay socket between two batches, or every 0.1 s
	// when idle.
	defaultReplayQuiet = 5 * time.Second
	// An engine keeps 10,000 batches by default: some 60 MB.
	defaultReplayTotal = 60 * time.Second
)

// ErrNoAnswer is what a replay ends with when its endpoint is silent, or cannot
// be connected to.
var ErrNoAnswer = errors.New("replay endpoint does not answer")

// Replaying says what to ask of an engine's replay socket.
type Replaying struct {
	Endpoint string
	// From is the first sequence wanted.
	From uint64
	// Quiet bounds the wait for an answer to begin, a fifth of it that for each
	// further reply, and Total the whole; 0 means 5 s and 60 s.
	Quiet, Total time.Duration
	// MaxFrame bounds a reply in bytes; 0 means 16 MiB.
	MaxFrame int
}

// Replayed is what a replay brought.
type Replayed struct {
	// First and Last are the sequences of the first and last frame; both 0 when
	// Count is 0. A First above the one asked for means that the engine does not
	// have the older ones any more.
	First, Last uint64
	// Count is the number of frames handed over.
	Count uint64
	// Missing is how many sequences between First and Last the engine does not
	// have: asked for again, its answer began above them.
	Missing uint64
	// Asked is the number of requests: more than one when replies were dropped.
	Asked int
	// Complete tells that the end marker came: the engine had no more.
	Complete bool
	// Stray counts the replies that were no part of the answer: of another shape,
	// below what was asked, or not above the one before.
	Stray uint64
}

// Replay asks an engine's replay socket for the batches from a sequence on. See
// Replaying.Do.
func Replay(ctx context.Context, endpoint string, from uint64, handle func(Frame) error) (Replayed, error) {
	return Replaying{Endpoint: endpoint, From: from}.Do(ctx, handle)
}

// Do asks, and hands over the answer's frames in ascending order. A ROUTER drops
// replies that its peer is slow to take (libzmq: past 1,000 waiting, in the
// middle, the end marker too), so where a reply is missing the rest is asked for
// again, on a new connection. Do returns what came also beside an error:
// ErrNoAnswer, ctx's, handle's own (which ends the replay), or the connection's.
// handle is called on the calling goroutine, and its time does not count as the
// engine's silence.
func (r Replaying) Do(ctx context.Context, handle func(Frame) error) (Replayed, error) {
	var got Replayed
	at, err := parseEndpoint(r.Endpoint)
	if err == nil {
		err = at.dialable()
	}
	if err != nil {
		return got, err
	}
	if r.MaxFrame <= 0 {
		r.MaxFrame = defaultMaxFrame
	}
	if r.Quiet <= 0 {
		r.Quiet = defaultReplayQuiet
	}
	if r.Total <= 0 {
		r.Total = defaultReplayTotal
	}
	whole, cancel := context.WithTimeout(ctx, r.Total)
	defer cancel()
	err = r.run(whole, at, &got, handle)
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case err != nil && whole.Err() != nil:
		err = fmt.Errorf("replay from %s took longer than %v", at, r.Total)
	}
	return got, err
}

// errDropped ends an answer of which a reply or the end is missing.
var errDropped = errors.New("replies were dropped")

func (r Replaying) run(ctx context.Context, at endpoint, got *Replayed, handle func(Frame) error) error {
	for {
		had := got.Count
		if had > 0 {
			r.From = got.Last + 1
		}
		err := r.ask(ctx, at, got, handle)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ErrNoAnswer) && got.Count > had: // the end was dropped
		case !errors.Is(err, errDropped):
			return err
		}
	}
}

// ask sends one request and takes its answer.
func (r Replaying) ask(ctx context.Context, at endpoint, got *Replayed, handle func(Frame) error) error {
	got.Asked++
	connecting, cancel := context.WithTimeout(ctx, r.Quiet)
	conn, err := at.dial(connecting)
	cancel()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoAnswer, err)
	}
	l, err := open(ctx, conn, zmq4.Dealer, false, r.MaxFrame, r.Quiet)
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrNoAnswer, at, err)
	}
	defer l.close()
	// A ROUTER sees the peer's identity before these parts and answers only this
	// shape; it is a DEALER that must ask, since a REQ reads one reply only.
	if err := l.write(nil, binary.BigEndian.AppendUint64(nil, r.From)); err != nil {
		return err
	}
	if err := l.flush(); err != nil {
		return err
	}
	for had := got.Count; !got.Complete; {
		wait := r.Quiet
		if got.Count > had {
			wait /= 5 // an answer that began goes on, unless its end was dropped
		}
		if err := l.wire.SetReadDeadline(time.Now().Add(wait)); err != nil {
			return err
		}
		parts, err := l.receive()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("%w: %s said nothing for %v after %d batches", ErrNoAnswer, at, wait, got.Count)
		}
		if err != nil {
			return fmt.Errorf("replay from %s after %d batches: %w", at, got.Count, err)
		}
		if err := r.take(parts, got, got.Count == had, handle); err != nil {
			return err
		}
	}
	return nil
}

// take reads one reply; first says that it would be the answer's first frame.
// There are two framings, both behind an empty part: [seq, payload] (vLLM before
// 0.26, SGLang) and [topic, seq, payload].
func (r Replaying) take(parts [][]byte, got *Replayed, first bool, handle func(Frame) error) error {
	if len(parts) > 2 && len(parts[0]) == 0 {
		parts = parts[1:]
	}
	var topic []byte
	if len(parts) == 3 {
		topic, parts = parts[0], parts[1:]
	}
	if len(parts) != 2 || len(parts[0]) != seqBytes {
		got.Stray++
		return nil
	}
	seq, payload := binary.BigEndian.Uint64(parts[0]), parts[1]
	switch {
	case seq == endSequence && len(payload) == 0:
		got.Complete = true
		return nil
	case seq < r.From || got.Count > 0 && seq <= got.Last:
		got.Stray++
		return nil
	case !first && seq != got.Last+1:
		return errDropped
	case got.Count == 0:
		got.First = seq
	default: // beginning above what was asked, or going on
		got.Missing += seq - got.Last - 1
	}
	got.Last = seq
	got.Count++
	return handle(Frame{Topic: topic, Seq: seq, Payload: payload, AtUS: time.Now().UnixMicro()})
}
