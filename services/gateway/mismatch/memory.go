package mismatch

import "warmpath/routing/blockkey"

const (
	// memoryKeys bounds the keys remembered of a replica: two generations of this
	// many, some 0.7 MB.
	memoryKeys = 8192
	// memoryBlocks bounds how far into a prompt is looked; a hit of this many
	// blocks is as telling as a longer one.
	memoryBlocks = 512
)

// memory remembers which prefixes a replica was sent, by the time at which the
// first request with them ended. It tells what an engine with room enough has,
// without its events.
type memory struct {
	young, old map[blockkey.Key]int64
}

// add remembers a prompt whose request ended at a time.
func (m *memory) add(keys []blockkey.Key, at int64) {
	keys = keys[:min(len(keys), memoryBlocks)]
	for i := len(keys) - 1; i >= 0; i-- {
		k := keys[i]
		if _, known := m.young[k]; known {
			return // with all before it, which came with it
		}
		first := at
		if before, known := m.old[k]; known {
			first = min(first, before)
		}
		if m.young == nil || len(m.young) >= memoryKeys {
			m.old, m.young = m.young, make(map[blockkey.Key]int64)
		}
		m.young[k] = first
	}
}

// repeat returns how many leading blocks of a prompt were sent in requests that
// ended by a time.
func (m *memory) repeat(keys []blockkey.Key, by int64) int {
	for i := min(len(keys), memoryBlocks) - 1; i >= 0; i-- {
		at, known := m.young[keys[i]]
		if !known {
			at, known = m.old[keys[i]]
		}
		if known && at <= by {
			return i + 1
		}
	}
	return 0
}
