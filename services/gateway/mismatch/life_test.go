package mismatch_test

import (
	"slices"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/gateway/mismatch"
)

// A fault that begins in a pool that was healthy is found as soon, and its alarm
// ends when it is repaired. Engines start anew at both.
func TestFaultsBeginAndEnd(t *testing.T) {
	cases := map[string]func(*options, bool){
		mismatch.Template:  func(o *options, on bool) { o.template = map[bool]string{true: "message"}[on] },
		mismatch.Tokenizer: func(o *options, on bool) { o.tokenizer = on },
		mismatch.Salt:      func(o *options, on bool) { o.saltLost = on },
		mismatch.LoRA:      func(o *options, on bool) { o.loraLost = on },
		mismatch.UsageOff:  func(o *options, on bool) { o.usageOff = on },
	}
	for cause, set := range cases {
		t.Run(cause, func(t *testing.T) {
			t.Parallel()
			for n := range max(1, effort/2) {
				seed := uint64(n)
				w := newWorld(seed, options{salted: 0.5, lora: 0.5, replicas: 2})
				w.run(300)
				w.settle()
				if len(w.events) > 0 {
					t.Fatalf("seed %d: a healthy pool raised %s", seed, w.events[0].event.Cause)
				}
				set(&w.options, true)
				w.restart()
				w.run(300)
				w.settle()
				if problem := judge(w, cause, ""); problem != "" {
					t.Errorf("seed %d: %s", seed, problem)
				}
				active := w.detector.Active()
				if len(active) != len(w.events) {
					t.Errorf("seed %d: %d alarms on, %d raised", seed, len(active), len(w.events))
				}
				set(&w.options, false)
				w.restart()
				w.events = nil
				w.run(300)
				w.settle()
				if len(w.detector.Active()) > 0 || len(w.events) != len(active) {
					t.Errorf("seed %d: after the repair %v, events %d", seed, w.detector.Active(), len(w.events))
				}
				for _, e := range w.events {
					if !e.event.Resolved || e.event.Cause != cause {
						t.Errorf("seed %d: got %v", seed, e.event)
					}
				}
			}
		})
	}
}

// Hits that no event told of are an alarm, unless the pool is meant to have none.
func TestPoolsWithoutEvents(t *testing.T) {
	w := newWorld(1, options{noEvents: true, replicas: 2})
	w.detector = mismatch.New(mismatch.Config{Pool: "p", Gateway: "g"})
	w.run(100)
	w.settle()
	if problem := judge(w, mismatch.EventsOff, ""); problem != "" {
		t.Error(problem)
	}
	w = newWorld(1, options{noEvents: true, usageOff: true, replicas: 1})
	w.run(100)
	w.settle()
	if problem := judge(w, mismatch.UsageOff, "a"); problem != "" {
		t.Error(problem)
	}
}

func TestEventSaysWhatWasSeen(t *testing.T) {
	w := newWorld(3, options{template: "message", replicas: 2})
	w.run(60)
	w.settle()
	if len(w.events) != 1 {
		t.Fatalf("%d events", len(w.events))
	}
	e := w.events[0].event
	if e.Pool != "p" || e.Gateway != "g" || e.TimeUs == 0 || e.Detail == "" || e.Requests < 8 ||
		e.PromptTokens == 0 || e.PredictedCachedTokens != 0 || e.GetCachedTokens() == 0 {
		t.Errorf("got %v", e)
	}
}

func TestProbeSettlesTheCause(t *testing.T) {
	w := newWorld(3, options{template: "message", replicas: 2})
	r := mismatch.Record{Replica: "a", Chat: true, Source: mismatch.SourceInProcess}
	if w.detector.WantsProbe(r) {
		t.Error("a probe is wanted before any alarm")
	}
	w.run(60)
	w.settle()
	d := w.detector
	if !d.WantsProbe(r) {
		t.Error("no probe is wanted")
	}
	if got := d.Probed(mismatch.Probe{Replica: "a", SameText: proto.Bool(true), SameChat: proto.Bool(false)}, 5); got != nil {
		t.Errorf("a probe of the same opinion changed %v", got)
	}
	got := d.Probed(mismatch.Probe{Replica: "a", Chat: true, SameText: proto.Bool(false)}, 7)
	if len(got) != 2 || !got[0].Resolved || got[0].Cause != mismatch.Template || got[0].TimeUs != 7 ||
		got[1].Resolved || got[1].Cause != mismatch.Tokenizer || got[1].Detail == got[0].Detail {
		t.Errorf("got %v", got)
	}
	if active := d.Active(); len(active) != 1 || active[0].Cause != mismatch.Tokenizer || d.WantsProbe(r) {
		t.Errorf("active %v", active)
	}
	// The probe holds for what comes: the statistics say template.
	w.events = nil
	w.run(100)
	w.settle()
	if len(w.events) > 0 {
		t.Errorf("changed its mind: %v", w.events[0].event)
	}
}

// Where hits disagree and nothing says why, the engine is asked before a cause is
// named: without its answer a template with another date looks like missing events.
func TestEnginesAreAskedBeforeAnAlarm(t *testing.T) {
	for _, c := range []struct {
		options
		cause string
	}{
		{options{template: "date"}, mismatch.Template},
		{options{template: "date", text: 0.1, replicas: 2}, mismatch.Template},
		{options{eventsOff: true}, mismatch.EventsOff},
		{options{eventsOff: true, wrongReplica: 2}, mismatch.EventsOff},
		{options{saltLost: true, salted: 0.6}, mismatch.Salt},
		{options{loraLost: true, lora: 0.6}, mismatch.LoRA},
		{options{engineBlock: 24}, mismatch.BlockSize},
	} {
		for seed := range uint64(6) {
			o := c.options
			o.probes = true
			w := newWorld(seed, o)
			w.run(150)
			w.settle()
			if len(w.events) == 0 || w.events[0].event.Cause != c.cause {
				t.Errorf("seed %d, %+v: got %v", seed, c.options, w.events)
			}
			if w.asked > 2*len(w.replicas) {
				t.Errorf("seed %d, %+v: asked %d times", seed, c.options, w.asked)
			}
		}
	}
	healthy := newWorld(1, options{salted: 0.3, lora: 0.3, text: 0.2, probes: true})
	healthy.run(400)
	healthy.settle()
	if healthy.asked > 0 || len(healthy.events) > 0 {
		t.Errorf("a healthy pool is asked %d times, and raises %v", healthy.asked, healthy.events)
	}
}

func TestForget(t *testing.T) {
	w := newWorld(3, options{usageOff: true, replicas: 1})
	w.run(60)
	w.settle()
	got := w.detector.Forget("a", 9)
	if len(got) != 1 || !got[0].Resolved || got[0].Cause != mismatch.UsageOff || got[0].TimeUs != 9 {
		t.Errorf("got %v", got)
	}
	if w.detector.Forget("a", 9) != nil || w.detector.Forget("nobody", 9) != nil || len(w.detector.Active()) > 0 {
		t.Error("forgotten and still there")
	}
}

func TestRecordOf(t *testing.T) {
	d := &pb.Decided{
		DecidedAtUs: 5, Chosen: "b", Attempt: 1, Lora: "l", TokenSource: "engine", BlockTokens: 16, PromptTokens: 64,
		Keys: []uint64{1, 2, 3, 4}, PredictedCachedTokens: 48,
		Candidates: []*pb.Candidate{{Replica: "a", GpuBlocks: 4, TotalBlocks: 4}, {Replica: "b", GpuBlocks: 2, TotalBlocks: 4}},
	}
	f := &pb.Finished{Replica: "b", Attempt: 1, Status: pb.Status_STATUS_OK, FinishedAtUs: 9, PromptTokens: proto.Uint64(65), CachedTokens: proto.Uint64(0)}
	e := &pb.FleetEntry{BlockTokens: 32, KvEvents: true, KvProblem: "late"}
	r, ok := mismatch.RecordOf(d, f, e)
	if !ok || r.Replica != "b" || r.LoRA != "l" || r.Source != "engine" || r.DecidedUS != 5 || r.FinishedUS != 9 ||
		r.Matched != 48 || r.Predicted != 48 || r.PromptTokens != 64 || *r.EnginePromptTokens != 65 || *r.CachedTokens != 0 ||
		r.BlockTokens != 16 || r.EngineBlockTokens != 32 || !r.KVEvents || r.KVProblem != "late" || !slices.Equal(r.Keys, d.Keys) {
		t.Errorf("got %+v, %v", r, ok)
	}
	for indexed, n := range map[mismatch.Indexed]*uint64{
		mismatch.IndexUnknown: nil, mismatch.IndexEmpty: proto.Uint64(0), mismatch.IndexHolds: proto.Uint64(7),
	} {
		d.Candidates[1].IndexedBlocks = n
		if r, _ := mismatch.RecordOf(d, f, e); r.Indexed != indexed {
			t.Errorf("with %v blocks the index is %v", n, r.Indexed)
		}
	}
	d.Candidates[1].Suspect, d.PredictedCachedTokens = true, 16
	if r, _ := mismatch.RecordOf(d, f, nil); r.Matched != 16 || r.EngineBlockTokens != 0 {
		t.Errorf("of a suspect: %+v", r)
	}
	for name, change := range map[string]func(){
		"another attempt": func() { f.Attempt = 2 },
		"another replica": func() { f.Attempt, f.Replica = 1, "a" },
		"an error":        func() { f.Replica, f.Status = "b", pb.Status_STATUS_UPSTREAM_ERROR },
	} {
		change()
		if _, ok := mismatch.RecordOf(d, f, e); ok {
			t.Errorf("%s: a record", name)
		}
	}
	if _, ok := mismatch.RecordOf(nil, f, e); ok {
		t.Error("a record without a decision")
	}
}

// sequence feeds records of one conversation after another: each prompt is sent
// again, and change says what is special about the i-th request.
func sequence(n int, change func(i int, r *mismatch.Record)) *mismatch.Detector {
	d := mismatch.New(mismatch.Config{})
	keys := make([]uint64, 40)
	for i := range keys {
		keys[i] = uint64(i + 1)
	}
	for i := range n {
		at := int64(i) * 10_000_000
		r := mismatch.Record{
			DecidedUS: at, FinishedUS: at + 1000, Replica: "a", Source: mismatch.SourceInProcess, Chat: true, Messages: 1,
			Keys: keys, BlockTokens: 16, KVEvents: true, PromptTokens: 650, EnginePromptTokens: proto.Uint64(650),
			Matched: 640, Predicted: 640, CachedTokens: proto.Uint64(640),
		}
		change(i, &r)
		d.Observe(r)
	}
	return d
}

// What is evicted or stored in between takes parts of hits away, which is no fault.
func TestPartOfAHitIsNoFault(t *testing.T) {
	for name, change := range map[string]func(int, *mismatch.Record){
		"half is gone":          func(_ int, r *mismatch.Record) { *r.CachedTokens = 320 },
		"half was not known":    func(_ int, r *mismatch.Record) { r.Matched = 320 },
		"two of three miss":     func(i int, r *mismatch.Record) { *r.CachedTokens = uint64(i%3/2) * 640 },
		"not sent there before": func(i int, r *mismatch.Record) { r.Matched, r.Keys = 0, []uint64{uint64(i + 1000)} },
		"not settled":           func(i int, r *mismatch.Record) { r.Matched, r.DecidedUS = 0, 1000 },
		"no keys":               func(i int, r *mismatch.Record) { r.Matched, r.Keys, r.Source = 0, nil, mismatch.SourceNone },
		"media": func(i int, r *mismatch.Record) {
			*r.EnginePromptTokens, r.Media = uint64(700+i), true
		},
		"ids of the client": func(i int, r *mismatch.Record) { *r.EnginePromptTokens, r.Source = 651, mismatch.SourceClient },
	} {
		if active := sequence(200, change).Active(); len(active) > 0 {
			t.Errorf("%s: %v", name, active[0])
		}
	}
	if active := sequence(200, func(_ int, r *mismatch.Record) { r.Matched = 0 }).Active(); len(active) == 0 {
		t.Error("hits that nobody knew of are no alarm")
	}
}

// Replicas that have nearly all of the traffic are still not the whole pool.
func TestAHealthyReplicaMakesItNotThePools(t *testing.T) {
	active := sequence(200, func(i int, r *mismatch.Record) {
		if r.Replica = []string{"a", "b"}[i%2]; i%8 == 0 || i < 5 {
			r.Replica = "c"
			return
		}
		r.Matched = 0
	}).Active()
	if len(active) != 2 || active[0].Replica != "a" || active[1].Replica != "b" || active[0].Cause != mismatch.EventsOff || active[1].Cause != mismatch.EventsOff {
		t.Errorf("got %v", active)
	}
}

// Salted requests that are all for an adapter do not tell which it is; the first
// that is only one of the two does.
func TestSaltAndAdapterTogether(t *testing.T) {
	active := sequence(24, func(i int, r *mismatch.Record) {
		if i%2 == 0 {
			return
		}
		r.Matched, r.LoRA, r.Salted = 0, "l", i < 19
	}).Active()
	if len(active) != 1 || active[0].Cause != mismatch.LoRA {
		t.Errorf("got %v", active)
	}
}

// Requests end on many goroutines.
func TestConcurrentUse(t *testing.T) {
	d := mismatch.New(mismatch.Config{})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 200 {
				n := uint64(i)
				r := mismatch.Record{Replica: string(rune('a' + g)), Source: mismatch.SourceInProcess, Chat: true, Messages: 1 + i%3,
					Keys: []uint64{n}, BlockTokens: 16, PromptTokens: 20 + n, EnginePromptTokens: proto.Uint64(21 + n), FinishedUS: int64(i)}
				d.Observe(r)
				d.Active()
				d.WantsProbe(r)
				d.Probed(mismatch.Probe{Replica: r.Replica}, 1)
			}
		})
	}
	wg.Wait()
	if active := d.Active(); len(active) == 0 || active[0].Cause != mismatch.Template {
		t.Errorf("active %v", active)
	}
}

func BenchmarkObserve(b *testing.B) {
	w := newWorld(1, options{salted: 0.3, lora: 0.3})
	w.run(200)
	w.settle()
	keys := make([]uint64, 400)
	for i := range keys {
		keys[i] = uint64(i) * 7919
	}
	cached, length := uint64(6000), uint64(6401)
	r := mismatch.Record{Replica: "a", Source: mismatch.SourceInProcess, Chat: true, Keys: keys, BlockTokens: 16, KVEvents: true,
		PromptTokens: length, EnginePromptTokens: &length, CachedTokens: &cached, Matched: 6000, DecidedUS: 1 << 60, FinishedUS: 1 << 60}
	b.ReportAllocs()
	for b.Loop() {
		w.detector.Observe(r)
	}
}
