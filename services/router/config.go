package router

import (
	"time"

	"github.com/nats-io/nats.go"

	"warmpath/routing/policy"
	"warmpath/services/tokensource"
)

// Config is what one router is. Only Pool must be given: New puts the default
// that a field's comment names in place of a zero value.
type Config struct {
	// Pool is the pool whose requests are routed.
	Pool string
	// Name is this instance, as decisions record it. Default: "router".
	Name string
	// Policy decides; Params override its defaults. Default: "ttft".
	Policy string
	Params map[string]float64
	// Seed is mixed into each decision's own seed. Routers of a pool may differ.
	Seed uint64
	// Requests is the connection that requests come by, so that they do not wait
	// behind what is read of the streams. Default: the router's connection.
	Requests *nats.Conn
	// Listen is the HTTP address. Default: 127.0.0.1:0, a free port.
	Listen string
	// NoService makes a router that decides in its own process only: it has no HTTP
	// side and does not join the pool's queue group. See package follow.
	NoService bool
	// Tokenizer turns prompts given as text into tokens, the same as in the pool's
	// engines: TokenizerBytes, TokenizerEngine, or the folder of a model with
	// tokenizer.json and chat template. Default: TokenizerClient, which is none.
	Tokenizer string
	// Rendering is how the pool's engines make prompts of chats, for the folder of a
	// model.
	tokensource.Rendering
	// EngineKey is shown to engines that are asked for tokens; empty for none.
	EngineKey string
	// Tokens is used in place of Tokenizer when it is set.
	Tokens TokenSource
	// Ledger says how long what decisions added to the load is believed. Its zero
	// values are package policy's defaults; DispatchGrace 0 means none.
	Ledger policy.LedgerConfig
	// PredictionTTL is how long a block that a decision is about to create counts
	// as present when nothing confirms or ends it. Default: 2 minutes, longer than
	// the prefill of any prompt takes behind a queue.
	PredictionTTL time.Duration
	// RouteTail is how many of the newest ROUTE messages a starting router reads to
	// learn what is in flight. Default: 20,000, several minutes of a busy pool.
	RouteTail uint64
	// DeadAfter is how old a heartbeat may become before the replica takes nothing
	// new. Default: 15 s, a few heartbeats.
	DeadAfter time.Duration
	// ForgetAfter is how long a replica must be gone before its blocks leave the
	// index. Default: 10 minutes, longer than a rolling restart of one engine.
	ForgetAfter time.Duration
	// IndexBytes is the hard limit of the index's memory. 0: no limit. Over it the
	// deepest blocks go, and recorded matches can only be derived again by an audit
	// with the same limit.
	IndexBytes int64
	// NoSnapshots makes a router that reads snapshots and writes none.
	NoSnapshots bool
	// SnapshotEvery and SnapshotEvents are the time and the KV messages after which
	// the pool's newest snapshot is too old. Default: 5 minutes and 100,000, whose
	// replay takes a starting router a second or two.
	SnapshotEvery  time.Duration
	SnapshotEvents uint64
	// SnapshotKeep is how many are kept. Default: 3, so that two may be damaged.
	SnapshotKeep int
	// SnapshotCheck is how often it is looked whether one is due. Default: 10 s.
	SnapshotCheck time.Duration
	// SnapshotLease is how long a writer that died keeps others from writing.
	// Default: 30 s; a writer at work renews it.
	SnapshotLease time.Duration
	// StartTimeout bounds how long the first look at the streams is retried.
	// Default: 60 s, which outlasts a NATS leader election and a slow start beside it.
	StartTimeout time.Duration
}

func (c Config) withDefaults() Config {
	set := func(d *time.Duration, value time.Duration) {
		if *d <= 0 {
			*d = value
		}
	}
	if c.Name == "" {
		c.Name = "router"
	}
	if c.Policy == "" {
		c.Policy = "ttft"
	}
	if c.Listen == "" {
		c.Listen = "127.0.0.1:0"
	}
	if c.RouteTail == 0 {
		c.RouteTail = 20_000
	}
	set(&c.PredictionTTL, 2*time.Minute)
	set(&c.DeadAfter, 15*time.Second)
	set(&c.ForgetAfter, 10*time.Minute)
	set(&c.StartTimeout, time.Minute)
	set(&c.SnapshotEvery, 5*time.Minute)
	set(&c.SnapshotCheck, 10*time.Second)
	set(&c.SnapshotLease, 30*time.Second)
	if c.SnapshotEvents == 0 {
		c.SnapshotEvents = 100_000
	}
	if c.SnapshotKeep <= 0 {
		c.SnapshotKeep = 3
	}
	return c
}
