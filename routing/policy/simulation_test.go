package policy_test

import (
	"fmt"
	"testing"
)

// slice is how much of the conversation trace the tests replay: a quarter of an
// hour, enough that caches of 2,000 blocks are full most of the time.
const slice = 3000

func run(t *testing.T, cfg simConfig, requests []*simRequest) *simResult {
	t.Helper()
	r := simulate(t, cfg, requests)
	t.Logf("%s: %v", cfg.policy, r)
	if r.requests != len(r.ttftMS) {
		t.Errorf("%d requests sent, %d answered", r.requests, len(r.ttftMS))
	}
	return r
}

// On real chat, whose requests all share their first block, ttft must not send
// everything to the replica that got that block first, and must keep
// conversations where their prefix is.
func TestChatSpreadsAndHits(t *testing.T) {
	cfg := simConfig{replicas: 8, blocks: 2000, blockTokens: 512, noise: 0.1}
	cfg.policy, cfg.recompute = "ttft", true
	ttft := run(t, cfg, conversation(t, slice, 1))
	cfg.recompute = false
	cfg.policy = "random"
	random := run(t, cfg, conversation(t, slice, 1))
	cfg.policy = "session" // by its first 1,024 tokens: the trace names no sessions
	session := run(t, cfg, conversation(t, slice, 1))

	if ttft.hitRate() < 2.5*random.hitRate() {
		t.Errorf("hit rate %.3f, below 2.5 times random's %.3f", ttft.hitRate(), random.hitRate())
	}
	for what, n := range map[string]float64{"computed tokens": imbalance(ttft.computed), "requests": imbalance(ttft.decisions)} {
		if n > 1.2 {
			t.Errorf("busiest replica has %.2f times the mean of %s", n, what)
		}
	}
	if ttft.ttft(0.5) > random.ttft(0.5) || ttft.ttft(0.95) > 0.7*random.ttft(0.95) || ttft.ttft(0.95) > session.ttft(0.95) {
		t.Error("the time to first token is not clearly better than the baselines'")
	}
	if d := int64(ttft.predicted) - int64(ttft.cached); max(d, -d) > int64(ttft.prompt)/100 {
		t.Errorf("predicted %d cached tokens of %d, had %d", ttft.predicted, ttft.prompt, ttft.cached)
	}
}

// Chat with one system prompt for all, at a few percent of the fleet's capacity:
// a replica that holds the prompt is always a little faster, and yet the others
// must not stay idle.
func TestSharedSystemPromptSpreads(t *testing.T) {
	cfg := simConfig{replicas: 8, blocks: 8192, blockTokens: 16, policy: "ttft", noise: 0.1, recompute: true}
	r := run(t, cfg, sharedPrompt(600, 2000, 200, 4, 500_000))
	if n := imbalance(r.computed); n > 1.8 {
		t.Errorf("busiest replica computes %.2f times the mean", n)
	}
	if r.hitRate() < 0.8 {
		t.Errorf("hit rate %.3f: conversations do not stay", r.hitRate())
	}
}

// Agent sessions of long prompts, as many at a time as the fleet's caches can
// just hold: nearly every turn must find its prefix.
func TestAgentSessionsStay(t *testing.T) {
	const slots, turns = 60, 7
	cfg := simConfig{replicas: 8, blocks: 16384, blockTokens: 64, noise: 0.1}
	// What could be had at best: one replica that forgets nothing.
	ideal := cfg
	ideal.replicas, ideal.blocks, ideal.policy = 1, 1<<30, "random"
	best := run(t, ideal, agents(t, slots, slots, turns))
	cfg.policy = "ttft"
	ttft := run(t, cfg, agents(t, slots, slots, turns))

	if ttft.hitRate() < 0.97*best.hitRate() {
		t.Errorf("hit rate %.3f of the %.3f that could be had", ttft.hitRate(), best.hitRate())
	}
	if n := imbalance(ttft.computed); n > 2.5 {
		t.Errorf("busiest replica computes %.2f times the mean", n)
	}
}

// Every policy's decisions can be made again from their events.
func TestEveryPolicyRecomputes(t *testing.T) {
	for _, name := range []string{"ttft", "weighted", "random", "round_robin", "least_load", "session"} {
		cfg := simConfig{
			replicas: 5, blocks: 2048, blockTokens: 16, policy: name, noise: 0.3, recompute: true,
			params: map[string]float64{"explore": 0.05, "steal_wait_ms": 100},
		}
		run(t, cfg, sharedPrompt(60, 1000, 400, 4, 100_000))
	}
}

// Ten prompts at the same instant, of which a part is the same, do not go to one
// place: each decision counts at once.
func TestBurstSpreads(t *testing.T) {
	for _, c := range []struct {
		policy               string
		shared, own          int
		leastUsed, mostOnOne uint64
	}{
		{"ttft", 512, 2560, 8, 2},
		// Two thirds shared: computing those twice costs more than a short wait.
		{"ttft", 2048, 1024, 4, 3},
		{"least_load", 2048, 1024, 8, 2},
	} {
		t.Run(fmt.Sprintf("%s/%d", c.policy, c.shared), func(t *testing.T) {
			cfg := simConfig{replicas: 8, blocks: 8192, blockTokens: 16, policy: c.policy, recompute: true}
			r := run(t, cfg, sharedPrompt(10, c.shared, c.own, 1, 0))
			var used, most uint64
			for _, n := range r.decisions {
				used += min(n, 1)
				most = max(most, n)
			}
			if used < c.leastUsed || most > c.mostOnOne {
				t.Errorf("the 10 prompts went to the replicas as %v", r.decisions)
			}
		})
	}
}

// Equal seeds and traces give equal runs.
func TestSimulationIsDeterministic(t *testing.T) {
	cfg := simConfig{replicas: 4, blocks: 1024, blockTokens: 16, policy: "ttft", noise: 0.2}
	a := fmt.Sprintf("%+v", simulate(t, cfg, sharedPrompt(40, 1000, 400, 3, 100_000)))
	b := fmt.Sprintf("%+v", simulate(t, cfg, sharedPrompt(40, 1000, 400, 3, 100_000)))
	if a != b {
		t.Errorf("two runs differ:\n%s\n%s", a, b)
	}
}
