package mirror

// checkInvariants checks what the parts of a mirror say of each other.
func checkInvariants(t fataler, m *Mirror) {
	t.Helper()
	used, nameless, unnamed, listed, keyed, copies := 0, 0, 0, 0, 0, 0
	var present [tiers]int
	for n := range m.slab.all() {
		one := m.slab.at(n)
		used++
		if m.find(one.layout, one.name) != n {
			t.Fatalf("node %d cannot be found by its name", n)
		}
		for i, c := range one.copies {
			if c > 0 && !one.is(flagPartial) {
				present[i]++
				if tier(i) == gpu {
					copies += int(c)
				}
			}
		}
		if one.is(flagListed) {
			listed++
		}
		if one.layout == 0 {
			nameless++
			if !one.is(flagPartial) {
				unnamed++
			}
			if one.gone() || one.shown != 0 || one.is(flagListed) {
				t.Fatalf("a block without a name is nowhere, or shown, or listed: %+v", *one)
			}
			continue
		}
		l := &m.layouts[one.layout]
		free := one.gone() && (l.parts == 1 || m.part(n).child == 0)
		if free != one.is(flagListed) {
			t.Fatalf("node %d, %+v, should be listed: %v", n, *one, free)
		}
		for i := range tier(tiers) {
			want := one.copies[i] > 0
			if l.parts > 1 && m.part(n).parent != 0 {
				want = want && m.slab.at(m.part(n).parent).shownIn(i)
			}
			if one.shownIn(i) != want {
				t.Fatalf("node %d, %+v, should be shown in %d: %v", n, *one, i, want)
			}
		}
		if m.completes(n) {
			keyed++
			if head := m.findKey(one.layout, one.key); head == 0 {
				t.Fatalf("node %d cannot be found by its key", n)
			}
		}
		if l.parts > 1 {
			checkPart(t, m, n)
		}
	}
	if used != m.slab.used || nameless != m.nameless || unnamed != m.unnamed || listed != m.names.count || present != m.present || copies != m.copies {
		t.Fatalf("counted %d nodes, %d nameless, %d unnamed, %d listed, %v present, %d copies; the mirror says %d, %d, %d, %d, %v, %d",
			used, nameless, unnamed, listed, present, copies, m.slab.used, m.nameless, m.unnamed, m.names.count, m.present, m.copies)
	}
	if m.byName.count != used || m.byKey.count > keyed {
		t.Fatalf("tables have %d names and %d keys, of %d and %d", m.byName.count, m.byKey.count, used, keyed)
	}
	walked, last := 0, int32(0)
	for n := m.names.oldest; n != 0; n = m.slab.at(n).newer {
		if m.slab.at(n).older != last {
			t.Fatalf("the list of names is broken at %d", n)
		}
		last = n
		walked++
	}
	if walked != listed || m.names.newest != last {
		t.Fatalf("the list of names has %d of %d", walked, listed)
	}
	checkOrphans(t, m)
}

func checkPart(t fataler, m *Mirror, n int32) {
	t.Helper()
	p := m.part(n)
	if (p.parent == 0) != (p.at == 0) {
		t.Fatalf("part %d of a pool block has parent %d", p.at, p.parent)
	}
	if p.parent != 0 && (m.part(p.parent).at != p.at-1 || m.slab.at(p.parent).layout != m.slab.at(n).layout) {
		t.Fatalf("part %d does not follow its parent", n)
	}
	for child, before := p.child, int32(0); child != 0; child = m.part(child).after {
		if m.part(child).parent != n || m.part(child).before != before {
			t.Fatalf("child %d of %d is not linked", child, n)
		}
		before = child
	}
}

func checkOrphans(t fataler, m *Mirror) {
	t.Helper()
	tokens, waiting := 0, 0
	for parent, at := range m.waiting {
		var last *orphan
		for o := at.first; o != nil; o = o.later {
			if o.parent != parent || o.earlier != last || m.orphans[o.n] != o || m.slab.at(o.n).layout != 0 {
				t.Fatalf("orphan %d is not in line", o.n)
			}
			last = o
			waiting++
			tokens += len(o.tokens)
		}
		if last == nil || at.last != last {
			t.Fatalf("a line has no end")
		}
	}
	if waiting != len(m.orphans) || tokens != m.waitingTokens {
		t.Fatalf("%d orphans with %d tokens wait, the mirror says %d and %d", waiting, tokens, len(m.orphans), m.waitingTokens)
	}
}
