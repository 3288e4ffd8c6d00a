package prefix

import (
	"fmt"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
)

// Epoch is one life of a replica's cache, a UUIDv7: a later life is greater,
// byte by byte.
type Epoch [16]byte

// Batch is one checked step of one replica's cache, with its place in the
// pool's KV stream.
type Batch struct {
	replica  string
	epoch    Epoch
	seq      uint64
	position uint64
	changes  []change
	// unknown counts changes of a kind that this version does not know.
	unknown int
}

// change is one KVEvent.
type change struct {
	kind changeKind
	tier Tier
	keys []blockkey.Key
	// parent is the key before the first one, when parented. depth is the first
	// key's place in its prompt where that is known already, else 0.
	parent   blockkey.Key
	parented bool
	depth    uint32
	// doubt is the reason of one that begins, empty for one that ends.
	doubt string
}

type changeKind uint8

const (
	store changeKind = iota
	remove
	clearAll
	setDoubt
)

// FromProto checks a batch; position is its sequence in the KV stream. The batch
// keeps the message's keys, which must not be modified afterwards.
//
// An event or tier that a later version of the schema may have added is not an
// error: the batch is applied without it and its replica becomes suspect.
// Everything else that is wrong is an error that names the field.
func FromProto(b *pb.KVBatch, position uint64) (Batch, error) {
	if b == nil {
		return Batch{}, fmt.Errorf("kv batch: no message")
	}
	if b.Replica == "" {
		return Batch{}, fmt.Errorf("kv batch: replica is empty; the publisher must name whose cache changed")
	}
	if len(b.Epoch) != len(Epoch{}) {
		return Batch{}, fmt.Errorf("kv batch of %s: epoch has %d bytes; it must be a UUIDv7 of 16 bytes", b.Replica, len(b.Epoch))
	}
	if b.Seq == 0 {
		return Batch{}, fmt.Errorf("kv batch of %s: seq is 0; an epoch's batches are numbered from 1", b.Replica)
	}
	out := Batch{
		replica:  b.Replica,
		epoch:    Epoch(b.Epoch),
		seq:      b.Seq,
		position: position,
		changes:  make([]change, 0, len(b.Events)),
	}
	for i, e := range b.Events {
		c, known, err := changeFromProto(e)
		if err != nil {
			return Batch{}, fmt.Errorf("kv batch of %s, seq %d, event %d: %w", b.Replica, b.Seq, i, err)
		}
		if !known {
			out.unknown++
			continue
		}
		out.changes = append(out.changes, c)
	}
	return out, nil
}

// changeFromProto checks one event. known is false for what a later schema added.
func changeFromProto(e *pb.KVEvent) (c change, known bool, err error) {
	switch event := e.GetEvent().(type) {
	case *pb.KVEvent_Store:
		c, known, err = tierChange(store, event.Store.GetTier(), event.Store.GetKeys())
		if p := event.Store.GetParent(); event.Store != nil && event.Store.Parent != nil {
			c.parent, c.parented = p, true
		}
		return c, known, err
	case *pb.KVEvent_Remove:
		return tierChange(remove, event.Remove.GetTier(), event.Remove.GetKeys())
	case *pb.KVEvent_Clear:
		return change{kind: clearAll}, true, nil
	case *pb.KVEvent_Doubt:
		return change{kind: setDoubt, doubt: doubtReason(event.Doubt.GetReason())}, true, nil
	}
	if e == nil || len(e.ProtoReflect().GetUnknown()) == 0 {
		return change{}, false, fmt.Errorf("it is empty; it must be a store, a remove, a clear or a doubt")
	}
	return change{}, false, nil
}

func tierChange(kind changeKind, t pb.Tier, keys []blockkey.Key) (change, bool, error) {
	tier, ok := TierFromProto(t)
	switch {
	case ok:
		return change{kind: kind, tier: tier, keys: keys}, true, nil
	case t > pb.Tier_TIER_REMOTE:
		return change{}, false, nil
	}
	return change{}, false, fmt.Errorf("tier is %v; it must say where the blocks lie", t)
}
