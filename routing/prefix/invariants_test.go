package prefix

import "math/bits"

// checkInvariants checks what the parts of an index say of each other.
func checkInvariants(t fataler, x *Index) {
	t.Helper()
	keys, bytes := 0, int64(0)
	refs := map[ref]uint32{}
	entries := map[*replica]*[NumTiers]int{}
	depths := [numDepths]int{}
	for _, r := range x.sorted {
		entries[r] = &[NumTiers]int{}
	}
	for i := range x.table.segments {
		s := &x.table.segments[i]
		bytes += s.bytes()
		count, last := uint32(0), -1
		for at, in := range s.slots {
			if in.ref == nobody {
				if in != (slot{}) {
					t.Fatalf("segment %d: an empty slot has key %x", i, in.key())
				}
				continue
			}
			count++
			depths[depthClass(in.depth)]++
			if segmentOf(in.key()) != i {
				t.Fatalf("segment %d has key %x", i, in.key())
			}
			if last >= 0 && s.slots[last].key() >= in.key() {
				t.Fatalf("segment %d is not sorted", i)
			}
			if home := s.home(in.key()); home > at || home < at && last != at-1 {
				t.Fatalf("segment %d: key %x at %d cannot be found from %d", i, in.key(), at, home)
			}
			last = at
			if !in.ref.isSingle() {
				refs[in.ref]++
			}
			for _, e := range x.sets.elements(nil, in.ref) {
				if !x.used(e) {
					t.Fatalf("key %x has lane %d, which is free", in.key(), e.lane())
				}
				if owner := x.owners[e.lane()]; owner != nil {
					entries[owner][e.tier()]++
				}
			}
		}
		if count != s.count || len(s.slots) > 0 && s.slots[len(s.slots)-1].ref != nobody {
			t.Fatalf("segment %d counts %d of %d", i, s.count, count)
		}
		keys += int(count)
	}
	if keys != x.table.keys || bytes != x.table.bytes || depths != x.table.depths {
		t.Fatalf("table counts %d keys and %d bytes, has %d and %d, or depths differ", x.table.keys, x.table.bytes, keys, bytes)
	}
	for r, n := range entries {
		if r.entries != *n {
			t.Fatalf("%s counts %v entries, has %v", r.name, r.entries, *n)
		}
	}
	checkSets(t, &x.sets, refs)
	dead, touches, fixed := 0, 0, int64(0)
	for w := range x.live {
		dead += bits.OnesCount64(x.dirty[w])
		if x.live[w]&x.dirty[w] != 0 || x.sweeping[w]&^x.dirty[w] != 0 {
			t.Fatalf("lanes overlap")
		}
	}
	for _, r := range x.sorted {
		touches += len(r.history.touched)
		fixed += replicaBytes + int64(len(r.name)+len(r.doubt))
		if r.doubtSeq > r.seq || r.doubt != "" && r.doubtSeq == 0 {
			t.Fatalf("%s stands at %d and is in doubt (%q) from %d", r.name, r.seq, r.doubt, r.doubtSeq)
		}
	}
	if fixed != x.fixed {
		t.Fatalf("replicas have %d bytes, counted %d", fixed, x.fixed)
	}
	if dead != x.dead || touches != x.touches {
		t.Fatalf("%d dead lanes and %d touches, counted %d and %d", dead, touches, x.dead, x.touches)
	}
}

func checkSets(t fataler, s *sets, refs map[ref]uint32) {
	t.Helper()
	if len(refs) != s.live {
		t.Fatalf("%d sets in use, counted %d", len(refs), s.live)
	}
	bodies, contents := int64(0), map[string]bool{}
	for r, n := range refs {
		one := s.at(r)
		bodies += int64(cap(one.body)) * 8
		if one.refs != n {
			t.Fatalf("set %d has %d keys, counts %d", r, n, one.refs)
		}
		members := s.elements(nil, r)
		if len(members) != int(one.n) || len(members) < 2 {
			t.Fatalf("set %d has %d elements, counts %d", r, len(members), one.n)
		}
		content := ""
		for i, e := range members {
			if i > 0 && members[i-1] >= e || !s.has(r, e) || !s.holds(r, e.lane()) {
				t.Fatalf("set %d is not sorted or lacks an element: %v", r, members)
			}
			content += string(rune(e)) + ","
		}
		if contents[content] {
			t.Fatalf("set %d exists twice", r)
		}
		contents[content] = true
	}
	if bodies != s.bodies {
		t.Fatalf("bodies have %d bytes, counted %d", bodies, s.bodies)
	}
}

// sweepNow sweeps n segments and reports whether anything is left.
func (x *Index) sweepNow(n int) (more bool) {
	x.writer.Lock()
	defer x.writer.Unlock()
	for ; n > 0 && x.dead > 0; n-- {
		x.gate.lock()
		x.sweepSegment()
		x.gate.unlock()
	}
	return x.dead > 0
}
