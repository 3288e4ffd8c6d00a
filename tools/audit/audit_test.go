package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"warmpath/routing/policy"
	"warmpath/routing/prefix"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
	"warmpath/streams/eventjson"
	"warmpath/streams/source"
	"warmpath/streams/streamstest"
)

const pool = "demo"

// recording is a short history, made as engines, routers and gateways make it.
type recording struct {
	t      *testing.T
	kv     []*pb.KVBatch
	events []proto.Message
	index  *prefix.Index
}

func epoch(replica int) []byte { return append(make([]byte, 15), byte(replica+1)) }

func name(replica int) string { return fmt.Sprintf("engine-%d", replica) }

func (r *recording) store(replica int, seq uint64, keys ...uint64) {
	r.apply(replica, seq, &pb.KVEvent{Event: &pb.KVEvent_Store{Store: &pb.KVStore{Tier: pb.Tier_TIER_GPU, Keys: keys}}})
}

func (r *recording) remove(replica int, seq uint64, keys ...uint64) {
	r.apply(replica, seq, &pb.KVEvent{Event: &pb.KVEvent_Remove{Remove: &pb.KVRemove{Tier: pb.Tier_TIER_GPU, Keys: keys}}})
}

func (r *recording) apply(replica int, seq uint64, events ...*pb.KVEvent) {
	r.t.Helper()
	batch := &pb.KVBatch{Pool: pool, Replica: name(replica), Epoch: epoch(replica), Seq: seq, BlockTokens: 16, Events: events}
	r.kv = append(r.kv, batch)
	b, err := prefix.FromProto(batch, uint64(len(r.kv)))
	if err != nil {
		r.t.Fatal(err)
	}
	r.index.Apply(b)
}

func (r *recording) decide(id string, attempt uint32, keys ...uint64) *pb.Decided {
	r.t.Helper()
	ref, err := policy.Ref("ttft", nil)
	if err != nil {
		r.t.Fatal(err)
	}
	matches, position := r.index.Match(nil, keys, nil)
	d := &pb.Decided{Pool: pool, Gateway: "gw", RequestId: id, Attempt: attempt, BlockTokens: 16, PromptTokens: uint64(len(keys)*16 + 3),
		Keys: keys, Policy: ref, Seed: 42, KvSeq: position}
	for i := range 3 {
		c := &pb.Candidate{Replica: name(i), Epoch: epoch(i), Load: &pb.LoadTerms{}, PrefillTokensPerSecond: 10000}
		for _, m := range matches {
			if m.Replica == c.Replica {
				c.GpuBlocks, c.TotalBlocks, c.PredictedBlocks, c.Suspect = uint32(m.GPU), uint32(m.Total), uint32(m.Predicted), m.Suspect
				if m.Tiers[prefix.GPU] > 0 {
					c.Tiers = []*pb.TierBlocks{{Tier: pb.Tier_TIER_GPU, Blocks: uint32(m.Tiers[prefix.GPU])}}
				}
			}
		}
		d.Candidates = append(d.Candidates, c)
	}
	if err := policy.Decide(d); err != nil {
		r.t.Fatal(err)
	}
	r.events = append(r.events, d)
	return d
}

func (r *recording) fallback(id string, keys ...uint64) {
	r.t.Helper()
	d := &pb.Decided{Pool: pool, Gateway: "gw", RequestId: id, BlockTokens: 16, PromptTokens: uint64(len(keys) * 16), Keys: keys, Seed: 1}
	for i := range 3 {
		d.Candidates = append(d.Candidates, &pb.Candidate{Replica: name(i), Load: &pb.LoadTerms{}})
	}
	if err := policy.Fallback(d, "no_responders"); err != nil {
		r.t.Fatal(err)
	}
	r.events = append(r.events, d)
}

func (r *recording) finish(id string, attempt uint32) {
	r.events = append(r.events, &pb.Finished{Pool: pool, Gateway: "gw", RequestId: id, Attempt: attempt, Status: pb.Status_STATUS_OK, Replica: r.chosenBy(id, attempt)})
}

// chosenBy is what the last decision of an attempt chose; "" without one.
func (r *recording) chosenBy(id string, attempt uint32) (chosen string) {
	for _, e := range r.events {
		if d, ok := e.(*pb.Decided); ok && d.RequestId == id && d.Attempt == attempt {
			chosen = d.Chosen
		}
	}
	return chosen
}

// record makes a history with everything in it: hits, evictions, a move, a
// fallback, and a hole in one replica's batches.
func record(t *testing.T) *recording {
	r := &recording{t: t, index: prefix.New()}
	r.store(0, 1, 1, 2, 3)
	r.store(1, 1, 1)
	r.decide("a", 0, 1, 2, 3, 4)
	r.finish("a", 0)
	r.remove(0, 2, 3)
	r.store(1, 2, 2, 3, 4)
	r.decide("b", 0, 1, 2, 3, 4)
	r.events = append(r.events, &pb.Moved{Pool: pool, Gateway: "gw", RequestId: "b", From: r.decision(1).Chosen, Cause: "dial"})
	r.decide("b", 1, 1, 2, 3, 4)
	r.finish("b", 1)
	r.fallback("c", 7, 8)
	r.finish("c", 0)
	r.store(2, 5, 7) // batches 1 to 4 are missing: suspect
	r.decide("d", 0, 7, 8)
	return r
}

// publish puts the history into a real server's streams.
func (r *recording) publish(js jetstream.JetStream) {
	r.t.Helper()
	ctx := context.Background()
	if _, err := (streams.Topology{Pools: []string{pool}, Replicas: 1}).Apply(ctx, js); err != nil {
		r.t.Fatal(err)
	}
	publisher := streams.NewPublisher(js, streams.PublisherConfig{})
	defer publisher.Close()
	send := func(subject, id string, m proto.Message) {
		message, err := streams.NewMessage(subject, id, m)
		if err != nil {
			r.t.Fatal(err)
		}
		if err := publisher.Publish(ctx, message); err != nil {
			r.t.Fatal(err)
		}
	}
	for _, b := range r.kv {
		send(streams.KVSubject(pool, b.Replica), streams.KVID(b.Replica, b.Epoch, b.Seq), b)
	}
	for i, e := range r.events {
		send(streams.RouteSubject(pool, "gw"), fmt.Sprint(i), e)
	}
	if err := publisher.Flush(ctx); err != nil {
		r.t.Fatal(err)
	}
}

// audit runs the command on a server that holds the history.
func (r *recording) audit(change func(*Command)) (*Result, error) {
	r.t.Helper()
	server := streamstest.Start(r.t)
	_, js := streamstest.Connect(r.t, server.URL(""))
	r.publish(js)
	command := &Command{Flags: source.Flags{Connection: streams.Connection{NATS: server.URL("")}}, RouteStream: streams.RouteStream, JSON: true}
	if change != nil {
		change(command)
	}
	var out bytes.Buffer
	err := command.run(context.Background(), &out)
	result := new(Result)
	if out.Len() > 0 {
		if err := json.Unmarshal(out.Bytes(), result); err != nil {
			r.t.Fatal(err)
		}
	}
	return result, err
}

func TestEveryDecisionIsDerivedAgain(t *testing.T) {
	result, err := record(t).audit(nil)
	if err != nil {
		t.Fatalf("%v: %v", err, result.Differences)
	}
	if result.Decisions != 5 || result.Recomputed != 5 || result.Fallbacks != 1 || result.MatchesChecked != 12 ||
		result.Moved != 1 || result.Finished != 3 || result.Open != 1 || result.Undigested != 0 {
		t.Errorf("counts are wrong: %+v", result)
	}
}

// A decision about a prompt whose tokens nobody knew has no keys and a length that
// was estimated; events that are no part of a request are passed over.
func TestDecisionsWithoutKeys(t *testing.T) {
	r := record(t)
	d := r.decide("e", 0)
	d.PromptTokens, d.TokenSource = 500, "none"
	if err := policy.Decide(d); err != nil {
		t.Fatal(err)
	}
	r.events = append(r.events, &pb.Mismatch{Pool: pool, Gateway: "gw", Cause: "template"})
	result, err := r.audit(nil)
	if err != nil {
		t.Fatalf("%v: %v", err, result.Differences)
	}
	if result.Decisions != 6 || result.Recomputed != 6 {
		t.Errorf("counts are wrong: %+v", result)
	}
	// Keys that are missing without that reason are a difference.
	d.TokenSource = "in_process"
	if result, err = r.audit(nil); err == nil || len(result.Differences) != 1 || result.Differences[0].Field != "keys" {
		t.Errorf("%v: %+v", err, result.Differences)
	}
}

// decision returns the n-th recorded decision.
func (r *recording) decision(n int) *pb.Decided {
	for _, e := range r.events {
		if d, ok := e.(*pb.Decided); ok {
			if n == 0 {
				return d
			}
			n--
		}
	}
	r.t.Fatal("no such decision")
	return nil
}

// outcome returns the first recorded outcome.
func (r *recording) outcome() *pb.Finished {
	for _, e := range r.events {
		if f, ok := e.(*pb.Finished); ok {
			return f
		}
	}
	r.t.Fatal("no outcome")
	return nil
}

// What is changed here is published as if it had been so from the start, digest
// and all: only the recomputation can find it.
func TestForgedDecisionsAreFound(t *testing.T) {
	for field, forge := range map[string]func(*recording){
		"chosen":                  func(r *recording) { r.decision(0).Chosen = "engine-2" },
		"first_choice":            func(r *recording) { r.decision(0).FirstChoice = "engine-2" },
		"reason":                  func(r *recording) { r.decision(0).Reason = pb.DecisionReason_DECISION_REASON_EXPLORE },
		"predicted_cached_tokens": func(r *recording) { r.decision(0).PredictedCachedTokens++ },
		"candidate engine-0":      func(r *recording) { r.decision(0).Candidates[0].Score -= 1e-9 },
		"match of engine-1":       func(r *recording) { r.decision(0).Candidates[1].GpuBlocks++ },
		"match of engine-0":       func(r *recording) { r.decision(1).KvSeq = 2 },
		"match of engine-2":       func(r *recording) { r.decision(4).Candidates[2].Suspect = false },
		"kv_seq":                  func(r *recording) { r.decision(0).KvSeq = 1000 },
		"keys":                    func(r *recording) { r.decision(0).Keys = r.decision(0).Keys[:2] },
		"outcome":                 func(r *recording) { r.finish("a", 0) },
		"decision":                func(r *recording) { r.finish("never-decided", 0) },
		"replica":                 func(r *recording) { r.outcome().Replica = "engine-9" },
		"choice":                  func(r *recording) { r.decision(0).Policy.Name = "unheard_of" },
	} {
		t.Run(field, func(t *testing.T) {
			r := record(t)
			forge(r)
			result, err := r.audit(nil)
			if err == nil {
				t.Fatal("the audit passed")
			}
			for _, d := range result.Differences {
				if d.Field == field {
					return
				}
			}
			t.Errorf("no difference in %q among %v", field, result.Differences)
		})
	}
}

func TestEditedFileIsFound(t *testing.T) {
	r := record(t)
	path := filepath.Join(t.TempDir(), "route.jsonl")
	first := regexp.MustCompile(`^.*\n`)
	for name, edit := range map[string]func(string) string{
		"":                 func(text string) string { return text },
		"seed":             func(text string) string { return strings.Replace(text, `"seed":"42"`, `"seed":"43"`, 1) },
		"no digest":        func(text string) string { return regexp.MustCompile(`"digest":"\w+",`).ReplaceAllString(text, "") },
		"another gateway":  func(text string) string { return strings.Replace(text, "route.demo.gw", "route.demo.gw2", 1) },
		"a line twice":     func(text string) string { return text + first.FindString(text) },
		"a line less":      func(text string) string { return strings.Join(slices.Delete(strings.SplitAfter(text, "\n"), 2, 3), "") },
		"without its head": func(text string) string { return first.ReplaceAllString(text, "") },
	} {
		var lines bytes.Buffer
		for i, e := range r.events {
			m, err := streams.NewMessage(streams.RouteSubject(pool, "gw"), fmt.Sprint(i), e)
			if err != nil {
				t.Fatal(err)
			}
			line, err := eventjson.Encode(streams.Event{Stream: "ROUTE", Seq: uint64(i + 1), Subject: m.Subject, ID: m.ID,
				Schema: m.Schema, Digest: streams.Digest(m.Data), Data: m.Data})
			if err != nil {
				t.Fatal(err)
			}
			lines.Write(append(line, '\n'))
		}
		if err := os.WriteFile(path, []byte(edit(lines.String())), 0o600); err != nil {
			t.Fatal(err)
		}
		result, err := r.audit(func(c *Command) { c.Decisions = path })
		// A range that starts later is no tampering: what it lacks is counted.
		fine := name == "" || name == "without its head"
		if fine != (err == nil) {
			t.Errorf("%q: %v %v", name, err, result.Differences)
		}
		if name == "without its head" && result.BeforeRange == 0 {
			t.Error("an outcome without its decision is not counted")
		}
	}
}

func TestTrimmedHistoryIsNotCalledVerified(t *testing.T) {
	r := record(t)
	server := streamstest.Start(t)
	_, js := streamstest.Connect(t, server.URL(""))
	r.publish(js)
	stream, err := js.Stream(context.Background(), streams.KVStream(pool))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(context.Background(), jetstream.WithPurgeSequence(2)); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = (&Command{Flags: source.Flags{Connection: streams.Connection{NATS: server.URL("")}}, RouteStream: streams.RouteStream}).
		run(context.Background(), &out)
	if err == nil || !strings.Contains(err.Error(), "cannot be verified") {
		t.Errorf("got %v\n%s", err, out.String())
	}
}

func TestNothingToAuditIsNotAPass(t *testing.T) {
	if _, err := record(t).audit(func(c *Command) { c.Pool = "other" }); err == nil {
		t.Error("an audit of no decision passed")
	}
}
