package kvevents

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"

	"warmpath/routing/blockkey"
)

// item is an Extra and the block of the event that it belongs to.
type item struct {
	block int
	extra blockkey.Extra
	// vague items name content whose offset is unknown.
	vague bool
	// order is the item's place in the event.
	order int
}

// extras gathers what the blocks of a store depend on besides tokens: vLLM's
// extra_keys, TensorRT-LLM's mm_keys, and tokens given as strings.
func (d *Decoder) extras(f *draft) error {
	if f.extraKeys == 0 && f.mmKeys == 0 && len(d.texts) == 0 {
		return nil
	}
	d.items = d.items[:0]
	if f.extraKeys > 0 {
		c := cursor{b: f.c.b, i: f.extraKeys}
		if err := d.perBlock(f, &c, false); err != nil {
			return err
		}
	}
	if err := d.textTokens(f); err != nil {
		return err
	}
	if f.mmKeys > 0 {
		c := cursor{b: f.c.b, i: f.mmKeys}
		if err := d.perBlock(f, &c, true); err != nil {
			return err
		}
	}
	if f.mmKeys > 0 && len(d.items) > 1 {
		d.dropVague()
	}
	if len(d.items) > 0 {
		f.Extras = d.place(len(f.Hashes))
	}
	return nil
}

// perBlock reads an array with, for each block, nil or an array of values:
// mm_keys or extra_keys. A function for the value would make the draft escape.
func (d *Decoder) perBlock(f *draft, c *cursor, mmKeys bool) error {
	if c.null() {
		return nil
	}
	n, err := c.container(famArray, d.limits.MaxHashes)
	if err != nil {
		return err
	}
	for block := range n {
		if c.null() {
			continue
		}
		values, err := c.container(famArray, maxExtras)
		if err != nil {
			return err
		}
		if values > 0 && n != len(f.Hashes) {
			return errShape // which of the blocks it belongs to is unknowable
		}
		for range values {
			if mmKeys {
				err = d.mmKey(c, block)
			} else {
				err = d.extraKey(f, c, block)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// extraKey reads a value of extra_keys. They are untyped: a string may be the
// adapter's name, a cache salt, or the identifier of multimodal content.
func (d *Decoder) extraKey(f *draft, c *cursor, block int) error {
	from := c.i
	switch c.peek() {
	case famText:
		isBin := c.b[c.i] >= 0xc4 && c.b[c.i] <= 0xc6
		b, err := c.text(d.limits.MaxString)
		switch {
		case err != nil:
			return err
		case isBin && len(b) <= maxHashBytes:
			d.add(block, "embeds:"+hex.EncodeToString(b), 0)
			return nil
		case isBin:
			break
		case string(b) == f.LoRA:
			return nil
		case block == 0:
			d.firstString(f, b)
			return nil
		default:
			d.add(block, d.intern(b), 0)
			return nil
		}
	case famArray:
		if id, offset, ok := d.idAndOffset(*c); ok {
			d.add(block, id, offset)
			return c.skip()
		}
	case famInt:
		ahead := *c
		if v, err := ahead.integer(); err == nil && f.HasLoRAID && v == f.LoRAID {
			*c = ahead
			return nil
		}
	}
	c.i = from
	if err := c.skip(); err != nil {
		return err
	}
	// The engine tells two blocks apart by something that has no name here. It
	// must tell their keys apart too: no hit is better than a false one.
	d.counts.UnknownExtras++
	d.add(block, fmt.Sprintf("opaque:%x", xxh3.Hash128(c.b[from:c.i]).Bytes()), 0)
	return nil
}

// firstString takes a string of the first block: vLLM appends the salt after
// the identifiers, so that only the last one is it.
func (d *Decoder) firstString(f *draft, b []byte) {
	s := d.intern(b)
	switch {
	case f.salted && f.Salt != s:
		d.add(0, s, 0)
		return
	case f.Salt != "" && f.Salt != s:
		d.add(0, f.Salt, 0)
	}
	f.Salt = s
}

// idAndOffset reads [identifier, offset in the block].
func (d *Decoder) idAndOffset(c cursor) (id string, offset uint32, ok bool) {
	if n, err := c.container(famArray, 2); err != nil || n != 2 {
		return "", 0, false
	}
	b, err := c.text(d.limits.MaxString)
	if err != nil {
		return "", 0, false
	}
	v, err := c.integer()
	if err != nil || v > math.MaxUint32 {
		return "", 0, false
	}
	return d.intern(b), uint32(max(v, 0)), true // negative: it began in an earlier block
}

// mmKey reads {"type": "mm_key", "hash": …, "start_offset": …, "uuid": …}.
// start_offset is where in the item the block continues it, not where in the
// block the item begins: that is known only if a token of the block is the item's
// digest, else 0 is as good as any.
func (d *Decoder) mmKey(c *cursor, block int) error {
	n, err := c.container(famMap, math.MaxInt32)
	if err != nil {
		return err
	}
	id := ""
	for range n {
		key, err := d.key(c)
		if err != nil {
			return err
		}
		if string(key) != "hash" {
			if err := c.skip(); err != nil {
				return err
			}
			continue
		}
		b, err := c.text(d.limits.MaxString)
		if err != nil {
			return err
		}
		id = d.intern(b)
	}
	if id == "" {
		return errShape
	}
	d.add(block, id, 0)
	d.items[len(d.items)-1].vague = true
	return nil
}

// textTokens makes extras of the tokens that were given as strings.
func (d *Decoder) textTokens(f *draft) error {
	if len(d.texts) > 0 && f.BlockSize == 0 {
		return errShape
	}
	for _, t := range d.texts {
		if block := t.pos / f.BlockSize; block < len(f.Hashes) {
			d.add(block, d.intern(t.id), uint32(t.pos%f.BlockSize))
		}
	}
	return nil
}

func (d *Decoder) add(block int, id string, offset uint32) {
	d.items = append(d.items, item{block: block, extra: blockkey.Extra{ID: id, Offset: offset}, order: len(d.items)})
}

// dropVague removes vague items that another of their block names better, by
// sorting: a block may have many.
func (d *Decoder) dropVague() {
	slices.SortFunc(d.items, func(a, b item) int {
		return cmp.Or(cmp.Compare(a.block, b.block), strings.Compare(a.extra.ID, b.extra.ID), cmp.Compare(a.order, b.order))
	})
	kept := d.items[:1]
	for _, it := range d.items[1:] {
		last := kept[len(kept)-1]
		// mm_keys are read last, so that a vague item comes after its better.
		if it.vague && it.block == last.block && it.extra.ID == last.extra.ID {
			continue
		}
		kept = append(kept, it)
	}
	d.items = kept
}

// place orders the items and deals them out to the blocks.
func (d *Decoder) place(blocks int) [][]blockkey.Extra {
	slices.SortFunc(d.items, func(a, b item) int {
		return cmp.Or(cmp.Compare(a.block, b.block), cmp.Compare(a.extra.Offset, b.extra.Offset), cmp.Compare(a.order, b.order))
	})
	from := len(d.blockArena)
	d.blockArena = grow(d.blockArena, blocks)
	out := d.blockArena[from : from+blocks : from+blocks]
	clear(out)
	first := len(d.extraArena)
	d.extraArena = grow(d.extraArena, len(d.items))
	extras := d.extraArena[first:]
	for k := 0; k < len(d.items); {
		end := k
		for ; end < len(d.items) && d.items[end].block == d.items[k].block; end++ {
			extras[end] = d.items[end].extra
		}
		out[d.items[k].block] = extras[k:end:end]
		k = end
	}
	return out
}
