package kvevents

import (
	"encoding/json/jsontext"
	"fmt"
	"slices"
	"strconv"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
)

// AppendPull appends events as TensorRT-LLM returns them to who asks: a JSON
// list with one element for each PullEvent. The Events of one are what
// DecodePull makes of an element: stores that follow each other, a removal for
// each tier, or one move. A store of a tier that TensorRT-LLM has not, or a mix
// of kinds, is an error, and dst comes back as it was.
func AppendPull(dst []byte, events []PullEvent) ([]byte, error) {
	out := append(dst, '[')
	for k := range events {
		if k > 0 {
			out = append(out, ',')
		}
		var err error
		if out, err = appendPullEvent(out, &events[k]); err != nil {
			return dst, fmt.Errorf("pull event %d: %w", events[k].ID, err)
		}
	}
	return append(out, ']'), nil
}

func appendPullEvent(dst []byte, p *PullEvent) ([]byte, error) {
	dst = append(dst, `{"event_id":`...)
	dst = strconv.AppendUint(dst, p.ID, 10)
	dst = append(dst, `,"data":`...)
	dst, err := appendPullData(dst, p)
	if err != nil {
		return nil, err
	}
	if len(p.Events) > 0 && p.Events[0].Window > 0 {
		dst = append(dst, `,"window_size":`...)
		dst = strconv.AppendInt(dst, int64(p.Events[0].Window), 10)
	}
	if p.Rank >= 0 {
		dst = append(dst, `,"attention_dp_rank":`...)
		dst = strconv.AppendInt(dst, int64(p.Rank), 10)
	}
	if len(p.Events) > 0 && p.Events[0].HasGroup {
		dst = append(dst, `,"layer_group_id":`...)
		dst = strconv.AppendInt(dst, int64(p.Events[0].Group), 10)
	}
	return append(dst, '}'), nil
}

func appendPullData(dst []byte, p *PullEvent) ([]byte, error) {
	if p.Created != nil {
		dst = append(dst, `{"type":"created","num_blocks_per_cache_level":`...)
		return append(appendList(dst, p.Created, func(dst []byte, n int64) []byte {
			return strconv.AppendInt(dst, n, 10)
		}), '}'), nil
	}
	if len(p.Events) == 0 {
		return nil, fmt.Errorf("%w: it has no events", errShape)
	}
	for k := range p.Events {
		if p.Events[k].Kind != p.Events[0].Kind {
			return nil, fmt.Errorf("%w: it mixes kinds", errShape)
		}
	}
	first := &p.Events[0]
	switch first.Kind {
	case Stored:
		return appendPullStored(dst, p.Events)
	case Removed:
		dst = append(dst, `{"type":"removed","block_hashes":`...)
		return append(appendList(dst, first.Hashes, appendUint), '}'), nil
	case Moved:
		return appendPullMoved(dst, first)
	}
	return nil, fmt.Errorf("%w: TensorRT-LLM has no event for %v", errShape, first.Kind)
}

func appendUint(dst []byte, v uint64) []byte { return strconv.AppendUint(dst, v, 10) }

func appendList[T any](dst []byte, list []T, element func([]byte, T) []byte) []byte {
	dst = append(dst, '[')
	for k, v := range list {
		if k > 0 {
			dst = append(dst, ',')
		}
		dst = element(dst, v)
	}
	return append(dst, ']')
}

// levelOf is TensorRT-LLM's cache level of a tier.
func levelOf(t pb.Tier) (int64, error) {
	switch t {
	case pb.Tier_TIER_GPU:
		return 0, nil
	case pb.Tier_TIER_CPU:
		return 1, nil
	case pb.Tier_TIER_DISK:
		return 2, nil
	}
	return 0, fmt.Errorf("%w: TensorRT-LLM has no level for %v", errShape, t)
}

func appendPullMoved(dst []byte, ev *Event) ([]byte, error) {
	from, err := levelOf(ev.FromTier)
	if err != nil {
		return nil, err
	}
	to, err := levelOf(ev.Tier)
	if err != nil {
		return nil, err
	}
	if len(ev.Hashes) != 1 {
		return nil, fmt.Errorf("%w: a move is of one block", errShape)
	}
	return fmt.Appendf(dst, `{"type":"updated","block_hash":%d,"cache_level":{"type":"event_diff","new_value":%d,"old_value":%d},"priority":null}`,
		ev.Hashes[0], to, from), nil
}

func appendPullStored(dst []byte, events []Event) ([]byte, error) {
	dst = append(dst, `{"type":"stored","parent_hash":`...)
	if events[0].HasParent {
		dst = appendUint(dst, events[0].Parent)
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"blocks":[`...)
	for k := range events {
		ev := &events[k]
		level, err := levelOf(ev.Tier)
		if err != nil {
			return nil, err
		}
		if len(ev.Tokens) != len(ev.Hashes)*ev.BlockSize {
			return nil, fmt.Errorf("%w: %d tokens are not %d blocks of %d", errShape, len(ev.Tokens), len(ev.Hashes), ev.BlockSize)
		}
		for block := range ev.Hashes {
			if k > 0 || block > 0 {
				dst = append(dst, ',')
			}
			if dst, err = appendPullBlock(dst, ev, block, level); err != nil {
				return nil, err
			}
		}
	}
	return append(dst, `]}`...), nil
}

func appendPullBlock(dst []byte, ev *Event, block int, level int64) ([]byte, error) {
	tokens := ev.Tokens[block*ev.BlockSize : (block+1)*ev.BlockSize]
	var extras []blockkey.Extra
	if block < len(ev.Extras) {
		extras = slices.Clone(ev.Extras[block])
	}
	var err error
	quoted := func(dst []byte, s string) []byte {
		out, e := jsontext.AppendQuote(dst, s)
		if e != nil {
			err = e
			return dst
		}
		return out
	}
	dst = append(dst, `{"type":"stored_block","block_hash":`...)
	dst = appendUint(dst, ev.Hashes[block])
	dst = append(dst, `,"tokens":[`...)
	for k, t := range tokens {
		if k > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"type":"unique_token","token_id":`...)
		at := slices.IndexFunc(extras, func(x blockkey.Extra) bool { return int(x.Offset) == k })
		if t == 0 && at >= 0 {
			dst = quoted(dst, extras[at].ID)
			extras = slices.Delete(extras, at, at+1)
		} else {
			dst = appendUint(dst, uint64(t))
		}
		dst = append(dst, `,"token_extra_id":0}`...)
	}
	dst = append(dst, `],"cache_level":`...)
	dst = strconv.AppendInt(dst, level, 10)
	dst = append(dst, `,"priority":35`...) // the engine's default
	if len(extras) > 0 {
		dst = append(dst, `,"mm_keys":`...)
		dst = appendList(dst, extras, func(dst []byte, x blockkey.Extra) []byte {
			dst = append(dst, `{"type":"mm_key","hash":`...)
			return append(quoted(dst, x.ID), `,"start_offset":0}`...)
		})
	}
	if ev.Salt != "" {
		dst = append(dst, `,"cache_salt":`...)
		dst = quoted(dst, ev.Salt)
	}
	if ev.HasLoRAID {
		dst = append(dst, `,"lora_id":`...)
		dst = strconv.AppendInt(dst, ev.LoRAID, 10)
	}
	if ev.LoRA != "" {
		dst = append(dst, `,"lora_name":`...)
		dst = quoted(dst, ev.LoRA)
	}
	return append(dst, '}'), err
}
