package bridge

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"warmpath/routing/prefix"
	"warmpath/services/bridge/kvevents"
	"warmpath/services/bridge/wireengine"
	"warmpath/streams"
	"warmpath/streams/streamstest"
)

const chaosModel = "llama"

// folded is what somebody who only reads the stream knows.
type folded struct {
	mu    sync.Mutex
	index *prefix.Index
	err   error
}

// fold follows the pool's stream until the test ends.
func fold(t *testing.T, js jetstream.JetStream, pool string) *folded {
	t.Helper()
	f := &folded{index: prefix.New()}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := streams.Follow(ctx, js, streams.FollowConfig{Stream: streams.KVStream(pool)}, func(e streams.Event) error {
			_, batch, err := streams.KVBatch(e)
			if err != nil {
				return err
			}
			f.index.Apply(batch)
			return nil
		})
		if ctx.Err() == nil {
			f.mu.Lock()
			f.err = err
			f.mu.Unlock()
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return f
}

func (f *folded) failure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// suspect says whether readers are warned of the replica.
func (f *folded) suspect(replica string) bool {
	for _, l := range f.index.Lives() {
		if l.Replica == replica {
			return l.Suspect
		}
	}
	return true // nobody claims anything
}

// difference compares the index with what the engine really holds, both ways.
func (f *folded) difference(replica string, truth map[wireengine.Held]bool) string {
	ghosts, held := 0, 0
	f.index.Visit(func(e prefix.Entry) bool {
		if e.Replica == replica {
			held++
			if !truth[wireengine.Held{Tier: e.Tier.ToProto(), Key: e.Key}] {
				ghosts++
			}
		}
		return true
	})
	if missing := len(truth) - (held - ghosts); ghosts+missing > 0 {
		return fmt.Sprintf("%d blocks too many and %d missing of %d", ghosts, missing, len(truth))
	}
	return ""
}

// rough is a deployment that everything happens to.
type rough struct {
	t       *testing.T
	nats    *streamstest.Process
	js      jetstream.JetStream
	engine  *wireengine.Engine
	chaos   *wireengine.Chaos
	cfg     Config
	bridge  *Bridge
	kill    func()
	reader  *folded
	outages int
	kills   int
	// checks is how often all was compared, exact how often readers were not warned.
	checks, exact int
}

// start starts a bridge.
func (r *rough) start() {
	bridge, err := New(r.cfg, r.js, prometheus.NewRegistry())
	if err != nil {
		r.t.Fatal(err)
	}
	// The context is not the one that Run drains on: it ends at once, with what
	// waits unsent, as a killed process does.
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- bridge.work(ctx) }()
	r.bridge, r.kill = bridge, func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	}
}

// settled says whether the bridge has taken everything in and published it, and
// the reader has read it.
func (r *rough) settled() bool {
	all := r.bridge.engines[0].all()
	if len(all) != 1 {
		return false
	}
	one := all[0]
	one.mu.Lock()
	last, known := one.feed.Last()
	connected := one.conn != 0
	one.mu.Unlock()
	next, _ := r.engine.Next()
	if !connected || !known && next > r.first() || known && last+1 != next {
		return false
	}
	if out := one.out.Stats(); out.Waiting > 0 || out.Broken != "" {
		return false
	}
	seq, err := streams.LastSeq(r.t.Context(), r.js, streams.KVStream(r.cfg.Pool))
	return err == nil && r.reader.index.Position() == seq
}

func (r *rough) first() uint64 { return uint64(max(*r.cfg.Engines[0].KVFirst, 0)) }

// check waits until everything is settled, and compares.
func (r *rough) check(at int) {
	r.t.Helper()
	// That the last batch was lost for good shows when another follows.
	r.engine.Publish(nil, wireengine.Delivered)
	streamstest.Until(r.t, r.settled)
	if err := r.reader.failure(); err != nil {
		r.t.Fatal(err)
	}
	truth, err := r.engine.Truth(chaosModel, r.cfg.BlockTokens)
	if err != nil {
		r.t.Fatal(err)
	}
	name := r.cfg.Engines[0].Replica
	r.checks++
	if !r.reader.suspect(name) {
		r.exact++
	}
	if diff := r.reader.difference(name, truth); diff != "" && !r.reader.suspect(name) {
		r.t.Fatalf("after %d batches (%+v, %d kills, %d outages) the index differs silently: %s\n%+v",
			at, r.chaos.Did(), r.kills, r.outages, diff, r.bridge.State())
	}
}

// variant is what kind of engine a seed has.
type variant struct {
	cache wireengine.CacheConfig
	pool  int // block tokens
	dial  bool
	first uint64
}

func variantOf(seed uint64) variant {
	generations := kvevents.Generations()
	g := generations[seed%uint64(len(generations))]
	v := variant{
		cache: wireengine.CacheConfig{Generation: g, BlockSize: 16, Capacity: 600, Seed: seed, OtherGroups: true, Images: true},
		pool:  16, dial: seed%3 == 1, first: seed / 2 % 2,
	}
	if wireengine.Carries(g).LoRA {
		v.cache.LoRAs = []string{"sql", "chat"}
	}
	if wireengine.Carries(g).Salt {
		v.cache.Salts = []string{"tenant-a", "tenant-b"}
	}
	switch seed % 5 {
	case 1:
		v.cache.BlockSize = 4
	case 3:
		v.pool = 4
	}
	return v
}

// chaosRun plays one seed: batches with faults, the bridge killed, the server
// killed, and at every stop the index is the engine's cache, or its readers are
// warned.
func chaosRun(t *testing.T, seed uint64, batches int, outage time.Duration) {
	v := variantOf(seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	nats := streamstest.StartProcess(t)
	_, js := streamstest.Connect(t, nats.URL())
	streamstest.Apply(t, js, 1, "demo")

	first := int(v.first)
	member := Engine{
		Replica: "e0", Model: chaosModel, KVFirst: &first, Repeats: "copies",
		LoRAIDs: map[int64]string{1: "sql", 2: "chat"}, // the oldest generations only number them
	}
	if g := v.cache.Generation; !copiesAreTold(g) {
		member.Repeats = "once"
	}
	cfg := wireengine.Config{
		Cache: v.cache, Topic: "kv@127.0.0.1:8000@llama", ReplayEndpoint: "tcp://127.0.0.1:0", FirstSeq: v.first, Buffer: 300,
	}
	if v.dial {
		member.KVListen = "tcp://" + freeAddress(t)
		cfg.Dial, cfg.Endpoint = true, member.KVListen
	}
	engine, err := wireengine.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(engine.Close)
	if !v.dial {
		member.KV = engine.Endpoint()
	}
	member.KVReplay = engine.ReplayEndpoint()
	api := httptest.NewServer(wireengine.NewAPI(wireengine.APIConfig{
		Kind: wireengine.VLLM, Model: chaosModel,
		// Its capacity does not count copies, which a real engine's does.
		Missing: wireengine.Missing{CacheInfo: true},
	}, engine))
	t.Cleanup(api.Close)
	member.URL = api.URL

	r := &rough{
		t: t, nats: nats, js: js, engine: engine, chaos: wireengine.NewChaos(engine, wireengine.Rough(), seed),
		cfg: Config{
			Pool: "demo", BlockTokens: v.pool, Engines: []Engine{member}, LoadEvery: time.Second,
			Listen: "127.0.0.1:0", SpoolDir: t.TempDir(),
		},
		reader: fold(t, js, "demo"),
	}
	r.start()
	defer func() { r.kill() }()
	stop := 0
	for i := range batches {
		r.chaos.Step()
		if i != stop {
			continue
		}
		stop = i + 1 + rng.IntN(400)
		r.check(i)
		switch rng.IntN(4) {
		case 0: // killed in the middle of work
			for range rng.IntN(100) {
				r.chaos.Step()
			}
			r.kill()
			for range rng.IntN(100) {
				r.chaos.Step()
			}
			r.kills++
			r.start()
		case 1:
			if r.outages > 0 && rng.IntN(3) > 0 {
				continue
			}
			r.outages++
			nats.Kill()
			until := time.Now().Add(outage)
			for time.Now().Before(until) {
				r.chaos.Step()
				time.Sleep(outage / 200)
			}
			nats.Start()
		}
	}
	r.check(batches)
	t.Logf("%s: %+v, %d kills, %d outages; exact at %d of %d stops", v.cache.Generation, r.chaos.Did(), r.kills, r.outages, r.exact, r.checks)
}

// copiesAreTold says whether an engine of the generation tells physical copies.
func copiesAreTold(g kvevents.Generation) bool {
	switch g {
	case kvevents.SGLangLegacy, kvevents.SGLangMedium, kvevents.SGLangMetadata, kvevents.SGLangMap, kvevents.TRTLLMMap,
		kvevents.SimulatorArray, kvevents.SimulatorMap:
		return false
	}
	return true
}

// TestNothingDiffersSilently runs every generation for a while; with WARMPATH_SOAK
// it is 50 seeds of 10,000 batches, with the server away for 5 s at a time.
func TestNothingDiffersSilently(t *testing.T) {
	seeds, batches, outage := uint64(len(kvevents.Generations())), 1000, 100*time.Millisecond
	if os.Getenv("WARMPATH_SOAK") != "" {
		seeds, batches, outage = 50, 10_000, 5*time.Second
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { chaosRun(t, seed, batches, outage) })
	}
}
