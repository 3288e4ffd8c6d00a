package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"warmpath/routing/policy"
	"warmpath/routing/prefix"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
	"warmpath/streams/snapshot"
	"warmpath/streams/source"
	"warmpath/streams/streamstest"
)

// trimmed is an audit of the history after a snapshot at a KV sequence was saved
// and everything before first was taken from the stream.
func (r *recording) trimmed(at, first uint64, about snapshot.About, change func(data []byte)) (*Result, error) {
	r.t.Helper()
	ctx := context.Background()
	server := streamstest.Start(r.t)
	_, js := streamstest.Connect(r.t, server.URL(""))
	r.publish(js)
	stream, err := js.Stream(ctx, streams.KVStream(pool))
	if err != nil {
		r.t.Fatal(err)
	}
	index := prefix.New()
	for i, b := range r.kv[:at] {
		step, err := prefix.FromProto(b, uint64(i+1))
		if err != nil {
			r.t.Fatal(err)
		}
		index.Apply(step)
	}
	data := index.AppendSnapshot(nil)
	if change != nil {
		change(data)
	}
	store, err := snapshot.NewStore(js, pool)
	if err != nil {
		r.t.Fatal(err)
	}
	about.Seq, about.Created = at, stream.CachedInfo().Created
	if _, err := store.Save(ctx, about, data); err != nil {
		r.t.Fatal(err)
	}
	if err := stream.Purge(ctx, jetstream.WithPurgeSequence(first)); err != nil {
		r.t.Fatal(err)
	}
	command := &Command{Flags: source.Flags{Connection: streams.Connection{NATS: server.URL("")}}, RouteStream: streams.RouteStream, JSON: true}
	var out bytes.Buffer
	failure := command.run(ctx, &out)
	result := new(Result)
	if err := json.Unmarshal(out.Bytes(), result); err != nil {
		r.t.Fatal(failure, err)
	}
	return result, failure
}

var whole = snapshot.About{Whole: true}

func TestATrimmedHistoryIsAuditedFromASnapshot(t *testing.T) {
	result, err := record(t).trimmed(2, 3, whole, nil)
	if err != nil || result.Unverifiable != 0 || result.MatchesChecked != 12 || len(result.Bases) != 1 || result.Bases[0] != (Base{pool, 2, true}) {
		t.Errorf("%v: %+v", err, result)
	}
	// Also when nothing is left of the stream.
	if result, err = record(t).trimmed(5, 6, whole, nil); err == nil || result.MatchesChecked != 3 || result.Unverifiable != 3 || result.Differing != 0 {
		t.Errorf("%v: %+v", err, result)
	}
}

func TestDecisionsBeforeTheSnapshotAreNotCalledVerified(t *testing.T) {
	result, err := record(t).trimmed(4, 5, whole, nil)
	if err == nil || result.Unverifiable != 1 || result.MatchesChecked != 9 || result.Differing != 0 {
		t.Errorf("%v: %+v", err, result)
	}
	// A hole between snapshot and stream: nothing can be said.
	result, err = record(t).trimmed(2, 5, whole, nil)
	if err == nil || result.Unverifiable != 4 || result.MatchesChecked != 0 {
		t.Errorf("%v: %+v", err, result)
	}
	result, err = record(t).trimmed(2, 3, whole, func(data []byte) { data[len(data)/2] ^= 1 })
	if err == nil || result.Unverifiable != 4 || result.MatchesChecked != 0 {
		t.Errorf("%v: %+v", err, result)
	}
}

func TestForgeriesAreFoundFromASnapshot(t *testing.T) {
	r := record(t)
	r.decision(1).Candidates[1].GpuBlocks++
	result, err := r.trimmed(2, 3, whole, nil)
	if err == nil || result.Differing != 1 {
		t.Errorf("%v: %+v", err, result)
	}
}

// A router that had missed a part of the stream suspects replicas that others need
// not have suspected: what differs there is not called a difference.
func TestASnapshotThatIsNotWhole(t *testing.T) {
	result, err := record(t).trimmed(2, 3, snapshot.About{}, nil)
	if err != nil {
		t.Errorf("nothing is suspect in it: %v %+v", err, result)
	}
	r := record(t)
	other := r.decision(4)
	other.Candidates[2].Suspect = false
	if err := policy.Decide(other); err != nil {
		t.Fatal(err)
	}
	result, err = r.trimmed(5, 6, snapshot.About{}, nil)
	if err == nil || result.Unverifiable != 4 || result.Differing != 0 {
		t.Errorf("%v: %+v", err, result)
	}
	result, err = record(t).trimmed(5, 6, snapshot.About{Whole: true, Lost: map[string][]byte{name(0): epoch(0)}}, nil)
	if err == nil || result.Unverifiable != 3 || result.Differing != 0 {
		t.Errorf("%v: %+v", err, result)
	}
}

// A batch on another replica's subject changes nothing, as at a router.
func TestABatchOnAnotherSubjectIsLeftOut(t *testing.T) {
	r := record(t)
	server := streamstest.Start(t)
	_, js := streamstest.Connect(t, server.URL(""))
	r.publish(js)
	last := r.decide("e", 0, 1, 2, 3, 4)
	last.KvSeq++ // the stray one is read, and not applied
	publisher := streams.NewPublisher(js, streams.PublisherConfig{})
	defer publisher.Close()
	stray, err := streams.NewMessage(streams.KVSubject(pool, name(2)), "stray", &pb.KVBatch{Pool: pool, Replica: name(0), Epoch: epoch(9), Seq: 1, BlockTokens: 16,
		Events: []*pb.KVEvent{{Event: &pb.KVEvent_Clear{Clear: &pb.KVClear{}}}}})
	if err != nil {
		t.Fatal(err)
	}
	decided, err := streams.NewMessage(streams.RouteSubject(pool, "gw"), "last", last)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []streams.Message{stray, decided} {
		if err := publisher.Publish(context.Background(), m); err != nil {
			t.Fatal(err)
		}
	}
	if err := publisher.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	command := &Command{Flags: source.Flags{Connection: streams.Connection{NATS: server.URL("")}}, RouteStream: streams.RouteStream}
	var out bytes.Buffer
	if err := command.run(context.Background(), &out); err != nil {
		t.Errorf("%v\n%s", err, out.String())
	}
}
