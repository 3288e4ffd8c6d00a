package prefix

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// feed applies events to a replica as its next batch of epoch 1.
func feed(t testing.TB, x *Index, replica string, seq uint64, events ...*pb.KVEvent) Applied {
	t.Helper()
	b := &pb.KVBatch{Replica: replica, Epoch: epochNumber(1), Seq: seq, Events: events}
	return x.Apply(mustBatch(t, b, x.Position()+1))
}

func one(t *testing.T, x *Index, replica string, keys []blockkey.Key) Match {
	t.Helper()
	matches, _ := x.Match(nil, keys, nil)
	for _, m := range matches {
		if m.Replica == replica {
			return m
		}
	}
	t.Fatalf("no match for %s", replica)
	return Match{}
}

func chain(n int) []blockkey.Key {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	return blockkey.Chain(nil, blockkey.Root("m", "", ""), tokens, 1)
}

func TestChildBeforeParent(t *testing.T) {
	x, keys := New(), chain(8)
	feed(t, x, "a", 1, storeEvent(GPU, keys[4:]...))
	if m := one(t, x, "a", keys); m.Total != 0 {
		t.Errorf("blocks without their parents match: %+v", m)
	}
	feed(t, x, "a", 2, storeEvent(GPU, keys[:4]...))
	if m := one(t, x, "a", keys); m.Total != 8 || m.GPU != 8 {
		t.Errorf("the chain did not join when its parents came: %+v", m)
	}
	feed(t, x, "a", 3, removeEvent(GPU, keys[2]))
	if m := one(t, x, "a", keys); m.Total != 2 {
		t.Errorf("a hole does not end the match: %+v", m)
	}
	feed(t, x, "a", 4, storeEvent(CPU, keys[2]))
	want := Match{Replica: "a", Epoch: Epoch(epochNumber(1)), GPU: 2, Total: 8, Predicted: 8, Tiers: [NumTiers]int{7, 1, 0, 0}, Entries: 8}
	if m := one(t, x, "a", keys); m != want {
		t.Errorf("a hole filled from a lower tier: %+v, want %+v", m, want)
	}
}

func TestEpochsAndGaps(t *testing.T) {
	x, keys := New(), chain(4)
	apply := func(epoch int, seq uint64, events ...*pb.KVEvent) Applied {
		b := &pb.KVBatch{Replica: "a", Epoch: epochNumber(epoch), Seq: seq, Events: events}
		return x.Apply(mustBatch(t, b, x.Position()+1))
	}
	steps := []struct {
		epoch   int
		seq     uint64
		want    Applied
		total   int
		suspect bool
	}{
		{1, 1, Applied{NewEpoch: true, Stored: 4}, 4, false},
		{1, 2, Applied{}, 4, false},
		{1, 2, Applied{Duplicate: true}, 4, false},
		{1, 5, Applied{Gap: 2}, 4, true},
		{1, 6, Applied{}, 4, true},
		{2, 1, Applied{NewEpoch: true, Stored: 4}, 4, false},
		{1, 7, Applied{Stale: true}, 4, false},
		{3, 4, Applied{NewEpoch: true, Gap: 3, Stored: 4}, 4, true},
	}
	for i, s := range steps {
		if got := apply(s.epoch, s.seq, storeEvent(GPU, keys...)); got != s.want {
			t.Errorf("step %d: %+v, want %+v", i, got, s.want)
		}
		if m := one(t, x, "a", keys); m.Total != s.total || m.Suspect != s.suspect {
			t.Errorf("step %d: %+v", i, m)
		}
	}
	want := Stats{Replicas: 1, Suspects: 1, Entries: 4, Keys: 4, Sets: 1, Batches: 8, Stale: 1, Duplicates: 1, Gaps: 2, Missing: 5, Tiers: [NumTiers]int{4}, Bytes: x.Stats().Bytes}
	if got := x.Stats(); got != want {
		t.Errorf("stats %+v, want %+v", got, want)
	}
	x.Drop("a")
	if a := apply(3, 5); a.Gap != 4 || !one(t, x, "a", keys).Suspect {
		t.Errorf("a dropped replica that goes on is not suspect: %+v", a)
	}
}

// A life that ends takes its blocks away at once and its memory within one
// sweep; slots are used again, and never with another life's blocks.
func TestDeadLivesAreSwept(t *testing.T) {
	x, keys := New(), chain(200)
	seq := uint64(0)
	next := func(events ...*pb.KVEvent) {
		seq++
		feed(t, x, "a", seq, events...)
	}
	for range 5000 {
		next(storeEvent(GPU, keys...), clearEvent())
		if m := one(t, x, "a", keys); m.Total != 0 {
			t.Fatalf("cleared blocks match: %+v", m)
		}
	}
	if n := len(x.owners); n > 2048 {
		t.Errorf("%d lanes for one replica that clears every batch: lanes are not used again", n)
	}
	for range 2 * numSegments {
		next()
	}
	s := x.Stats()
	if s.Entries != 0 || s.Keys != 0 || s.Sets != 0 || x.dead != 0 {
		t.Errorf("after the sweep: %+v, %d dead lanes", s, x.dead)
	}
	if s.Bytes > 1<<20 {
		t.Errorf("an empty index has %d bytes", s.Bytes)
	}
	checkInvariants(t, x)
}

func TestManyReplicas(t *testing.T) {
	x, keys := New(), chain(300)
	for i := range 200 {
		feed(t, x, fmt.Sprintf("r%03d", i), 1, storeEvent(Tier(i%int(NumTiers)), keys[:i]...))
	}
	x.Drop("r100")
	matches, position := x.Match(nil, keys, nil)
	if len(matches) != 199 || position != 200 {
		t.Fatalf("%d matches at %d", len(matches), position)
	}
	for _, m := range matches {
		var i int
		if _, err := fmt.Sscanf(m.Replica, "r%03d", &i); err != nil {
			t.Fatal(err)
		}
		if m.Total != i || m.Tiers[i%int(NumTiers)] != i || (m.GPU != 0) != (i%int(NumTiers) == 0 && i > 0) {
			t.Errorf("%+v", m)
		}
	}
	if !slices.IsSortedFunc(matches, func(a, b Match) int { return strings.Compare(a.Replica, b.Replica) }) {
		t.Error("matches are not sorted by replica")
	}
}

func TestPredictionsOfUnknownReplica(t *testing.T) {
	x, p, keys := New(), NewPredictions(time.Second), chain(6)
	feed(t, x, "b", 1, storeEvent(GPU, keys[:2]...))
	p.Add("1", "a", keys[:3], 0)
	p.Add("2", "b", keys[2:5], 0)
	p.Add("3", "c", keys[3:], 0)
	got, _ := x.Match(nil, keys, p)
	want := []Match{
		{Replica: "a", Predicted: 3},
		{Replica: "b", Epoch: Epoch(epochNumber(1)), GPU: 2, Total: 2, Predicted: 5, Tiers: [NumTiers]int{2}, Entries: 2},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if n := p.Expire(999_999); n != 0 {
		t.Errorf("%d expired early", n)
	}
	p.Drop("2")
	if n := p.Expire(1_000_000); n != 2 || p.Len() != 0 || len(p.replicas) != 0 || p.keys != 0 || len(p.queue) != p.head {
		t.Errorf("%d expired; left %d predictions, %d replicas, %d keys", n, p.Len(), len(p.replicas), p.keys)
	}
}

func TestPredictionsAreBounded(t *testing.T) {
	p, keys := NewPredictions(time.Hour), make([]blockkey.Key, maxPredictedKeys/4)
	for i := range 6 {
		p.Add(fmt.Sprint(i), "a", keys, 0)
	}
	if p.Len() != 4 || p.keys > maxPredictedKeys {
		t.Errorf("%d predictions of %d keys", p.Len(), p.keys)
	}
	if p.byID["5"] == nil || p.byID["1"] != nil {
		t.Error("the oldest did not go first")
	}
}

// TestLearnIsAnLRU compares what is learned with a list kept the plain way.
func TestLearnIsAnLRU(t *testing.T) {
	d := rand.New(rand.NewPCG(1, 9))
	x, p := New(), NewPredictions(time.Hour)
	var plain []blockkey.Key // latest first
	for range 2000 {
		prompt := make([]blockkey.Key, d.IntN(12))
		for i := range prompt {
			prompt[i] = uint64(d.IntN(4))<<8 | uint64(i)
		}
		const capacity = 9
		p.Learn("a", prompt, capacity)
		for i := min(len(prompt), capacity) - 1; i >= 0; i-- {
			plain = slices.DeleteFunc(plain, func(k blockkey.Key) bool { return k == prompt[i] })
			plain = slices.Insert(plain, 0, prompt[i])
		}
		plain = plain[:min(len(plain), capacity)]
		want := 0
		for want < len(prompt) && slices.Contains(plain, prompt[want]) {
			want++
		}
		got, _ := x.Match(nil, prompt, p)
		if want == 0 && len(got) > 0 || want > 0 && (len(got) != 1 || got[0] != Match{Replica: "a", Predicted: want}) {
			t.Fatalf("got %+v, want %d", got, want)
		}
		if p.Learned("a") != len(plain) || p.learnedKeys != len(plain) {
			t.Fatalf("learned %d, counts %d, want %d", p.Learned("a"), p.learnedKeys, len(plain))
		}
	}
	if n := len(p.learned["a"].uses); n > 2*9+12 {
		t.Errorf("%d uses for 9 blocks", n)
	}
	p.Learn("a", nil, 0)
	p.Learn("b", plain, 9)
	p.DropReplica("b")
	if p.learnedKeys != 0 || len(p.learned) != 0 {
		t.Errorf("%d keys of %d replicas are left", p.learnedKeys, len(p.learned))
	}
}

func TestFromProtoErrors(t *testing.T) {
	good := func() *pb.KVBatch {
		return &pb.KVBatch{Replica: "a", Epoch: epochNumber(1), Seq: 1, Events: []*pb.KVEvent{storeEvent(GPU, 1)}}
	}
	if _, err := FromProto(good(), 1); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(*pb.KVBatch){
		"replica is empty":  func(b *pb.KVBatch) { b.Replica = "" },
		"epoch has 3 bytes": func(b *pb.KVBatch) { b.Epoch = []byte{1, 2, 3} },
		"seq is 0":          func(b *pb.KVBatch) { b.Seq = 0 },
		"event 1: it is empty": func(b *pb.KVBatch) {
			b.Events = append(b.Events, &pb.KVEvent{})
		},
		"event 0: tier is TIER_UNSPECIFIED": func(b *pb.KVBatch) { b.Events[0].GetStore().Tier = 0 },
		"tier is -3":                        func(b *pb.KVBatch) { b.Events[0].GetStore().Tier = -3 },
	} {
		b := good()
		spoil(b)
		if _, err := FromProto(b, 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
	if _, err := FromProto(nil, 1); err == nil {
		t.Error("no error for no message")
	}
}

// What a later schema adds does not cost the events that are understood, but
// the replica is suspect from then on.
func TestEventsOfALaterSchema(t *testing.T) {
	later := &pb.KVEvent{}
	raw := protowire.AppendTag(nil, 9, protowire.BytesType)
	raw = protowire.AppendBytes(raw, []byte("x"))
	if err := proto.Unmarshal(raw, later); err != nil {
		t.Fatal(err)
	}
	x, keys := New(), chain(3)
	a := feed(t, x, "a", 1, later, storeEvent(GPU, keys...), storeEvent(Tier(7), keys...))
	if want := (Applied{NewEpoch: true, Stored: 3, Unknown: 2}); a != want {
		t.Errorf("applied %+v, want %+v", a, want)
	}
	if m := one(t, x, "a", keys); m.Total != 3 || !m.Suspect {
		t.Errorf("match %+v", m)
	}
}

// Readers see a batch wholly or not at all, at the position they are told.
func TestReadersSeeWholeBatches(t *testing.T) {
	x, keys := New(), chain(64)
	const batches = 400
	var readers sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		readers.Go(func() {
			var dst []Match
			for {
				select {
				case <-stop:
					return
				default:
				}
				var position uint64
				dst, position = x.Match(dst[:0], keys, nil)
				if position == 0 {
					continue
				}
				// Odd positions store the whole chain, even ones remove or clear it.
				if want := int(position%2) * len(keys); dst[0].Total != want {
					t.Errorf("at %d: %d blocks, want %d", position, dst[0].Total, want)
					return
				}
				_ = x.Stats()
				_ = x.Has("a", GPU, keys[0])
			}
		})
	}
	for seq := uint64(1); seq <= batches; seq++ {
		switch {
		case seq%2 == 1:
			feed(t, x, "a", seq, storeEvent(GPU, keys[:32]...), storeEvent(CPU, keys[32:]...))
		case seq%4 == 0:
			feed(t, x, "a", seq, clearEvent())
		default:
			feed(t, x, "a", seq, removeEvent(CPU, keys[32:]...), removeEvent(GPU, keys[:32]...))
		}
	}
	close(stop)
	readers.Wait()
}

func TestMatchDoesNotAllocate(t *testing.T) {
	x, keys := New(), chain(256)
	p := NewPredictions(time.Second)
	for i := range 64 {
		feed(t, x, fmt.Sprint(i), 1, storeEvent(GPU, keys[:4*i]...))
		p.Add(fmt.Sprint(i), fmt.Sprint(i), keys, 0)
	}
	dst := make([]Match, 0, 64)
	if n := testing.AllocsPerRun(10, func() { dst, _ = x.Match(dst[:0], keys, p) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestWideMatchDoesNotAllocate(t *testing.T) {
	x, keys := New(), chain(256)
	for i := range 1024 {
		feed(t, x, fmt.Sprint(i), 1, storeEvent(Tier(i%4), keys[:i%257]...))
	}
	dst := make([]Match, 0, 1024)
	if n := testing.AllocsPerRun(10, func() { dst, _ = x.Match(dst[:0], keys, nil) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzFromProtoApply(f *testing.F) {
	keys := chain(4)
	for _, b := range []*pb.KVBatch{
		{Replica: "a", Epoch: epochNumber(1), Seq: 1, Events: []*pb.KVEvent{storeEvent(GPU, keys...), removeEvent(CPU, keys[1])}},
		{Replica: "a", Epoch: epochNumber(2), Seq: 9, Events: []*pb.KVEvent{clearEvent(), storeEvent(Disk, keys[2:]...)}},
		{Replica: "b", Epoch: epochNumber(0), Seq: 1 << 63, Events: []*pb.KVEvent{{}}},
	} {
		raw, err := proto.Marshal(b)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw, raw)
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		x := New()
		for i, raw := range [][]byte{first, second, first} {
			b := &pb.KVBatch{}
			if proto.Unmarshal(raw, b) != nil {
				continue
			}
			batch, err := FromProto(b, uint64(i+1))
			if err != nil {
				continue
			}
			a := x.Apply(batch)
			if again := x.Apply(batch); !again.Duplicate && !again.Stale {
				t.Fatalf("applied twice: %+v then %+v", a, again)
			}
			matches, position := x.Match(nil, keys, nil)
			if position != uint64(i+1) {
				t.Fatalf("position %d", position)
			}
			for _, m := range matches {
				sum := m.Tiers[GPU] + m.Tiers[CPU] + m.Tiers[Disk] + m.Tiers[Remote]
				if m.GPU > m.Total || m.Total > len(keys) || m.Predicted != m.Total || sum != m.Total || m.GPU > m.Tiers[GPU] {
					t.Fatalf("match %+v", m)
				}
			}
			if s := x.Stats(); s.Entries < 0 || s.Keys < 0 || s.Entries > int(NumTiers)*s.Replicas*s.Keys {
				t.Fatalf("stats %+v", s)
			}
		}
	})
}

// BenchmarkApply stores and removes batches of 64 blocks, 8 replicas in turn.
func BenchmarkApply(b *testing.B) {
	const blocks = 64
	x := New()
	seq := make([]uint64, 8)
	names := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	tokens := make([]uint32, blocks)
	ring := make([][]blockkey.Key, 256*8) // 256 chains a replica stay in its cache
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		r := n % len(names)
		tokens[0] = uint32(n)
		keys := blockkey.Chain(nil, 1, tokens, 1)
		seq[r]++
		events := []*pb.KVEvent{storeEvent(GPU, keys...)}
		at := n % len(ring)
		if old := ring[at]; old != nil {
			events = append(events, removeEvent(GPU, old...))
		}
		ring[at] = keys
		batch, err := FromProto(&pb.KVBatch{Replica: names[r], Epoch: epochNumber(1), Seq: seq[r], Events: events}, uint64(n))
		if err != nil {
			b.Fatal(err)
		}
		x.Apply(batch)
		n++
	}
	b.ReportMetric(float64(2*blocks*n)/b.Elapsed().Seconds(), "blocks/s")
}

// BenchmarkMatch matches a prompt that all of 64 replicas hold.
func BenchmarkMatch(b *testing.B) {
	for _, blocks := range []int{256, 2048} {
		b.Run(fmt.Sprintf("%dblocks64replicas", blocks), func(b *testing.B) {
			x, keys := New(), chain(blocks)
			for i := range 64 {
				feed(b, x, fmt.Sprint(i), 1, storeEvent(GPU, keys...))
			}
			dst := make([]Match, 0, 64)
			b.ReportAllocs()
			for b.Loop() {
				dst, _ = x.Match(dst[:0], keys, nil)
			}
		})
	}
}
