package kvevents

import (
	"encoding/hex"
	"strings"

	"github.com/tinylib/msgp/msgp"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
)

// Encoder writes batches as engines do, byte for byte. The zero value writes
// VLLMv090. What a generation has no place for is left out; Moved events, which
// no pushing engine has, are too.
type Encoder struct {
	Generation Generation
	// HashBytes writes hashes as so many bytes, the hash in the last 8. 0 writes
	// integers. vLLM writes 32 (SHA-256) or 16 (XXH3) with
	// VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0.
	HashBytes int
	// Wrap writes each event as bytes that hold the encoded event.
	Wrap bool
	// Session, Locality and Ownership are written into each store, and Locality
	// into each removal, of a generation that has them. Empty ones are left out.
	Session, Locality, Ownership string
}

// AppendBatch appends a batch as an engine of generation g encodes it.
func AppendBatch(dst []byte, g Generation, b Batch) []byte {
	return Encoder{Generation: g}.AppendBatch(dst, b)
}

// AppendBatch appends a batch. It neither keeps nor changes b.
func (e Encoder) AppendBatch(dst []byte, b Batch) []byte {
	ts := float64(b.TimeUS) / 1e6
	asMap := e.Generation == VLLMBatchMap
	switch {
	case asMap:
		size := uint32(2)
		if b.Rank >= 0 {
			size = 3
		}
		dst = msgp.AppendMapHeader(dst, size)
		dst = msgp.AppendString(dst, "ts")
	case e.Generation.ranked():
		dst = msgp.AppendArrayHeader(dst, 3)
	default:
		dst = msgp.AppendArrayHeader(dst, 2)
	}
	dst = msgp.AppendFloat64(dst, ts)
	if asMap {
		dst = msgp.AppendString(dst, "events")
	}
	dst = e.events(dst, b.Events)
	switch {
	case asMap && b.Rank >= 0:
		dst = msgp.AppendString(dst, "data_parallel_rank")
		dst = appendInt(dst, int64(b.Rank))
	case !asMap && e.Generation.ranked() && b.Rank >= 0:
		dst = appendInt(dst, int64(b.Rank))
	case !asMap && e.Generation.ranked():
		dst = msgp.AppendNil(dst)
	}
	return dst
}

func (e Encoder) events(dst []byte, events []Event) []byte {
	n := 0
	for k := range events {
		if events[k].Kind != Moved {
			n++
		}
	}
	dst = msgp.AppendArrayHeader(dst, uint32(n))
	for k := range events {
		switch ev := &events[k]; {
		case ev.Kind == Moved:
		case e.Wrap:
			dst = msgp.AppendBytes(dst, e.event(nil, ev))
		default:
			dst = e.event(dst, ev)
		}
	}
	return dst
}

func (e Encoder) event(dst []byte, ev *Event) []byte {
	if e.Generation.maps() {
		return e.mapEvent(dst, ev)
	}
	return e.arrayEvent(dst, ev)
}

// arrayEvent writes all fields of the generation, absent ones as nil: msgspec
// leaves out nothing of an array.
func (e Encoder) arrayEvent(dst []byte, ev *Event) []byte {
	g := e.Generation
	withMedium := g != VLLMv090 && g != VLLMRank && g != SGLangLegacy
	switch ev.Kind {
	case Cleared:
		dst = msgp.AppendArrayHeader(dst, 1)
		return msgp.AppendString(dst, tagCleared)
	case Removed:
		size := uint32(2)
		if withMedium {
			size = 3
		}
		if g == VLLMFull {
			size = 4
		}
		dst = msgp.AppendArrayHeader(dst, size)
		dst = msgp.AppendString(dst, tagRemoved)
		dst = e.hashes(dst, ev.Hashes)
		if withMedium {
			dst = msgp.AppendString(dst, g.medium(ev.Tier))
		}
		if g == VLLMFull {
			dst = appendOptional(dst, ev.HasGroup, int64(ev.Group))
		}
		return dst
	}
	size := uint32(6)
	switch {
	case g == SGLangMetadata && ev.Salt != "", g == VLLMLoRAName:
		size = 8
	case g == VLLMFull:
		size = 12
	case g == SimulatorArray:
		size = 9
	case withMedium:
		size = 7
	}
	dst = msgp.AppendArrayHeader(dst, size)
	dst = msgp.AppendString(dst, tagStored)
	dst = e.hashes(dst, ev.Hashes)
	dst = e.parent(dst, ev)
	dst = e.tokens(dst, ev)
	dst = appendInt(dst, int64(ev.BlockSize))
	dst = appendOptional(dst, ev.HasLoRAID, ev.LoRAID)
	if withMedium {
		dst = msgp.AppendString(dst, g.medium(ev.Tier))
	}
	switch g {
	case SGLangMetadata:
		if ev.Salt != "" {
			dst = msgp.AppendMapHeader(dst, 1)
			dst = msgp.AppendString(dst, "cache_salt")
			dst = msgp.AppendString(dst, ev.Salt)
		}
	case VLLMLoRAName:
		dst = appendName(dst, ev.LoRA)
	case SimulatorArray:
		dst = appendName(dst, ev.LoRA)
		dst = msgp.AppendNil(dst)
	case VLLMFull:
		dst = appendName(dst, ev.LoRA)
		dst = e.extraKeys(dst, ev)
		dst = appendOptional(dst, ev.HasGroup, int64(ev.Group))
		dst = appendName(dst, ev.Spec)
		dst = appendOptional(dst, ev.Window > 0, int64(ev.Window))
	}
	return dst
}

// hashes writes integers as the engine does: SGLang's are signed.
func (e Encoder) hashes(dst []byte, hashes []uint64) []byte {
	dst = msgp.AppendArrayHeader(dst, uint32(len(hashes)))
	for _, h := range hashes {
		dst = e.hash(dst, h)
	}
	return dst
}

func (e Encoder) hash(dst []byte, h uint64) []byte {
	switch {
	case e.HashBytes > 0:
		digest := make([]byte, e.HashBytes)
		for k := 1; k <= min(8, e.HashBytes); k++ {
			digest[e.HashBytes-k] = byte(h >> (8 * (k - 1)))
		}
		return msgp.AppendBytes(dst, digest)
	case e.Generation.sglang():
		return appendInt(dst, int64(h))
	case e.Generation.simulator():
		return append(dst, 0xcf, byte(h>>56), byte(h>>48), byte(h>>40), byte(h>>32), byte(h>>24), byte(h>>16), byte(h>>8), byte(h))
	}
	return msgp.AppendUint64(dst, h)
}

func (e Encoder) parent(dst []byte, ev *Event) []byte {
	switch {
	case ev.HasParent:
		return e.hash(dst, ev.Parent)
	case e.Generation == SimulatorArray:
		return e.hash(dst, 0)
	}
	return msgp.AppendNil(dst)
}

func (e Encoder) tokens(dst []byte, ev *Event) []byte {
	dst = msgp.AppendArrayHeader(dst, uint32(len(ev.Tokens)))
	var texts map[int]string
	if e.Generation == TRTLLMMap {
		texts = textPositions(ev)
	}
	for k, t := range ev.Tokens {
		switch id, ok := texts[k]; {
		case ok:
			dst = msgp.AppendString(dst, id)
		case e.Generation.simulator():
			dst = append(dst, 0xce, byte(t>>24), byte(t>>16), byte(t>>8), byte(t))
		default:
			dst = msgp.AppendUint64(dst, uint64(t))
		}
	}
	return dst
}

// textPositions is where TensorRT-LLM writes a string for a token: an extra
// stands on token 0. Its other extras are mm_keys.
func textPositions(ev *Event) map[int]string {
	var texts map[int]string
	for block, extras := range ev.Extras {
		for _, x := range extras {
			pos := block*ev.BlockSize + int(x.Offset)
			if pos >= len(ev.Tokens) || ev.Tokens[pos] != 0 || texts[pos] != "" {
				continue
			}
			if texts == nil {
				texts = make(map[int]string)
			}
			texts[pos] = x.ID
		}
	}
	return texts
}

// extraKeys writes, for each block, the LoRA name, multimodal items, the salt
// (first block) and digests of prompt embeddings.
func (e Encoder) extraKeys(dst []byte, ev *Event) []byte {
	dst = msgp.AppendArrayHeader(dst, uint32(len(ev.Hashes)))
	for block := range ev.Hashes {
		var extras []blockkey.Extra
		if block < len(ev.Extras) {
			extras = ev.Extras[block]
		}
		salt := block == 0 && ev.Salt != ""
		size := len(extras)
		if ev.LoRA != "" {
			size++
		}
		if salt {
			size++
		}
		if size == 0 {
			dst = msgp.AppendNil(dst)
			continue
		}
		dst = msgp.AppendArrayHeader(dst, uint32(size))
		if ev.LoRA != "" {
			dst = msgp.AppendString(dst, ev.LoRA)
		}
		for _, x := range extras {
			if !strings.HasPrefix(x.ID, "embeds:") {
				dst = msgp.AppendArrayHeader(dst, 2)
				dst = msgp.AppendString(dst, x.ID)
				dst = appendInt(dst, int64(x.Offset))
			}
		}
		if salt {
			dst = msgp.AppendString(dst, ev.Salt)
		}
		for _, x := range extras {
			if digest, ok := strings.CutPrefix(x.ID, "embeds:"); ok {
				b, _ := hex.DecodeString(digest) // an odd digest is written as far as it is hex
				dst = msgp.AppendBytes(dst, b)
			}
		}
	}
	return dst
}

// appendInt writes an integer in its shortest form, unsigned if it is positive.
func appendInt(dst []byte, v int64) []byte {
	if v >= 0 {
		return msgp.AppendUint64(dst, uint64(v))
	}
	return msgp.AppendInt64(dst, v)
}

func appendOptional(dst []byte, present bool, v int64) []byte {
	if !present {
		return msgp.AppendNil(dst)
	}
	return appendInt(dst, v)
}

func appendName(dst []byte, s string) []byte {
	if s == "" {
		return msgp.AppendNil(dst)
	}
	return msgp.AppendString(dst, s)
}

// remote says that the tier is told by the locality.
func (e Encoder) remote(ev *Event) bool {
	return ev.Tier == pb.Tier_TIER_REMOTE && (e.Generation == VLLMMap || e.Generation == VLLMBatchMap)
}
