package kvevents

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"

	"warmpath/routing/blockkey"
)

// pullBlock is a block of a stored event.
type pullBlock struct {
	hash    uint64
	known   bool
	level   int64
	tokens  []uint32
	extras  []blockkey.Extra
	salt    string
	lora    string
	loraID  int64
	hasLoRA bool
}

// stored reads a run of blocks and cuts it where they differ.
func (p *pull) stored(j *object) error {
	var parent uint64
	var hasParent bool
	var lora string
	var blocks []pullBlock
	err := j.fields(func(j *object, name []byte) (err error) {
		switch string(name) {
		case `"parent_hash"`:
			if j.PeekKind() == 'n' {
				return j.SkipValue()
			}
			parent, err = j.hash()
			hasParent = parent != 0 // 0 is the root, as is a digest of zeros
			return err
		case `"lora_name"`:
			lora, err = j.text()
			return err
		case `"blocks"`:
			return j.array(func() error {
				if len(blocks) >= maxPullBlocks {
					return errLimit
				}
				b, err := p.block(j)
				blocks = append(blocks, b)
				return err
			})
		}
		return j.SkipValue()
	})
	if err == nil {
		err = loraName([]byte(lora))
	}
	if err != nil {
		return fmt.Errorf("stored: %w", err)
	}
	for k := range blocks {
		b := &blocks[k]
		if b.lora == "" {
			b.lora = lora
		}
		if k == 0 || !b.continues(&blocks[k-1]) {
			if *p.runs--; *p.runs < 0 {
				return fmt.Errorf("stored: %w", errLimit)
			}
			ev := p.newEvent(Stored, b.level)
			ev.Parent, ev.HasParent = parent, hasParent
			ev.BlockSize, ev.Salt = len(b.tokens), b.salt
			ev.LoRA, ev.LoRAID, ev.HasLoRAID = b.lora, b.loraID, b.hasLoRA
			p.event.Events = append(p.event.Events, ev)
		}
		ev := &p.event.Events[len(p.event.Events)-1]
		ev.Hashes = append(ev.Hashes, b.hash)
		ev.Tokens = append(ev.Tokens, b.tokens...)
		if len(b.extras) > 0 {
			for len(ev.Extras) < len(ev.Hashes)-1 {
				ev.Extras = append(ev.Extras, nil)
			}
			ev.Extras = append(ev.Extras, b.extras)
		}
		parent, hasParent = b.hash, true
	}
	for k := range p.event.Events {
		ev := &p.event.Events[k]
		for ev.Extras != nil && len(ev.Extras) < len(ev.Hashes) {
			ev.Extras = append(ev.Extras, nil)
		}
	}
	return nil
}

// continues says that b and the block before it can be one run.
func (b *pullBlock) continues(before *pullBlock) bool {
	return b.level == before.level && b.salt == before.salt && b.lora == before.lora &&
		b.loraID == before.loraID && b.hasLoRA == before.hasLoRA && len(b.tokens) == len(before.tokens)
}

// block reads a stored_block.
func (p *pull) block(j *object) (pullBlock, error) {
	var b pullBlock
	var keys []string
	err := j.fields(func(j *object, name []byte) (err error) {
		switch string(name) {
		case `"block_hash"`:
			b.hash, err = j.hash()
			b.known = true
		case `"tokens"`:
			err = p.blockTokens(j, &b)
		case `"cache_level"`:
			b.level, _, err = j.optional()
		case `"cache_salt"`:
			b.salt, err = j.text()
		case `"lora_name"`:
			b.lora, err = j.text()
		case `"lora_id"`:
			b.loraID, b.hasLoRA, err = j.optional()
		case `"mm_keys"`:
			keys, err = mmHashes(j)
		default:
			err = j.SkipValue()
		}
		return err
	})
	if err == nil && !b.known {
		err = fmt.Errorf("%w: a block has no block_hash", errShape)
	}
	if err == nil {
		err = loraName([]byte(b.lora))
	}
	for _, id := range keys {
		if !slices.ContainsFunc(b.extras, func(x blockkey.Extra) bool { return x.ID == id }) {
			b.extras = append(b.extras, blockkey.Extra{ID: id})
		}
	}
	slices.SortStableFunc(b.extras, func(x, y blockkey.Extra) int { return cmp.Compare(x.Offset, y.Offset) })
	return b, err
}

// blockTokens reads the tokens of a block. Besides plain ids there are digests
// of multimodal content as strings, and ids with an extra id that tells equal
// placeholders apart: a run of the same extra id is one item.
func (p *pull) blockTokens(j *object, b *pullBlock) error {
	var last uint64
	return j.array(func() error {
		if p.tokens++; p.tokens > maxPullTokens {
			return errLimit
		}
		var t pullToken
		if err := j.fields(t.field); err != nil {
			return err
		}
		offset := uint32(len(b.tokens))
		switch {
		case !t.known:
			return errToken
		case len(b.extras) >= maxExtras:
			return errLimit
		case t.text != "":
			b.extras = append(b.extras, blockkey.Extra{ID: t.text, Offset: offset})
		case t.extra != 0 && t.extra != last:
			b.extras = append(b.extras, blockkey.Extra{ID: "extra:" + strconv.FormatUint(t.extra, 10), Offset: offset})
		}
		last = t.extra
		b.tokens = append(b.tokens, t.id)
		return nil
	})
}

// pullToken is a unique_token.
type pullToken struct {
	id    uint32
	text  string
	extra uint64
	known bool
}

func (t *pullToken) field(j *object, name []byte) error {
	switch string(name) {
	case `"token_id"`:
		t.known = true
		if j.PeekKind() == '"' {
			s, err := j.text()
			if err == nil && s == "" {
				err = errToken
			}
			t.text = s
			return err
		}
		v, ok, err := j.optional()
		if err == nil && (!ok || v < math.MinInt32 || v > math.MaxUint32) {
			err = errToken
		}
		t.id = uint32(v)
		return err
	case `"token_extra_id"`:
		if j.PeekKind() == 'n' {
			return j.SkipValue()
		}
		v, err := j.hash()
		t.extra = v
		return err
	}
	return j.SkipValue()
}

// mmHashes reads the hashes of mm_keys; start_offset says nothing of the place in
// the block (see Decoder.mmKey).
func mmHashes(j *object) ([]string, error) {
	if j.PeekKind() == 'n' {
		return nil, j.SkipValue()
	}
	var keys []string
	err := j.array(func() error {
		if len(keys) >= maxExtras {
			return errLimit
		}
		id := ""
		if err := j.fields(func(j *object, name []byte) (err error) {
			if string(name) != `"hash"` {
				return j.SkipValue()
			}
			id, err = j.text()
			return err
		}); err != nil {
			return err
		}
		if id == "" {
			return fmt.Errorf("%w: an mm_key has no hash", errShape)
		}
		keys = append(keys, id)
		return nil
	})
	return keys, err
}
