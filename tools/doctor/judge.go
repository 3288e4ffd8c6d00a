package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// judge says what the sockets showed. The subscriptions have ended.
func (x *examination) judge(w *watching, a asking) {
	if !w.stands() {
		return
	}
	t := w.total()
	x.judgeEvents(&t, a)
	if t.batches == 0 {
		return
	}
	x.judgeTopic(&t)
	x.judgeEncoding(&t)
	if t.stored > 0 {
		x.judgeGroups(&t)
		x.judgeBlocks(&t)
		x.judgeTokens(&t)
	}
	x.judgeSequence(w, &t)
	x.judgeStamps(w)
}

func (x *examination) judgeEvents(t *facts, a asking) {
	const check = "kv events"
	switch {
	case t.batches > 0:
		x.found(check, OK, fmt.Sprintf("%s with %s, of which %d stored blocks", plural(t.batches, "batch"), plural(t.events, "event"), t.stored), "", "")
	case len(t.ignored) > 0:
		x.found(check, Problem, "messages came, but none in the three parts topic, sequence, payload: "+tally(t.ignored),
			"what publishes there is no engine's KV event publisher", "give the port of --kv-events-config by --kv")
	case a.done:
		means := "its events are off or go elsewhere, or it caches no prefixes"
		if x.engine.BlockTokens > a.promptTokens && a.promptTokens > 0 {
			means = fmt.Sprintf("the prompt of %d tokens does not fill one of its blocks of %d, and only full blocks are told; a hybrid model has such large ones", a.promptTokens, x.engine.BlockTokens)
		}
		x.found(check, Problem, fmt.Sprintf("the engine answered new prompts, and published nothing within %v", x.Wait), means,
			switchOnEvents(x.engine.Kind, portOf(x.where()))+"; "+switchOnCaching(x.engine.Kind))
	default:
		x.found(check, Unknown, fmt.Sprintf("nothing was published within %v", x.Wait), "an engine without new prompts publishes nothing, so that this does not tell", "run it with --probe, or while requests are served")
	}
}

func (x *examination) where() string {
	endpoint, _ := x.endpoint()
	return endpoint
}

func (x *examination) judgeTopic(t *facts) {
	want := orWord(x.Topic, x.engine.KVEvents.Topic)
	matching := 0
	for topic, n := range t.topics {
		if strings.HasPrefix(topic, want) {
			matching += n
		}
	}
	seen := "batches by topic: " + tally(t.topics)
	switch {
	case want == "":
		x.found("topic", OK, seen+"; any is expected", "", "")
	case matching == 0:
		x.found("topic", Problem, fmt.Sprintf("none begins with %q; %s", want, seen),
			"a bridge that subscribes to this prefix gets nothing at all, and no error either",
			fmt.Sprintf("give the bridge (here too) --topic as it is published, or the engine \"topic\":%q in --kv-events-config; prefixes must match to the last character, port and model included", want))
	default:
		x.found("topic", OK, fmt.Sprintf("%s; %q is expected", seen, want), "", "")
	}
}

func (x *examination) judgeEncoding(t *facts) {
	var parts []string
	if t.form != "" {
		parts = append(parts, t.form)
	}
	problem := func(n int, what string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, what))
		}
	}
	problem(t.unreadable, "batches cannot be read")
	problem(t.skipped, "events cannot be read")
	problem(t.unknown, "events are of unknown kinds")
	if t.lastError != nil {
		parts = append(parts, "the last error: "+t.lastError.Error())
	}
	switch {
	case t.unreadable+t.skipped > 0:
		x.found("encoding", Problem, strings.Join(parts, "; "), "the engine changes its cache in ways that cannot be followed; its replica is doubted", "record some frames with warmpath bridge --record FILE, and report them with the engine's version")
	case t.unknown > 0:
		x.found("encoding", Unknown, strings.Join(parts, "; "), "the engine is newer than what is known here; these kinds of events may or may not matter", "report them with the engine's version")
	default:
		x.found("encoding", OK, orWord(strings.Join(parts, "; "), "all batches can be read"), "", "")
	}
}

func (x *examination) judgeGroups(t *facts) {
	named := maps.Clone(t.groups)
	delete(named, "")
	whole := 0
	for spec, n := range t.groups {
		if counts(spec) {
			whole += n
		}
	}
	switch {
	case whole == 0:
		x.found("groups", Problem, "stored blocks only of cache groups "+tally(named), "such blocks do not tell that a prefix is cached, so that no hit can be predicted from them", "let the router predict this engine's cache: run the bridge with --kv off")
	case len(named) == 0:
		x.found("groups", OK, "the engine does not name cache groups", "", "")
	default:
		x.found("groups", OK, "stored events by group: "+tally(named), "", "")
	}
}

func (x *examination) judgeBlocks(t *facts) {
	const check = "block size"
	engine, pool := t.blockTokens(), x.BlockTokens
	seen := fmt.Sprintf("the engine's blocks are of %s", plural(engine, "token"))
	if pool > 0 {
		seen += fmt.Sprintf(", the pool's of %d", pool)
	}
	switch {
	case engine == 0:
		x.found(check, Unknown, "no event told a block size", "blocks of unknown size have no keys", "")
	case engine == 1:
		x.found(check, Problem, seen, "the engine publishes an event for every token: all that it and the bridge do is events", blockSizeFlag(x.engine.Kind, max(pool, 16)))
	case pool == 0:
		x.found(check, OK, seen, "not compared with the pool's, which --block-tokens gives", "")
	case engine == pool:
		x.found(check, OK, seen, "", "")
	case engine%pool == 0 || pool%engine == 0:
		x.found(check, OK, seen, "the bridge cuts them anew, because one divides the other; a hit is worth whole blocks of both", "")
	default:
		x.found(check, Problem, seen, "neither divides the other: the bridge refuses the engine's events", blockSizeFlag(x.engine.Kind, pool)+fmt.Sprintf(", or run the whole pool with --block-tokens %d", engine))
	}
}

func (x *examination) judgeTokens(t *facts) {
	if t.bare > 0 {
		x.found("tokens", Problem, fmt.Sprintf("%d of %d stored events on GPU carry no token ids", t.bare, t.stored), "blocks get their keys from their tokens: these have none, and the replica is doubted", "use an engine version, and a publisher, that sends token_ids")
		return
	}
	x.found("tokens", OK, "stored events on GPU carry token ids", "", "")
}

func (x *examination) judgeSequence(w *watching, t *facts) {
	var each []string
	for _, s := range w.sights {
		if s.facts.batches > 0 {
			each = append(each, fmt.Sprintf("%s from %d to %d", s.endpoint, s.facts.first, s.facts.last))
		}
	}
	seen := strings.Join(each, ", ")
	switch {
	case t.back > 0:
		x.found("sequence", Problem, fmt.Sprintf("%s; it went back %d times", seen, t.back), "the engine restarted meanwhile, or two engines publish at one endpoint, which a bridge takes for one that restarts all the time", "give each engine, and each rank, a port of its own")
	case t.missing > 0:
		x.found("sequence", Problem, fmt.Sprintf("%s; %d batches are missing in between", seen, t.missing), "the engine dropped them for this subscriber at its high-water mark, or could not send them: without a replay endpoint what it holds is unknown from there on", `raise "hwm" in --kv-events-config, and `+switchOnReplay(x.engine.Kind))
	default:
		x.found("sequence", OK, seen+", without a gap", "", "")
	}
}

// judgeStamps compares the ranks that batches are stamped with and the ports.
func (x *examination) judgeStamps(w *watching) {
	if x.engine.Ranks < 2 || x.listens() {
		return
	}
	for _, s := range w.sights {
		for stamp := range s.facts.ranks {
			if stamp >= 0 && stamp != s.rank {
				x.found("rank", Problem, fmt.Sprintf("%s is the port of rank %d, but its batches are stamped %d", s.endpoint, s.rank, stamp), "ranks share a port or are shifted: one rank's cache would be taken for another's", "give by --kv the port of rank 0, and each engine on a host ports of its own")
				return
			}
		}
	}
}

// tally writes counts in a stable order.
func tally(counts map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%q %d", name, counts[name]))
	}
	return strings.Join(parts, ", ")
}
