package kvevents

import (
	"bytes"
	"math"
)

// fieldID is a field of an event.
type fieldID uint8

const (
	fieldUnknown fieldID = iota
	fieldIgnored         // known, and of no use here
	fieldHashes
	fieldParent
	fieldTokens
	fieldBlockSize
	fieldLoRAID
	fieldMedium
	fieldLoRA
	fieldExtraKeys
	fieldGroup
	fieldSpec
	fieldWindow
	fieldLocality
	fieldSalt
	fieldMetadata
	fieldOrigin
	fieldCopies
	fieldMMKeys
	fieldComponent
	fieldComponentID
)

// named is the field of a name in a map event.
func named(key []byte) fieldID {
	switch string(key) {
	case "block_hashes":
		return fieldHashes
	case "parent_block_hash":
		return fieldParent
	case "token_ids":
		return fieldTokens
	case "block_size":
		return fieldBlockSize
	case "lora_id":
		return fieldLoRAID
	case "medium":
		return fieldMedium
	case "lora_name":
		return fieldLoRA
	case "extra_keys":
		return fieldExtraKeys
	case "group_idx":
		return fieldGroup
	case "kv_cache_spec_kind":
		return fieldSpec
	case "kv_cache_spec_sliding_window", "window_size":
		return fieldWindow
	case "locality":
		return fieldLocality
	case "cache_salt":
		return fieldSalt
	case "metadata":
		return fieldMetadata
	case "origin":
		return fieldOrigin
	case "remaining_copy_counts":
		return fieldCopies
	case "mm_keys":
		return fieldMMKeys
	case "component_type":
		return fieldComponent
	case "component_id":
		return fieldComponentID
	case "type", "session_id", "ownership", "snapshot_version":
		return fieldIgnored
	}
	return fieldUnknown
}

// positional is the field at position k of an array event, whose tag is at 0.
//
// A store is, in vLLM's order: hashes, parent, tokens, block size, LoRA id,
// medium, LoRA name, extra keys, group, spec kind, window. SGLang puts its
// metadata (a map) where the LoRA name or the extra keys are, and where it names
// component types (see specOf) it puts one before or after the medium; a fork
// puts an id and a version between the two. The types tell them apart.
func positional(f *draft, k int) fieldID {
	switch f.Kind {
	case Removed:
		return removedField(f, k)
	case Cleared:
		if k == 1 && f.c.peek() == famText {
			return fieldMedium
		}
		return fieldUnknown
	}
	switch k {
	case 1:
		return fieldHashes
	case 2:
		return fieldParent
	case 3:
		return fieldTokens
	case 4:
		return fieldBlockSize
	case 5:
		return fieldLoRAID
	case 6:
		if nextSpec(f.c) != "" {
			return fieldComponent
		}
		return fieldMedium
	}
	family := f.c.peek()
	switch {
	case family == famMap && k <= 9:
		return fieldMetadata
	case k == 7 && family == famInt:
		return fieldComponentID
	case k == 7 && family == famText && f.elements <= 9 && f.Spec == "" && nextSpec(f.c) != "":
		// An adapter of such a name would be of the few builds of vLLM whose
		// events end with the LoRA name, and would be taken for another group.
		return fieldComponent
	case (k == 7 || k == 9) && family == famText && f.Spec != "":
		return fieldMedium
	case k == 7:
		return fieldLoRA
	case k == 8 && family == famInt:
		return fieldIgnored
	case k == 8:
		return fieldExtraKeys
	case k == 9:
		return fieldGroup
	case k == 10:
		return fieldSpec
	case k == 11:
		return fieldWindow
	}
	return fieldUnknown
}

// removedField is positional for a removal: hashes, medium, group, with the
// same variants.
func removedField(f *draft, k int) fieldID {
	family := f.c.peek()
	switch {
	case k == 1:
		return fieldHashes
	case k <= 5 && family == famText && nextSpec(f.c) != "":
		return fieldComponent
	case k == 2, k <= 5 && family == famText:
		return fieldMedium
	case k == 3 && family == famInt && f.Spec != "":
		return fieldComponentID
	case k == 3:
		return fieldGroup
	case k == 4 && f.Spec != "":
		return fieldIgnored
	}
	return fieldUnknown
}

// nextSpec is the spec of the component type that comes next, "" if none does.
func nextSpec(c *cursor) string {
	if c.peek() != famText {
		return ""
	}
	ahead := *c
	b, err := ahead.text(16)
	if err != nil {
		return ""
	}
	return specOf(b)
}

// field reads the value of a field. name is as the engine wrote it, nil in an
// array.
func (d *Decoder) field(f *draft, id fieldID, name []byte) error {
	c := f.c
	switch id {
	case fieldUnknown:
		d.counts.UnknownFields++
		if name != nil {
			d.unknown(ClassField, name)
		}
		return c.skip()
	case fieldIgnored:
		return c.skip()
	case fieldHashes:
		return d.hashes(f)
	case fieldTokens:
		d.texts = d.texts[:0]
		tokens, err := d.tokens(c)
		f.Tokens = tokens
		return err
	case fieldExtraKeys:
		f.extraKeys = c.i
		return c.skip()
	case fieldMMKeys:
		f.mmKeys = c.i
		return c.skip()
	}
	if c.null() {
		return nil // in every other field nil is the same as absent
	}
	switch id {
	case fieldParent:
		return d.parent(f)
	case fieldMetadata:
		return d.metadata(f)
	case fieldCopies:
		return d.copies(f)
	case fieldBlockSize, fieldLoRAID, fieldGroup, fieldWindow, fieldComponentID:
		return numberField(f, id)
	}
	return d.textField(f, id)
}

func numberField(f *draft, id fieldID) error {
	v, err := f.c.integer()
	if err != nil {
		return err
	}
	if id == fieldLoRAID {
		f.LoRAID, f.HasLoRAID = v, true
		return nil
	}
	if v < 0 || v > math.MaxInt32 {
		return errShape
	}
	switch id {
	case fieldBlockSize:
		f.BlockSize = int(v)
	case fieldWindow:
		f.Window = int(v)
	case fieldComponentID:
		if !f.HasGroup {
			f.Group, f.HasGroup = int(v), true
		}
	default:
		f.Group, f.HasGroup = int(v), true
	}
	return nil
}

func (d *Decoder) textField(f *draft, id fieldID) error {
	b, err := f.c.text(d.limits.MaxString)
	if err != nil {
		return err
	}
	switch id {
	case fieldMedium:
		f.medium, f.named = b, true
	case fieldLoRA:
		f.LoRA = d.intern(b)
		return loraName(b)
	case fieldSpec:
		f.Spec = d.intern(b)
	case fieldComponent:
		if f.Spec = specOf(b); f.Spec == "" {
			f.Spec = d.intern(b)
		}
	case fieldLocality:
		f.remote = len(b) == 6 && bytes.EqualFold(b, []byte("REMOTE"))
	case fieldSalt:
		f.Salt, f.salted = d.intern(b), true
	case fieldOrigin:
		f.Origin = d.intern(b)
	}
	return nil
}

func (d *Decoder) hashes(f *draft) error {
	n, err := f.c.container(famArray, d.limits.MaxHashes)
	if err != nil {
		return err
	}
	from := len(d.hashArena)
	if from+n > maxBlocks {
		return errLimit
	}
	d.hashArena = grow(d.hashArena, n)
	out := d.hashArena[from : from+n : from+n]
	for k := range out {
		h, empty, err := f.c.hash()
		switch {
		case err != nil:
			return err
		case empty:
			return errHash
		}
		out[k] = h
	}
	f.Hashes, f.hashes = out, true
	return nil
}

func (d *Decoder) parent(f *draft) error {
	h, empty, err := f.c.hash()
	if err != nil || empty {
		return err
	}
	if h == 0 {
		d.counts.ZeroParents++
		return nil
	}
	f.Parent, f.HasParent = h, true
	return nil
}

func (d *Decoder) copies(f *draft) error {
	n, err := f.c.container(famArray, d.limits.MaxHashes)
	if err != nil {
		return err
	}
	from := len(d.copyArena)
	d.copyArena = grow(d.copyArena, n)
	out := d.copyArena[from : from+n : from+n]
	for k := range out {
		v, err := f.c.integer()
		if err != nil {
			return err
		}
		if v < 0 {
			return errShape
		}
		out[k] = v
	}
	f.CopiesLeft = out
	return nil
}

// metadata reads SGLang's {"cache_salt": …}.
func (d *Decoder) metadata(f *draft) error {
	n, err := f.c.container(famMap, math.MaxInt32)
	if err != nil {
		return err
	}
	for range n {
		key, err := d.key(f.c)
		if err != nil {
			return err
		}
		id := fieldUnknown
		if string(key) == "cache_salt" {
			id = fieldSalt
		}
		if err := d.field(f, id, key); err != nil {
			return err
		}
	}
	return nil
}
