package mirror

import (
	"errors"
	"fmt"
	"slices"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
)

// adoption is how far a mirror has come in an epoch that is not its own.
type adoption struct {
	seq    uint64
	doubt  string
	source *uint64
	stored bool
	// said is keys that events removed, gone those that went with the engine names
	// they removed, as far as one is ahead of the other: a removal may have been
	// cut between them.
	said, gone []blockkey.Key
}

// Adopt takes the next batch of an epoch that another mirror of the same replica
// published, from its first on, so that this one can go on in its place; m must
// be new. An error says why that cannot be exact: m must be Reset then, and the
// replica needs a new epoch. After the last batch call Adopted.
func (m *Mirror) Adopt(b *pb.KVBatch) error {
	m.adopting = true
	defer func() { m.adopting = false }()
	a := &m.adoption
	if b.GetSeq() != a.seq+1 {
		return fmt.Errorf("adopt: batch %d comes after %d; the epoch must be whole", b.GetSeq(), a.seq)
	}
	if b.BlockTokens != 0 && int(b.BlockTokens) != m.cfg.BlockTokens {
		return fmt.Errorf("adopt: batch %d has blocks of %d tokens, not %d", b.Seq, b.BlockTokens, m.cfg.BlockTokens)
	}
	a.seq, a.source = b.Seq, b.SourceSeq
	for i, e := range b.Events {
		if err := m.adopt(e); err != nil {
			return fmt.Errorf("adopt: batch %d, event %d: %w", b.Seq, i, err)
		}
	}
	return nil
}

// Adopted ends an adoption and returns the engine's number of the last batch: the
// engine must be asked for what came after it. An error says why the mirror
// cannot go on from there; it must be Reset then. An epoch that ends in doubt is
// adopted only if the doubt is one of Suspect's for a reason among suspicions,
// which is in force from then on.
func (m *Mirror) Adopted(suspicions ...string) (sourceSeq uint64, err error) {
	a := m.adoption
	m.adoption, m.out = adoption{}, output{}
	if slices.Contains(suspicions, a.doubt) {
		m.outside, m.told, a.doubt = a.doubt, a.doubt, ""
	}
	switch {
	case a.seq == 0:
		return 0, fmt.Errorf("adopt: the epoch has no batch")
	case a.doubt != "":
		return 0, fmt.Errorf("adopt: the epoch is in doubt: %s", a.doubt)
	case len(a.said)+len(a.gone) > 0:
		return 0, errUneven
	case a.source == nil:
		return 0, fmt.Errorf("adopt: batch %d does not say which engine batch it completes", a.seq)
	}
	// Names are withheld unless group 0 is the one that counts.
	m.groupSeen = m.groupSeen || a.stored
	return *a.source, nil
}

// errUneven is the error of removals whose keys and engine names do not belong
// together.
var errUneven = errors.New("adopt: removed keys and removed engine names are not of the same blocks")

func (m *Mirror) adopt(e *pb.KVEvent) error {
	if a := &m.adoption; e.GetRemove() == nil && len(a.said)+len(a.gone) > 0 {
		return errUneven
	}
	switch event := e.GetEvent().(type) {
	case *pb.KVEvent_Store:
		return m.adoptStore(event.Store)
	case *pb.KVEvent_Remove:
		return m.adoptRemoval(event.Remove)
	case *pb.KVEvent_Clear:
		m.empty()
		return nil
	case *pb.KVEvent_Doubt:
		m.adoption.doubt = event.Doubt.GetReason()
		return nil
	}
	return fmt.Errorf("it is of a kind that is not known here")
}

// errUnnamed is the error of an event without engine names.
func errUnnamed(keys int) error {
	return fmt.Errorf("%d keys have no engine names", keys)
}

func (m *Mirror) adoptStore(s *pb.KVStore) error {
	t, ok := tierOf(s.GetTier())
	keys, names := s.GetKeys(), s.GetHashes()
	switch {
	case !ok:
		return fmt.Errorf("tier is %v", s.GetTier())
	case len(keys) == 0 && len(names) == 0: // see unadoptable
		return fmt.Errorf("the engine's blocks are smaller than the pool's, or its events of several attention groups, which cannot be told wholly")
	case len(names) == 0 || len(keys)%len(names) != 0 || len(keys) == 0:
		return errUnnamed(len(keys))
	}
	k := len(keys) / len(names)
	of := m.layoutOf(k * m.cfg.BlockTokens)
	if of == 0 {
		return fmt.Errorf("block sizes change too often")
	}
	m.sizes[t] = of
	m.adoption.stored = true
	c := content{cursor: cursor{key: s.GetParent(), first: s.Parent == nil}}
	for i, name := range names {
		c.keys = keys[i*k:][:k]
		c.end = c.keys[k-1]
		if n := m.find(of, name); n != 0 && !m.slab.at(n).gone() && !m.same(n, c) {
			return fmt.Errorf("engine name %#x is of another block that is still there", name)
		}
		n := m.place(of, name, c)
		if n == 0 {
			return fmt.Errorf("there are more than %d blocks", m.cfg.MaxBlocks)
		}
		m.addCopy(n, t, false)
		c.cursor = cursor{key: c.end}
	}
	m.out = output{}
	return nil
}

func (m *Mirror) adoptRemoval(r *pb.KVRemove) error {
	t, ok := tierOf(r.GetTier())
	switch {
	case !ok:
		return fmt.Errorf("tier is %v", r.GetTier())
	case len(r.Keys) == 0 && len(r.Hashes) == 0:
		m.once = true // see announcements
		for n := range m.slab.all() {
			m.slab.at(n).absorbed = 0
		}
		return nil
	}
	for _, name := range r.Hashes {
		n := int32(0)
		if of := m.sizes[t]; of != 0 {
			n = m.find(of, name)
		}
		if n == 0 || m.slab.at(n).copies[t] == 0 {
			return fmt.Errorf("engine name %#x is removed and not there", name)
		}
		m.dropCopy(n, t)
	}
	a := &m.adoption
	a.said = append(a.said, r.Keys...)
	for _, e := range m.out.take() {
		a.gone = append(a.gone, e.GetRemove().GetKeys()...)
	}
	both := min(len(a.said), len(a.gone))
	if !slices.Equal(a.said[:both], a.gone[:both]) {
		return errUneven
	}
	a.said, a.gone = slices.Delete(a.said, 0, both), slices.Delete(a.gone, 0, both)
	return nil
}
