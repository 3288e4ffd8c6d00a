package streams

import pb "warmpath/schemas/warmpathv1"

// MaxBatchWords is how many keys and engine hashes one KV batch should carry:
// half of NATS's default payload limit of 1 MiB.
const MaxBatchWords = 64 << 10

// SplitKV cuts events into batches of at most limit keys and engine hashes, and
// long events in pieces. Together the pieces mean the same, in their order. The
// slices of long events are shared between pieces.
func SplitKV(events []*pb.KVEvent, limit int) [][]*pb.KVEvent {
	s := splitter{limit: limit, room: limit}
	for _, event := range events {
		for event != nil {
			words := eventWords(event)
			if words <= s.room {
				s.add(event, words)
				break
			}
			head, tail := cutEvent(event, s.room, len(s.batch) == 0)
			if head != nil {
				s.add(head, eventWords(head))
			}
			event = tail
			s.cut()
		}
	}
	s.cut()
	return s.batches
}

type splitter struct {
	limit, room int
	batch       []*pb.KVEvent
	batches     [][]*pb.KVEvent
}

func (s *splitter) add(event *pb.KVEvent, words int) {
	s.batch = append(s.batch, event)
	s.room -= words
}

func (s *splitter) cut() {
	if len(s.batch) > 0 {
		s.batches = append(s.batches, s.batch)
	}
	s.batch, s.room = nil, s.limit
}

func eventWords(event *pb.KVEvent) int {
	store, remove := event.GetStore(), event.GetRemove()
	return len(store.GetKeys()) + len(store.GetHashes()) + len(remove.GetKeys()) + len(remove.GetHashes())
}

// cutEvent splits an event so that its head has at most room words. When nothing
// fits, head is nil, or with force what cannot be cut further. tail may be nil.
func cutEvent(event *pb.KVEvent, room int, force bool) (head, tail *pb.KVEvent) {
	if store := event.GetStore(); store != nil {
		return cutStore(event, store, room, force)
	}
	remove := event.GetRemove()
	n := min(room, len(remove.GetKeys()))
	h := min(room-n, len(remove.GetHashes()))
	switch {
	case n+h > 0:
	case force:
		return event, nil
	default:
		return nil, event
	}
	part := func(keys, hashes []uint64) *pb.KVEvent {
		return &pb.KVEvent{Event: &pb.KVEvent_Remove{Remove: &pb.KVRemove{Tier: remove.Tier, Reason: remove.Reason, Keys: keys, Hashes: hashes}}}
	}
	return part(remove.Keys[:n], remove.Hashes[:h]), part(remove.Keys[n:], remove.Hashes[h:])
}

// cutStore cuts between engine blocks, which may be several keys each.
func cutStore(event *pb.KVEvent, store *pb.KVStore, room int, force bool) (head, tail *pb.KVEvent) {
	blocks, keysEach, words := len(store.Keys), 1, 1
	if hashes := len(store.Hashes); hashes > 0 {
		blocks, keysEach = hashes, len(store.Keys)/hashes
		words = keysEach + 1
	}
	n := room / words
	if n == 0 && force {
		n = 1
	}
	switch {
	case n >= blocks || keysEach == 0:
		return event, nil
	case n == 0:
		return nil, event
	}
	cut := func(all []uint64, n int) (before, after []uint64) {
		if len(all) == 0 {
			return nil, nil
		}
		return all[:n], all[n:]
	}
	keys, keysLeft := cut(store.Keys, n*keysEach)
	names, namesLeft := cut(store.Hashes, n)
	parent := keys[len(keys)-1]
	return &pb.KVEvent{Event: &pb.KVEvent_Store{Store: &pb.KVStore{Tier: store.Tier, Parent: store.Parent, Keys: keys, Hashes: names}}},
		&pb.KVEvent{Event: &pb.KVEvent_Store{Store: &pb.KVStore{Tier: store.Tier, Parent: &parent, Keys: keysLeft, Hashes: namesLeft}}}
}
