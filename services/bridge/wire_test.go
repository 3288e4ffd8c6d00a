package bridge

import (
	"context"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/bridge/kvevents"
	"warmpath/services/bridge/wireengine"
	"warmpath/streams"
	"warmpath/streams/streamstest"
)

// fixture is a server with a pool, and somebody who reads its stream.
type fixture struct {
	t      *testing.T
	js     jetstream.JetStream
	reader *folded

	mu    sync.Mutex
	fleet map[string]*pb.FleetEntry
	loads map[string]*pb.LoadReport
}

func newFixture(t *testing.T) *fixture {
	nc, js := streamstest.Connect(t, streamstest.Start(t).URL(""))
	return newFixtureAt(t, nc, js)
}

// newFixtureAt is a fixture on a server that the connection may do everything on.
func newFixtureAt(t *testing.T, nc *nats.Conn, js jetstream.JetStream) *fixture {
	streamstest.Apply(t, js, 1, "demo")
	f := &fixture{t: t, js: js, reader: fold(t, js, "demo"), fleet: map[string]*pb.FleetEntry{}, loads: map[string]*pb.LoadReport{}}
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() {
		_ = streams.WatchFleet(ctx, js, "demo", func(entry *pb.FleetEntry, replica string) { // ends with ctx
			f.mu.Lock()
			defer f.mu.Unlock()
			f.fleet[replica] = entry
		})
	})
	group.Go(func() {
		_ = streams.FollowLoad(ctx, nc, js, "demo", func(r *pb.LoadReport) { // ends with ctx
			f.mu.Lock()
			defer f.mu.Unlock()
			f.loads[r.GetReplica()] = r
		})
	})
	t.Cleanup(func() { cancel(); group.Wait() })
	return f
}

func (f *fixture) entry(replica string) *pb.FleetEntry {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fleet[replica]
}

func (f *fixture) loadOf(replica string) *pb.LoadReport {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.loads[replica]
}

// engine starts ranks of a wire-true engine and its HTTP face.
func (f *fixture) engine(cfg wireengine.Config, api wireengine.APIConfig, ranks int) ([]*wireengine.Engine, *wireengine.API, string) {
	f.t.Helper()
	all, err := wireengine.StartRanks(cfg, ranks)
	if err != nil {
		f.t.Fatal(err)
	}
	api.Model = chaosModel
	face := wireengine.NewAPI(api, all...)
	server := httptest.NewServer(face)
	f.t.Cleanup(func() {
		server.Close()
		for _, e := range all {
			e.Close()
		}
	})
	return all, face, server.URL
}

// bridge runs a bridge of the engines until the test ends.
func (f *fixture) bridge(change func(*Config), engines ...Engine) *Bridge {
	f.t.Helper()
	b, stop := f.run(change, engines...)
	f.t.Cleanup(stop)
	return b
}

// run runs a bridge of the engines until it is stopped.
func (f *fixture) run(change func(*Config), engines ...Engine) (b *Bridge, stop func()) {
	f.t.Helper()
	cfg := Config{
		Pool: "demo", BlockTokens: 16, Engines: engines, LoadEvery: 100 * time.Millisecond, Listen: "127.0.0.1:0", SpoolDir: f.t.TempDir(),
	}
	if change != nil {
		change(&cfg)
	}
	b, err := New(cfg, f.js, prometheus.NewRegistry())
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	return b, func() {
		cancel()
		if err := <-done; err != nil {
			f.t.Error(err)
		}
	}
}

// same waits until the index holds for a replica what its engine holds, without
// a doubt.
func (f *fixture) same(replica string, e *wireengine.Engine, blockTokens int) {
	f.t.Helper()
	streamstest.Until(f.t, func() bool {
		truth, err := e.Truth(chaosModel, blockTokens)
		if err != nil {
			f.t.Fatal(err)
		}
		return !f.reader.suspect(replica) && f.reader.difference(replica, truth) == ""
	})
}

func churn(e *wireengine.Engine, batches int) {
	for range batches {
		e.Change((*wireengine.Cache).Step, wireengine.Delivered)
	}
}

func TestRanksAreReplicas(t *testing.T) {
	f := newFixture(t)
	ranks, face, url := f.engine(wireengine.Config{
		Cache: wireengine.CacheConfig{Generation: kvevents.VLLMMap, Seed: 1}, ReplayEndpoint: "tcp://127.0.0.1:0",
	}, wireengine.APIConfig{Kind: wireengine.VLLM, Version: "0.26.0"}, 2)
	face.SetFigures(1, wireengine.Figures{Running: 3, Waiting: 2, KVUse: 0.5})
	f.bridge(nil, Engine{Replica: "vllm-0", URL: url, KV: ranks[0].Endpoint(), KVReplay: ranks[0].ReplayEndpoint()})
	for rank, name := range []string{"vllm-0.dp0", "vllm-0.dp1"} {
		churn(ranks[rank], 40)
		f.same(name, ranks[rank], 16)
		streamstest.Until(t, func() bool { return f.entry(name).GetKvEvents() && f.entry(name).GetKvProblem() == "" })
		entry := f.entry(name)
		if entry.DataParallelRank == nil || entry.GetDataParallelRank() != uint32(rank) || entry.GetAddress() != url || entry.GetEngineVersion() != "0.26.0" || entry.GetEngineKind() != "vllm" {
			t.Errorf("entry of %s is %v", name, entry)
		}
	}
	streamstest.Until(t, func() bool { return f.loadOf("vllm-0.dp1").GetRunning() == 3 })
	if r := f.loadOf("vllm-0.dp1"); r.GetWaiting() != 2 || r.GetKvUsed() != 0.5 {
		t.Errorf("load is %v", r)
	}
}

// Engines that dial share an endpoint; their topics tell them apart, and a
// stranger's events are nobody's.
func TestEnginesThatDial(t *testing.T) {
	f := newFixture(t)
	endpoint := "tcp://" + freeAddress(t)
	var members []Engine
	var engines []*wireengine.Engine
	for i, g := range []kvevents.Generation{kvevents.SimulatorArray, kvevents.SimulatorMap} {
		cfg := wireengine.Config{
			Cache: wireengine.CacheConfig{Generation: g, Seed: uint64(i)}, FirstSeq: 1,
			Dial: true, Endpoint: endpoint, ReplayEndpoint: "tcp://127.0.0.1:0",
		}
		// The topic names the address, which the HTTP face has only once it is there.
		server := httptest.NewUnstartedServer(nil)
		cfg.Topic = "kv@" + server.Listener.Addr().String() + "@" + chaosModel
		e, err := wireengine.Start(cfg)
		if err != nil {
			t.Fatal(err)
		}
		server.Config.Handler = wireengine.NewAPI(wireengine.APIConfig{Kind: wireengine.VLLM, Model: chaosModel}, e)
		server.Start()
		t.Cleanup(func() { server.Close(); e.Close() })
		engines = append(engines, e)
		members = append(members, Engine{Replica: []string{"sim-0", "sim-1"}[i], URL: server.URL, KVListen: endpoint, KVReplay: e.ReplayEndpoint(), Repeats: "once"})
	}
	b := f.bridge(nil, members...)
	stranger, err := wireengine.Start(wireengine.Config{Cache: wireengine.CacheConfig{Generation: kvevents.SimulatorMap, Seed: 9}, Topic: "kv@10.9.9.9:1@x", Dial: true, Endpoint: endpoint})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stranger.Close)
	for i, e := range engines {
		if err := e.AwaitSubscribers(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		churn(e, 60)
		churn(stranger, 5)
		f.same(members[i].Replica, e, 16)
	}
	if len(b.State()) != 2 || len(f.reader.index.Lives()) != 2 {
		t.Errorf("replicas are %v", f.reader.index.Lives())
	}
}

func TestBlockSizes(t *testing.T) {
	for _, c := range []struct {
		engine, pool int
		refused      bool
	}{{16, 16, false}, {64, 16, false}, {4, 16, false}, {1, 16, false}, {24, 16, true}} {
		f := newFixture(t)
		engines, _, url := f.engine(wireengine.Config{
			Cache: wireengine.CacheConfig{Generation: kvevents.VLLMMap, BlockSize: c.engine, Seed: 3}, ReplayEndpoint: "tcp://127.0.0.1:0",
		}, wireengine.APIConfig{Kind: wireengine.VLLM}, 1)
		f.bridge(func(cfg *Config) { cfg.BlockTokens = c.pool },
			Engine{Replica: "e0", URL: url, KV: engines[0].Endpoint(), KVReplay: engines[0].ReplayEndpoint()})
		churn(engines[0], 20)
		if !c.refused {
			f.same("e0", engines[0], c.pool)
			continue
		}
		streamstest.Until(t, func() bool { return strings.Contains(f.entry("e0").GetKvProblem(), "24") })
		if e := f.entry("e0"); e.GetKvEvents() || !strings.Contains(e.GetKvProblem(), "--block-size") {
			t.Errorf("entry is %v", e)
		}
	}
}

func TestTensorRTLLMIsPolled(t *testing.T) {
	f := newFixture(t)
	engines, _, url := f.engine(wireengine.Config{
		Cache: wireengine.CacheConfig{Generation: kvevents.TRTLLMMap, Pull: true, BlockSize: 32, Seed: 5},
	}, wireengine.APIConfig{Kind: wireengine.TRTLLM, Version: "1.2.0"}, 1)
	f.bridge(nil, Engine{Replica: "trt-0", URL: url, KVPull: true})
	churn(engines[0], 60)
	f.same("trt-0", engines[0], 16)
	// An event that nobody can have any more puts the replica in doubt.
	engines[0].Change((*wireengine.Cache).Step, wireengine.Lost)
	churn(engines[0], 5)
	streamstest.Until(t, func() bool { return f.reader.suspect("trt-0") })
	streamstest.Until(t, func() bool { return f.entry("trt-0").GetKvProblem() != "" })
}

// What SGLang says of itself is enough: no endpoint is configured.
func TestSGLangIsFound(t *testing.T) {
	f := newFixture(t)
	engines, _, url := f.engine(wireengine.Config{
		Cache: wireengine.CacheConfig{Generation: kvevents.SGLangMap, Salts: []string{"tenant-a"}, Seed: 6}, Topic: "kv-events", ReplayEndpoint: "tcp://127.0.0.1:0",
	}, wireengine.APIConfig{Kind: wireengine.SGLang}, 1)
	socket, err := wireengine.NewLoadSocket("tcp://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(socket.Close)
	f.bridge(nil, Engine{Replica: "sgl-0", URL: url, LoadSocket: socket.Endpoint()})
	churn(engines[0], 40)
	f.same("sgl-0", engines[0], 16)
	if err := socket.AwaitSubscribers(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	socket.Publish(kvevents.LoadStat{Running: 4, Waiting: 1, Tokens: 500, MaxTokens: 1000, QueuedTokens: 77})
	streamstest.Until(t, func() bool { return f.loadOf("sgl-0").GetRunning() == 4 })
	if r := f.loadOf("sgl-0"); r.GetKvUsed() != 0.5 || r.GetQueuedPrefillTokens() != 77 {
		t.Errorf("load is %v", r)
	}
}

// A record of a day with losses, played again, ends where the day ended.
func TestRecordAndReplay(t *testing.T) {
	f := newFixture(t)
	streamstest.Apply(t, f.js, 1, "again")
	engines, _, url := f.engine(wireengine.Config{
		Cache: wireengine.CacheConfig{Generation: kvevents.VLLMMap, Seed: 7}, ReplayEndpoint: "tcp://127.0.0.1:0", Buffer: 100,
	}, wireengine.APIConfig{Kind: wireengine.VLLM}, 1)
	record := filepath.Join(t.TempDir(), "frames")
	member := Engine{Replica: "e0", URL: url, Model: chaosModel, KV: engines[0].Endpoint(), KVReplay: engines[0].ReplayEndpoint()}
	live := f.bridge(func(cfg *Config) { cfg.Record = record }, member)
	chaos := wireengine.NewChaos(engines[0], wireengine.Odds{Dropped: 500, Lost: 50, Twice: 300, Restarts: 30, HangUps: 50}, 7)
	if err := engines[0].AwaitSubscribers(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	for range 300 {
		chaos.Step()
	}
	caught := func() bool {
		next, _ := engines[0].Next()
		r := live.engines[0].all()[0]
		r.mu.Lock()
		last, known := r.feed.Last()
		r.mu.Unlock()
		return known && last+1 == next && r.out.Stats().Waiting == 0
	}
	streamstest.Until(t, caught)
	if info, err := os.Stat(record); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the record is %v, %v; it holds token ids", info.Mode(), err)
	}

	again, err := New(Config{
		Pool: "again", BlockTokens: 16, Engines: []Engine{member}, LoadEvery: time.Second, Listen: "127.0.0.1:0", SpoolDir: t.TempDir(),
	}, f.js, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	summary, err := again.ReplayCapture(t.Context(), record)
	if err != nil {
		t.Fatal(err)
	}
	was, is := live.State()[0], summary.Replicas[0]
	if is.Problem != was.Problem || is.Memory.Present != was.Memory.Present || is.Feed.Batches != was.Feed.Batches || is.Feed.Restarts != was.Feed.Restarts {
		t.Errorf("replayed %d records:\nwas %+v\nis  %+v", summary.Records, was, is)
	}
}

// An event that cannot be read keeps the rest of its batch, and readers are warned.
func TestBadEventIsADoubt(t *testing.T) {
	f := newFixture(t)
	engines, _, url := f.engine(wireengine.Config{
		Cache: wireengine.CacheConfig{Generation: kvevents.VLLMMap, Seed: 8}, ReplayEndpoint: "tcp://127.0.0.1:0",
	}, wireengine.APIConfig{Kind: wireengine.VLLM}, 1)
	b := f.bridge(nil, Engine{Replica: "e0", URL: url, KV: engines[0].Endpoint(), KVReplay: engines[0].ReplayEndpoint()})
	churn(engines[0], 10)
	f.same("e0", engines[0], 16)
	// [ts, [{"type": "Shiny"}], nil]: a tag of the future, which says nothing known.
	engines[0].PublishRaw([]byte("\x93\xcb\x41\xda\x00\x00\x00\x00\x00\x00\x91\x81\xa4type\xa5Shiny\xc0"), wireengine.Delivered)
	churn(engines[0], 10)
	f.same("e0", engines[0], 16)
	// [ts, [{"type": "BlockRemoved", "block_hashes": "x"}], nil]
	engines[0].PublishRaw([]byte("\x93\xcb\x41\xda\x00\x00\x00\x00\x00\x00\x91\x82\xa4type\xacBlockRemoved\xacblock_hashes\xa1x\xc0"), wireengine.Delivered)
	streamstest.Until(t, func() bool { return f.reader.suspect("e0") })
	if s := b.State()[0]; s.Decoded.UnknownTags != 1 || s.Decoded.BadEvents != 1 || len(s.Unknown) != 1 || !strings.Contains(s.Problem, "unreadable") {
		t.Errorf("state is %+v", s)
	}
	engines[0].Change((*wireengine.Cache).Clear, wireengine.Delivered)
	churn(engines[0], 10)
	f.same("e0", engines[0], 16)
}
