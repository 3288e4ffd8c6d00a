package kvevents

import (
	"slices"

	"github.com/tinylib/msgp/msgp"
)

// pairs writes a map whose size is known only at its end.
type pairs struct {
	b      []byte
	header int
	n      byte
}

func newPairs(dst []byte) pairs {
	return pairs{b: append(dst, 0x80), header: len(dst)}
}

func (p *pairs) key(name string) {
	p.n++
	p.b = msgp.AppendString(p.b, name)
}

// done is the map, with the shortest header for its size.
func (p *pairs) done() []byte {
	if p.n < 16 {
		p.b[p.header] = 0x80 | p.n
		return p.b
	}
	p.b[p.header] = 0xde
	return slices.Insert(p.b, p.header+1, 0, p.n)
}

func (p *pairs) text(name, value string) {
	p.key(name)
	p.b = msgp.AppendString(p.b, value)
}

// textIf writes the pair if there is a value.
func (p *pairs) textIf(name, value string) {
	if value != "" {
		p.text(name, value)
	}
}

func (p *pairs) intIf(name string, present bool, value int64) {
	if present {
		p.key(name)
		p.b = appendInt(p.b, value)
	}
}

// mapEvent writes a tagged map. msgspec writes fields that have no default
// always, as nil if absent, and others only if they have a value.
func (e Encoder) mapEvent(dst []byte, ev *Event) []byte {
	p := newPairs(dst)
	switch ev.Kind {
	case Cleared:
		p.text("type", tagCleared)
	case Removed:
		p.text("type", tagRemoved)
		e.mapRemoved(&p, ev)
	default:
		p.text("type", tagStored)
		e.mapStored(&p, ev)
	}
	return p.done()
}

func (e Encoder) mapRemoved(p *pairs, ev *Event) {
	p.key("block_hashes")
	p.b = e.hashes(p.b, ev.Hashes)
	if e.Generation == SGLangMap {
		p.textIf("component_type", componentOf(ev.Spec))
	}
	p.text("medium", e.Generation.medium(ev.Tier))
	switch e.Generation {
	case VLLMMap, VLLMBatchMap:
		p.intIf("group_idx", ev.HasGroup, int64(ev.Group))
		p.textIf("locality", e.locality(ev))
		if ev.CopiesLeft != nil {
			p.key("remaining_copy_counts")
			p.b = msgp.AppendArrayHeader(p.b, uint32(len(ev.CopiesLeft)))
			for _, n := range ev.CopiesLeft {
				p.b = appendInt(p.b, n)
			}
		}
	case TRTLLMMap:
		p.intIf("group_idx", ev.HasGroup, int64(ev.Group))
	}
}

func (e Encoder) mapStored(p *pairs, ev *Event) {
	p.key("block_hashes")
	p.b = e.hashes(p.b, ev.Hashes)
	p.key("parent_block_hash")
	p.b = e.parent(p.b, ev)
	p.key("token_ids")
	p.b = e.tokens(p.b, ev)
	p.key("block_size")
	p.b = appendInt(p.b, int64(ev.BlockSize))
	if e.Generation == SimulatorMap {
		p.intIf("lora_id", ev.HasLoRAID, ev.LoRAID)
		p.text("medium", e.Generation.medium(ev.Tier))
		p.textIf("lora_name", ev.LoRA)
		return
	}
	p.key("lora_id")
	p.b = appendOptional(p.b, ev.HasLoRAID, ev.LoRAID)
	if e.Generation == SGLangMap {
		p.textIf("component_type", componentOf(ev.Spec))
		p.text("medium", e.Generation.medium(ev.Tier))
		p.textIf("lora_name", ev.LoRA)
		p.textIf("cache_salt", ev.Salt)
		p.textIf("session_id", e.Session)
		return
	}
	p.text("medium", e.Generation.medium(ev.Tier))
	p.key("lora_name")
	p.b = appendName(p.b, ev.LoRA)
	if e.Generation == TRTLLMMap {
		p.intIf("group_idx", ev.HasGroup, int64(ev.Group))
		e.mmKeys(p, ev)
		return
	}
	p.key("extra_keys")
	p.b = e.extraKeys(p.b, ev)
	p.intIf("group_idx", ev.HasGroup, int64(ev.Group))
	p.textIf("kv_cache_spec_kind", ev.Spec)
	p.intIf("kv_cache_spec_sliding_window", ev.Window > 0, int64(ev.Window))
	p.textIf("locality", e.locality(ev))
	p.textIf("ownership", e.Ownership)
	p.textIf("session_id", e.Session)
	p.textIf("origin", ev.Origin)
}

func (e Encoder) locality(ev *Event) string {
	if e.remote(ev) {
		return "REMOTE"
	}
	return e.Locality
}

// mmKeys writes the extras that do not stand for a token.
func (e Encoder) mmKeys(p *pairs, ev *Event) {
	texts := textPositions(ev)
	isKey := func(block int, id string, offset uint32) bool {
		return texts[block*ev.BlockSize+int(offset)] != id
	}
	any := false
	for block, extras := range ev.Extras {
		for _, x := range extras {
			any = any || isKey(block, x.ID, x.Offset)
		}
	}
	if !any {
		return
	}
	p.key("mm_keys")
	p.b = msgp.AppendArrayHeader(p.b, uint32(len(ev.Hashes)))
	for block := range ev.Hashes {
		from, n := len(p.b), byte(0)
		p.b = append(p.b, 0xdc, 0, 0) // array 16: its size comes last
		if block < len(ev.Extras) {
			for _, x := range ev.Extras[block] {
				if isKey(block, x.ID, x.Offset) && n < 255 {
					n++
					p.b = appendMMKey(p.b, x.ID)
				}
			}
		}
		if n < 16 { // the short form, as msgspec writes it
			p.b = append(p.b[:from+1], p.b[from+3:]...)
			p.b[from] = 0x90 | n
			continue
		}
		p.b[from+2] = n
	}
}

func appendMMKey(dst []byte, id string) []byte {
	p := newPairs(dst)
	p.text("type", "mm_key")
	p.text("hash", id)
	p.key("start_offset")
	p.b = appendInt(p.b, 0)
	return p.done()
}

// componentOf is SGLang's word for an attention kind.
func componentOf(spec string) string {
	switch spec {
	case "full_attention":
		return "full"
	case "sliding_window":
		return "swa"
	}
	return spec
}
