package wireengine

import (
	"slices"

	"warmpath/services/bridge/kvevents"
)

// pullBuffer is how many events wait to be polled; older ones are gone, and leave
// a hole in the numbers.
const pullBuffer = 8192

// pull is TensorRT-LLM's polled form: events, each numbered.
type pull struct {
	on     bool
	window int
	next   uint64
	events []kvevents.PullEvent
}

func (p *pull) begin(cfg CacheConfig) {
	*p = pull{on: cfg.Pull, window: maxTalk * cfg.BlockSize}
	if p.on {
		p.put(kvevents.PullEvent{Created: []int64{int64(cfg.Capacity), int64(cfg.Capacity)}})
	}
}

func (p *pull) put(ev kvevents.PullEvent) {
	ev.ID, ev.HasID, ev.Rank = p.next, true, -1
	p.events = append(p.events, ev)
	p.next++
	if len(p.events) > pullBuffer {
		p.events = p.events[len(p.events)-pullBuffer:]
	}
}

// add numbers events, each on its own. There is none for a clear.
func (p *pull) add(events []kvevents.Event) {
	for _, ev := range events {
		if ev.Kind == kvevents.Cleared {
			continue
		}
		ev.Hashes, ev.Tokens = slices.Clone(ev.Hashes), slices.Clone(ev.Tokens)
		ev.Window = p.window
		p.put(kvevents.PullEvent{Events: []kvevents.Event{ev}})
	}
}

// skip numbers events that are never to be had.
func (p *pull) skip(n int) { p.next += uint64(n) }

// Pull takes the events that wait in an engine's ranks, as the answer to POST
// /kv_cache_events. It names the rank where there are several.
func Pull(ranks ...*Engine) ([]byte, error) {
	var all []kvevents.PullEvent
	for _, e := range ranks {
		e.mu.Lock()
		for _, ev := range e.pull.events {
			if len(ranks) > 1 {
				ev.Rank = e.cfg.Rank
			}
			all = append(all, ev)
		}
		e.pull.events = nil
		e.mu.Unlock()
	}
	return kvevents.AppendPull(nil, all)
}
