package prefix

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sort"
	"testing"
	"time"

	"pgregory.net/rapid"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
)

// model is the index's meaning, written as plainly as possible: what a replica
// holds is the fold of all batches of its epoch that came, by seq.
type model struct {
	replicas map[string]*modelReplica
	position uint64
}

type modelReplica struct {
	epoch []byte
	seq   uint64
	came  map[uint64]*pb.KVBatch
	// closed is true when there are too many holes: late batches count no more.
	closed bool
	gaps   int // holes when the last batch came
	held   map[Tier]map[blockkey.Key]bool
	doubt  string
}

func (r *modelReplica) holes() int {
	holes, last := 0, uint64(0)
	for _, seq := range slices.Sorted(maps.Keys(r.came)) {
		if seq != last+1 {
			holes++
		}
		last = seq
	}
	return holes
}

func (r *modelReplica) suspect() bool { return r.closed || r.gaps > 0 || r.doubt != "" }

func (m *model) apply(b *pb.KVBatch, position uint64) Applied {
	var a Applied
	m.position = max(m.position, position)
	r := m.replicas[b.Replica]
	if r == nil || bytes.Compare(b.Epoch, r.epoch) > 0 {
		r = &modelReplica{epoch: b.Epoch, held: emptyTiers(), came: map[uint64]*pb.KVBatch{}}
		m.replicas[b.Replica] = r
		a.NewEpoch = true
	}
	if bytes.Compare(b.Epoch, r.epoch) < 0 {
		return Applied{Stale: true}
	}
	if b.Seq <= r.seq && (r.closed || r.came[b.Seq] != nil) {
		return Applied{Duplicate: true}
	}
	if a.Late = b.Seq < r.seq; a.Late {
		r.came[b.Seq] = b
		r.held, r.doubt = emptyTiers(), ""
		for _, seq := range slices.Sorted(maps.Keys(r.came)) {
			r.fold(r.came[seq], &Applied{})
		}
	} else {
		a.Gap = b.Seq - (r.seq + 1)
		r.seq = b.Seq
		r.came[b.Seq] = b
		r.fold(b, &a)
	}
	if a.Late || a.Gap > 0 {
		r.gaps = r.holes()
	}
	r.closed = r.closed || r.gaps > maxHoles
	return a
}

// alike says whether an index did what the model did with a batch. What a late
// one changes is less than what it would have changed in time.
func alike(got, want Applied) bool {
	if got.Late {
		got.Stored, got.Removed, got.UnknownRemoved, got.Cleared = 0, 0, 0, false
	}
	return got == want
}

func (r *modelReplica) fold(b *pb.KVBatch, a *Applied) {
	for _, e := range b.Events {
		switch {
		case e.GetStore() != nil:
			tier := Tier(e.GetStore().Tier - 1)
			for _, k := range e.GetStore().Keys {
				if !r.held[tier][k] {
					r.held[tier][k] = true
					a.Stored++
				}
			}
		case e.GetRemove() != nil:
			tier := Tier(e.GetRemove().Tier - 1)
			for _, k := range e.GetRemove().Keys {
				if r.held[tier][k] {
					delete(r.held[tier], k)
					a.Removed++
				} else {
					a.UnknownRemoved++
				}
			}
		case e.GetClear() != nil:
			r.held = emptyTiers()
			a.Cleared = true
		case e.GetDoubt() != nil:
			r.doubt = e.GetDoubt().Reason
		}
	}
}

func emptyTiers() map[Tier]map[blockkey.Key]bool {
	out := map[Tier]map[blockkey.Key]bool{}
	for t := GPU; t < NumTiers; t++ {
		out[t] = map[blockkey.Key]bool{}
	}
	return out
}

// match answers as Index.Match does; predicted says which keys are predicted
// for a replica.
func (m *model) match(keys []blockkey.Key, predicted func(replica string, k blockkey.Key) bool, all []string) []Match {
	var out []Match
	for _, name := range all {
		r := m.replicas[name]
		match := Match{Replica: name}
		known := r != nil
		if !known {
			r = &modelReplica{held: emptyTiers()}
		}
		copy(match.Epoch[:], r.epoch)
		match.Suspect = r.suspect()
		for _, keys := range r.held {
			match.Entries += len(keys)
		}
		best := func(k blockkey.Key) (Tier, bool) {
			for t := GPU; t < NumTiers; t++ {
				if r.held[t][k] {
					return t, true
				}
			}
			return 0, false
		}
		for match.GPU < len(keys) && r.held[GPU][keys[match.GPU]] {
			match.GPU++
		}
		for match.Total < len(keys) {
			t, ok := best(keys[match.Total])
			if !ok {
				break
			}
			match.Tiers[t]++
			match.Total++
		}
		for match.Predicted < len(keys) {
			k := keys[match.Predicted]
			if _, ok := best(k); !ok && !predicted(name, k) {
				break
			}
			match.Predicted++
		}
		if known || match.Predicted > 0 {
			out = append(out, match)
		}
	}
	return out
}

func epochNumber(n int) []byte {
	e := make([]byte, 16)
	e[6] = 0x70
	binary.BigEndian.PutUint32(e[12:], uint32(n))
	return e
}

func storeEvent(t Tier, keys ...blockkey.Key) *pb.KVEvent {
	return &pb.KVEvent{Event: &pb.KVEvent_Store{Store: &pb.KVStore{Tier: t.ToProto(), Keys: keys}}}
}

func removeEvent(t Tier, keys ...blockkey.Key) *pb.KVEvent {
	return &pb.KVEvent{Event: &pb.KVEvent_Remove{Remove: &pb.KVRemove{Tier: t.ToProto(), Keys: keys}}}
}

func clearEvent() *pb.KVEvent {
	return &pb.KVEvent{Event: &pb.KVEvent_Clear{Clear: &pb.KVClear{Reason: "test"}}}
}

// doubtEvent begins a doubt, or ends it without a reason.
func doubtEvent(reason string) *pb.KVEvent {
	return &pb.KVEvent{Event: &pb.KVEvent_Doubt{Doubt: &pb.KVDoubt{Reason: reason}}}
}

// universe is a few prompts that share prefixes, and everything drawn from them.
type universe struct {
	prompts  [][]blockkey.Key
	keys     []blockkey.Key
	replicas []string
}

func newUniverse(replicas int) universe {
	var u universe
	tree := blockkey.Root("m", "", "")
	seen := map[blockkey.Key]bool{}
	for _, path := range [][]uint32{{1, 2, 3, 4, 5, 6}, {1, 2, 3, 7, 8}, {1, 9, 10}, {11, 12, 13, 14, 15, 16, 17, 18}, {}} {
		chain := blockkey.Chain(nil, tree, path, 1)
		u.prompts = append(u.prompts, chain)
		for _, k := range chain {
			if !seen[k] {
				seen[k] = true
				u.keys = append(u.keys, k)
			}
		}
	}
	for i := range replicas {
		u.replicas = append(u.replicas, fmt.Sprintf("r%03d", i))
	}
	sort.Strings(u.replicas)
	return u
}

// draws is where random choices come from: rapid, which makes failures small, or
// a plain generator, which is fast.
type draws interface {
	below(n int, label string) int
}

type rapidDraws struct{ t *rapid.T }

func (d rapidDraws) below(n int, label string) int { return rapid.IntRange(0, n-1).Draw(d.t, label) }

func pick[T any](d draws, from []T, label string) T { return from[d.below(len(from), label)] }

// drawEvent draws a store of a chain or of scattered keys (parents out of
// order), a removal, a clear or a doubt.
func (u universe) drawEvent(d draws) *pb.KVEvent {
	tier := Tier(d.below(int(NumTiers), "tier"))
	kind := d.below(22, "event")
	if kind < 7 {
		prompt := pick(d, u.prompts, "prompt")
		from := d.below(len(prompt)+1, "from")
		event := storeEvent(tier, prompt[from:]...)
		if from > 0 && d.below(2, "parent") == 1 {
			event.GetStore().Parent = &prompt[from-1]
		}
		return event
	}
	if kind == 19 {
		return clearEvent()
	}
	if kind >= 20 {
		return doubtEvent(pick(d, []string{"", "", "unnamed blocks", "engine history lost"}, "doubt"))
	}
	var keys []blockkey.Key
	for range d.below(7, "keys") {
		keys = append(keys, pick(d, u.keys, "key"))
	}
	if kind < 12 {
		return storeEvent(tier, keys...)
	}
	return removeEvent(tier, keys...)
}

// publisher numbers batches as a bridge does, with the faults of a bad day.
type publisher struct {
	epoch      int
	seq        uint64
	sent, lost []*pb.KVBatch
}

func (p *publisher) draw(d draws, u universe, name string) *pb.KVBatch {
	switch fault := d.below(20, "fault"); {
	case fault == 0: // a new life
		p.epoch++
		p.seq, p.lost = 0, nil
	case fault == 1 && len(p.sent) > 0: // delivered again
		return pick(d, p.sent[max(0, len(p.sent)-40):], "again")
	case fault == 2 && p.epoch > 0: // late from an earlier life
		b := &pb.KVBatch{Replica: name, Epoch: epochNumber(p.epoch - 1), Seq: uint64(1 + d.below(50, "late seq"))}
		b.Events = []*pb.KVEvent{u.drawEvent(d)}
		return b
	case fault == 3: // lost batches, which may come after all
		for range 1 + d.below(3, "lost") {
			p.lost = append(p.lost, p.next(d, u, name))
		}
	case fault < 7 && len(p.lost) > 0:
		i := d.below(len(p.lost), "resent")
		b := p.lost[i]
		p.lost = slices.Delete(p.lost, i, i+1)
		p.sent = append(p.sent, b)
		return b
	}
	b := p.next(d, u, name)
	p.sent = append(p.sent, b)
	return b
}

func (p *publisher) next(d draws, u universe, name string) *pb.KVBatch {
	p.seq++
	b := &pb.KVBatch{Replica: name, Epoch: epochNumber(p.epoch), Seq: p.seq}
	for range d.below(4, "events") {
		b.Events = append(b.Events, u.drawEvent(d))
	}
	return b
}

func mustBatch(t interface{ Fatal(...any) }, b *pb.KVBatch, position uint64) Batch {
	batch, err := FromProto(b, position)
	if err != nil {
		t.Fatal(err)
	}
	return batch
}

// TestIndexIsTheModel drives the index and the model with the same random
// streams and compares every answer after every step.
func TestIndexIsTheModel(t *testing.T) {
	for _, replicas := range []int{3, 70} { // one bank and two
		t.Run(fmt.Sprint(replicas), func(t *testing.T) {
			u := newUniverse(replicas)
			rapid.Check(t, func(t *rapid.T) { checkAgainstModel(t, u) })
		})
	}
}

func checkAgainstModel(t *rapid.T, u universe) {
	x, m := New(), &model{replicas: map[string]*modelReplica{}}
	p := NewPredictions(time.Second)
	predicted := map[string]modelPrediction{}
	publishers := map[string]*publisher{}
	for step := range rapid.IntRange(1, 60).Draw(t, "steps") {
		name := rapid.SampledFrom(u.replicas).Draw(t, "replica")
		now := int64(step) * 100_000
		switch action := rapid.IntRange(0, 29).Draw(t, "action"); {
		case action == 0:
			x.Drop(name)
			delete(m.replicas, name)
		case action <= 3:
			id := fmt.Sprint("d", rapid.IntRange(0, 5).Draw(t, "decision"))
			keys := rapid.SampledFrom(u.prompts).Draw(t, "predicted")
			p.Add(id, name, keys, now)
			predicted[id] = modelPrediction{name, keys, now + 1_000_000}
		case action == 4:
			id := fmt.Sprint("d", rapid.IntRange(0, 5).Draw(t, "decision"))
			p.Drop(id)
			delete(predicted, id)
		case action == 6:
			x = restored(t, x)
		case action == 7:
			x.sweepNow(numSegments / 3)
		case action == 5:
			p.DropReplica(name)
			for id, one := range predicted {
				if one.replica == name {
					delete(predicted, id)
				}
			}
		default:
			if publishers[name] == nil {
				publishers[name] = &publisher{}
			}
			b := publishers[name].draw(rapidDraws{t}, u, name)
			position := uint64(step + 1)
			if got, want := x.Apply(mustBatch(t, b, position)), m.apply(b, position); !alike(got, want) {
				t.Fatalf("step %d: applied %+v, want %+v", step, got, want)
			}
		}
		p.Expire(now)
		for id, one := range predicted {
			if one.deadlineUS <= now || len(one.keys) == 0 {
				delete(predicted, id)
			}
		}
		compare(t, u, x, m, p, predicted)
	}
	checkInvariants(t, x)
}

// restored is an index's snapshot restored, which is the same to the byte.
func restored(t fataler, x *Index) *Index {
	data := x.AppendSnapshot(nil)
	again, err := Restore(data, x.cfg)
	if err != nil {
		t.Fatalf("restore: %v", err)
	}
	if a, b := again.Stats(), x.Stats(); a != b {
		t.Fatalf("restored stats %+v, want %+v", a, b)
	}
	if !bytes.Equal(data, again.AppendSnapshot(nil)) {
		t.Fatalf("a restored index writes another snapshot")
	}
	return again
}

// fataler is a test of either kind.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

type modelPrediction struct {
	replica    string
	keys       []blockkey.Key
	deadlineUS int64
}

func compare(t *rapid.T, u universe, x *Index, m *model, p *Predictions, predicted map[string]modelPrediction) {
	isPredicted := func(replica string, k blockkey.Key) bool {
		for _, one := range predicted {
			if one.replica == replica && slices.Contains(one.keys, k) {
				return true
			}
		}
		return false
	}
	never := func(string, blockkey.Key) bool { return false }
	for _, prompt := range u.prompts {
		got, position := x.Match(nil, prompt, p)
		if want := m.match(prompt, isPredicted, u.replicas); !slices.Equal(got, want) {
			t.Fatalf("match of %x:\n got %+v\nwant %+v", prompt, got, want)
		}
		if position != m.position || x.Position() != m.position {
			t.Fatalf("position %d, want %d", position, m.position)
		}
		got, _ = x.Match(nil, prompt, nil)
		if want := m.match(prompt, never, u.replicas); !slices.Equal(got, want) {
			t.Fatalf("match of %x without predictions:\n got %+v\nwant %+v", prompt, got, want)
		}
	}
	if p.Len() != len(predicted) {
		t.Fatalf("%d predictions, want %d", p.Len(), len(predicted))
	}
	entries, suspects := 0, 0
	for name, r := range m.replicas {
		if r.suspect() {
			suspects++
		}
		for tier, keys := range r.held {
			entries += len(keys)
			for _, k := range u.keys {
				if x.Has(name, tier, k) != keys[k] {
					t.Fatalf("%s in %s has %x: %v, want %v", name, tier, k, !keys[k], keys[k])
				}
			}
		}
	}
	for _, life := range x.Lives() {
		if want := m.replicas[life.Replica].doubt; life.Doubt != want {
			t.Fatalf("%s is in doubt for %q, want %q", life.Replica, life.Doubt, want)
		}
	}
	if s := x.Stats(); s.Replicas != len(m.replicas) || s.Entries != entries || s.Suspects != suspects {
		t.Fatalf("stats %+v, want %d replicas, %d entries, %d suspects", s, len(m.replicas), entries, suspects)
	}
}

// drawStream draws a whole stream of batches, faults included.
func drawStream(t *rapid.T, u universe) []*pb.KVBatch {
	publishers := map[string]*publisher{}
	var out []*pb.KVBatch
	for range rapid.IntRange(1, 50).Draw(t, "batches") {
		name := rapid.SampledFrom(u.replicas).Draw(t, "replica")
		if publishers[name] == nil {
			publishers[name] = &publisher{}
		}
		out = append(out, publishers[name].draw(rapidDraws{t}, u, name))
	}
	return out
}

func answers(u universe, x *Index) []Match {
	var all []Match
	for _, prompt := range u.prompts {
		all, _ = x.Match(all, prompt, nil)
	}
	return all
}

// TestDuplicateDelivery: a stream some of whose batches come twice or thrice,
// at once or much later, gives the same index.
func TestDuplicateDelivery(t *testing.T) {
	u := newUniverse(3)
	rapid.Check(t, func(t *rapid.T) {
		stream := drawStream(t, u)
		once, again := New(), New()
		for i, b := range stream {
			batch := mustBatch(t, b, uint64(i+1))
			once.Apply(batch)
			again.Apply(batch)
			if a := again.Apply(batch); !a.Duplicate && !a.Stale {
				t.Fatalf("batch %d delivered again: %+v", i, a)
			}
			earlier := rapid.IntRange(0, i).Draw(t, "earlier")
			if a := again.Apply(mustBatch(t, stream[earlier], uint64(earlier+1))); !a.Duplicate && !a.Stale {
				t.Fatalf("batch %d delivered again after %d: %+v", earlier, i, a)
			}
		}
		if !slices.Equal(answers(u, once), answers(u, again)) || once.Position() != again.Position() {
			t.Fatal("duplicates changed the index")
		}
		a, b := once.Stats(), again.Stats()
		if a.Entries != b.Entries || a.Gaps != b.Gaps || a.Missing != b.Missing || a.UnknownRemovals != b.UnknownRemovals {
			t.Fatalf("stats %+v and %+v", a, b)
		}
	})
}

// TestSameStreamSameAnswers: two folds of a stream agree at every position, and
// a replica's own order is all that counts: streams whose replicas are
// interleaved otherwise end in the same index.
func TestSameStreamSameAnswers(t *testing.T) {
	u := newUniverse(4)
	rapid.Check(t, func(t *rapid.T) {
		stream := drawStream(t, u)
		one, two, sorted := New(), New(), New()
		for i, b := range stream {
			one.Apply(mustBatch(t, b, uint64(i+1)))
			two.Apply(mustBatch(t, b, uint64(i+1)))
			if !slices.Equal(answers(u, one), answers(u, two)) {
				t.Fatalf("two folds differ at %d", i+1)
			}
		}
		byReplica := slices.Clone(stream)
		slices.SortStableFunc(byReplica, func(a, b *pb.KVBatch) int { return bytes.Compare([]byte(a.Replica), []byte(b.Replica)) })
		for i, b := range byReplica {
			sorted.Apply(mustBatch(t, b, uint64(i+1)))
		}
		if !slices.Equal(answers(u, one), answers(u, sorted)) || one.Stats() != likeness(sorted.Stats(), one.Stats()) {
			t.Fatalf("the interleaving changed the index: %+v, %+v", one.Stats(), sorted.Stats())
		}
	})
}

// likeness sets the figures that depend on when dead lives were swept.
func likeness(s, to Stats) Stats {
	s.Keys, s.Sets, s.Bytes = to.Keys, to.Sets, to.Bytes
	return s
}
