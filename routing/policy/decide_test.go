package policy_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"warmpath/routing/policy"
	pb "warmpath/schemas/warmpathv1"
)

func ref(t testing.TB, name string, params map[string]float64) *pb.PolicyRef {
	t.Helper()
	r, err := policy.Ref(name, params)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// fleet returns n idle candidates that hold nothing.
func fleet(n int) []*pb.Candidate {
	var out []*pb.Candidate
	for i := range n {
		out = append(out, &pb.Candidate{Replica: fmt.Sprintf("r%d", i), Load: &pb.LoadTerms{}, PrefillTokensPerSecond: 10_000})
	}
	return out
}

// keysOf returns n keys of a prompt, the first shared of which are the same for
// every prompt.
func keysOf(prompt, n, shared int) []uint64 {
	keys := make([]uint64, n)
	for i := range keys {
		of := prompt
		if i < shared {
			of = -1
		}
		keys[i] = policy.HRW(uint64(i), fmt.Sprint("prompt", of))
	}
	return keys
}

func decide(t testing.TB, d *pb.Decided) *pb.Decided {
	t.Helper()
	if err := policy.Decide(d); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestNamesDefaultsAndRef(t *testing.T) {
	want := []string{"least_load", "random", "round_robin", "session", "ttft", "weighted"}
	if got := policy.Names(); !slices.Equal(got, want) {
		t.Errorf("names %v, want %v", got, want)
	}
	for _, name := range policy.Names() {
		defaults, err := policy.Defaults(name)
		if err != nil {
			t.Fatal(err)
		}
		r := ref(t, name, nil)
		if len(r.Params) != len(defaults) || r.Version == 0 {
			t.Errorf("%s: %v", name, r)
		}
		if !slices.IsSortedFunc(r.Params, func(a, b *pb.Param) int { return strings.Compare(a.Name, b.Name) }) {
			t.Errorf("%s: parameters are not sorted", name)
		}
		described, err := policy.Params(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range described {
			if len(p.Why) < 20 || p.Default < p.Least || p.Default > p.Most || defaults[p.Name] != p.Default {
				t.Errorf("%s: %+v", name, p)
			}
		}
		if _, err := policy.Ref(name, map[string]float64{"explore": 0.5}); err != nil {
			t.Error(err)
		}
	}
	overrides := map[string]float64{"tie_ms": 3}
	if r := ref(t, "ttft", overrides); len(overrides) != 1 || !slices.ContainsFunc(r.Params, func(p *pb.Param) bool { return p.Name == "tie_ms" && p.Value == 3 }) {
		t.Errorf("override: %v", r)
	}
	for want, err := range map[string]error{
		`no policy is named "x"; there are: least_load, random`: second(policy.Ref("x", nil)),
		"no policy is named":                   second(policy.Defaults("")),
		"has no parameter a, b; it has: ":      second(policy.Ref("ttft", map[string]float64{"b": 1, "a": 1})),
		"explore is 1.5; it must be from 0 to": second(policy.Ref("ttft", map[string]float64{"explore": 1.5})),
		"explore is NaN":                       second(policy.Ref("ttft", map[string]float64{"explore": math.NaN()})),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestExpectedCached(t *testing.T) {
	for _, c := range []struct {
		blocks, blockTokens uint32
		prompt, want        uint64
	}{
		{0, 16, 100, 0}, {3, 16, 100, 48}, {6, 16, 100, 96}, {9, 16, 100, 96},
		{6, 16, 96, 80}, // the last token is computed, and with it its block
		{1, 16, 16, 0}, {1, 16, 17, 16}, {5, 0, 100, 0}, {5, 16, 0, 0}, {math.MaxUint32, 512, 1 << 40, 1<<40 - 512}, {math.MaxUint32, 512, 1 << 62, math.MaxUint32 * 512},
	} {
		if got := policy.ExpectedCached(c.blocks, c.blockTokens, c.prompt); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

func TestHRWMovesOnlyWhatItMust(t *testing.T) {
	owner := func(key uint64, n int) string {
		d := &pb.Decided{Candidates: fleet(n), SessionKey: key, Policy: ref(t, "session", nil)}
		return decide(t, d).Chosen
	}
	const keys = 4000
	moved, per := 0, map[string]int{}
	for k := uint64(1); k <= keys; k++ {
		before, after := owner(k*0x9e3779b97f4a7c15, 8), owner(k*0x9e3779b97f4a7c15, 9)
		per[before]++
		if before != after {
			moved++
			if after != "r8" {
				t.Fatalf("a key moved between two old replicas: %s to %s", before, after)
			}
		}
	}
	if moved < keys/12 || moved > keys/7 {
		t.Errorf("%d of %d keys moved to the ninth replica", moved, keys)
	}
	for r, n := range per {
		if n < keys/8*8/10 || n > keys/8*12/10 {
			t.Errorf("%s owns %d of %d keys", r, n, keys)
		}
	}
}

// A block that all prompts share and all, some or one of the replicas hold does
// not decide where new conversations go, whatever the rates learned by chance.
func TestUniversalFirstBlockSpreads(t *testing.T) {
	for name, holders := range map[string]int{"nobody holds it": 0, "one holds it": 1, "half hold it": 4, "all hold it": 8} {
		t.Run(name, func(t *testing.T) {
			const prompts = 2000
			per := map[string]int{}
			for p := range prompts {
				d := &pb.Decided{
					BlockTokens: 512, PromptTokens: 12_100, Keys: keysOf(p, 23, 1), Candidates: fleet(8), Seed: uint64(p), Policy: ref(t, "ttft", nil),
				}
				for i, c := range d.Candidates {
					c.PrefillTokensPerSecond *= 1 + 0.004*float64(i)
					if i < holders {
						c.GpuBlocks, c.TotalBlocks, c.PredictedBlocks = 1, 1, 1
					}
				}
				if holders == 0 && p > 0 {
					d.Candidates[3].PredictedBlocks = 1 // the first decision's own prediction
				}
				per[decide(t, d).Chosen]++
			}
			for i := range 8 {
				if n := per[fmt.Sprintf("r%d", i)]; n < prompts/8*8/10 || n > prompts/8*12/10 {
					t.Errorf("r%d gets %d of %d", i, n, prompts)
				}
			}
		})
	}
}

func TestTTFTFollowsPrefixUntilBusy(t *testing.T) {
	build := func(queued uint64, inFlight uint32) *pb.Decided {
		d := &pb.Decided{BlockTokens: 16, PromptTokens: 6200, Keys: keysOf(1, 387, 0), Candidates: fleet(4), Policy: ref(t, "ttft", nil)}
		c := d.Candidates[2]
		c.GpuBlocks, c.TotalBlocks, c.PredictedBlocks = 368, 368, 368
		c.Load = &pb.LoadTerms{QueuedPrefillTokens: queued, InFlight: inFlight}
		return decide(t, d)
	}
	d := build(0, 0)
	if d.Chosen != "r2" || d.Reason != pb.DecisionReason_DECISION_REASON_SCORE || d.PredictedCachedTokens != 5888 || d.FirstChoice != "r2" {
		t.Errorf("idle: %s (%v), %d cached", d.Chosen, d.Reason, d.PredictedCachedTokens)
	}
	if d := build(5000, 3); d.Chosen != "r2" {
		t.Errorf("half a second of queue: %s", d.Chosen)
	}
	if d := build(30_000, 3); d.Chosen == "r2" || d.Reason == pb.DecisionReason_DECISION_REASON_STEAL {
		t.Errorf("three seconds of queue: %s, %v", d.Chosen, d.Reason)
	}
	d = build(80_000, 3)
	if d.Chosen == "r2" || d.FirstChoice != "r2" || d.Reason != pb.DecisionReason_DECISION_REASON_STEAL {
		t.Errorf("eight seconds of queue: %s first %s, %v; want a steal from r2", d.Chosen, d.FirstChoice, d.Reason)
	}
}

// The score is, for a fleet without load, milliseconds to first token with the
// compute weighted.
func TestTTFTScore(t *testing.T) {
	d := &pb.Decided{BlockTokens: 100, PromptTokens: 1000, Candidates: fleet(1), Policy: ref(t, "ttft", map[string]float64{
		"recompute_weight": 1, "crowd_ms": 0, "in_flight_ms": 3, "cpu_rate": 50_000, "kv_full": 0.5, "kv_wait_ms": 1000,
	})}
	c := d.Candidates[0]
	c.GpuBlocks, c.TotalBlocks, c.PredictedBlocks = 2, 4, 5
	c.Tiers = []*pb.TierBlocks{{Tier: pb.Tier_TIER_GPU, Blocks: 2}, {Tier: pb.Tier_TIER_CPU, Blocks: 2}}
	c.Load = &pb.LoadTerms{QueuedPrefillTokens: 2000, InFlight: 4, Running: 1, Waiting: 1, KvUsed: 0.75}
	decide(t, d)
	// 2000 queued and 500 uncached at 10 a ms, 200 loaded at 50 a ms, 4 under way, half of the way to full.
	if want := 200.0 + 50 + 4 + 12 + 500; c.Score != want {
		t.Errorf("score %v, want %v", c.Score, want)
	}
	if d.Reason != pb.DecisionReason_DECISION_REASON_ONLY || d.Chosen != "r0" {
		t.Errorf("%v %s", d.Reason, d.Chosen)
	}
	c.Suspect = true
	if decide(t, d); c.ExpectedCachedTokens != 200 {
		t.Errorf("a suspect replica is credited with %d tokens of 500, want half, in whole blocks", c.ExpectedCachedTokens)
	}
}

func TestWeighted(t *testing.T) {
	d := &pb.Decided{BlockTokens: 16, PromptTokens: 1000, Keys: keysOf(1, 62, 0), Candidates: fleet(3),
		Policy: ref(t, "weighted", map[string]float64{"alpha": 2, "beta": 100, "gamma": 50})}
	d.Candidates[1].TotalBlocks = 10
	d.Candidates[1].Load = &pb.LoadTerms{InFlight: 2, KvUsed: 0.5}
	decide(t, d)
	if got := d.Candidates[1].Score; got != -(2*160 - 100*2 - 50*0.5) {
		t.Errorf("score %v", got)
	}
	if d.Chosen != "r1" || d.Candidates[0].Score != 0 {
		t.Errorf("chose %s; %v", d.Chosen, d.Candidates)
	}
}

func TestBaselines(t *testing.T) {
	per := map[string]int{}
	for turn := range 400 {
		d := &pb.Decided{Candidates: fleet(5), Turn: uint64(turn), Seed: uint64(turn), Policy: ref(t, "round_robin", nil)}
		d.Candidates[2].Ineligible = "draining"
		if got, want := decide(t, d).Chosen, []string{"r0", "r1", "r3", "r4"}[turn%4]; got != want {
			t.Fatalf("turn %d: %s, want %s", turn, got, want)
		}
		d.Policy = ref(t, "random", nil)
		per[decide(t, d).Chosen]++
		d.Policy = ref(t, "least_load", nil)
		for i, c := range d.Candidates {
			c.Load = &pb.LoadTerms{InFlight: uint32(7 - i)}
		}
		if decide(t, d); d.Chosen != "r4" {
			t.Fatalf("least load: %s", d.Chosen)
		}
	}
	if len(per) != 4 || per["r2"] > 0 {
		t.Errorf("random: %v", per)
	}
	for r, n := range per {
		if n < 60 || n > 140 {
			t.Errorf("random: %s gets %d of 400", r, n)
		}
	}
}

func TestSessionWithoutSession(t *testing.T) {
	choose := func(prompt, blocks int) string {
		d := &pb.Decided{BlockTokens: 512, PromptTokens: uint64(512*blocks + 1), Keys: keysOf(prompt, blocks, 1), Candidates: fleet(8),
			Seed: uint64(blocks), Policy: ref(t, "session", nil)}
		return decide(t, d).Chosen
	}
	per := map[string]bool{}
	for p := range 50 {
		if choose(p, 2) != choose(p, 30) {
			t.Fatalf("conversation %d moves as it grows", p)
		}
		per[choose(p, 5)] = true
	}
	if len(per) < 7 {
		t.Errorf("50 conversations that share their first block use %d of 8 replicas", len(per))
	}
}

func TestExploreAndSteal(t *testing.T) {
	explored, per := 0, map[string]bool{}
	for seed := range 2000 {
		d := &pb.Decided{BlockTokens: 16, PromptTokens: 1600, Keys: keysOf(1, 100, 0), Candidates: fleet(4), Seed: uint64(seed),
			Policy: ref(t, "ttft", map[string]float64{"explore": 0.1})}
		d.Candidates[0].TotalBlocks = 90
		d.Candidates[3].Ineligible = "dead"
		decide(t, d)
		if d.FirstChoice != "r0" {
			t.Fatalf("first choice %s", d.FirstChoice)
		}
		if d.Reason == pb.DecisionReason_DECISION_REASON_EXPLORE {
			explored++
			per[d.Chosen] = true
		} else if d.Chosen != "r0" {
			t.Fatalf("chose %s for %v", d.Chosen, d.Reason)
		}
	}
	if explored < 150 || explored > 250 || len(per) != 3 {
		t.Errorf("explored %d of 2000 at a rate of 0.1, on %v", explored, per)
	}

	d := &pb.Decided{Candidates: fleet(4), PromptTokens: 1000, SessionKey: 7, Policy: ref(t, "session", map[string]float64{"steal_wait_ms": 1000})}
	home := decide(t, d).Chosen
	for _, c := range d.Candidates {
		c.Load.QueuedPrefillTokens = 11_000
	}
	if decide(t, d); d.Chosen != home {
		t.Errorf("stolen although it waits everywhere: %s", d.Chosen)
	}
	for _, c := range d.Candidates {
		if c.Replica != home {
			c.Load.QueuedPrefillTokens = 5000
		}
	}
	if decide(t, d); d.Chosen == home || d.FirstChoice != home || d.Reason != pb.DecisionReason_DECISION_REASON_STEAL {
		t.Errorf("%s, first %s, %v", d.Chosen, d.FirstChoice, d.Reason)
	}
	d.Policy = ref(t, "session", nil)
	if decide(t, d); d.Chosen != home {
		t.Error("stolen although the parameter is 0")
	}
}

func TestFallback(t *testing.T) {
	build := func(p int) *pb.Decided {
		return &pb.Decided{RequestId: "q", BlockTokens: 512, PromptTokens: 3000, Keys: keysOf(p, 5, 1), Candidates: fleet(4)}
	}
	d := build(1)
	if err := policy.Fallback(d, "timeout"); err != nil {
		t.Fatal(err)
	}
	if d.Reason != pb.DecisionReason_DECISION_REASON_FALLBACK || d.FallbackCause != "timeout" || d.Policy.GetName() != "fallback" {
		t.Errorf("%v", d)
	}
	again, err := policy.Recompute(d)
	if err != nil || !proto.Equal(again, d) {
		t.Errorf("recomputed %v, %v", again, err)
	}
	home := d.Chosen
	busy := func(n uint32) string {
		d := build(1)
		for _, c := range d.Candidates {
			c.Load.InFlight = 4
			if c.Replica == home {
				c.Load.InFlight = n
			}
		}
		if err := policy.Fallback(d, "timeout"); err != nil {
			t.Fatal(err)
		}
		return d.Chosen
	}
	if busy(5) != home || busy(12) == home {
		t.Errorf("home %s; with 5 in flight %s, with 12 %s", home, busy(5), busy(12))
	}
	one := build(1)
	one.Candidates = one.Candidates[:1]
	if err := policy.Fallback(one, "x"); err != nil || one.Reason != pb.DecisionReason_DECISION_REASON_FALLBACK {
		t.Errorf("one candidate: %v, %v", one.Reason, err)
	}
	if again, err := policy.Recompute(one); err != nil || !proto.Equal(again, one) {
		t.Errorf("recomputed %v, %v", again, err)
	}
	one.Candidates[0].Ineligible = "dead"
	if err := policy.Fallback(one, "x"); !errors.Is(err, policy.ErrNoReplica) {
		t.Errorf("error %v", err)
	}
}

func TestDecideErrors(t *testing.T) {
	for _, name := range policy.Names() {
		d := &pb.Decided{Candidates: fleet(2), Policy: ref(t, name, nil), Chosen: "old"}
		for _, c := range d.Candidates {
			c.Ineligible = "dead"
		}
		if err := policy.Decide(d); !errors.Is(err, policy.ErrNoReplica) || d.Chosen != "" {
			t.Errorf("%s: error %v, chosen %q", name, err, d.Chosen)
		}
		if err := policy.Decide(&pb.Decided{Policy: ref(t, name, nil)}); !errors.Is(err, policy.ErrNoReplica) {
			t.Errorf("%s: error %v for no candidates", name, err)
		}
	}
	for want, spoil := range map[string]func(*pb.Decided){
		"names no policy":      func(d *pb.Decided) { d.Policy = nil },
		"no policy is named":   func(d *pb.Decided) { d.Policy.Name = "x" },
		"is version 1 here":    func(d *pb.Decided) { d.Policy.Version = 9 },
		"parameters here, not": func(d *pb.Decided) { d.Policy.Params = d.Policy.Params[1:] },
		"sorted by name it is": func(d *pb.Decided) { d.Policy.Params[0].Name = "x" },
		"it must be from":      func(d *pb.Decided) { d.Policy.Params[0].Value = -1 },
		"out of order":         func(d *pb.Decided) { slices.Reverse(d.Candidates) },
		"has no replica":       func(d *pb.Decided) { d.Candidates[0].Replica = "" },
		"has score NaN": func(d *pb.Decided) {
			d.Candidates[0].Load.KvUsed = math.NaN()
			d.Candidates[0].PrefillTokensPerSecond = 1e-320
		},
	} {
		d := &pb.Decided{Candidates: fleet(2), PromptTokens: 10, Policy: ref(t, "ttft", nil)}
		spoil(d)
		if err := policy.Decide(d); want == "has score NaN" {
			if err == nil || !strings.Contains(err.Error(), "has score") {
				t.Errorf("error %v, want a score that is not finite", err)
			}
		} else if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}

// Whatever a decision was made of, it can be made again, the chosen is eligible,
// and what is wrong in a record shows.
func TestRecomputeProperties(t *testing.T) {
	names := append(policy.Names(), "fallback")
	rapid.Check(t, func(t *rapid.T) {
		d := drawDecision(t)
		name := rapid.SampledFrom(names).Draw(t, "policy")
		r, err := policy.Ref(name, map[string]float64{
			"explore": rapid.SampledFrom([]float64{0, 0.3}).Draw(t, "explore"), "steal_wait_ms": rapid.SampledFrom([]float64{0, 100}).Draw(t, "steal"),
		})
		if err != nil {
			t.Fatal(err)
		}
		d.Policy = r
		if name == "fallback" {
			err = policy.Fallback(d, "timeout")
		} else {
			err = policy.Decide(d)
		}
		eligible := 0
		for _, c := range d.Candidates {
			if c.Ineligible == "" {
				eligible++
			}
		}
		if eligible == 0 {
			if !errors.Is(err, policy.ErrNoReplica) {
				t.Fatalf("error %v, want ErrNoReplica", err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		again, err := policy.Recompute(d)
		if err != nil || !proto.Equal(again, d) {
			t.Fatalf("recomputed %v (%v)\nof %v", again, err, d)
		}
		chosen := 0
		for _, c := range d.Candidates {
			if c.Replica == d.Chosen && c.Ineligible == "" && c.ExpectedCachedTokens == d.PredictedCachedTokens {
				chosen++
			}
			if c.ExpectedCachedTokens >= max(d.PromptTokens, 1) {
				t.Fatalf("%d of %d tokens expected in the cache", c.ExpectedCachedTokens, d.PromptTokens)
			}
		}
		if chosen != 1 || d.Reason == 0 || d.FirstChoice == "" {
			t.Fatalf("chosen %q, first %q, %v", d.Chosen, d.FirstChoice, d.Reason)
		}
		tampered := proto.Clone(d).(*pb.Decided)
		tampered.Candidates[rapid.IntRange(0, len(d.Candidates)-1).Draw(t, "tampered")].Score++
		again, err = policy.Recompute(tampered)
		if err != nil || proto.Equal(again, tampered) {
			t.Fatal("a changed score goes unseen")
		}
	})
}

func drawDecision(t *rapid.T) *pb.Decided {
	d := &pb.Decided{
		BlockTokens:  rapid.SampledFrom([]uint32{0, 1, 16, 512}).Draw(t, "block tokens"),
		PromptTokens: rapid.Uint64Range(0, 200_000).Draw(t, "prompt"),
		Keys:         rapid.SliceOfN(rapid.Uint64(), 0, 20).Draw(t, "keys"),
		SessionKey:   rapid.SampledFrom([]uint64{0, 0, 7}).Draw(t, "session"),
		Seed:         rapid.Uint64().Draw(t, "seed"),
		Turn:         rapid.Uint64().Draw(t, "turn"),
	}
	for i := range rapid.IntRange(1, 6).Draw(t, "candidates") {
		c := &pb.Candidate{
			Replica: fmt.Sprintf("r%d", i), Suspect: rapid.Bool().Draw(t, "suspect"),
			Ineligible:             rapid.SampledFrom([]string{"", "", "", "dead"}).Draw(t, "ineligible"),
			PrefillTokensPerSecond: rapid.SampledFrom([]float64{0, 5000, 10_000, 14_285.7}).Draw(t, "rate"),
			GpuBlocks:              rapid.Uint32Range(0, 25).Draw(t, "gpu"),
		}
		c.TotalBlocks = c.GpuBlocks + rapid.Uint32Range(0, 3).Draw(t, "lower")
		c.PredictedBlocks = c.TotalBlocks + rapid.Uint32Range(0, 3).Draw(t, "about")
		if n := c.TotalBlocks - c.GpuBlocks; n > 0 {
			c.Tiers = []*pb.TierBlocks{{Tier: pb.Tier_TIER_GPU, Blocks: c.GpuBlocks}, {Tier: pb.Tier(rapid.IntRange(2, 9).Draw(t, "tier")), Blocks: n}}
		}
		if rapid.IntRange(0, 4).Draw(t, "load") > 0 {
			c.Load = &pb.LoadTerms{
				QueuedPrefillTokens: rapid.Uint64Range(0, 100_000).Draw(t, "queued"), InFlight: rapid.Uint32Range(0, 40).Draw(t, "in flight"),
				Waiting: rapid.Uint32Range(0, 9).Draw(t, "waiting"), KvUsed: rapid.Float64Range(0, 1.1).Draw(t, "kv"),
			}
		}
		d.Candidates = append(d.Candidates, c)
	}
	return d
}

func BenchmarkDecide(b *testing.B) {
	for _, name := range policy.Names() {
		b.Run(name, func(b *testing.B) {
			d := &pb.Decided{BlockTokens: 16, PromptTokens: 4100, Keys: keysOf(1, 256, 0), Candidates: fleet(64), Policy: ref(b, name, nil)}
			for i, c := range d.Candidates {
				c.Replica = fmt.Sprintf("r%02d", i)
				c.TotalBlocks = uint32(i)
				c.Load = &pb.LoadTerms{InFlight: uint32(i % 7), QueuedPrefillTokens: uint64(100 * (i % 9))}
			}
			b.ReportAllocs()
			for b.Loop() {
				decide(b, d)
			}
		})
	}
}
