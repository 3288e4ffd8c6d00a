package prefix

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"warmpath/routing/blockkey"
)

// randDraws draws from a seed.
type randDraws struct{ *rand.Rand }

func (d randDraws) below(n int, _ string) int { return d.IntN(n) }

// soakOps is how many operations the soak test runs: a few by default, at least
// a million with WARMPATH_SOAK=1, or the number that it says.
func soakOps() int {
	switch n, err := strconv.Atoi(os.Getenv("WARMPATH_SOAK")); {
	case err == nil && n > 1:
		return n
	case err == nil && n == 1:
		return 1_200_000
	}
	return 12_000
}

// TestSoak runs random operations against the model, with the index replaced by
// its restored snapshot at random moments, and with readers that check every
// answer against what the model says for the position it claims to stand at.
func TestSoak(t *testing.T) {
	shapes := []struct{ replicas, prompts, length int }{{3, 5, 12}, {40, 8, 30}, {70, 6, 20}, {200, 6, 16}}
	for i, s := range shapes {
		t.Run(fmt.Sprintf("%dreplicas", s.replicas), func(t *testing.T) {
			u := randomUniverse(s.replicas, s.prompts, s.length, uint64(i))
			// Many short lives find more than one long one.
			const each = 3000
			checked := 0
			for round := 0; round < soakOps()/len(shapes)/each && !t.Failed(); round++ {
				checked += soak(t, u, each, uint64(round))
			}
			if checked == 0 {
				t.Error("the readers checked nothing")
			}
			t.Logf("%d answers of concurrent readers were checked", checked)
		})
	}
}

// randomUniverse is prompts that branch off each other.
func randomUniverse(replicas, prompts, length int, seed uint64) universe {
	d := rand.New(rand.NewPCG(seed, 1))
	u := universe{prompts: [][]blockkey.Key{{}}}
	for range prompts {
		base := u.prompts[d.IntN(len(u.prompts))]
		prompt := slices.Clone(base[:d.IntN(len(base)+1)])
		for len(prompt) < length {
			k := d.Uint64()
			switch d.IntN(20) { // the ends of the key space and close neighbours
			case 0:
				k = ^uint64(0) - uint64(d.IntN(12))
			case 1:
				k = uint64(d.IntN(12))
			case 2:
				k = 5<<52 + uint64(d.IntN(12))
			}
			prompt = append(prompt, k)
		}
		u.prompts = append(u.prompts, prompt)
	}
	for _, p := range u.prompts {
		u.keys = append(u.keys, p...)
	}
	slices.Sort(u.keys)
	u.keys = slices.Compact(u.keys)
	for i := range replicas {
		u.replicas = append(u.replicas, fmt.Sprintf("r%03d", i))
	}
	return u
}

// watched is the index under test, and what readers of it may see of one prompt.
type watched struct {
	index  atomic.Pointer[Index]
	mu     sync.Mutex
	prompt []blockkey.Key
	// now is the model's answer by replica; answers is what may be seen at a
	// position: a Drop changes the answer but not the position. Positions before
	// oldest are forgotten.
	now       map[string]Match
	answers   map[uint64][][]Match
	positions []uint64
	oldest    uint64
	checked   int
}

// expect says that, with what the model says of a replica now, an answer may be
// seen from now on.
func (w *watched) expect(m *model, name string) {
	if one := m.match(w.prompt, never, []string{name}); len(one) > 0 {
		w.now[name] = one[0]
	} else {
		delete(w.now, name)
	}
	var answer []Match
	for _, name := range slices.Sorted(maps.Keys(w.now)) {
		answer = append(answer, w.now[name])
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.positions) == 0 || w.positions[len(w.positions)-1] != m.position {
		w.positions = append(w.positions, m.position)
	}
	w.answers[m.position] = append(w.answers[m.position], answer)
	if len(w.positions) > 100 {
		delete(w.answers, w.positions[0])
		w.positions = w.positions[1:]
		w.oldest = w.positions[0]
	}
}

func (w *watched) check(position uint64, got []Match) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if position < w.oldest {
		return true
	}
	w.checked++
	for _, want := range w.answers[position] {
		if slices.Equal(got, want) {
			return true
		}
	}
	return false
}

func never(string, blockkey.Key) bool { return false }

// soak returns how many answers its readers checked.
func soak(t *testing.T, u universe, ops int, seed uint64) int {
	d := randDraws{rand.New(rand.NewPCG(seed, 2))}
	m := &model{replicas: map[string]*modelReplica{}}
	w := &watched{prompt: pick(d, u.prompts[1:], "watched"), now: map[string]Match{}, answers: map[uint64][][]Match{0: {nil}}}
	w.index.Store(New())
	var readers sync.WaitGroup
	var stop atomic.Bool
	defer readers.Wait()
	defer stop.Store(true)
	for range 2 {
		readers.Go(func() { w.read(t, &stop) })
	}
	publishers := map[string]*publisher{}
	for op := range ops {
		x := w.index.Load()
		name := pick(d, u.replicas, "replica")
		switch action := d.below(400, "action"); {
		case action == 0:
			again := restored(t, x)
			w.index.Store(again)
		case action < 3:
			delete(m.replicas, name)
			w.expect(m, name)
			x.Drop(name)
		case action < 10:
			x.sweepNow(1 + d.below(numSegments, "sweep"))
		default:
			if publishers[name] == nil {
				publishers[name] = &publisher{}
			}
			b := publishers[name].draw(d, u, name)
			position := m.position + 1 + uint64(d.below(3, "position"))
			want := m.apply(b, position)
			w.expect(m, name)
			if got := x.Apply(mustBatch(t, b, position)); !alike(got, want) {
				t.Fatalf("op %d of seed %d: applied %+v, want %+v", op, seed, got, want)
			}
		}
		if x = w.index.Load(); op%16 == 0 || op > ops-10 {
			compareAnswers(t, u, x, m, pick(d, u.prompts, "compared"))
		}
		if op%(ops/4) == ops/4-1 {
			checkInvariants(t, x)
			compareEntries(t, x, m)
		}
		if t.Failed() {
			t.Fatalf("seed %d, op %d", seed, op)
		}
	}
	stop.Store(true)
	readers.Wait()
	return w.checked
}

func (w *watched) read(t *testing.T, stop *atomic.Bool) {
	var dst []Match
	for !stop.Load() {
		var position uint64
		dst, position = w.index.Load().Match(dst[:0], w.prompt, nil)
		if !w.check(position, dst) {
			t.Errorf("a reader at %d saw %+v", position, dst)
			return
		}
		time.Sleep(100 * time.Microsecond) // else the race detector checks little but the wait
	}
}

func compareAnswers(t *testing.T, u universe, x *Index, m *model, prompt []blockkey.Key) {
	t.Helper()
	got, position := x.Match(nil, prompt, nil)
	if want := m.match(prompt, never, u.replicas); !slices.Equal(got, want) || position != m.position {
		t.Fatalf("match at %d:\n got %+v\nwant %+v at %d", position, got, want, m.position)
	}
}

// compareEntries compares all that the index holds with all that the model does.
func compareEntries(t *testing.T, x *Index, m *model) {
	t.Helper()
	want := map[Entry]bool{}
	for name, r := range m.replicas {
		for tier, keys := range r.held {
			for k := range keys {
				want[Entry{name, tier, k}] = true
			}
		}
	}
	n, last := 0, Entry{}
	x.Visit(func(e Entry) bool {
		if !want[e] {
			t.Errorf("index has %+v", e)
		}
		if n > 0 && (e.Key < last.Key || e.Key == last.Key && (e.Replica < last.Replica || e.Replica == last.Replica && e.Tier <= last.Tier)) {
			t.Errorf("%+v comes after %+v", e, last)
		}
		n++
		last = e
		return true
	})
	if s := x.Stats(); n != len(want) || s.Entries != n || s.Tiers[GPU]+s.Tiers[CPU]+s.Tiers[Disk]+s.Tiers[Remote] != n {
		t.Errorf("%d entries visited, stats %+v, want %d", n, s, len(want))
	}
}

// stream draws the batches of a pool that fills and evicts.
func stream(t *testing.T, u universe, d draws, batches int) []Batch {
	publishers := map[string]*publisher{}
	var out []Batch
	for range batches {
		name := pick(d, u.replicas, "replica")
		if publishers[name] == nil {
			publishers[name] = &publisher{}
		}
		out = append(out, mustBatch(t, publishers[name].draw(d, u, name), uint64(len(out)+1)))
	}
	return out
}

// TestSnapshotAndTailIsReplay: restored anywhere, any number of times, an index
// ends in the same bytes as one that never was, with a budget and without.
func TestSnapshotAndTailIsReplay(t *testing.T) {
	u := randomUniverse(90, 60, 100, 7)
	for _, budget := range []int64{0, 500_000, 260_000} {
		for seed := range uint64(4) {
			d := randDraws{rand.New(rand.NewPCG(seed, 3))}
			cfg := Config{MaxBytes: budget}
			whole, parts := NewWith(cfg), NewWith(cfg)
			for i, b := range stream(t, u, d, 300) {
				if one, two := whole.Apply(b), parts.Apply(b); one != two {
					t.Fatalf("budget %d, seed %d, batch %d: %+v and %+v", budget, seed, i, one, two)
				}
				if d.below(100, "restart") == 0 {
					parts = restored(t, parts)
				}
				if s := whole.Stats(); budget > 0 && s.Bytes > budget && s.Keys > 0 {
					t.Fatalf("%d bytes, the budget is %d", s.Bytes, budget)
				}
			}
			if !bytes.Equal(whole.AppendSnapshot(nil), parts.AppendSnapshot(nil)) {
				t.Errorf("budget %d, seed %d: restarts changed the index", budget, seed)
			}
			if s := whole.Stats(); (s.Evicted > 0) != (budget > 0) {
				t.Errorf("budget %d evicted %d", budget, s.Evicted)
			}
			checkInvariants(t, whole)
		}
	}
}

// TestOrderOfArrival: stores in any order, parents late or not, by whom first,
// end in the same answers.
func TestOrderOfArrival(t *testing.T) {
	u := randomUniverse(20, 10, 60, 9)
	var first []Match
	for seed := range uint64(20) {
		d := rand.New(rand.NewPCG(seed, 4))
		type piece struct {
			replica string
			tier    Tier
			keys    []blockkey.Key
		}
		var pieces []piece
		for i, prompt := range u.prompts[1:] {
			for at := 0; at < len(prompt); at += 7 {
				for r := range 5 {
					pieces = append(pieces, piece{u.replicas[(i*3+r)%20], Tier((i + r + at/7) % 4), prompt[at:min(at+7, len(prompt))]})
				}
			}
		}
		d.Shuffle(len(pieces), func(i, j int) { pieces[i], pieces[j] = pieces[j], pieces[i] })
		x, seq := New(), map[string]uint64{}
		for _, p := range pieces {
			seq[p.replica]++
			feed(t, x, p.replica, seq[p.replica], storeEvent(p.tier, p.keys...))
		}
		got := answers(u, x)
		if seed == 0 {
			first = got
		}
		if !slices.Equal(got, first) {
			t.Fatalf("order %d changed the answers", seed)
		}
	}
}

// TestBudget: over its budget an index gives up the deepest blocks, and counts.
func TestBudget(t *testing.T) {
	const budget = 1 << 20
	x := NewWith(Config{MaxBytes: budget})
	seq := uint64(0)
	for prompt := range 400 {
		keys := make([]blockkey.Key, 512)
		for i := range keys {
			keys[i] = splitmix(uint64(prompt)<<32 | uint64(i))
		}
		for at := 0; at < len(keys); at += 64 {
			seq++
			event := storeEvent(GPU, keys[at:at+64]...)
			if at > 0 {
				event.GetStore().Parent = &keys[at-1]
			}
			feed(t, x, "a", seq, event)
			if s := x.Stats(); s.Bytes > budget {
				t.Fatalf("%d bytes after batch %d", s.Bytes, seq)
			}
		}
	}
	s := x.Stats()
	if s.Evicted == 0 || s.Entries+int(s.Evicted) != 400*512 {
		t.Errorf("stats %+v", s)
	}
	if s.Bytes < budget*3/4 {
		t.Errorf("only %d bytes of %d are used", s.Bytes, budget)
	}
	whole := 0
	for prompt := range 400 { // what is left is the beginnings
		k := splitmix(uint64(prompt) << 32)
		if x.Has("a", GPU, k) {
			whole++
		}
	}
	if whole != 400 {
		t.Errorf("only %d of 400 first blocks are left", whole)
	}
	checkInvariants(t, x)
}

// TestClearIsIndependentOfSize: a clear touches no key; the sweep takes what is
// left, in bounded steps.
func TestClearIsIndependentOfSize(t *testing.T) {
	u := randomUniverse(4, 40, 300, 11)
	x := New()
	for _, name := range u.replicas {
		var seq uint64
		for _, prompt := range u.prompts[1:] {
			seq++
			feed(t, x, name, seq, storeEvent(CPU, prompt...))
		}
	}
	before := x.Stats()
	x.Drop("r001")
	after := x.Stats()
	if after.Entries != before.Entries*3/4 || after.Keys != before.Keys {
		t.Errorf("stats %+v, before %+v", after, before)
	}
	steps := 1
	for ; x.sweepNow(64); steps++ {
	}
	if steps != numSegments/64 {
		t.Errorf("swept in %d steps", steps)
	}
	for _, name := range []string{"r000", "r002", "r003"} {
		x.Drop(name)
	}
	for x.sweepNow(numSegments) {
	}
	if s := x.Stats(); s.Keys != 0 || s.Sets != 0 || s.Replicas != 0 || s.Bytes > 200_000 {
		t.Errorf("an index of nothing: %+v", s)
	}
	checkInvariants(t, x)
}

// FuzzRestore: whatever the bytes, a snapshot is refused or gives an index that
// writes the same bytes, and nothing breaks when it goes on.
func FuzzRestore(f *testing.F) {
	u := randomUniverse(70, 6, 20, 3)
	d := randDraws{rand.New(rand.NewPCG(5, 5))}
	x := New()
	f.Add(x.AppendSnapshot(nil))
	publishers := map[string]*publisher{}
	for i := range 400 {
		name := pick(d, u.replicas, "")
		if publishers[name] == nil {
			publishers[name] = &publisher{}
		}
		b, err := FromProto(publishers[name].draw(d, u, name), uint64(i+1))
		if err != nil {
			f.Fatal(err)
		}
		x.Apply(b)
		if i%97 == 0 {
			f.Add(x.AppendSnapshot(nil))
		}
	}
	f.Add(x.AppendSnapshot(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := Restore(data, Config{}); err == nil {
			tryRestored(t, u, data)
		}
		if len(data) > checksumBytes { // as a writer with a bug would write it
			tryRestored(t, u, sealed(data[:len(data)-checksumBytes]))
		}
	})
}

// sealed adds the checksum.
func sealed(data []byte) []byte {
	return binary.LittleEndian.AppendUint64(slices.Clone(data), xxh3.Hash(data))
}

func tryRestored(t *testing.T, u universe, data []byte) {
	x, err := Restore(data, Config{})
	if err != nil {
		return
	}
	checkInvariants(t, x)
	again := x.AppendSnapshot(nil)
	if y, err := Restore(again, Config{}); err != nil || !bytes.Equal(y.AppendSnapshot(nil), again) {
		t.Fatalf("a restored index writes what cannot be restored: %v", err)
	}
	for _, prompt := range u.prompts {
		x.Match(nil, prompt, nil)
	}
	for i, name := range u.replicas[:5] {
		feed(t, x, name, uint64(i+1), storeEvent(CPU, u.prompts[1]...), removeEvent(GPU, u.prompts[2]...), clearEvent())
	}
	x.sweepNow(numSegments)
	checkInvariants(t, x)
}

// TestDamagedSnapshotIsRefused: any byte changed, any end cut off.
func TestDamagedSnapshotIsRefused(t *testing.T) {
	u := randomUniverse(9, 6, 20, 3)
	x := New()
	for _, b := range stream(t, u, randDraws{rand.New(rand.NewPCG(1, 1))}, 60) {
		x.Apply(b)
	}
	data := x.AppendSnapshot([]byte("before"))[len("before"):]
	if _, err := Restore(data, Config{}); err != nil {
		t.Fatal(err)
	}
	for i := range data {
		for _, flip := range []byte{1, 0x80, 0xff} {
			bad := slices.Clone(data)
			bad[i] ^= flip
			if y, err := Restore(bad, Config{}); err == nil || y != nil {
				t.Fatalf("byte %d changed: restored", i)
			}
		}
		if y, err := Restore(data[:i], Config{}); err == nil || y != nil {
			t.Fatalf("cut at %d: restored", i)
		}
		// With a checksum that is right, the rest of the reader must refuse it.
		if i > checksumBytes && i < len(data)-checksumBytes {
			if _, err := Restore(sealed(data[:i]), Config{}); err == nil {
				t.Fatalf("cut at %d and sealed: restored", i)
			}
		}
	}
}
