package analytics

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "warmpath/schemas/warmpathv1"
)

// epoch is where the times of the tests begin. Its bucket boundary is a second.
var epoch = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// message is an event of a stream in a test: nil is one that cannot be read.
type message struct {
	seq   uint64
	at    time.Duration
	event proto.Message
}

// pipeline is joiner and cutter with what they wrote, as ClickHouse would hold it.
type pipeline struct {
	join    JoinConfig
	cutting CutConfig
	stream  []message
	written []*batch

	joiner *joiner
	cutter *cutter
}

func newPipeline(join JoinConfig, cutting CutConfig) *pipeline {
	p := &pipeline{join: join.withDefaults(), cutting: cutting}
	p.joiner, p.cutter = newJoiner(p.join, 0, nil), newCutter(cutting)
	return p
}

// add appends a message to the stream and folds it.
func (p *pipeline) add(m message) {
	p.stream = append(p.stream, m)
	p.fold(m)
}

func (p *pipeline) fold(m message) {
	at := epoch.Add(m.at)
	var event any
	if m.event != nil {
		event = proto.Clone(m.event)
	}
	if b := p.cutter.apply(at, p.joiner.apply(nil, m.seq, at, event)); b != nil {
		p.written = append(p.written, b)
	}
}

// idle is a quiet stream at a time.
func (p *pipeline) idle(now time.Duration) {
	if p.cutter.due(epoch.Add(now), time.Second) {
		p.written = append(p.written, p.cutter.flush())
	}
}

// restart forgets everything that is not written, and reads the stream again from
// the sequence that it returns.
func (p *pipeline) restart() uint64 {
	var offset routeOffset
	var ended []closedRequest
	for _, b := range p.written {
		for _, o := range b.outcomes {
			offset.requests, offset.floor = o.seq, o.floor
		}
	}
	from := offset.from()
	for _, b := range p.written {
		for _, o := range b.outcomes {
			if o.seq >= from-min(from, p.join.Remember) {
				r := newRequestRow(o)
				ended = append(ended, closedRequest{key: keyOf(r.pool, r.requestID), seq: o.seq})
			}
		}
	}
	p.joiner, p.cutter = newJoiner(p.join, offset.requests, ended), newCutter(p.cutting)
	for _, m := range p.stream {
		if m.seq >= from {
			p.fold(m)
		}
	}
	return from
}

// String lists the batches written, a line for each row.
func (p *pipeline) String() string { return describe(p.written) }

func describe(batches []*batch) string {
	var s strings.Builder
	for _, b := range batches {
		fmt.Fprintf(&s, "batch %s candidates=%d\n", token("ROUTE", b.first(), b.last()), b.candidates)
		for _, o := range b.outcomes {
			r := newRequestRow(o)
			fmt.Fprintf(&s, "  %d %s %s attempts=%d moves=%d decided=%d floor=%d\n",
				o.seq, r.requestID, r.status, len(o.decisions), o.moves, r.last.seq, o.floor)
		}
	}
	return s.String()
}

func decidedEvent(id string, attempt uint32, candidates int) *pb.Decided {
	d := &pb.Decided{
		Pool: "chat", Gateway: "gw", RequestId: id, Attempt: attempt, Model: "m",
		DecidedAtUs: epoch.UnixMicro(), Decider: "router-0", BlockTokens: 16, PromptTokens: 100,
		Keys: []uint64{1, 2, 3}, Chosen: "r0", FirstChoice: "r0", KvSeq: 7,
		Reason: pb.DecisionReason_DECISION_REASON_SCORE, Policy: &pb.PolicyRef{Name: "ttft", Version: 1},
	}
	for i := range candidates {
		d.Candidates = append(d.Candidates, &pb.Candidate{Replica: fmt.Sprintf("r%d", i), GpuBlocks: uint32(i), Score: float64(i)})
	}
	return d
}

func finishedEvent(id string, attempt uint32) *pb.Finished {
	return &pb.Finished{
		Pool: "chat", Gateway: "gw", RequestId: id, Attempt: attempt, Replica: "r0",
		FinishedAtUs: epoch.UnixMicro(), Status: pb.Status_STATUS_OK, HttpStatus: 200,
		PromptTokens: proto.Uint64(100), CompletionTokens: proto.Uint64(10), CachedTokens: proto.Uint64(48),
		Clock: pb.Clock_CLOCK_MODEL, TtftUs: proto.Uint64(1000), TpotUs: proto.Uint64(100), E2EUs: 2000,
	}
}

func movedEvent(id string, attempt uint32) *pb.Moved {
	return &pb.Moved{Pool: "chat", Gateway: "gw", RequestId: id, Attempt: attempt, From: "r0", Cause: "dial"}
}

func checkEqual(t testing.TB, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s differs\n--- got\n%s\n--- want\n%s", what, got, want)
	}
}
