package bench

import (
	"encoding/binary"
	"fmt"
	"iter"

	"warmpath/routing/blockkey"
	"warmpath/routing/prefix"
	pb "warmpath/schemas/warmpathv1"
)

// pool is the name that the workload's events carry.
const pool = "bench"

// shape is a synthetic fleet: every replica holds one chain of blocks per
// family. A chain begins with blocks that all replicas hold (a system prompt),
// goes on with blocks that its group holds (a conversation that moved about),
// and ends in blocks of its own.
type shape struct {
	replicas, families int
	// chain is the blocks of a chain; the first common are everyone's, and those
	// up to grouped are shared by groupSize replicas.
	chain, common, grouped, groupSize int
	// event is the blocks that one event stores.
	event int
	// tiered spreads the events over all tiers, and stores some twice.
	tiered bool
}

// The shapes measured. base is the one that others' measurements use too.
var (
	base = shape{replicas: 64, families: 4, chain: 4096, common: 512, grouped: 2048, groupSize: 8, event: 64}
	// mixed is base with KV offloaded to lower tiers.
	mixed = shape{replicas: 64, families: 4, chain: 4096, common: 512, grouped: 2048, groupSize: 8, event: 64, tiered: true}
	// tenfold has ten times the entries, for what must not depend on their number.
	tenfold = shape{replicas: 64, families: 40, chain: 4096, common: 512, grouped: 2048, groupSize: 8, event: 64}
	// wide has 16 times the replicas, each with as much as in base.
	wide = shape{replicas: 1024, families: 4, chain: 4096, common: 512, grouped: 2048, groupSize: 8, event: 64}
)

// quick returns the shape with chains of an eighth and no more than four
// families and 128 replicas: enough to see that everything runs.
func (s shape) quick() shape {
	s.replicas, s.families = min(s.replicas, 128), min(s.families, 4)
	s.chain, s.common, s.grouped = s.chain/8, s.common/8, s.grouped/8
	return s
}

// entries is how many (replica, block) pairs the fleet holds, tiers aside.
func (s shape) entries() int { return s.replicas * s.families * s.chain }

// blocks is how many distinct blocks there are.
func (s shape) blocks() int {
	groups := s.replicas / s.groupSize
	return s.families * (s.common + groups*(s.grouped-s.common) + s.replicas*(s.chain-s.grouped))
}

// depth is how many leading blocks of a prompt of n blocks, taken from owner's
// chain, another replica holds.
func (s shape) depth(owner, n, other int) int {
	switch {
	case other == owner:
		return n
	case other/s.groupSize == owner/s.groupSize:
		return min(n, s.grouped)
	}
	return min(n, s.common)
}

// fleet is a shape's keys and who publishes them.
type fleet struct {
	shape
	names  []string
	epochs [][]byte
	// everyone, groups and own are the parts of a chain: by family, then by group
	// or replica.
	everyone    [][]blockkey.Key
	groups, own [][][]blockkey.Key
}

// newFleet makes the keys of a shape. Equal shapes have equal keys.
func newFleet(s shape) *fleet {
	f := &fleet{shape: s}
	for r := range s.replicas {
		f.names = append(f.names, fmt.Sprintf("replica-%04d", r))
		f.epochs = append(f.epochs, epoch(r, 1))
	}
	part := func(family, holder, from, to int) []blockkey.Key {
		keys := make([]blockkey.Key, 0, to-from)
		for i := from; i < to; i++ {
			keys = append(keys, key(family, holder, i))
		}
		return keys
	}
	f.groups = make([][][]blockkey.Key, s.families)
	f.own = make([][][]blockkey.Key, s.families)
	for family := range s.families {
		f.everyone = append(f.everyone, part(family, 0, 0, s.common))
		for g := range s.replicas / s.groupSize {
			f.groups[family] = append(f.groups[family], part(family, 1+g, s.common, s.grouped))
		}
		for r := range s.replicas {
			f.own[family] = append(f.own[family], part(family, 1+s.replicas+r, s.grouped, s.chain))
		}
	}
	return f
}

// key is the key of a block: the mix has no collisions, so distinct places in the
// workload have distinct keys, spread as hashes are.
func key(family, holder, index int) blockkey.Key {
	return mix(uint64(family+1)<<44 | uint64(holder)<<20 | uint64(index))
}

// mix is a bijection of 64 bits that spreads them: two rounds of multiplying by
// an odd number and folding the high half into the low one.
func mix(x uint64) uint64 {
	for _, odd := range [...]uint64{0xd6e8feb86659fd93, 0xa0761d6478bd642f} {
		x ^= x >> 32
		x *= odd
	}
	return x ^ x>>32
}

// epoch is the nth life of a replica's cache, in the form of a UUIDv7.
func epoch(replica, life int) []byte {
	e := make([]byte, 16)
	binary.BigEndian.PutUint64(e, uint64(life)<<16|7<<12)
	binary.BigEndian.PutUint64(e[8:], 1<<63|uint64(replica))
	return e
}

// run returns a part of a chain that lies within one of its three parts.
func (f *fleet) run(family, replica, from, to int) []blockkey.Key {
	switch {
	case to <= f.common:
		return f.everyone[family][from:to:to]
	case to <= f.grouped:
		return f.groups[family][replica/f.groupSize][from-f.common : to-f.common]
	}
	return f.own[family][replica][from-f.grouped : to-f.grouped]
}

// prompt returns the first n keys of a chain, in memory of its own as a request's
// keys are.
func (f *fleet) prompt(family, replica, n int) []blockkey.Key {
	keys := make([]blockkey.Key, 0, n)
	for at := 0; at < n; {
		end := min(at+f.event, n)
		keys = append(keys, f.run(family, replica, at, end)...)
		at = end
	}
	return keys
}

// step is one event: a replica stored keys in a tier.
type step struct {
	replica, offset int
	tier            prefix.Tier
	// parent is the key of the block before; nil for a prompt's first.
	parent *blockkey.Key
	keys   []blockkey.Key
}

// steps yields the events that fill the fleet in the order of their arrival: all
// replicas' events interleave, and each replica's chain comes in its order.
func (f *fleet) steps() iter.Seq[step] {
	return func(yield func(step) bool) {
		for family := range f.families {
			for at := 0; at < f.chain; at += f.event {
				for r := range f.replicas {
					s := step{replica: r, offset: at, keys: f.run(family, r, at, at+f.event)}
					if at > 0 {
						before := f.run(family, r, at-f.event, at)
						s.parent = &before[len(before)-1]
					}
					if !f.yieldTiers(s, mix(uint64(family)<<40|uint64(r)<<20|uint64(at)), yield) {
						return
					}
				}
			}
		}
	}
}

// yieldTiers yields the events of one run of blocks: in a tiered shape ten
// sixteenths are on the gpu, a quarter of those in cpu memory too; three are in
// cpu memory, two on disk and one is remote.
func (f *fleet) yieldTiers(s step, draw uint64, yield func(step) bool) bool {
	if !f.tiered {
		return yield(s)
	}
	switch place := draw % 16; {
	case place < 10:
	case place < 13:
		s.tier = prefix.CPU
	case place < 15:
		s.tier = prefix.Disk
	default:
		s.tier = prefix.Remote
	}
	if !yield(s) {
		return false
	}
	if s.tier == prefix.GPU && draw>>32%4 == 0 {
		s.tier = prefix.CPU
		return yield(s)
	}
	return true
}

// storeEvent and removeEvent are events as the schema has them; the keys are shared.
func storeEvent(s step) *pb.KVEvent {
	return &pb.KVEvent{Event: &pb.KVEvent_Store{Store: &pb.KVStore{Tier: s.tier.ToProto(), Parent: s.parent, Keys: s.keys}}}
}

func removeEvent(s step) *pb.KVEvent {
	return &pb.KVEvent{Event: &pb.KVEvent_Remove{Remove: &pb.KVRemove{Tier: s.tier.ToProto(), Keys: s.keys, Reason: pb.KVRemoveReason_KV_REMOVE_REASON_EVICTED}}}
}

func clearEvent() *pb.KVEvent {
	return &pb.KVEvent{Event: &pb.KVEvent_Clear{Clear: &pb.KVClear{Reason: "bench"}}}
}

// author numbers the batches of a fleet: by replica as an engine does, and all
// together as the stream that holds them does.
type author struct {
	*fleet
	seqs     []uint64
	epochs   [][]byte
	position uint64
	scratch  pb.KVBatch
}

func (f *fleet) author() *author {
	return &author{fleet: f, seqs: make([]uint64, f.replicas), epochs: append([][]byte(nil), f.epochs...)}
}

// restart begins a new life of a replica's cache.
func (a *author) restart(replica, life int) {
	a.seqs[replica], a.epochs[replica] = 0, epoch(replica, life)
}

// message returns the next batch of a replica, valid until the next call.
func (a *author) message(replica int, event *pb.KVEvent) *pb.KVBatch {
	a.seqs[replica]++
	a.position++
	b := &a.scratch
	b.Pool, b.Replica, b.Epoch = pool, a.names[replica], a.epochs[replica]
	b.Seq, b.EventTimeUs, b.BlockTokens = a.seqs[replica], int64(a.position), 16
	b.Events = append(b.Events[:0], event)
	return b
}

// batch is message as the index takes it.
func (a *author) batch(replica int, event *pb.KVEvent) prefix.Batch {
	b, err := prefix.FromProto(a.message(replica, event), a.position)
	if err != nil {
		panic("the workload is not valid: " + err.Error())
	}
	return b
}

// batches returns the batches that fill the fleet.
func (a *author) batches() []prefix.Batch {
	var all []prefix.Batch
	for s := range a.steps() {
		all = append(all, a.batch(s.replica, storeEvent(s)))
	}
	return all
}

// churn is the writer's work once a fleet is full: every run of blocks from an
// offset on is removed and stored again, and what lies before, which readers
// look at, is stored though it is there. None of it changes what a prompt of up
// to that many blocks matches.
type churn struct {
	turns []turn
	next  int
}

type turn struct {
	replica int
	keys    []blockkey.Key
	removes bool
	event   *pb.KVEvent
}

func (f *fleet) churn(from int) *churn {
	c := &churn{}
	for s := range f.steps() {
		if s.offset >= from {
			c.turns = append(c.turns, turn{s.replica, s.keys, true, removeEvent(s)})
		}
		c.turns = append(c.turns, turn{s.replica, s.keys, false, storeEvent(s)})
	}
	return c
}

// turn returns the next step of the work, without end.
func (c *churn) turn() *turn {
	t := &c.turns[c.next]
	c.next = (c.next + 1) % len(c.turns)
	return t
}
