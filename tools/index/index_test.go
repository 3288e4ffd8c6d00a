package index

import (
	"bytes"
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"warmpath/routing/prefix"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
	"warmpath/streams/snapshot"
	"warmpath/streams/source"
	"warmpath/streams/streamstest"
)

func TestMain(m *testing.M) { streamstest.Main(m) }

const pool = "demo"

// world is a server with a pool's KV stream, and an index that has folded it.
type world struct {
	*testing.T
	js    jetstream.JetStream
	place Place
	index *prefix.Index
	seqs  map[string]uint64
	last  uint64
}

func newWorld(t *testing.T) *world {
	t.Helper()
	server := streamstest.Start(t)
	_, js := streamstest.Connect(t, server.URL(""))
	streamstest.Apply(t, js, 1, pool)
	return &world{
		T: t, js: js, index: prefix.New(), seqs: map[string]uint64{},
		place: Place{Flags: source.Flags{Connection: streams.Connection{NATS: server.URL("")}}, Pool: pool},
	}
}

func (w *world) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	w.Cleanup(cancel)
	return ctx
}

func (w *world) store(replica string, tier pb.Tier, keys ...uint64) {
	w.Helper()
	w.seqs[replica]++
	batch := &pb.KVBatch{Pool: pool, Replica: replica, Epoch: bytes.Repeat([]byte{1}, 16), Seq: w.seqs[replica],
		Events: []*pb.KVEvent{{Event: &pb.KVEvent_Store{Store: &pb.KVStore{Tier: tier, Keys: keys}}}}}
	m, err := streams.NewMessage(streams.KVSubject(pool, replica), "", batch)
	if err != nil {
		w.Fatal(err)
	}
	publisher := streams.NewPublisher(w.js, streams.PublisherConfig{})
	defer publisher.Close()
	if err := publisher.Publish(w.context(), m); err != nil {
		w.Fatal(err)
	}
	if err := publisher.Flush(w.context()); err != nil {
		w.Fatal(err)
	}
	w.last++
	step, err := prefix.FromProto(batch, w.last)
	if err != nil {
		w.Fatal(err)
	}
	w.index.Apply(step)
}

func (w *world) stream() jetstream.Stream {
	w.Helper()
	s, err := w.js.Stream(w.context(), streams.KVStream(pool))
	if err != nil {
		w.Fatal(err)
	}
	return s
}

// save stores an index as a snapshot at the stream's end.
func (w *world) save(x *prefix.Index) {
	w.Helper()
	s, err := snapshot.NewStore(w.js, pool)
	if err != nil {
		w.Fatal(err)
	}
	about := snapshot.About{Seq: w.last, Created: w.stream().CachedInfo().Created, Writer: "r1", Whole: true}
	if _, err := s.Save(w.context(), about, x.AppendSnapshot(nil)); err != nil {
		w.Fatal(err)
	}
}

func (w *world) fill() {
	w.Helper()
	w.store("a", pb.Tier_TIER_GPU, 1, 2, 3)
	w.store("b.dp0", pb.Tier_TIER_CPU, 2, 3)
}

func TestDump(t *testing.T) {
	w := newWorld(t)
	w.fill()
	w.save(w.index)
	w.store("a", pb.Tier_TIER_GPU, 9)
	dump := func(which string, change func(*DumpCommand)) string {
		c := &DumpCommand{Place: w.place, Index: which}
		if change != nil {
			change(c)
		}
		var out bytes.Buffer
		if err := c.run(w.context(), &out); err != nil {
			t.Fatalf("%s: %v", which, err)
		}
		return out.String()
	}
	stored := "0000000000000001 a gpu\n0000000000000002 a gpu\n0000000000000002 b.dp0 cpu\n0000000000000003 a gpu\n0000000000000003 b.dp0 cpu\n"
	for which, want := range map[string]string{
		"snapshot": stored, "snapshot:2": stored, "stream:2": stored, "stream": stored + "0000000000000009 a gpu\n",
	} {
		if got := dump(which, nil); got != want {
			t.Errorf("%s:\n%s", which, got)
		}
	}
	if got := dump("stream", func(c *DumpCommand) { c.Replica, c.Limit, c.JSON = "b.dp0", 1, true }); got != `{"replica":"b.dp0","tier":"cpu","key":"0000000000000002"}`+"\n" {
		t.Errorf("got %s", got)
	}
	path := filepath.Join(t.TempDir(), "x")
	dump("snapshot", func(c *DumpCommand) { c.Raw = path })
	w.place = Place{} // a file needs no server
	if got := dump("file:"+path, nil); got != stored {
		t.Errorf("got %s", got)
	}
}

func TestStats(t *testing.T) {
	w := newWorld(t)
	w.fill()
	w.save(w.index)
	var out bytes.Buffer
	if err := (&StatsCommand{Place: w.place, Index: "snapshot", JSON: true}).run(w.context(), &out); err != nil {
		t.Fatal(err)
	}
	var s Stats
	if err := json.Unmarshal(out.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	if s.Position != 2 || s.Entries != 5 || s.Tiers["gpu"] != 3 || s.Tiers["cpu"] != 2 || len(s.Lives) != 2 || s.Lives[1].Replica != "b.dp0" ||
		s.Lives[0].Entries != 3 || len(s.Snapshots) != 1 || s.Snapshots[0].Writer != "r1" || s.SnapshotBytes != len(w.index.AppendSnapshot(nil)) {
		t.Errorf("stats %s", out.String())
	}
	out.Reset()
	if err := (&StatsCommand{Place: w.place, Index: "stream"}).run(w.context(), &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"5 over 3 keys: gpu 3, cpu 2", "snapshot 2:", "b.dp0"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestDiff(t *testing.T) {
	w := newWorld(t)
	w.fill()
	w.save(w.index)
	w.store("c", pb.Tier_TIER_GPU, 7, 8)
	diff := func(a, b string) (Diff, error) {
		t.Helper()
		var out bytes.Buffer
		failure := (&DiffCommand{Place: w.place, A: a, B: b, Limit: 1, JSON: true}).run(w.context(), &out)
		var d Diff
		if err := json.Unmarshal(out.Bytes(), &d); err != nil {
			t.Fatal(failure, err)
		}
		return d, failure
	}
	for _, pair := range [][2]string{{"snapshot", "stream"}, {"stream", "snapshot:2"}, {"stream:3", "stream"}} {
		if d, err := diff(pair[0], pair[1]); err != nil || !d.SameBytes {
			t.Errorf("%v: %v, %+v", pair, err, d)
		}
	}
	d, err := diff("snapshot", "stream:3")
	if err == nil || d.OnlyA != 0 || d.OnlyB != 2 || len(d.Listed) != 1 || d.Listed[0].Only != "b" || len(d.Lives) != 1 || d.Lives[0].Replica != "c" || d.Lives[0].A != "" {
		t.Errorf("%v, %+v", err, d)
	}

	// A snapshot that says other things than its stream.
	other := prefix.New()
	for i, one := range []struct {
		replica string
		tier    pb.Tier
		keys    []uint64
	}{{"a", pb.Tier_TIER_GPU, []uint64{1, 2}}, {"b.dp0", pb.Tier_TIER_CPU, []uint64{2, 3, 4}}, {"c", pb.Tier_TIER_GPU, []uint64{7, 8}}} {
		step, err := prefix.FromProto(&pb.KVBatch{Replica: one.replica, Epoch: bytes.Repeat([]byte{1}, 16), Seq: 1,
			Events: []*pb.KVEvent{{Event: &pb.KVEvent_Store{Store: &pb.KVStore{Tier: one.tier, Keys: one.keys}}}}}, uint64(i+1))
		if err != nil {
			t.Fatal(err)
		}
		other.Apply(step)
	}
	w.save(other)
	d, err = diff("snapshot", "stream")
	if err == nil || d.OnlyA != 1 || d.OnlyB != 1 || d.A.Position != 3 || len(d.Lives) != 2 {
		t.Errorf("%v, %+v", err, d)
	}
	var out bytes.Buffer
	if err := (&DiffCommand{Place: w.place, A: "snapshot", B: "stream", Limit: 20}).run(w.context(), &out); err == nil {
		t.Error("no difference was found")
	}
	for _, want := range []string{"only in a: 0000000000000004 b.dp0 cpu", "only in b: 0000000000000003 a gpu", "different"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// Where the stream's beginning is gone it is folded from the oldest snapshot that
// it continues.
func TestATrimmedStream(t *testing.T) {
	w := newWorld(t)
	w.fill()
	w.save(w.index)
	for i := range 5 {
		w.store("c", pb.Tier_TIER_GPU, uint64(100+i))
	}
	w.save(w.index)
	w.store("c", pb.Tier_TIER_GPU, 200)
	if err := w.stream().Purge(w.context(), jetstream.WithPurgeSequence(3)); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := (&DiffCommand{Place: w.place, A: "snapshot", B: "stream", Limit: 20}).run(w.context(), &out); err != nil {
		t.Errorf("%v\n%s", err, out.String())
	}
	if !strings.Contains(out.String(), "folded to 7 after snapshot demo/2") {
		t.Errorf("got\n%s", out.String())
	}
	if err := w.stream().Purge(w.context(), jetstream.WithPurgeSequence(5)); err != nil {
		t.Fatal(err)
	}
	if err := (&StatsCommand{Place: w.place, Index: "stream:6"}).run(w.context(), &out); err == nil || !strings.Contains(err.Error(), "begins at 5") {
		t.Errorf("got %v", err)
	}
}

func TestWhatCannotBeIsSaid(t *testing.T) {
	w := newWorld(t)
	w.fill()
	for which, want := range map[string]string{
		"":              "names no index",
		"snapshot:x":    "names no index",
		"stream:0":      "names no index",
		"file:":         "names no index",
		"snapshot":      "no such snapshot",
		"stream:99":     "ends at 2",
		"file:/nowhere": "no such file",
	} {
		err := (&StatsCommand{Place: w.place, Index: which}).run(w.context(), &bytes.Buffer{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", which, err)
		}
	}
	if err := (&StatsCommand{Index: "stream"}).run(w.context(), &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "--pool") {
		t.Errorf("got %v", err)
	}
}
