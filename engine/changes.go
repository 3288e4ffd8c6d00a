package engine

import (
	"slices"
	"time"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
)

// Change is what one step did to the KV cache, in order: the step that began at
// At. Events must not be changed.
type Change struct {
	At     time.Duration
	Events []*pb.KVEvent
}

// recorder gathers the events of one step, adjacent ones joined.
type recorder struct {
	events  []*pb.KVEvent
	removed *pb.KVRemove // the event being extended, the last one
}

func (r *recorder) remove(key blockkey.Key) {
	if r.removed == nil {
		r.removed = &pb.KVRemove{Tier: pb.Tier_TIER_GPU, Reason: pb.KVRemoveReason_KV_REMOVE_REASON_EVICTED}
		r.events = append(r.events, &pb.KVEvent{Event: &pb.KVEvent_Remove{Remove: r.removed}})
	}
	r.removed.Keys = append(r.removed.Keys, key)
}

func (r *recorder) store(keys []blockkey.Key, parent blockkey.Key, root bool) {
	r.removed = nil
	r.events = append(r.events, storeEvent(keys, parent, root))
}

// cut returns what was gathered and starts over.
func (r *recorder) cut() []*pb.KVEvent {
	events := r.events
	r.events, r.removed = nil, nil
	return events
}

func storeEvent(keys []blockkey.Key, parent blockkey.Key, root bool) *pb.KVEvent {
	store := &pb.KVStore{Tier: pb.Tier_TIER_GPU, Keys: keys}
	if !root {
		store.Parent = &parent
	}
	return &pb.KVEvent{Event: &pb.KVEvent_Store{Store: store}}
}

// Resident returns stores of everything in the cache, parents before children,
// in an order that depends only on what is resident. Folding them into an empty
// cache gives this one.
func (e *Engine) Resident() []*pb.KVEvent {
	children := make(map[blockkey.Key][]blockkey.Key)
	var roots []blockkey.Key
	for i := range e.cache.blocks {
		switch b := &e.cache.blocks[i]; {
		case !b.stored:
		case b.root:
			roots = append(roots, b.key)
		default:
			children[b.parent] = append(children[b.parent], b.key)
		}
	}
	slices.Sort(roots)
	var events []*pb.KVEvent
	// A chain is followed to its leaf; what branches off waits on the stack.
	type branch struct {
		parent blockkey.Key
		keys   []blockkey.Key
		root   bool
	}
	stack := []branch{}
	for _, key := range slices.Backward(roots) {
		stack = append(stack, branch{keys: []blockkey.Key{key}, root: true})
	}
	for len(stack) > 0 {
		b := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		for {
			last := b.keys[len(b.keys)-1]
			next := children[last]
			if len(next) == 0 {
				break
			}
			slices.Sort(next)
			for _, key := range slices.Backward(next[1:]) {
				stack = append(stack, branch{parent: last, keys: []blockkey.Key{key}})
			}
			b.keys = append(b.keys, next[0])
		}
		events = append(events, storeEvent(b.keys, b.parent, b.root))
	}
	return events
}

// Has says whether a block is resident.
func (e *Engine) Has(key blockkey.Key) bool {
	_, ok := e.cache.byKey[key]
	return ok
}

// Size is the number of resident blocks that have a key.
func (e *Engine) Size() int { return len(e.cache.byKey) }
