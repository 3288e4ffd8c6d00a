// Package kvevents reads what inference engines say of their KV cache.
//
// vLLM, SGLang and TensorRT-LLM publish batches of events whose encoding has
// changed many times: positional arrays that grew field by field, then tagged
// maps; signed, unsigned and bytes hashes; a JSON form to be polled. Decoder
// reads all of them without being told which one it is given, and Encoder
// writes each of them byte for byte, for tests and for simulated engines.
//
// Bytes are not trusted: every length is checked against a limit and against
// the bytes that are left before anything is allocated, and one event that
// cannot be read never costs the batch it came in.
package kvevents

import (
	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
)

// Kind is what an event says happened.
type Kind uint8

// The kinds of events.
const (
	// Stored: blocks entered a tier.
	Stored Kind = iota
	// Removed: blocks left a tier.
	Removed
	// Cleared: the cache was emptied.
	Cleared
	// Moved: one copy of each block went from FromTier to Tier. Only
	// TensorRT-LLM's pull form has it.
	Moved
)

// String is the kind in a log.
func (k Kind) String() string {
	switch k {
	case Stored:
		return "stored"
	case Removed:
		return "removed"
	case Cleared:
		return "cleared"
	case Moved:
		return "moved"
	}
	return "unknown"
}

// Event is one event in a form that no longer depends on the engine. A field
// that the engine did not send has its zero value.
type Event struct {
	Kind Kind
	// Hashes are the engine's names of the blocks, first to last. An integer is
	// its two's complement; bytes are their last 8, big endian, fewer being
	// extended with zeros in front; a string is the hex or decimal it holds.
	// They are opaque: they name blocks within one replica and one cache group.
	Hashes []uint64
	// Parent is the block before Hashes[0], if HasParent. Absent, nil, empty
	// bytes and 0 all mean that there is none: foreign simulators send 0.
	Parent    uint64
	HasParent bool
	// Tokens are the run's token ids, of all blocks; empty in an update that only
	// says where known blocks lie. Their number may differ from
	// len(Hashes) × BlockSize. A negative token, which engines use as a
	// placeholder, is its 32-bit two's complement; a token pair (SGLang with
	// EAGLE) is its first token.
	Tokens []uint32
	// BlockSize is the tokens of a block. Where the engine sends none, it is
	// len(Tokens) / len(Hashes) if that divides, else 0.
	BlockSize int
	// Tier is where the blocks lie: unspecified if the engine named a medium that
	// is not known here, and in Cleared unless the engine named one there.
	Tier pb.Tier
	// FromTier is where the blocks lay before, in Moved.
	FromTier pb.Tier
	// LoRA is the adapter's name, LoRAID its number if HasLoRAID.
	LoRA      string
	LoRAID    int64
	HasLoRAID bool
	// Salt is the cache salt: the key cache_salt, or in extra_keys of the first
	// block the last string that is not the adapter's name. It belongs to the
	// block at position 0.
	Salt string
	// Extras is, for each hash, what the block's identity depends on besides its
	// tokens, ordered by offset. It is nil when no block has any.
	Extras [][]blockkey.Extra
	// Group is the index of the cache group (vLLM group_idx, SGLang component_id,
	// TensorRT-LLM layer_group_id) if HasGroup.
	Group    int
	HasGroup bool
	// Spec is the attention kind of the group in vLLM's words, such as
	// "full_attention", or "" if unsaid. SGLang's component types full and swa
	// are full_attention and sliding_window here.
	Spec string
	// Window is the attention window in tokens, 0 if unsaid.
	Window int
	// Origin is "NEW" or "REUSED" if the engine says so.
	Origin string
	// CopiesLeft is, for each hash of Removed, how many physical copies are left
	// in the tier. It is nil if unsaid.
	CopiesLeft []int64
	// EveryTier marks a Removed whose engine names no tier, because the block is
	// gone from all. There is one such event for each tier, so that most of them
	// remove what is not there.
	EveryTier bool
}

// Batch is what an engine published at once.
type Batch struct {
	// TimeUS is the engine's clock in microseconds since 1970, 0 if unreadable.
	TimeUS int64
	// Rank is the data-parallel rank that the engine stamped, -1 if none.
	Rank   int
	Events []Event
	// Skipped counts events of a known tag that could not be read. The engine's
	// cache changed in a way that is not in Events: what is known of the replica
	// must be doubted.
	Skipped int
	// Unknown counts events of unknown tags. They may or may not have changed the
	// cache.
	Unknown int
}

// tierOf is the tier of an engine's name for it. An empty name is the GPU, as
// engines that name none have only that.
func tierOf(medium []byte) (tier pb.Tier, known bool) {
	var upper [16]byte
	if len(medium) > len(upper) {
		return pb.Tier_TIER_UNSPECIFIED, false
	}
	for i, b := range medium {
		if 'a' <= b && b <= 'z' {
			b -= 'a' - 'A'
		}
		upper[i] = b
	}
	switch string(upper[:len(medium)]) {
	case "", "GPU":
		return pb.Tier_TIER_GPU, true
	case "CPU", "CPU_PINNED":
		return pb.Tier_TIER_CPU, true
	case "DISK", "STORAGE":
		return pb.Tier_TIER_DISK, true
	case "EXTERNAL", "REMOTE":
		return pb.Tier_TIER_REMOTE, true
	}
	return pb.Tier_TIER_UNSPECIFIED, false
}

// specOf is the attention kind of an SGLang component type, "" if it is none.
func specOf(component []byte) string {
	switch string(component) {
	case "full":
		return "full_attention"
	case "swa":
		return "sliding_window"
	case "mamba":
		return "mamba"
	}
	return ""
}
