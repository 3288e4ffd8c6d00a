package analytics

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "rewrite the expected parts of testdata")

// TestCutGolden runs the scripts of testdata/cut_*.txt: messages in, batches out.
func TestCutGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/cut_*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			script, want, _ := strings.Cut(string(text), "----\n")
			got := runScript(t, script)
			if *update {
				if err := os.WriteFile(file, []byte(script+"----\n"+got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			checkEqual(t, file, got, want)
		})
	}
}

// runScript executes a script and returns what it wrote, with a note where it
// restarted.
func runScript(t *testing.T, script string) string {
	t.Helper()
	var out strings.Builder
	var p *pipeline
	shown := 0
	show := func() {
		out.WriteString(describe(p.written[shown:]))
		shown = len(p.written)
	}
	lines := bufio.NewScanner(strings.NewReader(script))
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		args := arguments(words)
		switch words[0] {
		case "config":
			p = newPipeline(
				JoinConfig{LostAfter: time.Duration(args["lost"]) * time.Second, MaxOpen: args["open"], Remember: uint64(args["remember"])},
				CutConfig{Rows: args["rows"], Candidates: args["candidates"]})
		case "idle":
			p.idle(seconds(t, words[1]))
			show()
		case "restart":
			show()
			fmt.Fprintf(&out, "restart reads from %d\n", p.restart())
			show()
		default:
			seq, err := strconv.ParseUint(words[0], 10, 64)
			if err != nil {
				t.Fatalf("line %q: %v", line, err)
			}
			m := message{seq: seq, at: seconds(t, words[1])}
			switch words[2] {
			case "decided":
				m.event = decidedEvent(words[3], uint32(args["attempt"]), args["candidates"])
			case "moved":
				m.event = movedEvent(words[3], uint32(args["attempt"]))
			case "finished":
				m.event = finishedEvent(words[3], uint32(args["attempt"]))
			}
			p.add(m)
			show()
		}
	}
	fmt.Fprintf(&out, "open=%d pending=%d lost=%d duplicates=%d late=%d unmatched=%d\n", len(p.joiner.open), len(p.cutter.pending.outcomes),
		p.joiner.counts.lost, p.joiner.counts.duplicates, p.joiner.counts.late, p.joiner.counts.unmatched)
	return out.String()
}

func arguments(words []string) map[string]int {
	args := make(map[string]int)
	for _, word := range words {
		if name, value, ok := strings.Cut(word, "="); ok {
			args[name], _ = strconv.Atoi(value)
		}
	}
	return args
}

func seconds(t *testing.T, s string) time.Duration {
	t.Helper()
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(f * float64(time.Second)).Round(time.Millisecond)
}

// drawStream draws messages of a few requests, in an order that a stream can have:
// copies, moves, ends without a beginning and beginnings without an end.
func drawStream(t *rapid.T) []message {
	var stream []message
	at := time.Duration(0)
	seq := uint64(0)
	for range rapid.IntRange(1, 40).Draw(t, "messages") {
		// Steps backwards are what a change of the stream's leader can bring.
		at += time.Duration(rapid.IntRange(-300, 1500).Draw(t, "step ms")) * time.Millisecond
		seq += uint64(rapid.SampledFrom([]int{1, 1, 1, 2}).Draw(t, "seq step"))
		id := fmt.Sprintf("q%d", rapid.IntRange(0, 6).Draw(t, "id"))
		attempt := uint32(rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "attempt"))
		m := message{seq: seq, at: at}
		switch rapid.IntRange(0, 8).Draw(t, "kind") {
		case 0, 1, 2, 3:
			m.event = decidedEvent(id, attempt, rapid.IntRange(0, 3).Draw(t, "candidates"))
		case 4, 5, 6:
			m.event = finishedEvent(id, attempt)
		case 7:
			m.event = movedEvent(id, attempt)
		}
		stream = append(stream, m)
	}
	return stream
}

// TestCutRestart: restarts at any message, any number of them, change neither
// rows nor cuts.
func TestCutRestart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		join := JoinConfig{
			LostAfter: time.Duration(rapid.IntRange(2, 30).Draw(t, "lost s")) * time.Second,
			MaxOpen:   rapid.IntRange(2, 12).Draw(t, "open"),
			Remember:  uint64(rapid.IntRange(1, 60).Draw(t, "remember")),
		}
		cutting := CutConfig{Rows: rapid.IntRange(1, 4).Draw(t, "rows"), Candidates: rapid.IntRange(1, 6).Draw(t, "max candidates")}
		stream := drawStream(t)
		want := newPipeline(join, cutting)
		for _, m := range stream {
			want.add(m)
		}
		got := newPipeline(join, cutting)
		for _, m := range stream {
			got.add(m)
			if rapid.IntRange(0, 5).Draw(t, "crash") == 0 {
				got.restart()
			}
		}
		if got.String() != want.String() {
			t.Fatalf("with restarts\n%s\nwithout\n%s", got, want)
		}
		if g, w := got.joiner.floor(0), want.joiner.floor(0); g != w {
			t.Fatalf("floor %d after restarts, %d without", g, w)
		}
	})
}

// TestCutRules: a batch lies in one bucket, is full at most by one message's
// outcomes, and sequences never go back.
func TestCutRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPipeline(JoinConfig{LostAfter: 5 * time.Second, MaxOpen: 8}, CutConfig{Rows: 3, Candidates: 5})
		for _, m := range drawStream(t) {
			p.add(m)
		}
		last := uint64(0)
		for _, b := range p.written {
			if b.first() <= last {
				t.Fatalf("batch begins at %d, the one before ended at %d", b.first(), last)
			}
			for i, o := range b.outcomes {
				if !bucketOf(o.time).Equal(bucketOf(b.outcomes[0].time)) {
					t.Fatalf("batch %d-%d crosses a bucket", b.first(), b.last())
				}
				if o.floor > o.seq+1 {
					t.Fatalf("floor %d lies ahead of the row at %d", o.floor, o.seq)
				}
				if i >= 3 && o.seq != b.outcomes[2].seq && b.outcomes[i].seq != b.outcomes[i-1].seq {
					t.Fatalf("batch %d-%d took another message when it was full", b.first(), b.last())
				}
			}
			last = b.last()
		}
	})
}
