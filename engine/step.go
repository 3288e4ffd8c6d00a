package engine

import "sort"

// step is a step under way, or several equal ones: a leap. In a leap every
// running request decodes, nothing is stored or evicted after the first step,
// and nothing ends before the last, so the steps between need not be looked at.
type step struct {
	active  bool
	start   instant
	work    []work
	tokens  int   // computed in each step
	context int64 // attended to in the first step
	count   int   // steps
	done    int   // steps already applied to the requests
}

// work is a request's part of a step.
type work struct {
	r      *request
	tokens int
}

// end is when step n ends, counted from 1.
func (s *step) end(c costs, n int) instant {
	return s.start.add(c.steps(n, s.tokens, s.context))
}

// shorten ends a leap with the step that is under way, so that a newcomer or a
// leaver is seen at the boundary at which single steps would have seen it.
func (s *step) shorten() {
	if s.active {
		s.count = min(s.count, s.done+1)
	}
}

func (s *step) add(r *request, tokens int) {
	s.work = append(s.work, work{r: r, tokens: tokens})
	s.tokens += tokens
	s.context += int64(r.computed + tokens)
}

// form begins a step at e.free: it chooses the work, takes and names its blocks,
// and so may change the cache. There is something to do.
func (e *Engine) form() {
	s := &e.step
	*s = step{active: true, start: e.free, work: s.work[:0], count: 1}
	var rec recorder
	budget := e.cfg.PrefillBudget
	preempted, decode := false, true
	for i := 0; i < len(e.running); i++ {
		r := e.running[i]
		n := min(r.tokens-r.computed, budget)
		decode = decode && r.tokens-r.computed == 1 && r.tokens > r.prompt
		if n == 0 {
			continue
		}
		kept, dropped := e.grow(r, n, &rec)
		preempted = preempted || dropped
		if kept {
			e.schedule(r, n, &rec)
			budget -= n
		}
	}
	for !preempted && budget > 0 && len(e.waiting) > 0 && len(e.running) < e.cfg.MaxBatch {
		r := e.waiting[0]
		if !e.admit(r, &rec) {
			break
		}
		decode = false
		n := min(r.tokens-r.computed, budget)
		e.schedule(r, n, &rec)
		budget -= n
	}
	if decode && !preempted && !e.cfg.EveryToken {
		s.count = e.leap()
	}
	if events := rec.cut(); len(events) > 0 {
		e.changes = append(e.changes, Change{At: s.start.ceil(), Events: events})
	}
}

// grow takes the blocks that r needs for n more tokens. When there are none the
// youngest running request is preempted, r itself if it is the one. kept says
// that r is still running, dropped that some request is not.
func (e *Engine) grow(r *request, n int, rec *recorder) (kept, dropped bool) {
	for need := blocksFor(r.computed+n, e.cfg.BlockTokens); len(r.table) < need; {
		if e.cache.available() > 0 {
			r.table = append(r.table, e.take(rec))
			continue
		}
		// The last one has no work in this step yet: work is given in order.
		last := e.running[len(e.running)-1]
		e.preempt(last)
		dropped = true
		if last == r {
			return false, true
		}
	}
	return true, dropped
}

// take returns a private block, recording what it evicted.
func (e *Engine) take(rec *recorder) int32 {
	i, key, evicted := e.cache.take()
	if evicted {
		rec.remove(key)
		e.stats.EvictedBlocks++
	}
	return i
}

// preempt sends the last running request back to the head of the queue.
func (e *Engine) preempt(r *request) {
	e.running = e.running[:len(e.running)-1]
	e.cache.release(r.table)
	r.table, r.stored, r.computed = r.table[:0], 0, 0
	e.waiting = append(e.waiting, nil)
	copy(e.waiting[1:], e.waiting)
	e.waiting[0] = r
	e.stats.Preemptions++
}

// admit moves the head of the queue into the batch when all its tokens fit,
// holding what is cached and taking the rest. While others run, a block for each
// of them stays free, else the newcomer would soon be preempted for their growth.
func (e *Engine) admit(r *request, rec *recorder) bool {
	keys := r.reusable(e.cfg.BlockTokens)
	keys = keys[:e.cache.match(keys)]
	need := blocksFor(r.tokens, e.cfg.BlockTokens) - len(keys)
	if e.cache.available()-e.cache.idle(keys) < need+len(e.running) {
		return false
	}
	for _, key := range keys {
		r.table = append(r.table, e.cache.hold(key))
	}
	for range need {
		r.table = append(r.table, e.take(rec))
	}
	r.stored, r.computed = len(keys), len(keys)*e.cfg.BlockTokens
	if !r.admitted {
		r.admitted = true
		r.started = e.step.start.ceil()
		r.cached = r.computed
		e.stats.QueriedTokens += uint64(r.prompt)
		e.stats.CachedTokens += uint64(r.cached)
	}
	e.waiting[0] = nil
	e.waiting = e.waiting[1:]
	e.running = append(e.running, r)
	return true
}

// schedule gives r its part of the step, and its full blocks their keys: from
// now on others may reuse them.
func (e *Engine) schedule(r *request, n int, rec *recorder) {
	e.step.add(r, n)
	full := (r.computed + n) / e.cfg.BlockTokens
	if full == r.stored {
		return
	}
	r.name(full, e.cfg.BlockTokens)
	from := r.stored
	for i := r.stored; i < full; i++ {
		held, added := e.cache.store(r.table[i], r.keys[i], r.parent(i), i == 0)
		r.table[i] = held
		if added {
			e.stats.StoredBlocks++
			continue
		}
		e.recordStore(r, from, i, rec)
		from = i + 1
	}
	e.recordStore(r, from, full, rec)
	r.stored = full
}

func (e *Engine) recordStore(r *request, from, to int, rec *recorder) {
	if from < to {
		rec.store(r.keys[from:to:to], r.parent(from), from == 0)
	}
}

// leap is how many steps from this one on are alike: until a request ends, or
// needs a block, or fills one.
func (e *Engine) leap() int {
	bt := e.cfg.BlockTokens
	count := int(^uint(0) >> 1)
	for _, w := range e.step.work {
		count = min(count, w.r.wanted-w.r.tokens)
		// The first step takes and fills what it needs; step j works at position
		// computed+j-1, so the block is filled by step bt-at.
		if at := w.r.computed % bt; at == bt-1 {
			count = 1
		} else {
			count = min(count, bt-at-1)
		}
	}
	return max(count, 1)
}

// complete applies the steps that ended by now and reports whether the last one
// did, in which case the engine is free for another.
func (e *Engine) complete() bool {
	s := &e.step
	// Mostly all of them or none ended; a search finds the ones between.
	ended := s.done + sort.Search(s.count-s.done, func(i int) bool {
		return s.end(e.costs, s.done+i+1).ceil() > e.now
	})
	if ended > s.done {
		e.apply(ended - s.done)
	}
	if s.done < s.count {
		return false
	}
	e.free = s.end(e.costs, s.count)
	s.active = false
	e.sweep()
	return true
}

// apply moves every request of the step n steps on.
func (e *Engine) apply(n int) {
	s := &e.step
	s.done += n
	e.stats.Steps += uint64(n)
	at := s.end(e.costs, s.done).ceil()
	for _, w := range s.work {
		r := w.r
		e.stats.PrefillTokens += uint64(max(0, min(r.prompt-r.computed, w.tokens)))
		r.computed += n * w.tokens
		if r.computed < r.tokens {
			continue // its prompt is not through
		}
		first := r.tokens == r.prompt
		e.stats.GeneratedTokens += uint64(r.computed + 1 - r.tokens)
		r.tokens = r.computed + 1
		if first {
			r.first = at
		}
		if r.aborted {
			continue
		}
		out := r.output(at)
		out.First = first
		if first || out.Finished || e.cfg.EveryToken {
			e.outputs = append(e.outputs, out)
		}
	}
}

// sweep removes requests that are through or aborted.
func (e *Engine) sweep() {
	kept := e.running[:0]
	for _, r := range e.running {
		if !r.aborted && r.tokens < r.wanted {
			kept = append(kept, r)
			continue
		}
		e.cache.release(r.table)
		r.table = nil
		if !r.aborted {
			delete(e.byID, r.id)
			e.stats.Finished++
		}
	}
	clear(e.running[len(kept):])
	e.running = kept
}
