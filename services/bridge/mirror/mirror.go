// Package mirror holds what one engine's KV cache holds, as far as the engine's
// events say, and turns those events into the block keys that routers know.
//
// An engine names its blocks by hashes of its own, which mean nothing elsewhere.
// The mirror remembers which key each of them stands for, how many physical
// copies of it lie in each tier, and tells only what a reader of the KV stream
// must know: a block key came to a tier, or the last copy of it left.
//
// What the mirror cannot name exactly it never guesses. It is in doubt instead,
// which it tells as an event, until the cause is gone; without a doubt, what its
// events say is what the engine said it holds.
//
// A mirror is pure: no clock, no goroutine, no output that depends on the order
// of a map. The same events in give the same events out. DESIGN.md has the rules
// and the costs.
package mirror

import (
	"fmt"
	"strings"

	"warmpath/services/bridge/kvevents"

	pb "warmpath/schemas/warmpathv1"
)

// DefaultMaxBlocks is how many engine blocks a mirror remembers if not told:
// some 350 MB of names, the cache of several hosts.
const DefaultMaxBlocks = 4_000_000

// Repeats says what a store of a block means that is in the tier already.
type Repeats uint8

const (
	// Copies means that it is one more physical copy, and that the block is gone
	// when the last one is. vLLM stores copies when two requests compute the same block at once.
	Copies Repeats = iota
	// Once means that it is the same block, announced again. SGLang and TensorRT-LLM hold a
	// block once.
	Once
)

// Config says whose cache is mirrored.
type Config struct {
	// Model is the model's name, which block keys begin with.
	Model string
	// BlockTokens is the pool's block size.
	BlockTokens int
	// MaxBlocks bounds the engine blocks that are remembered, those that have left
	// every tier included; 0 is DefaultMaxBlocks.
	MaxBlocks int
	// Repeats is what a repeated store means.
	Repeats Repeats
	// Capacity is how many blocks the engine's gpu tier has; 0 is unknown. Copies
	// that exceed it show that repeated stores were no copies.
	Capacity int
	// LoRAs names the adapters that older engines give as numbers.
	LoRAs map[int64]string
}

// Mirror is what one replica holds. It is not safe for concurrent use.
type Mirror struct {
	cfg   Config
	stats Counts

	// layouts are the engine's ways to cut blocks; 0 is none, for blocks without a
	// name. sizes is each tier's, 0 until a store tells it.
	layouts []layout
	sizes   [tiers]uint8
	// changing is true when block sizes have changed too often to follow.
	changing bool

	slab    slab
	byName  table
	byKey   table
	names   lru // named blocks that are in no tier
	waiting map[uint64]*line
	orphans map[int32]*orphan
	// waitingTokens is how many tokens the orphans keep.
	waitingTokens int
	woken         []int32 // work list of wake
	pinned        int32   // never evicted

	// present counts the blocks in each tier that are not partial ones, copies what
	// the gpu tier has of them physically.
	present [tiers]int
	copies  int
	// nameless counts the blocks of layout 0, unnamed those of them that the engine
	// holds whole.
	nameless, unnamed int
	// once is true when repeated stores turned out to be announcements.
	once bool

	group     int
	groupSeen bool
	window    int
	// unadoptable is true when events do not tell all that a mirror must know to go
	// on: they have no engine names then.
	unadoptable bool
	// withheld is true when that was told in this epoch.
	withheld bool

	lost, sticky string
	outside      string // see Suspect
	told         string // the doubt that readers know of

	adoption adoption
	adopting bool

	out output
	buf scratch
	// read keeps the reads of warm from being left out.
	read uint64
}

// tiers is the number of tiers; a tier here is pb.Tier - 1.
const tiers = int(pb.Tier_TIER_REMOTE)

type tier uint8

// gpu is the tier whose size is counted.
const gpu = tier(pb.Tier_TIER_GPU - 1)

func tierOf(t pb.Tier) (tier, bool) {
	return tier(t - 1), t >= pb.Tier_TIER_GPU && t <= pb.Tier_TIER_REMOTE
}

func (t tier) proto() pb.Tier { return pb.Tier(t + 1) }

// New returns an empty mirror. The error names the field that is wrong.
func New(cfg Config) (*Mirror, error) {
	if cfg.MaxBlocks == 0 {
		cfg.MaxBlocks = DefaultMaxBlocks
	}
	switch {
	case cfg.BlockTokens < 1:
		return nil, fmt.Errorf("mirror: block tokens is %d; it must be the pool's block size", cfg.BlockTokens)
	case cfg.MaxBlocks < 0 || cfg.MaxBlocks > 1<<30:
		return nil, fmt.Errorf("mirror: max blocks is %d; it must be at most %d, or 0 for %d", cfg.MaxBlocks, 1<<30, DefaultMaxBlocks)
	case strings.ContainsRune(cfg.Model, 0):
		return nil, fmt.Errorf("mirror: model has a zero byte; it must be a model's name")
	case cfg.Repeats > Once:
		return nil, fmt.Errorf("mirror: repeats is %d; it must be Copies or Once", cfg.Repeats)
	case cfg.Capacity < 0:
		return nil, fmt.Errorf("mirror: capacity is %d; it must be the engine's gpu blocks, or 0 if unknown", cfg.Capacity)
	}
	m := &Mirror{cfg: cfg}
	m.forgetAll()
	return m, nil
}

// forgetAll makes m new, its counters aside.
func (m *Mirror) forgetAll() {
	*m = Mirror{
		cfg:     m.cfg,
		stats:   m.stats,
		layouts: make([]layout, 1, 2),
		slab:    newSlab(),
		waiting: map[uint64]*line{},
		orphans: map[int32]*orphan{},
		buf:     m.buf,
	}
}

// Apply takes the events of one engine batch, in order, and returns what they
// change, in order, for the next batch of the replica's epoch. It may be empty.
// The result is the caller's.
func (m *Mirror) Apply(events []kvevents.Event) []*pb.KVEvent {
	for i := range events {
		m.apply(&events[i])
	}
	return m.finish()
}

// finish takes the output, and a doubt's begin before it or end after it.
func (m *Mirror) finish() []*pb.KVEvent {
	m.withhold(&m.out)
	events := m.out.take()
	now := m.Doubt()
	if now == m.told {
		return events
	}
	m.told = now
	if now == "" {
		return append(events, doubtEvent(""))
	}
	if m.stats.Doubts++; len(events) == 0 {
		return []*pb.KVEvent{doubtEvent(now)}
	}
	return append([]*pb.KVEvent{doubtEvent(now)}, events...)
}

// Lost says that a part of the engine's history cannot be had: what is in the
// cache is unknown from here on, though the names stay good. It returns the
// events of the first batch of a new epoch. The doubt lasts until the engine
// clears its cache or begins anew.
func (m *Mirror) Lost(reason string) []*pb.KVEvent {
	m.empty()
	m.lost = "engine history lost"
	if reason != "" {
		m.lost += ": " + reason
	}
	return m.beginEpoch("engine history lost")
}

// Suspect says that the caller cannot vouch for what the engine did, such as
// while it is not connected; an empty reason ends that. It returns the events
// that tell it, none when nothing changes for readers.
func (m *Mirror) Suspect(reason string) []*pb.KVEvent {
	m.outside = reason
	return m.finish()
}

// Reset says that the engine began anew, so that nothing known of it holds. It
// returns the events of the first batch of a new epoch.
func (m *Mirror) Reset() []*pb.KVEvent {
	m.forgetAll()
	return m.beginEpoch("engine restarted")
}

// beginEpoch returns what a new epoch begins with: what is in the cache now, and
// the doubt there is.
func (m *Mirror) beginEpoch(why string) []*pb.KVEvent {
	m.out = output{}
	out := output{}
	out.clear(why)
	if m.once {
		out.announcements()
	}
	m.withheld = false
	m.withhold(&out)
	m.tellAll(&out)
	if m.told = m.Doubt(); m.told != "" {
		out.add(doubtEvent(m.told))
	}
	return out.take()
}

// withhold tells, once an epoch, that its events are not enough to go on from.
func (m *Mirror) withhold(out *output) {
	if m.withheld {
		return
	}
	m.withheld = m.unadoptable
	for _, of := range m.sizes { // parts of pool blocks cannot be told
		m.withheld = m.withheld || m.layouts[of].parts > 1
	}
	if m.withheld {
		out.unadoptable()
	}
}

// Doubt is why the mirror's events may not tell what the engine holds, in short
// words; empty when they do.
func (m *Mirror) Doubt() string {
	switch {
	case m.Refused() != "":
		return "engine block size refused"
	case m.lost != "":
		return m.lost
	case m.sticky != "":
		return m.sticky
	case m.unnamed > 0:
		return "blocks without a name"
	case m.outside != "": // the last, so that it is told only when it is the only one
		return m.outside
	}
	return ""
}

// Refused says in a sentence, with the remedy, why the engine's blocks cannot be
// told in the pool's; empty when they can. Blocks of a tier that is refused are
// not told, and the mirror is in doubt.
func (m *Mirror) Refused() string {
	if m.changing {
		return "the engine's block size keeps changing; check that one engine alone publishes to this endpoint"
	}
	for _, of := range m.sizes {
		if l := &m.layouts[of]; l.refused {
			return fmt.Sprintf("engine block size %d does not divide into pool block size %d; start the engine with --block-size %d or the pool with %d",
				l.size, m.cfg.BlockTokens, m.cfg.BlockTokens, l.size)
		}
	}
	return ""
}
