package policy_test

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/zeebo/xxh3"

	"warmpath/routing/blockkey"
)

// tune prints what policies do on whole traces instead of checking a slice:
// go test ./routing/policy -run Tune -tune 'ttft;ttft tie_ms=5;session' -v
var (
	tune        = flag.String("tune", "", "policies to compare, with parameters, separated by semicolons")
	tuneSpeed   = flag.Float64("tune-speed", 1, "how much faster the conversation trace arrives")
	tuneBlocks  = flag.Int("tune-blocks", 2000, "blocks per replica for the conversation trace")
	tuneAgents  = flag.Int("tune-agents", 60, "agent sessions at a time; 0 leaves them out")
	tuneAgentKV = flag.Int("tune-agent-blocks", 16384, "blocks per replica for agent sessions")
)

const tracesDir = "../../../shared/data/traces/"

// traceLines calls line with each line of a gzipped trace, which is skipped with
// the reason where the traces are absent.
func traceLines(t *testing.T, name string, line func([]byte) (more bool)) {
	t.Helper()
	f, err := os.Open(tracesDir + name)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("trace %s is not there: it lies in ../shared beside the repository, which a clone does not have", name)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // it was only read
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		if !line(lines.Bytes()) {
			return
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
}

// conversation is the first requests of the Mooncake conversation trace: chat of
// which every request shares its first block.
func conversation(t *testing.T, limit int, speed float64) []*simRequest {
	t.Helper()
	var out []*simRequest
	root := blockkey.Root("chat", "", "")
	traceLines(t, "mooncake_conversation.jsonl.gz", func(line []byte) bool {
		var r struct {
			Timestamp float64  `json:"timestamp"`
			Input     uint64   `json:"input_length"`
			Output    uint64   `json:"output_length"`
			Hashes    []uint32 `json:"hash_ids"`
		}
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatal(err)
		}
		full := min(len(r.Hashes), int(r.Input/512))
		out = append(out, &simRequest{
			id: fmt.Sprint("r", len(out)), keys: blockkey.Chain(nil, root, r.Hashes[:full], 1),
			prompt: r.Input, output: r.Output, atUS: int64(r.Timestamp * 1000 / speed),
		})
		return len(out) < limit
	})
	return out
}

// agents is coding sessions of long prompts that grow turn by turn: slots of
// them at a time, each beginning the next when one ends.
func agents(t *testing.T, slots, sessions, turns int) []*simRequest {
	t.Helper()
	type request struct {
		Type  string      `json:"type"`
		In    uint64      `json:"in"`
		Out   uint64      `json:"out"`
		Think float64     `json:"think_time"`
		Runs  [][2]uint32 `json:"b"`
	}
	var chains [][]*simRequest
	traceLines(t, "claude_code_sessions.rle.jsonl.gz", func(line []byte) bool {
		var s struct {
			ID       string    `json:"id"`
			Requests []request `json:"requests"`
		}
		if err := json.Unmarshal(line, &s); err != nil {
			t.Fatal(err)
		}
		if s.Requests[0].Type == "subagent" || len(s.Requests) < min(turns, 8) {
			return true
		}
		root := blockkey.Root("agent", "", s.ID)
		var chain []*simRequest
		for i, r := range s.Requests {
			if r.Type == "subagent" || len(chain) == turns {
				continue
			}
			var ids []uint32
			for _, run := range r.Runs {
				for k := range run[1] {
					ids = append(ids, run[0]+k)
				}
			}
			ids = ids[:min(len(ids), int(r.In/64))]
			q := &simRequest{
				id: fmt.Sprint(s.ID, "/", i), session: xxh3.HashString(s.ID), keys: blockkey.Chain(nil, root, ids, 1), prompt: r.In, output: r.Out,
			}
			if n := len(chain); n > 0 {
				chain[n-1].next, chain[n-1].thinkUS = q, int64(1e6*min(r.Think, 60))
			}
			chain = append(chain, q)
		}
		if len(chain) > 0 {
			chains = append(chains, chain)
		}
		return len(chains) < sessions
	})
	var first []*simRequest
	for i, chain := range chains {
		if i < slots {
			chain[0].atUS = int64(i) * 250_000
			first = append(first, chain[0])
			continue
		}
		before := chains[i-slots]
		last := before[len(before)-1]
		last.next, last.thinkUS = chain[0], 1e6
		chains[i] = chain
	}
	return first
}

// sharedPrompt is chat whose requests all begin with a long system prompt, at a
// share of what the fleet can do: conversations of a few turns, in blocks of 16.
func sharedPrompt(conversations, systemTokens, turnTokens, turns int, gapUS int64) []*simRequest {
	rng := rand.New(rand.NewPCG(3, 4))
	root := blockkey.Root("shared", "", "")
	var out []*simRequest
	for c := range conversations {
		tokens := make([]uint32, systemTokens)
		atUS := int64(c) * gapUS
		for turn := range turns {
			for range turnTokens {
				tokens = append(tokens, 1+rng.Uint32N(100_000))
			}
			out = append(out, &simRequest{
				id: fmt.Sprintf("c%d/%d", c, turn), keys: blockkey.Chain(nil, root, tokens, 16), prompt: uint64(len(tokens)),
				output: 150, atUS: atUS,
			})
			atUS += 20_000_000
		}
	}
	return out
}

// TestTune compares policies on whole traces; it checks nothing.
func TestTune(t *testing.T) {
	if *tune == "" {
		t.Skip("nothing to compare: -tune is not set")
	}
	for _, spec := range strings.Split(*tune, ";") {
		fields := strings.Fields(spec)
		params := map[string]float64{}
		for _, f := range fields[1:] {
			name, value, _ := strings.Cut(f, "=")
			var v float64
			if _, err := fmt.Sscan(value, &v); err != nil {
				t.Fatal(err)
			}
			params[name] = v
		}
		cfg := simConfig{replicas: 8, blocks: *tuneBlocks, blockTokens: 512, policy: fields[0], params: params, noise: 0.1}
		t.Logf("%-40s chat   %v", spec, simulate(t, cfg, conversation(t, 1<<30, *tuneSpeed)))
		cfg = simConfig{replicas: 8, blocks: 8192, blockTokens: 16, policy: fields[0], params: params, noise: 0.1}
		t.Logf("%-40s shared %v", spec, simulate(t, cfg, sharedPrompt(1000, 2000, 200, 5, 500_000)))
		if *tuneAgents > 0 {
			cfg = simConfig{replicas: 8, blocks: *tuneAgentKV, blockTokens: 64, policy: fields[0], params: params, noise: 0.1}
			t.Logf("%-40s agents %v", spec, simulate(t, cfg, agents(t, *tuneAgents, *tuneAgents, 1000)))
		}
	}
}
