package workload

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Generator describes agentic and chat traffic to make. A zero field takes the
// default that its comment names; together they are a run of a couple of
// thousand requests whose live conversations fit eight caches of 130,000 tokens
// when each is kept in one place, and do not when each is spread over all.
type Generator struct {
	// Seed of everything: equal seeds, equal traces.
	Seed uint64
	// Sessions in all. Default 200.
	Sessions int
	// AgentShare is the share of sessions that are tool loops of an agent; the
	// others are chats of a person. Default 0.4.
	AgentShare float64
	// Apps is how many applications there are, each with its own system prompt that
	// all its sessions share; the first are the most used. Default 6.
	Apps int
	// SessionsPerSecond is the mean rate at which sessions start. Default 2.
	SessionsPerSecond float64
	// BlockTokens of the block ids. Default 64.
	BlockTokens int
}

func (g Generator) withDefaults() Generator {
	if g.Sessions <= 0 {
		g.Sessions = 200
	}
	if g.AgentShare <= 0 || g.AgentShare > 1 {
		g.AgentShare = 0.4
	}
	if g.Apps <= 0 {
		g.Apps = 6
	}
	if g.SessionsPerSecond <= 0 {
		g.SessionsPerSecond = 2
	}
	if g.BlockTokens <= 0 {
		g.BlockTokens = 64
	}
	return g
}

// length is a heavy-tailed number of tokens: log-normal, cut off.
type length struct {
	median, sigma, least, most float64
}

func (l length) draw(random *rand.Rand) int {
	return int(min(max(l.median*math.Exp(l.sigma*random.NormFloat64()), l.least), l.most))
}

// kind is how one sort of session behaves.
type kind struct {
	system, opening, turn, output length
	turns                         length
	pause                         time.Duration
}

var (
	// agent: long system prompts full of tool definitions, many turns, tool results
	// that are mostly short and now and then a whole file, little waiting.
	agent = kind{
		system:  length{3500, 0.4, 1500, 10000},
		opening: length{1500, 1, 100, 12000},
		turn:    length{700, 1.2, 20, 12000},
		output:  length{120, 0.8, 10, 1500},
		turns:   length{14, 0.5, 4, 50},
		pause:   1500 * time.Millisecond,
	}
	// chat: shorter prompts, few turns, a person who reads and types.
	chat = kind{
		system:  length{900, 0.6, 200, 4000},
		opening: length{250, 1.2, 10, 8000},
		turn:    length{80, 1, 5, 4000},
		output:  length{250, 0.7, 10, 2000},
		turns:   length{5, 0.6, 1, 20},
		pause:   12 * time.Second,
	}
)

// app is one application and its system prompt.
type app struct {
	kind   *kind
	system int    // tokens of the system prompt
	first  uint64 // first block id of the system prompt
}

// Generate makes a trace. It is deterministic.
func (g Generator) Generate() *Trace {
	g = g.withDefaults()
	random := rand.New(rand.NewPCG(g.Seed, golden))
	t := &Trace{Name: "generated", Form: FormGenerated, BlockTokens: g.BlockTokens, Seed: g.Seed}
	ids := uint64(0)
	fresh := func(n int) uint64 {
		first := ids
		ids += uint64(n)
		return first
	}
	apps := map[*kind][]app{}
	for i := range g.Apps {
		k := &agent
		if i%2 == 1 {
			k = &chat
		}
		system := k.system.draw(random)
		apps[k] = append(apps[k], app{kind: k, system: system, first: fresh(system / g.BlockTokens)})
	}
	at := 0.0
	for i := range g.Sessions {
		k := &chat
		if random.Float64() < g.AgentShare || len(apps[k]) == 0 {
			k = &agent
		}
		a := pick(apps[k], random)
		at += random.ExpFloat64() / g.SessionsPerSecond
		s := g.session(a, random, fresh)
		s.ID = fmt.Sprintf("session-%03d", i)
		s.Requests[0].At = time.Duration(at * float64(time.Second))
		t.Sessions = append(t.Sessions, s)
	}
	slices.SortStableFunc(t.Sessions, func(a, b Session) int { return cmp.Compare(a.Requests[0].At, b.Requests[0].At) })
	return t
}

// pick prefers the first ones: each is twice as likely as the next.
func pick(apps []app, random *rand.Rand) app {
	for _, a := range apps {
		if random.Float64() < 0.5 {
			return a
		}
	}
	return apps[0]
}

// maxPrompt ends a conversation before a prompt is longer: half of a replica's
// cache in the default shape, and what an agent compacts its context at.
const maxPrompt = 60_000

// session makes one conversation: every request repeats all before it, what was
// answered, and something new.
func (g Generator) session(a app, random *rand.Rand, fresh func(int) uint64) Session {
	k := a.kind
	shared := a.system / g.BlockTokens // the block in which the system prompt ends is the session's own
	prompt := a.system + k.opening.draw(random)
	var requests []Request
	for range k.turns.draw(random) {
		r := Request{PromptTokens: prompt, OutputTokens: k.output.draw(random)}
		if len(requests) > 0 {
			r.Think = logNormal(random, k.pause, 0.8, MaxThink)
		}
		requests = append(requests, r)
		if prompt += r.OutputTokens + k.turn.draw(random); prompt > maxPrompt {
			break
		}
	}
	last := requests[len(requests)-1].PromptTokens
	own := fresh((last+g.BlockTokens-1)/g.BlockTokens - shared)
	for i := range requests {
		r := &requests[i]
		blocks := (r.PromptTokens + g.BlockTokens - 1) / g.BlockTokens
		if shared > 0 {
			r.Blocks = append(r.Blocks, Run{Start: a.first, Count: uint64(shared)})
		}
		if blocks > shared {
			r.Blocks = append(r.Blocks, Run{Start: own, Count: uint64(blocks - shared)})
		}
	}
	return Session{Requests: requests}
}
