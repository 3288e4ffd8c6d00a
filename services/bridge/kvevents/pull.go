package kvevents

import (
	"bytes"
	"encoding/json/jsontext"
	"fmt"

	pb "warmpath/schemas/warmpathv1"
)

// PullEvent is an element of the list that TensorRT-LLM returns when it is asked
// for its events (POST /kv_cache_events of trtllm-serve).
type PullEvent struct {
	// ID is the event's place in the engine's sequence, from 0 without holes, if
	// HasID. There is one sequence for each rank.
	ID    uint64
	HasID bool
	// Rank is the attention data-parallel rank, -1 if the engine gives none.
	Rank int
	// Events is what happened: several where the blocks of one store differ in
	// tier, salt, adapter or size, none where nothing is known to have moved.
	Events []Event
	// Created is the blocks of each cache level, 0 the GPU, if the event tells
	// that the cache was made. The engine then holds nothing.
	Created []int64
	// Bad is why the event could not be read, "" if it could. The replica must
	// then be doubted.
	Bad string
	// Unknown is the kind of an event that is not known here, else "".
	Unknown string
}

const (
	maxPullBytes  = 64 << 20
	maxPullEvents = 1 << 16
	// maxPullTokens bounds the tokens of one element.
	maxPullTokens = 4 << 20
	maxPullBlocks = 1 << 16
	// maxPullRuns bounds the runs of all stores: one takes far more memory than
	// the bytes that tell of it.
	maxPullRuns = 1 << 16
)

// DecodePull reads the body of TensorRT-LLM's answer. An error means that it is
// no list of events as such; an event that cannot be read is in the result, with
// the reason. It is safe for concurrent use and keeps nothing of body.
func DecodePull(body []byte) ([]PullEvent, error) {
	if len(body) > maxPullBytes {
		return nil, fmt.Errorf("pulled events of %d bytes: %w of %d", len(body), errLimit, maxPullBytes)
	}
	j := newObject(body)
	runs := maxPullRuns
	var out []PullEvent
	one := func() error {
		if len(out) >= maxPullEvents {
			return fmt.Errorf("%w of %d events", errLimit, maxPullEvents)
		}
		v, err := j.ReadValue()
		if err != nil {
			return err
		}
		if ev, ok := pullEvent(v, &runs); ok {
			out = append(out, ev)
		}
		return nil
	}
	var err error
	switch j.PeekKind() {
	case 'n':
		_, err = j.ReadToken()
	case '{':
		err = one()
	case '[':
		err = j.array(one)
	default:
		if _, err = j.ReadToken(); err == nil {
			err = errShape
		}
	}
	if err != nil {
		return nil, fmt.Errorf("pulled events of %d bytes: %w", len(body), err)
	}
	return out, nil
}

// pullEvent reads one element. Nothing is told by null and by {}, which stand
// for an event that was taken meanwhile.
func pullEvent(v jsontext.Value, runs *int) (PullEvent, bool) {
	ev := PullEvent{Rank: -1}
	if v.Kind() == '"' { // older versions return each event as JSON in a string
		inner, err := jsontext.AppendUnquote(nil, v)
		if err != nil || !jsontext.Value(inner).IsValid() {
			ev.Bad = "a string that holds no JSON"
			return ev, true
		}
		v = inner
	}
	if v.Kind() == 'n' {
		return ev, false
	}
	p := pull{event: &ev, runs: runs}
	err := newObject(v).fields(p.top)
	switch {
	case err != nil:
		ev.Bad = err.Error()
	case !p.seen:
		return ev, false
	case p.data == nil:
		ev.Bad = "it has no data"
	default:
		err = p.read()
	}
	if err != nil {
		ev.Bad, ev.Events, ev.Created = err.Error(), nil, nil
	}
	return ev, true
}

// pull is an element being read.
type pull struct {
	event  *PullEvent
	data   jsontext.Value
	kind   string
	seen   bool // it has a field
	window int
	// group is valid if grouped.
	group   int64
	grouped bool
	// tokens were read so far; runs may still be made, of the whole answer.
	tokens int
	runs   *int
}

// top reads a field of the element. The data may come before the window that it
// belongs to, so that it is read last.
func (p *pull) top(j *object, name []byte) error {
	p.seen = true
	switch string(name) {
	case `"event_id"`:
		v, ok, err := j.optional()
		p.event.ID, p.event.HasID = uint64(v), ok && v >= 0
		return err
	case `"data"`:
		v, err := j.ReadValue()
		p.data = bytes.Clone(v)
		return err
	case `"window_size"`:
		v, _, err := j.optional()
		p.window = int(max(0, min(v, 1<<30)))
		return err
	case `"attention_dp_rank"`:
		v, ok, err := j.optional()
		if ok && v >= 0 {
			p.event.Rank = int(min(v, 1<<30))
		}
		return err
	case `"layer_group_id"`:
		v, ok, err := j.optional()
		p.group, p.grouped = v, ok && v >= 0 && v < 1<<30
		return err
	}
	return j.SkipValue()
}

// read reads the data by its type.
func (p *pull) read() error {
	if err := newObject(p.data).fields(func(j *object, name []byte) error {
		if string(name) != `"type"` {
			return j.SkipValue()
		}
		s, err := j.text()
		p.kind = s
		return err
	}); err != nil {
		return fmt.Errorf("data: %w", err)
	}
	j := newObject(p.data)
	switch p.kind {
	case "created":
		return p.created(j)
	case "stored":
		return p.stored(j)
	case "removed":
		return p.removed(j)
	case "updated":
		return p.updated(j)
	case "":
		return fmt.Errorf("data: %w: it has no type", errShape)
	}
	p.event.Unknown = p.kind
	return nil
}

// newEvent is an event with what is the same for all of the element.
func (p *pull) newEvent(kind Kind, level int64) Event {
	ev := Event{Kind: kind, Tier: tierOfLevel(level), Window: p.window}
	if p.grouped {
		ev.Group, ev.HasGroup = int(p.group), true
	}
	return ev
}

// tierOfLevel is the tier of TensorRT-LLM's cache level.
func tierOfLevel(level int64) pb.Tier {
	switch level {
	case 0:
		return pb.Tier_TIER_GPU
	case 1:
		return pb.Tier_TIER_CPU
	case 2:
		return pb.Tier_TIER_DISK
	}
	return pb.Tier_TIER_UNSPECIFIED
}

func (p *pull) created(j *object) error {
	return j.fields(func(j *object, name []byte) error {
		if string(name) != `"num_blocks_per_cache_level"` {
			return j.SkipValue()
		}
		p.event.Created = []int64{}
		return j.array(func() error {
			v, _, err := j.optional()
			if len(p.event.Created) < 16 {
				p.event.Created = append(p.event.Created, v)
			}
			return err
		})
	})
}

// removed makes one event a tier: the block is gone from wherever it lay.
func (p *pull) removed(j *object) error {
	var hashes []uint64
	err := j.fields(func(j *object, name []byte) error {
		if string(name) != `"block_hashes"` {
			return j.SkipValue()
		}
		return j.array(func() error {
			h, err := j.hash()
			if err == nil && len(hashes) >= maxPullBlocks {
				err = errLimit
			}
			hashes = append(hashes, h)
			return err
		})
	})
	if err != nil {
		return fmt.Errorf("removed: %w", err)
	}
	if len(hashes) == 0 {
		return nil
	}
	for level := range int64(3) {
		ev := p.newEvent(Removed, level)
		ev.Hashes, ev.EveryTier = hashes, true
		p.event.Events = append(p.event.Events, ev)
	}
	return nil
}

// updated makes an event of a change of level; one of priority alone is none.
func (p *pull) updated(j *object) error {
	var hash uint64
	var known, moved bool
	from, to := int64(-1), int64(-1)
	err := j.fields(func(j *object, name []byte) (err error) {
		switch string(name) {
		case `"block_hash"`:
			hash, err = j.hash()
			known = true
			return err
		case `"cache_level"`:
			if j.PeekKind() == 'n' {
				return j.SkipValue()
			}
			moved = true
			return j.fields(func(j *object, name []byte) (err error) {
				switch string(name) {
				case `"old_value"`:
					from, _, err = j.optional()
				case `"new_value"`:
					to, _, err = j.optional()
				default:
					err = j.SkipValue()
				}
				return err
			})
		}
		return j.SkipValue()
	})
	switch {
	case err != nil:
		return fmt.Errorf("updated: %w", err)
	case !known:
		return fmt.Errorf("updated: %w: it has no block_hash", errShape)
	case moved && from != to:
		ev := p.newEvent(Moved, to)
		ev.FromTier, ev.Hashes = tierOfLevel(from), []uint64{hash}
		p.event.Events = append(p.event.Events, ev)
	}
	return nil
}
