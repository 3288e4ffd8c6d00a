package kvevents

import (
	"bytes"
	"math"

	pb "warmpath/schemas/warmpathv1"
)

// The tags of known events, the same in every generation.
const (
	tagStored  = "BlockStored"
	tagRemoved = "BlockRemoved"
	tagCleared = "AllBlocksCleared"
)

// event reads the next event and adds it to the batch. On an error nothing is
// added and c is somewhere inside it. wrapped says that it came as bytes.
func (d *Decoder) event(c *cursor, wrapped bool) error {
	switch c.peek() {
	case famArray:
		return d.arrayEvent(c)
	case famMap:
		return d.mapEvent(c)
	case famText:
		if wrapped {
			return errShape
		}
		b, err := c.text(len(c.b))
		if err != nil {
			return err
		}
		d.counts.Wrapped++
		return d.event(&cursor{b: b}, true)
	case famNone:
		_, _, err := c.length()
		return err
	}
	return errShape
}

func kindOf(tag []byte) (Kind, bool) {
	switch string(tag) {
	case tagStored:
		return Stored, true
	case tagRemoved:
		return Removed, true
	case tagCleared:
		return Cleared, true
	}
	return 0, false
}

// draft is an event whose fields are being read.
type draft struct {
	*Event
	c *cursor
	// elements of an array event.
	elements int
	medium   []byte
	remote   bool
	named    bool // a medium stands in the event
	hashes   bool // the hashes stand in the event
	salted   bool // a salt stands in the event under its name
	// Offsets in c.b of values that can only be understood with all the others,
	// 0 if absent: no value stands at the beginning of an event.
	extraKeys, mmKeys int
}

// begin makes room for an event in the batch.
func (d *Decoder) begin(kind Kind, c *cursor) draft {
	d.batch.Events = append(d.batch.Events, Event{Kind: kind})
	d.texts = d.texts[:0]
	return draft{Event: &d.batch.Events[len(d.batch.Events)-1], c: c}
}

// drop takes back what begin made.
func (d *Decoder) drop() {
	last := len(d.batch.Events) - 1
	d.batch.Events[last] = Event{}
	d.batch.Events = d.batch.Events[:last]
}

// end completes an event all of whose fields were read, or takes it back.
func (d *Decoder) end(f *draft, err error) error {
	if err == nil {
		err = d.finish(f)
	}
	switch {
	case err != nil:
		d.drop()
	case f.Kind != Cleared && len(f.Hashes) == 0:
		d.counts.EmptyEvents++
		d.drop()
	}
	return err
}

// arrayEvent reads [tag, field, …].
func (d *Decoder) arrayEvent(c *cursor) error {
	n, err := c.container(famArray, math.MaxInt32)
	if err != nil {
		return err
	}
	if n == 0 {
		return errShape
	}
	tag, err := c.text(d.limits.MaxString)
	if err != nil {
		return err
	}
	kind, known := kindOf(tag)
	if !known {
		return d.unknownEvent(tag, c, n-1)
	}
	f := d.begin(kind, c)
	f.elements = n
	for k := 1; k < n && err == nil; k++ {
		err = d.field(&f, positional(&f, k), nil)
	}
	return d.end(&f, err)
}

// mapEvent reads {"type": tag, name: field, …}.
func (d *Decoder) mapEvent(c *cursor) error {
	at := c.i
	n, err := c.container(famMap, math.MaxInt32)
	if err != nil {
		return err
	}
	tag, err := d.findTag(*c, n)
	if err != nil {
		return err
	}
	kind, known := kindOf(tag)
	if !known {
		c.i = at
		return d.unknownEvent(tag, c, 1)
	}
	f := d.begin(kind, c)
	for range n {
		var key []byte
		if key, err = d.key(c); err == nil {
			err = d.field(&f, named(key), key)
		}
		if err != nil {
			break
		}
	}
	return d.end(&f, err)
}

// findTag is the event's type, which msgspec writes first.
func (d *Decoder) findTag(c cursor, pairs int) ([]byte, error) {
	for range pairs {
		key, err := d.key(&c)
		if err != nil {
			return nil, err
		}
		if string(key) == "type" {
			return c.text(d.limits.MaxString)
		}
		if err := c.skip(); err != nil {
			return nil, err
		}
	}
	return nil, errShape
}

// unknownEvent consumes the values that are left of an event of unknown kind.
func (d *Decoder) unknownEvent(tag []byte, c *cursor, values int) error {
	for range values {
		if err := c.skip(); err != nil {
			return err
		}
	}
	d.unknown(ClassTag, tag)
	d.counts.UnknownTags++
	d.batch.Unknown++
	return nil
}

// finish computes what depends on several fields.
func (d *Decoder) finish(f *draft) error {
	if f.Kind == Cleared {
		f.Hashes, f.Tokens = nil, nil
		if !f.named {
			return nil
		}
		d.setTier(f)
		return nil
	}
	if !f.hashes {
		return errShape
	}
	d.setTier(f)
	if f.Kind == Removed {
		f.Tokens = nil
		if f.CopiesLeft != nil && len(f.CopiesLeft) != len(f.Hashes) {
			return errShape
		}
		return nil
	}
	if f.BlockSize == 0 && len(f.Hashes) > 0 && len(f.Tokens) > 0 && len(f.Tokens)%len(f.Hashes) == 0 {
		f.BlockSize = len(f.Tokens) / len(f.Hashes)
		d.counts.InferredSizes++
	}
	return d.extras(f)
}

func (d *Decoder) setTier(f *draft) {
	tier, known := tierOf(f.medium)
	if f.remote {
		tier, known = pb.Tier_TIER_REMOTE, true
	}
	if !known {
		d.counts.UnknownTiers++
		d.unknown(ClassMedium, f.medium)
	}
	f.Tier = tier
}

// loraName is an adapter's name as blockkey allows it.
func loraName(b []byte) error {
	if bytes.IndexByte(b, 0) >= 0 {
		return errShape
	}
	return nil
}
