package bench

import (
	"bytes"
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
)

func TestRoutedShape(t *testing.T) {
	f := newFleet(routed)
	if f.entries() != 1<<20 {
		t.Errorf("%d entries", f.entries())
	}
	// A prompt's owner, its group and the others hold different parts of it.
	got := map[int]int{}
	for r := range f.replicas {
		got[f.depth(11, routeHeld, r)]++
	}
	if got[routeHeld] != 1 || got[routed.grouped] != 7 || got[routed.common] != 56 {
		t.Errorf("depths: %v", got)
	}
}

func TestAskedPrompts(t *testing.T) {
	p := &askedPool{fleet: newFleet((&bench{quick: true}).routedShape())}
	owners := map[int]bool{}
	seen := map[blockkey.Key]bool{}
	for n := range 2 * p.replicas {
		asked := p.asked(n)
		owners[asked.owner] = true
		if len(asked.keys) != 387 {
			t.Fatalf("%d keys", len(asked.keys))
		}
		held := p.run(n/p.replicas, asked.owner, 320, 384)
		if asked.keys[routeHeld-1] != held[routeHeld-1-320] || asked.keys[routeHeld] == held[routeHeld-320] {
			t.Fatalf("prompt %d does not leave its owner's chain where it should", n)
		}
		for _, k := range asked.keys[routeHeld:] {
			if seen[k] {
				t.Fatalf("a new block of prompt %d is not new", n)
			}
			seen[k] = true
		}
	}
	if len(owners) != p.replicas {
		t.Errorf("%d owners", len(owners))
	}
}

func TestWrongDecisionsAreFound(t *testing.T) {
	p := &askedPool{fleet: newFleet((&bench{quick: true}).routedShape())}
	asked := p.asked(3)
	right := func() *pb.Decided {
		d := &pb.Decided{RequestId: "r", Chosen: p.names[asked.owner], PredictedCachedTokens: routeHeld * routeBlock}
		for r, name := range p.names {
			n := uint32(p.depth(asked.owner, routeHeld, r))
			d.Candidates = append(d.Candidates, &pb.Candidate{Replica: name, GpuBlocks: n, TotalBlocks: n})
		}
		return d
	}
	if err := p.check(right(), asked); err != nil {
		t.Errorf("a right decision: %v", err)
	}
	for says, change := range map[string]func(*pb.Decided){
		"63 candidates of 64": func(d *pb.Decided) { d.Candidates = d.Candidates[1:] },
		"has 1 blocks":        func(d *pb.Decided) { d.Candidates[40].GpuBlocks = 1 },
		"suspect: true":       func(d *pb.Decided) { d.Candidates[asked.owner].Suspect = true },
		"17 tokens are expected": func(d *pb.Decided) {
			d.PredictedCachedTokens = 17
		},
	} {
		d := right()
		change(d)
		if err := p.check(d, asked); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("error is %v, not one that says %q", err, says)
		}
	}
}

// The gateway's prompts are valid requests whose tokens give the keys that were
// planted.
func TestTalks(t *testing.T) {
	known := newTalks()
	body, owner := known.body(conversations + 2)
	var request struct {
		Model  string   `json:"model"`
		Stream bool     `json:"stream"`
		Prompt []uint32 `json:"prompt"`
	}
	if err := json.Unmarshal(body, &request); err != nil {
		t.Fatal(err)
	}
	if request.Model != routeModel || !request.Stream || len(request.Prompt) != routeTokens || owner != known.owners[2] {
		t.Errorf("model %s, stream %v, %d tokens, owner %d", request.Model, request.Stream, len(request.Prompt), owner)
	}
	keys := blockkey.Chain(nil, blockkey.Root(routeModel, "", ""), request.Prompt, routeBlock)
	var planted []blockkey.Key
	for _, s := range known.planted {
		if s.replica == owner {
			if s.offset > 0 && *s.parent != planted[s.offset-1] {
				t.Errorf("run at %d has the wrong parent", s.offset)
			}
			planted = append(planted, s.keys...)
		}
	}
	if len(planted) != routeHeld || planted[routeHeld-1] != keys[routeHeld-1] {
		t.Errorf("%d blocks were planted", len(planted))
	}
}

// Requests are due at their times, whatever the others take.
func TestPaceIsOpen(t *testing.T) {
	release := make(chan struct{})
	var started atomic.Int32
	err := pace(t.Context(), 1000, 20*time.Millisecond, func(int) func(time.Time) {
		return func(time.Time) {
			if started.Add(1) == 20 {
				close(release)
			}
			<-release // the first ends when the last has begun
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	prepared := 0
	due := make([]time.Time, 10)
	err = pace(t.Context(), 2000, 5*time.Millisecond, func(n int) func(time.Time) {
		prepared++
		return func(at time.Time) {
			due[n] = at
			if time.Now().Before(at) {
				t.Errorf("call %d was made before it was due", n)
			}
		}
	})
	if err != nil || prepared != 10 {
		t.Fatalf("%d calls: %v", prepared, err)
	}
	for i := 1; i < len(due); i++ {
		if gap := due[i].Sub(due[i-1]); gap != 500*time.Microsecond {
			t.Errorf("call %d was due %v after the one before", i, gap)
		}
	}
}

func TestAddedTimes(t *testing.T) {
	times := &streamTimes{first: [2][]float64{{1, 2, 3}, {3, 0, 9}}}
	times.whole = times.first
	times.keep([]bool{false, true, false})
	var a addedTimes
	a.add(times.first)
	if a.p50.values[0] != 4 || a.p50.floors[0] != 2 || a.p99.values[0] != 6 {
		t.Errorf("added: %+v", a)
	}
}

// A quick run asks a real router over a real server, and streams through a real
// gateway; decisions that are not as the fleet was filled are errors.
func TestRouteQuick(t *testing.T) {
	var out bytes.Buffer
	if err := (&Route{JSON: true, Quick: true, Rounds: 1, Length: time.Second, Rate: 1000, GatewayRate: 200, Model: tinyModel}).run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	got := figures(t, out.String())
	for _, want := range []struct {
		name, bound string
		floor       bool
	}{
		{"request to decision at 100 requests/s, 6 200 tokens, 64 replicas, 65 536 entries, p50", "value <= 0.5", true},
		{"request to decision at 100 requests/s, 6 200 tokens, 64 replicas, 65 536 entries, p99", "value <= 3", true},
		{"step: decide", "", false},
		{"step: NATS there and back, the floor, share of p50", "", false},
		{"tiny: chat of 6 200 tokens, rendering the template", "", true},
		{"gateway, added to the first event of a stream of 50 at 20 requests/s, p50", "", true},
		{"gateway, added to the last event of a stream of 50 at 20 requests/s, p99", "value <= 5", true},
	} {
		f, there := got[want.name]
		if !there || f.Bound != want.bound || (f.Floor != nil) != want.floor {
			t.Errorf("%s: %+v", want.name, f)
		}
	}
	if f, there := got["requests without a decision"]; !there || f.Bound != "value <= 0" {
		t.Errorf("requests without a decision: %+v", f)
	}
}

func TestRouteRefuses(t *testing.T) {
	for _, c := range []struct {
		command Route
		says    string
	}{
		{Route{Rate: 1, GatewayRate: 1}, "--rounds is 0; give at least 1"},
		{Route{Rounds: 1, GatewayRate: 1}, "give --rate and --gateway-rate requests a second"},
		{Route{Rounds: 1, Rate: 1, GatewayRate: 1, Only: []string{"gatway"}}, "--only gatway: no such part; there are decision, gateway"},
	} {
		c.command.Quick = true
		if err := c.command.run(t.Context(), &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("error is %v, not one that says %q", err, c.says)
		}
	}
}
