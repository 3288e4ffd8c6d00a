package router

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"warmpath/routing/policy"
	"warmpath/services/tokensource"
	"warmpath/streams"
)

// Command is the router command: one instance of one pool's router.
type Command struct {
	streams.Connection

	Pool   string             `required:"" env:"WARMPATH_POOL" help:"Pool whose requests are routed."`
	Name   string             `env:"WARMPATH_NAME" help:"This instance, as decisions record it. Default: router-<host>."`
	Listen string             `default:"127.0.0.1:7010" help:"HTTP address: /v1/route, /v1/state, /health, /metrics."`
	Policy string             `default:"ttft" help:"Policy that decides."`
	Param  map[string]float64 `placeholder:"NAME=VALUE" help:"Policy parameter in place of its default. May be repeated."`
	Seed   uint64             `default:"1" help:"Seed of the decisions' randomness."`

	Tokenizer string `default:"client" placeholder:"FOLDER" help:"How prompts given as text become tokens, the same as in the engines: the folder of a model (tokenizer.json and chat template), engine (they are asked), bytes (simulated engines), or client, the default: requests give token ids or keys."`
	tokensource.Rendering
	EngineKey string `env:"WARMPATH_ENGINE_KEY" placeholder:"KEY" help:"API key that engines are shown when they are asked for tokens; best given by the environment."`

	Lease         time.Duration `default:"10m" help:"How long a decision without an outcome counts as in flight."`
	ReportMaxAge  time.Duration `default:"10s" help:"How old a load report may be and still be believed."`
	DispatchGrace time.Duration `default:"50ms" help:"How long after a decision a load report may still not know of its request."`
	PrefillRate   float64       `default:"8000" placeholder:"TOKENS" help:"Prefill tokens a second to assume of a replica of which nothing is known."`
	PredictionTTL time.Duration `name:"prediction-ttl" default:"2m" help:"How long blocks that a decision is about to create count as present when nothing confirms them."`
	RouteTail     uint64        `default:"20000" help:"Newest ROUTE messages read at the start, to learn what is in flight."`
	DeadAfter     time.Duration `default:"15s" help:"Age of its heartbeat above which a replica takes nothing new."`
	ForgetAfter   time.Duration `default:"10m" help:"How long a replica must be gone before its blocks leave the index."`

	IndexBytes     int64         `name:"index-bytes" default:"0" help:"Hard limit of the index's memory, in bytes; 0: none. Over it the deepest blocks go, and audits need the same limit."`
	Snapshots      bool          `default:"true" negatable:"" help:"Write snapshots of the index, in turn with the pool's other routers."`
	SnapshotEvery  time.Duration `default:"5m" help:"Age at which the newest snapshot is replaced."`
	SnapshotEvents uint64        `default:"100000" help:"KV messages after which the newest snapshot is replaced."`
	SnapshotKeep   int           `default:"3" help:"Snapshots to keep."`
}

// Help is what the command line's help says below its first line.
func (Command) Help() string {
	return `A request, over NATS on svc.route.<pool> or as POST /v1/route, says whose it is (pool, gateway, request_id, attempt), which replicas to exclude, and its prompt in one form:

  keys, prompt_tokens   the keys of its full blocks, and its length
  token_ids             its tokens
  prompt                a completion's text                          (needs --tokenizer)
  chat                  the JSON body of a chat completion request   (needs --tokenizer)
  prompt_tokens         its length alone: load decides

Over HTTP it is warmpath.v1.RouteRequest in protobuf's JSON form, and chat may be the object itself. Over NATS it is protobuf, or that JSON when it begins with a brace or its header Content-Type is application/json; the answer then is JSON, too, unless the header Accept is application/x-protobuf. dry_run decides without counting it.

  {"pool": "chat", "gateway": "edge-1", "request_id": "42", "chat": {"messages": [{"role": "user", "content": "Hi"}]}}

The answer names the replica's address, the data_parallel_rank to ask for where it has one, and the whole decision, which the gateway should publish on route.<pool>.<gateway>, followed by how the request ended.`
}

// gcPercent lets the heap grow to several times what is live before it is
// collected: decisions are short-lived, the index is no work for the collector,
// and on few cores a collection is what the slowest decisions wait for.
const gcPercent = 400

// Run routes until ctx ends, then answers what it has and returns nil.
func (c *Command) Run(ctx context.Context) error {
	if os.Getenv("GOGC") == "" {
		defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	}
	name := c.Name
	if name == "" {
		name = defaultName()
	}
	nc, js, err := c.Connect("warmpath router " + name)
	if err != nil {
		return err
	}
	defer drain(nc)
	requests, _, err := c.Connect("warmpath router "+name+" requests", streams.Unbuffered())
	if err != nil {
		return err
	}
	defer drain(requests)
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	r, err := New(Config{
		Pool: c.Pool, Name: name, Requests: requests, Policy: c.Policy, Params: c.Param, Seed: c.Seed, Listen: c.Listen,
		Tokenizer: c.Tokenizer, Rendering: c.Rendering, EngineKey: c.EngineKey,
		Ledger: policy.LedgerConfig{
			Lease: c.Lease, ReportMaxAge: c.ReportMaxAge, DispatchGrace: c.DispatchGrace, DefaultPrefillRate: c.PrefillRate,
		},
		PredictionTTL: c.PredictionTTL, RouteTail: c.RouteTail, DeadAfter: c.DeadAfter, ForgetAfter: c.ForgetAfter,
		IndexBytes: c.IndexBytes, NoSnapshots: !c.Snapshots,
		SnapshotEvery: c.SnapshotEvery, SnapshotEvents: c.SnapshotEvents, SnapshotKeep: c.SnapshotKeep,
	}, nc, js, reg)
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// defaultName is router-<host>, with what a name may not have replaced.
func defaultName() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		return fmt.Sprintf("router-%d", os.Getpid())
	}
	name := []byte("router-" + host)
	for i, b := range name {
		switch {
		case b >= 'a' && b <= 'z', b >= 'A' && b <= 'Z', b >= '0' && b <= '9', b == '-', b == '_':
		default:
			name[i] = '-'
		}
	}
	return string(name[:min(len(name), 64)])
}

// drain closes a connection after what is on its way was answered.
func drain(nc *nats.Conn) {
	gone := make(chan struct{})
	nc.SetClosedHandler(func(*nats.Conn) { close(gone) })
	if err := nc.Drain(); err != nil { // not connected: there is nothing to wait for
		nc.Close()
		return
	}
	select {
	case <-gone:
	case <-time.After(stopGrace):
		slog.Warn("nats connection did not drain in time", "grace", stopGrace)
		nc.Close()
	}
}
