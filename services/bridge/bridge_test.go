package bridge

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
	"warmpath/streams/streamstest"
)

func TestMain(m *testing.M) {
	if bridgeIfAsked() {
		return
	}
	streamstest.Main(m)
}

// freeAddress is a port of the loopback that is free now.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

// faked answers what a vLLM server does, as far as a bridge looks at it.
type faked struct {
	*httptest.Server
	down    atomic.Bool
	running atomic.Int32
	models  string
}

func newFaked(t *testing.T) *faked {
	e := &faked{models: `{"data":[{"id":"llama","parent":null},{"id":"sql-lora","parent":"llama"}]}`}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case e.down.Load():
			http.Error(w, "starting", http.StatusServiceUnavailable)
		case r.URL.Path == "/v1/models":
			fmt.Fprint(w, e.models)
		case r.URL.Path == "/metrics":
			fmt.Fprintf(w, `# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0"} %d
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{engine="0"} 0.3
`, e.running.Load())
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(e.Close)
	return e
}

func config(e *faked) Config {
	return Config{
		Pool: "demo", BlockTokens: 16, LoadEvery: 100 * time.Millisecond, Listen: "127.0.0.1:0", DrainTimeout: patience,
		Engines: []Engine{{Replica: "vllm-0", URL: e.URL + "/"}},
	}
}

func next[T any](t *testing.T, what string, from <-chan T, good func(T) bool) T {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case v := <-from:
			if good(v) {
				return v
			}
		case <-deadline:
			t.Fatalf("no %s", what)
		}
	}
}

func TestEngineIsInTheFleetWhileItAnswers(t *testing.T) {
	server := streamstest.Start(t)
	nc, js := streamstest.Connect(t, server.URL(""))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if _, err := (streams.Topology{Pools: []string{"demo"}, Replicas: 1}).Apply(ctx, js); err != nil {
		t.Fatal(err)
	}
	e := newFaked(t)
	bridge, err := New(config(e), js, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}

	fleet, loads := make(chan *pb.FleetEntry, 100), make(chan *pb.LoadReport, 100)
	go func() {
		_ = streams.WatchFleet(ctx, js, "demo", func(entry *pb.FleetEntry, _ string) { fleet <- entry })
	}()
	go func() { _ = streams.FollowLoad(ctx, nc, js, "demo", func(r *pb.LoadReport) { loads <- r }) }()
	life, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- bridge.Run(life) }()

	entry := next(t, "entry", fleet, func(e *pb.FleetEntry) bool { return e != nil })
	if entry.Model != "llama" || entry.Address != e.URL || entry.KvEvents || entry.BlockTokens != 16 || len(entry.Epoch) != 16 {
		t.Errorf("entry is %v", entry)
	}
	r := next(t, "load", loads, func(*pb.LoadReport) bool { return true })
	if r.GetRunning() != 0 || r.Running == nil || r.Waiting != nil || r.GetKvUsed() < 0.29 || r.GetKvUsed() > 0.31 {
		t.Errorf("load is %v; waiting is not reported and must be absent", r)
	}
	e.running.Store(7)
	next(t, "changed load", loads, func(r *pb.LoadReport) bool { return r.GetRunning() == 7 })

	e.running.Store(0)
	next(t, "idle load", loads, func(r *pb.LoadReport) bool { return r.GetRunning() == 0 })
	e.down.Store(true)
	next(t, "leaving", fleet, func(e *pb.FleetEntry) bool { return e == nil })
	e.down.Store(false)
	again := next(t, "return", fleet, func(e *pb.FleetEntry) bool { return e != nil })
	if string(again.Epoch) == string(entry.Epoch) {
		t.Error("an engine that was away keeps its epoch, as if its cache were known")
	}
	e.running.Store(1)
	next(t, "busy load", loads, func(r *pb.LoadReport) bool { return r.GetRunning() == 1 })
	stop()
	next(t, "draining", fleet, func(e *pb.FleetEntry) bool { return e.GetDraining() })
	e.running.Store(0)
	next(t, "leaving at the end", fleet, func(e *pb.FleetEntry) bool { return e == nil })
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestAnEngineWithSeveralModelsMustBeNamedOne(t *testing.T) {
	e := newFaked(t)
	e.models = `{"data":[{"id":"a"},{"id":"b"}]}`
	bridge, err := New(config(e), nil, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	bridge.engines[0].beat(t.Context())
	if err := bridge.healthy(); err == nil || !strings.Contains(err.Error(), "--model") {
		t.Errorf("got %v", err)
	}
}

func TestMistakesAreNamed(t *testing.T) {
	e := newFaked(t)
	for flag, change := range map[string]func(*Config){
		"--pool":          func(c *Config) { c.Pool = "a b" },
		"--replica":       func(c *Config) { c.Engines[0].Replica = "" },
		"--engine":        func(c *Config) { c.Engines[0].URL = "localhost:8000" },
		"--advertise":     func(c *Config) { c.Engines[0].Advertise = "localhost:8000" },
		"--block-tokens":  func(c *Config) { c.BlockTokens = 0 },
		"--ranks":         func(c *Config) { c.Engines[0].Ranks = -1 },
		"--kv-listen":     func(c *Config) { c.Engines[0].KV, c.Engines[0].KVListen = "tcp://a:1", "tcp://b:1" },
		"--kv-first":      func(c *Config) { two := 2; c.Engines[0].KVFirst = &two },
		"--repeats":       func(c *Config) { c.Engines[0].Repeats = "twice" },
		"--kv-replay":     func(c *Config) { c.Engines[0].KVReplay = "127.0.0.1:5558" },
		"--kv:":           func(c *Config) { c.Engines[0].KV = "tcp://*:5557" },
		"--kv-listen: ":   func(c *Config) { c.Engines[0].KVListen = "udp://127.0.0.1:5557" },
		"--load-socket":   func(c *Config) { c.Engines[0].LoadSocket = "tcp://127.0.0.1" },
		"has no rank 1":   func(c *Config) { c.Engines[0].KV, c.Engines[0].Ranks = "ipc:///run/kv", 2 },
		"rank of vllm-0":  func(c *Config) { c.Engines = append(c.Engines, Engine{Replica: "vllm-0.dp1", URL: e.URL}) },
		"--spool-bytes":   func(c *Config) { c.SpoolBytes = -1 },
		"--record-bytes":  func(c *Config) { c.RecordBytes = -1 },
		"--memory-blocks": func(c *Config) { c.MemoryBlocks = 1 << 31 },
		"--drain-timeout": func(c *Config) { c.DrainTimeout = -time.Second },
		"--spool-dir":     func(c *Config) { c.SpoolDir = filepath.Join(t.TempDir(), "none") },
		"given twice":     func(c *Config) { c.Engines = append(c.Engines, c.Engines[0]) },
		"--config":        func(c *Config) { c.Engines = nil },
		"--load-every":    func(c *Config) { c.LoadEvery = time.Millisecond },
	} {
		cfg := config(e)
		change(&cfg)
		if _, err := New(cfg, nil, prometheus.NewRegistry()); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: got %v", flag, err)
		}
	}
}

func TestListenIsTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	e := newFaked(t)
	e.down.Store(true)
	cfg := config(e)
	cfg.Listen = l.Addr().String()
	bridge, err := New(cfg, nil, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	if err := bridge.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "--listen") {
		t.Errorf("got %v", err)
	}
}

func TestConfigFile(t *testing.T) {
	read := func(text string) ([]Engine, error) {
		path := filepath.Join(t.TempDir(), "engines.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return ReadEngines(path)
	}
	all, err := read(`engines:
- replica: a
  engine: http://127.0.0.1:8000
  kv: tcp://127.0.0.1:5557
  kv-replay: tcp://127.0.0.1:6557
  kv-first: 1
  ranks: 2
- replica: b
  engine: http://127.0.0.1:8001
  kv-listen: tcp://127.0.0.1:7557
  lora-ids: {3: sql}
`)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 2 || all[0].first() != 1 || all[0].Ranks != 2 || all[1].first() != -1 || all[1].LoRAIDs[3] != "sql" {
		t.Errorf("got %+v", all)
	}
	for want, text := range map[string]string{
		"no engines": "",
		"kv-frist":   "engines:\n- replica: a\n  kv-frist: 1\n",
		"--config":   "engines: 3\n",
	} {
		if _, err := read(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v", text, err)
		}
	}
}
