package doctor

import (
	"errors"
	"fmt"
)

// judgeUsage says what the two answers and the engine's own words tell of prefix
// caching, and of whether it reports hits.
func (x *examination) judgeUsage(w *watching, a asking) {
	if !x.answers {
		return
	}
	if a.err != nil {
		x.judgeProbe(a.err)
	}
	stored := w.total().stored > 0
	x.judgeCaching(a, stored)
	x.judgeDetails(a)
}

func (x *examination) judgeProbe(err error) {
	do := "check --model, and that the engine serves completions; --no-probe leaves this out"
	if errors.Is(err, errNoSuchAPI) {
		do = "a model that completes no prompts has no prefix cache to route by"
	}
	x.found("probe", Problem, err.Error(), "the engine did not answer a short prompt, so that neither its events nor its reports of hits were provoked", do)
}

func (x *examination) judgeCaching(a asking, stored bool) {
	const check = "prefix caching"
	second := a.cached[1]
	off := x.engine.PrefixCaching != nil && !*x.engine.PrefixCaching
	switch {
	case off:
		x.found(check, Problem, "the engine says that it is off", "it computes every prompt anew: there is nothing to hit, and nothing to publish", switchOnCaching(x.engine.Kind))
	case a.done && second != nil && *second > 0:
		x.found(check, OK, fmt.Sprintf("of a repeated prompt of %d tokens, %d came from the cache", a.promptTokens, *second), "", "")
	case a.done && second != nil && x.engine.Ranks > 1:
		x.found(check, Unknown, "of a repeated prompt nothing came from the cache", "the two may have gone to two ranks", "")
	case a.done && second != nil && stored:
		x.found(check, Problem, "of a repeated prompt nothing came from the cache, although events told of stored blocks", "the engine keeps blocks and does not use them: they were evicted at once, or the address is of several engines", "give the URL of one engine, not of a balancer; look at its cache's size")
	case a.done && second != nil:
		x.found(check, Problem, "of a repeated prompt nothing came from the cache", "prefix caching is off, or the prompt does not fill one block", switchOnCaching(x.engine.Kind))
	case stored:
		x.found(check, OK, "its events tell of stored blocks", "", "")
	case x.engine.PrefixCaching != nil:
		x.found(check, OK, "the engine says that it is on", "", "")
	default:
		x.found(check, Unknown, "neither the engine nor its answers tell", "", "")
	}
}

func (x *examination) judgeDetails(a asking) {
	const check = "cached tokens"
	first, second := a.cached[0], a.cached[1]
	off := x.engine.CachedTokensReported != nil && !*x.engine.CachedTokensReported
	const means = "hits may happen, but nobody can tell: predicted and actual hits cannot be compared, and prefill speed cannot be learned"
	switch {
	case a.done && first == nil && second == nil:
		x.found(check, Problem, "usage.prompt_tokens_details.cached_tokens is absent in both answers to one prompt", means, switchOnDetails(x.engine.Kind))
	case a.done && first == nil:
		x.found(check, OK, fmt.Sprintf("absent, then %d", *second), "this version leaves it out for a miss: absent is a miss here", "")
	case a.done && second == nil:
		x.found(check, Unknown, fmt.Sprintf("%d, then absent", *first), "answers of one engine differ; the address may be of several", "give the URL of one engine, not of a balancer")
	case a.done:
		x.found(check, OK, fmt.Sprintf("%d, then %d", *first, *second), "", "")
	case off:
		x.found(check, Problem, "the engine says that it does not report them", means, switchOnDetails(x.engine.Kind))
	default:
		x.found(check, Unknown, "no prompt was answered, so that nothing was reported", "", "run it with --probe")
	}
}
