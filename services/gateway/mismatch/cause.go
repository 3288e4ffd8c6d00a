package mismatch

import (
	"fmt"
	"slices"
	"strings"
)

// Causes, as Mismatch events name them.
const (
	Template  = "template"
	Tokenizer = "tokenizer"
	BlockSize = "block_size"
	Salt      = "salt"
	LoRA      = "lora"
	EventsOff = "events_off"
	UsageOff  = "usage_off"
	// CachingOff: the engine reuses no prefix at all.
	CachingOff = "caching_off"
)

// ofEngine reports whether a cause lies in an engine, and not in what the gateway
// makes of requests.
func ofEngine(cause string) bool {
	switch cause {
	case BlockSize, EventsOff, UsageOff, CachingOff:
		return true
	}
	return false
}

// finding is a cause and what speaks for it.
type finding struct {
	cause, detail string
	samples       []*sample
}

const (
	// leastBad of the recent hits must disagree, and badShare percent of them.
	// Healthy pools stay far below: a hit is evicted or stored between decision
	// and computation in a few percent of requests.
	leastBad, badShare = 6, 75
	// leastGood hits of the other kind, of which goodShare percent may disagree,
	// make a contrast.
	leastGood, goodShare = 4, 25
	// leastDiffs lengths must differ when hits disagree too, coldDiffs when there
	// are none to judge by; and diffShare percent of those compared.
	leastDiffs, coldDiffs, diffShare = 8, 16, 40
	// vagueBad of the recent hits must disagree where the cause is what is left
	// when nothing speaks for another: time for something to speak.
	vagueBad = 12
	// leastUnreported is how many hits in a row an engine leaves unreported that
	// does not report; guessedUnreported where hits are not known but likely: some
	// engines do not report misses, and a small cache has many.
	leastUnreported, guessedUnreported = 8, 30
)

// failing reports whether hits disagree, in the way that is asked for.
func failing(judged []*sample, wrong func(*sample) bool) bool {
	bad := count(judged, wrong)
	return bad >= leastBad && bad*100 >= len(judged)*badShare
}

// usage finds an engine that does not report its cached tokens.
func (w *window) usage() (finding, bool) {
	for _, proof := range []struct {
		of    func(*sample) bool
		least int
	}{{shouldReport, leastUnreported}, {mightReport, guessedUnreported}} {
		expected := latest(w.where(proof.of), proof.least)
		if len(expected) < proof.least {
			continue
		}
		// An engine that reports hits only may have had misses; any report since the
		// first of these speaks for it.
		since := expected[0].at
		if len(w.where(func(s *sample) bool { return s.reported && s.at >= since })) == 0 {
			return finding{UsageOff, "hits are expected and usage has no cached_tokens; start vLLM with --enable-prompt-tokens-details, SGLang with --enable-cache-report", expected}, true
		}
	}
	return finding{}, false
}

// keys finds why keys do not name what the engine holds. The order is that of
// certainty; DESIGN.md has it as a table.
func (w *window) keys(probe *Probe) (finding, bool) {
	judged := w.where(isJudged)
	recent := latest(judged, recentHits)
	if f, ok := w.announcedBlock(); ok {
		return f, true
	}
	if f, ok := contrast(judged); ok {
		return f, true
	}
	if f, ok := w.lengths(probe); ok {
		return f, true
	}
	if failing(recent, isBad) {
		if f, ok := w.hits(recent, probe); ok {
			return f, true
		}
	}
	return w.caching()
}

// announcedBlock finds a replica whose fleet entry has another block size.
func (w *window) announcedBlock() (finding, bool) {
	known := latest(w.where(func(s *sample) bool { return s.engineBlock != 0 }), leastGood)
	if len(known) < leastGood || !all(known, otherBlock) || count(known, func(s *sample) bool { return s.hit == agree }) > 0 {
		return finding{}, false
	}
	s := known[len(known)-1]
	return finding{BlockSize, fmt.Sprintf("the fleet says %d tokens a block and keys are made with %d; give all engines of the pool one block size", s.engineBlock, s.block), known}, true
}

// contrast finds a kind of request that fails while the others do not.
func contrast(judged []*sample) (finding, bool) {
	kinds := []struct {
		cause, detail string
		is            func(*sample) bool
	}{
		{Salt, "only requests with a cache salt; engines and gateway must use the same salt for a tenant, and engines that do not tell it in their events cannot be followed", isSalted},
		{LoRA, "only requests for an adapter; the adapter's name must be the same in engines, bridge and gateway", isAdapted},
		{Template, "only chat requests, with prompts of the right length; a date or default in the chat template may differ", isChat},
	}
	for _, wrong := range []func(*sample) bool{isUnder, isOver} {
		// Kinds go together, such as a tenant with its adapter: the one that parts
		// good from bad best is the cause.
		best, found, tie := 0.0, -1, false
		for i, k := range kinds {
			yes, no := split(judged, k.is)
			yes = latest(yes, recentHits)
			if !failing(yes, wrong) {
				continue
			}
			// Only what came while the kind failed says that others did not.
			since := yes[slices.IndexFunc(yes, wrong)].at
			no = latest(slices.DeleteFunc(no, func(s *sample) bool { return s.at < since }), recentHits)
			if len(no) < leastGood || count(no, wrong)*100 > len(no)*goodShare {
				continue
			}
			apart := share(yes, wrong) - share(no, wrong)
			tie = apart == best || tie && apart < best
			if apart > best {
				best, found = apart, i
			}
		}
		if found < 0 {
			continue
		}
		k := kinds[found]
		bad, _ := split(judged, func(s *sample) bool { return k.is(s) && wrong(s) })
		if tie && len(bad) < vagueBad {
			continue // time for the two to part
		}
		if 2*count(bad, differs) <= len(bad) { // else lengths say more
			return finding{k.cause, k.detail, bad}, true
		}
	}
	return finding{}, false
}

func share(samples []*sample, holds func(*sample) bool) float64 {
	return float64(count(samples, holds)) / float64(len(samples))
}

// lengths finds prompts that the engine counts otherwise.
func (w *window) lengths(probe *Probe) (finding, bool) {
	texts, chats := split(w.where(isComparable), func(s *sample) bool { return !s.chat })
	texts, chats = latest(texts, recentLengths), latest(chats, recentLengths)
	if !misses(texts) && !misses(chats) {
		return finding{}, false
	}
	return lengthsCause(texts, chats, probe), true
}

// misses reports whether lengths differ often enough, and matter.
func misses(compared []*sample) bool {
	diffs, _ := split(compared, differs)
	judged, _ := split(diffs, isJudged)
	need := leastDiffs
	if len(judged) < 3 {
		need = coldDiffs
	}
	if len(diffs) < need || len(diffs)*100 < len(compared)*diffShare {
		return false
	}
	// Where hits agree, only the ends of prompts differ, and no key is wrong.
	return len(judged) < 3 || 2*count(judged, isBad) >= len(judged)
}

// hits finds the cause where lengths agree.
func (w *window) hits(recent []*sample, probe *Probe) (finding, bool) {
	unders, _ := split(recent, isUnder)
	overs, _ := split(recent, isOver)
	bad := unders
	if len(overs) > len(unders) {
		bad = overs
	}
	salted, adapted := all(bad, isSalted), all(bad, isAdapted)
	where := map[string]bool{}
	for _, s := range bad {
		where[s.replica] = true
	}
	seen := w.where(func(s *sample) bool { return where[s.replica] })
	matched := count(seen, func(s *sample) bool { return s.matched > 0 || s.indexed == IndexHolds }) > 0
	newest := bad[len(bad)-1]
	found := func(cause, detail string) (finding, bool) { return finding{cause, detail, bad}, true }
	vague := func(cause, detail string) (finding, bool) { return finding{cause, detail, bad}, len(bad) >= vagueBad }

	if c := probe.cause(); c != "" && newest.source == SourceInProcess {
		return found(c, probeDetail(c))
	}
	if n := count(bad, differs); n >= 3 && n*100 >= count(bad, isComparable)*diffShare {
		texts, chats := split(bad, func(s *sample) bool { return !s.chat })
		return lengthsCause(texts, chats, probe), true
	}
	if size, ok := fittedBlock(seen, newest.block, matched); ok {
		return found(BlockSize, fmt.Sprintf("cached tokens come in multiples of %d and keys are made with blocks of %d; give engines and pool one block size", size, newest.block))
	}
	if strings.Contains(newest.kvProblem, "block") {
		return found(BlockSize, "the bridge refuses the engine's events: "+newest.kvProblem)
	}
	if len(overs) > len(unders) {
		switch {
		case salted:
			return vague(Salt, "hits are predicted for requests with a cache salt and not served; the engine keeps tenants apart that the keys do not")
		case adapted:
			return vague(LoRA, "hits are predicted for requests to an adapter and not served; the engine keeps adapters apart that the keys do not")
		}
		return vague(EventsOff, "the index has blocks that the engine does not have; events of removals or of a restart are missing, see warmpath doctor")
	}
	empty := count(bad, func(s *sample) bool { return s.indexed == IndexEmpty || !s.kvEvents || s.kvProblem != "" }) > 0
	switch {
	case !matched && empty:
		return found(EventsOff, "the engine serves hits and the index has nothing of it; switch its KV events on and point the bridge at them")
	case salted:
		return vague(Salt, "hits of requests with a cache salt are served and not predicted; the engine's events do not carry the salt, or another one")
	case adapted:
		return vague(LoRA, "hits of requests to an adapter are served and not predicted; the adapter's name must be the same in engines, bridge and gateway")
	case !matched, newest.source != SourceInProcess, probe.clears():
		return vague(EventsOff, "the engine serves hits and no event told of them; switch its KV events on and point the bridge at them")
	case all(bad, isChat):
		return vague(Template, "prompts have the right length and other keys; a date or default in the chat template may differ")
	}
	return vague(Tokenizer, "prompts have the right length and other keys; compare the tokenizer's files with the engine's")
}

// caching finds an engine that reuses nothing. Only where the index is known to
// be empty: misses of a small cache look the same otherwise.
func (w *window) caching() (finding, bool) {
	repeats := latest(w.where(func(s *sample) bool {
		return s.reported && s.repeat >= max(leastHit*s.block, leastTokens)
	}), recentHits)
	if len(repeats) < recentHits || !all(repeats, func(s *sample) bool { return s.cached == 0 && s.indexed == IndexEmpty }) {
		return finding{}, false
	}
	return finding{CachingOff, "prompts that were sent before are never served from cache and the engine publishes no blocks; switch its prefix caching on", repeats}, true
}

// fittedBlock finds the engine's block size from the cached tokens that it
// reports, which are whole blocks, when that is not the size keys are made with.
func fittedBlock(seen []*sample, block uint64, matched bool) (uint64, bool) {
	values := map[uint64]bool{}
	unit, broken := uint64(0), 0
	for _, s := range seen {
		if s.cached == 0 {
			continue
		}
		if !values[s.cached] && s.cached%block != 0 {
			broken++
		}
		values[s.cached] = true
		unit = gcd(unit, s.cached)
	}
	switch {
	case broken >= 2 && broken*10 >= len(values)*2:
		// Pages of one token are reported as they are, whatever the keys are.
		return unit, unit > 1 || !matched
	case len(values) < 3 || unit < 2*block || unit%block != 0:
		return 0, false
	case len(values) >= 10: // by chance once in 2^10
		return unit, true
	}
	// What was sent before is served up to its last whole block: of larger blocks,
	// a part is left over.
	short := func(s *sample) bool { return s.repeat%unit != 0 && s.cached == s.repeat-s.repeat%unit }
	return unit, count(seen, short) >= 1
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
