package mirror

// Stats counts what a mirror holds and has seen. Blocks are the engine's.
type Stats struct {
	// Names is the blocks that are remembered in any way, Absent those of them
	// that are in no tier, Unnamed those that are present and have no key, Partial
	// those that are present and not whole.
	Names, Absent, Unnamed, Partial int
	// Present is the whole blocks in each tier, by pb.Tier - 1, GPUCopies what the
	// gpu tier has of them physically.
	Present   [tiers]int
	GPUCopies int
	// BlockSize is the engine's block size on gpu, 0 until an event told it.
	BlockSize int
	// Announces is true when repeated stores were seen to be announcements.
	Announces bool
	// Waiting is the tokens that are kept of unnamed blocks.
	Waiting int
	Counts
}

// Counts is what a mirror has seen since New; a Reset keeps it.
type Counts struct {
	// Stores and Removals are blocks that the engine said it stored and removed;
	// Copied the stores that were one more copy, Announced those that were no news.
	Stores, Removals, Copied, Announced, Clears uint64
	// UnknownRemovals are of what was not there.
	UnknownRemovals uint64
	// UnnamedSeen are blocks that came without a name, Named those that got one
	// while they were there.
	UnnamedSeen, Named uint64
	// Replaced are names that the engine gave to another block.
	Replaced uint64
	// PartialSeen are blocks that were not whole, OtherGroups and OtherWindows
	// events of attention that does not count, UnknownTiers events of tiers that
	// are not known.
	PartialSeen, OtherGroups, OtherWindows, UnknownTiers uint64
	// Unaligned runs have more tokens than their blocks, OwnParents are their own
	// parents, UnnamedLoRAs belong to a numbered adapter whose name is unknown.
	Unaligned, OwnParents, UnnamedLoRAs uint64
	// Forgotten are names that went to make room, NoRoom stores for which there was
	// none.
	Forgotten, NoRoom uint64
	// Collapses is how often repeats turned out to be announcements, Doubts how
	// often a doubt began or changed.
	Collapses, Doubts uint64
}

// Stats returns the mirror's figures.
func (m *Mirror) Stats() Stats {
	s := Stats{
		Names: m.slab.used, Absent: m.names.count, Unnamed: m.unnamed, Partial: m.nameless - m.unnamed,
		Present: m.present, GPUCopies: m.copies, Announces: m.once, Waiting: m.waitingTokens, Counts: m.stats,
	}
	if of := m.sizes[gpu]; of != 0 {
		s.BlockSize = m.layouts[of].size
	}
	return s
}
