package wireengine

import (
	"encoding/json"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/bridge/kvevents"
)

// pullBuffer is how many events wait to be polled; older ones are gone, and leave
// a hole in the numbers.
const pullBuffer = 8192

// pull is TensorRT-LLM's polled form: events as JSON, each numbered.
type pull struct {
	on     bool
	window int
	next   uint64
	events []pulled
}

type pulled struct {
	EventID uint64 `json:"event_id"`
	Data    any    `json:"data"`
	Window  int    `json:"window_size"`
	Rank    *int   `json:"attention_dp_rank,omitempty"`
}

type pulledBlock struct {
	Type     string        `json:"type"`
	Hash     uint64        `json:"block_hash"`
	Tokens   []pulledToken `json:"tokens"`
	Level    int           `json:"cache_level"`
	Priority int           `json:"priority"`
}

type pulledToken struct {
	Type  string `json:"type"`
	Token uint32 `json:"token_id"`
	Extra int    `json:"token_extra_id"`
}

// level is a tier's cache level.
func level(t pb.Tier) int { return int(t) - int(pb.Tier_TIER_GPU) }

func (p *pull) begin(cfg CacheConfig) {
	*p = pull{on: cfg.Pull, window: maxTalk * cfg.BlockSize}
	if p.on {
		p.put(map[string]any{"type": "created", "num_blocks_per_cache_level": []int{cfg.Capacity, cfg.Capacity}})
	}
}

func (p *pull) put(data any) {
	p.events = append(p.events, pulled{EventID: p.next, Data: data, Window: p.window})
	p.next++
	if len(p.events) > pullBuffer {
		p.events = p.events[len(p.events)-pullBuffer:]
	}
}

// add numbers events, each on its own.
func (p *pull) add(events []kvevents.Event) {
	for i := range events {
		switch ev := &events[i]; ev.Kind {
		case kvevents.Stored:
			p.put(stored(ev))
		case kvevents.Removed:
			p.put(map[string]any{"type": "removed", "block_hashes": ev.Hashes})
		case kvevents.Moved:
			p.put(map[string]any{
				"type": "updated", "block_hash": ev.Hashes[0], "priority": nil,
				"cache_level": map[string]any{"type": "event_diff", "old_value": level(ev.FromTier), "new_value": level(ev.Tier)},
			})
		}
	}
}

func stored(ev *kvevents.Event) any {
	var parent *uint64
	if ev.HasParent {
		parent = &ev.Parent
	}
	blocks := make([]pulledBlock, len(ev.Hashes))
	for i, h := range ev.Hashes {
		b := pulledBlock{Type: "stored_block", Hash: h, Level: level(ev.Tier), Priority: 35}
		for _, t := range ev.Tokens[i*ev.BlockSize : (i+1)*ev.BlockSize] {
			b.Tokens = append(b.Tokens, pulledToken{Type: "unique_token", Token: t})
		}
		blocks[i] = b
	}
	return map[string]any{"type": "stored", "parent_hash": parent, "blocks": blocks}
}

// skip numbers events that are never to be had.
func (p *pull) skip(n int) { p.next += uint64(n) }

// Pull takes the events that wait in an engine's ranks, as the answer to POST
// /kv_cache_events. It names the rank where there are several.
func Pull(ranks ...*Engine) ([]byte, error) {
	all := []pulled{}
	for _, e := range ranks {
		e.mu.Lock()
		for _, ev := range e.pull.events {
			if len(ranks) > 1 {
				ev.Rank = &e.cfg.Rank
			}
			all = append(all, ev)
		}
		e.pull.events = nil
		e.mu.Unlock()
	}
	return json.Marshal(all)
}
