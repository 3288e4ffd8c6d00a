package mirror

import (
	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
)

// maxRun bounds the keys, and the names, of one event, so that a publisher can
// cut a batch between events.
const maxRun = 1024

// output collects events, and joins what belongs together: stores that continue
// a chain in a tier, and removals in a row from a tier.
type output struct {
	events []*pb.KVEvent
	store  *pb.KVStore  // the last event, if it is one
	remove *pb.KVRemove // the last event, if it is one
	hint   int
}

// expect says how many keys may come in one event.
func (o *output) expect(keys int) { o.hint = min(keys, maxRun) }

func (o *output) take() []*pb.KVEvent {
	events := o.events
	*o = output{}
	return events
}

func (o *output) add(e *pb.KVEvent) {
	o.events = append(o.events, e)
	o.store, o.remove = e.GetStore(), e.GetRemove()
}

// storing is a store event and what it points to, in one allocation.
type storing struct {
	event  pb.KVEvent
	of     pb.KVEvent_Store
	store  pb.KVStore
	parent uint64
}

// stores tells the keys of one engine block, named if named.
func (o *output) stores(t tier, prev blockkey.Key, first bool, keys []blockkey.Key, name uint64, named bool) {
	s := o.store
	if s == nil || !continues(s, t, prev, first, keys, named) {
		one := &storing{parent: prev}
		one.event.Event, one.of.Store = &one.of, &one.store
		s = &one.store
		s.Tier = t.proto()
		if !first {
			s.Parent = &one.parent
		}
		s.Keys = make([]uint64, 0, max(o.hint, len(keys)))
		if named {
			s.Hashes = make([]uint64, 0, max(o.hint/len(keys), 1))
		}
		o.add(&one.event)
	}
	s.Keys = append(s.Keys, keys...)
	if named {
		s.Hashes = append(s.Hashes, name)
	}
}

// continues says whether a block belongs behind the last one of a store.
func continues(s *pb.KVStore, t tier, prev blockkey.Key, first bool, keys []blockkey.Key, named bool) bool {
	per := 0
	if named {
		per = len(keys)
	}
	return !first && s.Tier == t.proto() && s.Keys[len(s.Keys)-1] == prev &&
		len(s.Keys)+len(keys) <= max(maxRun, len(keys)) && len(s.Hashes)*max(per, 1) == len(s.Keys)*min(per, 1)
}

// removal is the event that the next removal from a tier joins.
func (o *output) removal(t tier, more int) *pb.KVRemove {
	if r := o.remove; r != nil && r.Tier == t.proto() && max(len(r.Keys), len(r.Hashes))+more <= maxRun {
		return r
	}
	r := &pb.KVRemove{Tier: t.proto()}
	o.add(&pb.KVEvent{Event: &pb.KVEvent_Remove{Remove: r}})
	return r
}

// removes tells that copies of a block went from a tier, and that keys did.
func (o *output) removes(t tier, keys []blockkey.Key, name uint64, times int) {
	for ; times > maxRun; times -= maxRun {
		o.removes(t, nil, name, maxRun)
	}
	if times == 0 && len(keys) == 0 {
		return
	}
	r := o.removal(t, max(times, len(keys)))
	for range times {
		r.Hashes = append(r.Hashes, name)
	}
	r.Keys = append(r.Keys, keys...)
}

// clear tells that every tier is empty.
func (o *output) clear(why string) {
	o.add(&pb.KVEvent{Event: &pb.KVEvent_Clear{Clear: &pb.KVClear{Reason: why}}})
}

// announcements tells a mirror that adopts these events that repeated stores are
// no copies from here on. To others it is a removal of nothing.
func (o *output) announcements() {
	o.add(&pb.KVEvent{Event: &pb.KVEvent_Remove{Remove: &pb.KVRemove{Tier: pb.Tier_TIER_GPU}}})
	o.remove = nil // nothing joins it
}

// unadoptable tells a mirror that would adopt these events that it cannot. To
// others it is a store of nothing.
func (o *output) unadoptable() {
	o.add(&pb.KVEvent{Event: &pb.KVEvent_Store{Store: &pb.KVStore{Tier: pb.Tier_TIER_GPU}}})
	o.store = nil
}

func doubtEvent(reason string) *pb.KVEvent {
	return &pb.KVEvent{Event: &pb.KVEvent_Doubt{Doubt: &pb.KVDoubt{Reason: reason}}}
}
