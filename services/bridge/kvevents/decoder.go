package kvevents

import (
	"errors"
	"fmt"
	"math"

	"warmpath/routing/blockkey"
)

// Limits bound what a Decoder accepts. A zero field means its default.
type Limits struct {
	// MaxPayload is the bytes of a batch, default 64 MiB.
	MaxPayload int
	// MaxEvents is the events of a batch, default 65,536.
	MaxEvents int
	// MaxHashes is the block hashes of an event, default 65,536.
	MaxHashes int
	// MaxTokens is the tokens of an event, default 4,194,304.
	MaxTokens int
	// MaxString is the bytes of a name or salt, default 64 KiB.
	MaxString int
}

func (l Limits) withDefaults() Limits {
	set := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	set(&l.MaxPayload, 64<<20)
	set(&l.MaxEvents, 1<<16)
	set(&l.MaxHashes, 1<<16)
	set(&l.MaxTokens, 4<<20)
	set(&l.MaxString, 64<<10)
	return l
}

// maxExtras bounds what the identity of one block may depend on.
const maxExtras = 1024

// Counts is what a Decoder has met since it was made. An event that is not in
// a Batch is in exactly one of BadEvents, UnknownTags and EmptyEvents.
type Counts struct {
	// Batches were decoded; BadBatches were refused as a whole.
	Batches, BadBatches uint64
	// Events were decoded.
	Events uint64
	// BadEvents is the sum of the five that follow.
	BadEvents uint64
	// BadShapes had a value of an unexpected type, or lacked one.
	BadShapes uint64
	// BadHashes had a hash that cannot be read, such as bytes without a byte.
	BadHashes uint64
	// BadTokens had a token id that cannot be read or exceeds 32 bits.
	BadTokens uint64
	// OverLimit had more of something than Limits allows, or came after more than
	// 4,194,304 hashes of one batch.
	OverLimit uint64
	// Truncated were wrapped in bytes that end too early.
	Truncated uint64
	// EmptyEvents name no block, so that they say nothing.
	EmptyEvents uint64
	// UnknownTags are events of another kind than the known ones.
	UnknownTags uint64
	// UnknownFields were ignored, in events and batches.
	UnknownFields uint64
	// UnknownTiers are events whose medium is not known here.
	UnknownTiers uint64
	// UnknownExtras are entries of extra_keys of unknown form. They became
	// Extras, so that such a block equals no other.
	UnknownExtras uint64
	// BadHeaders are batch times or ranks that cannot be read.
	BadHeaders uint64
	// Wrapped are events that came as bytes holding an encoded event.
	Wrapped uint64
	// ZeroParents are parents given as 0, taken for none.
	ZeroParents uint64
	// InferredSizes are stores without a block size of which it was computed.
	InferredSizes uint64
	// TokenPairs are tokens given with the token after them.
	TokenPairs uint64
	// TrailingBytes came after a batch.
	TrailingBytes uint64
}

// Decoder decodes batches of any engine and generation. It is for one
// goroutine. It reuses its memory: a Batch and all that it refers to, except
// strings, is valid until the next Decode. Once it has seen batches of a size it
// no longer allocates for them.
type Decoder struct {
	limits Limits
	counts Counts
	names  names

	batch Batch
	// Arenas: the events' slices are parts of these.
	hashArena  []uint64
	tokenArena []uint32
	copyArena  []int64
	extraArena []blockkey.Extra
	blockArena [][]blockkey.Extra
	// Scratch of the event at hand.
	texts []textToken
	items []item
}

// NewDecoder returns a Decoder with the limits.
func NewDecoder(limits Limits) *Decoder {
	return &Decoder{limits: limits.withDefaults()}
}

// Counts is what the decoder has met so far.
func (d *Decoder) Counts() Counts { return d.counts }

// Names is the unknown things met so far, most frequent first. At most 64 are
// told apart; of the others only Counts tells.
func (d *Decoder) Names() []Name { return d.names.list() }

// Decode decodes the payload of a batch. An error means that the batch as such
// cannot be read and that nothing of it was; events that cannot be read are
// counted in Batch.Skipped. Payload is not kept.
func (d *Decoder) Decode(payload []byte) (*Batch, error) {
	d.reset()
	d.counts.Batches++
	if err := d.decode(payload); err != nil {
		d.counts.BadBatches++
		return nil, fmt.Errorf("event batch of %d bytes: %w", len(payload), err)
	}
	d.counts.Events += uint64(len(d.batch.Events))
	return &d.batch, nil
}

const (
	// maxBlocks bounds the hashes of all events of a batch, far above what an
	// engine holds: what is kept for each is many times its bytes.
	maxBlocks = 4 << 20
	// keep is the largest arena, in elements, that is kept from batch to batch:
	// one huge batch must not hold its memory for ever.
	keep = 4 << 20
)

// recycle is s without its elements, or nothing if it is too large to keep.
func recycle[T any](s []T) []T {
	if cap(s) > keep {
		return nil
	}
	return s[:0]
}

func (d *Decoder) reset() {
	// What has pointers is cleared, so that it holds nothing of the last batch.
	clear(d.extraArena)
	clear(d.batch.Events)
	clear(d.texts)
	clear(d.items)
	d.tokenArena, d.hashArena, d.copyArena = recycle(d.tokenArena), recycle(d.hashArena), recycle(d.copyArena)
	d.extraArena, d.blockArena = recycle(d.extraArena), recycle(d.blockArena)
	d.texts, d.items = recycle(d.texts), recycle(d.items)
	d.batch = Batch{Rank: -1, Events: d.batch.Events[:0]}
}

func (d *Decoder) decode(payload []byte) error {
	if len(payload) > d.limits.MaxPayload {
		return fmt.Errorf("%w of %d bytes", errLimit, d.limits.MaxPayload)
	}
	c := &cursor{b: payload}
	var err error
	switch c.peek() {
	case famArray:
		err = d.arrayBatch(c)
	case famMap:
		err = d.mapBatch(c)
	case famNone:
		_, _, err = c.length()
	default:
		err = fmt.Errorf("%w: want an array or a map", errShape)
	}
	d.counts.TrailingBytes += uint64(max(0, c.left()))
	if err != nil {
		d.batch.Events = d.batch.Events[:0]
	}
	return err
}

// arrayBatch reads [ts, events, rank]; the rank is absent in the oldest form.
func (d *Decoder) arrayBatch(c *cursor) error {
	n, err := c.container(famArray, d.limits.MaxEvents)
	if err != nil {
		return err
	}
	if n < 2 {
		return fmt.Errorf("%w: a batch has a time and events, not %d elements", errShape, n)
	}
	if err := d.time(c); err != nil {
		return err
	}
	if err := d.events(c); err != nil {
		return err
	}
	if n > 2 {
		if err := d.rank(c); err != nil {
			return err
		}
	}
	for range n - min(n, 3) {
		d.counts.UnknownFields++
		if err := c.skip(); err != nil {
			return err
		}
	}
	return nil
}

// mapBatch reads {ts, events, rank}, as vLLM's newest encoding has it.
func (d *Decoder) mapBatch(c *cursor) error {
	n, err := c.container(famMap, d.limits.MaxEvents)
	if err != nil {
		return err
	}
	seen := false
	for range n {
		key, err := d.key(c)
		if err != nil {
			return err
		}
		switch string(key) {
		case "ts":
			err = d.time(c)
		case "events":
			if seen {
				return fmt.Errorf("%w: events stands twice", errShape)
			}
			seen = true
			err = d.events(c)
		case "data_parallel_rank", "attn_dp_rank":
			err = d.rank(c)
		default:
			d.unknown(ClassBatchField, key)
			d.counts.UnknownFields++
			err = c.skip()
		}
		if err != nil {
			return err
		}
	}
	if !seen {
		return fmt.Errorf("%w: a batch has no events", errShape)
	}
	return nil
}

// key reads a map's key; one that is no text is consumed and comes back empty.
func (d *Decoder) key(c *cursor) ([]byte, error) {
	if c.peek() != famText {
		return nil, c.skip()
	}
	at := c.i
	key, err := c.text(d.limits.MaxString)
	if errors.Is(err, errLimit) {
		c.i = at
		return nil, c.skip()
	}
	return key, err
}

func (d *Decoder) time(c *cursor) error {
	at := c.i
	if s, err := c.float(); err == nil {
		// The engine's clock is a detail: only a sensible one is worth having.
		if us := math.Round(s * 1e6); us > 0 && us < math.MaxInt64/2 {
			d.batch.TimeUS = int64(us)
		}
		return nil
	}
	c.i = at
	if c.peek() != famNil {
		d.counts.BadHeaders++
	}
	return c.skip()
}

func (d *Decoder) rank(c *cursor) error {
	if c.null() {
		return nil
	}
	at := c.i
	if v, err := c.integer(); err == nil && v >= 0 && v <= math.MaxInt32 {
		d.batch.Rank = int(v)
		return nil
	}
	c.i = at
	d.counts.BadHeaders++
	return c.skip()
}

func (d *Decoder) events(c *cursor) error {
	if c.null() {
		return nil
	}
	n, err := c.container(famArray, d.limits.MaxEvents)
	if err != nil {
		return fmt.Errorf("events: %w", err)
	}
	for k := range n {
		at := c.i
		if err := d.event(c, false); err != nil {
			// The event is consumed by its structure alone. Only if even that is
			// broken is there no finding the next one.
			c.i = at
			if err := c.skip(); err != nil {
				return fmt.Errorf("event %d of %d: %w", k, n, err)
			}
			d.bad(err)
		}
	}
	return nil
}

// bad counts an event that could not be read.
func (d *Decoder) bad(err error) {
	d.batch.Skipped++
	d.counts.BadEvents++
	switch {
	case errors.Is(err, errHash):
		d.counts.BadHashes++
	case errors.Is(err, errToken):
		d.counts.BadTokens++
	case errors.Is(err, errLimit):
		d.counts.OverLimit++
	case errors.Is(err, errTruncated):
		d.counts.Truncated++
	default:
		d.counts.BadShapes++
	}
}
