package bridge

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"warmpath/streams"
)

// Command is `warmpath bridge`.
type Command struct {
	Pool        string `required:"" help:"Pool that the engines belong to."`
	BlockTokens int    `default:"16" help:"Tokens in a block; the same in a whole pool. Engines whose blocks are a multiple of it, or divide it, are re-blocked."`

	Replica   string `help:"Name of the engine, unique in the pool. Each of several data-parallel ranks is a replica <name>.dp<rank>."`
	Engine    string `placeholder:"URL" help:"Base URL at which the bridge reaches the engine's OpenAI API and metrics."`
	Advertise string `placeholder:"URL" help:"Base URL at which gateways reach it; --engine by default."`
	Model     string `help:"Model as the engine serves it; by default the only one it lists."`
	Blocks    uint64 `help:"KV blocks of the engine, of the pool's size; asked from the engine by default."`
	Ranks     int    `help:"Data-parallel ranks, each publishing at port + rank; asked from the engine by default."`

	KV         string           `name:"kv" default:"auto" placeholder:"ENDPOINT" help:"ZMQ endpoint of the engine's KV events, such as tcp://127.0.0.1:5557. auto: what the engine says, which only SGLang does; off: none."`
	KVListen   string           `name:"kv-listen" placeholder:"ENDPOINT" help:"Listen for engines that dial, such as on tcp://127.0.0.1:5557."`
	KVReplay   string           `name:"kv-replay" placeholder:"ENDPOINT" help:"ZMQ endpoint of the engine's replay socket. Without one, every lost message costs the knowledge of the cache."`
	KVPull     bool             `name:"kv-pull" help:"Poll TensorRT-LLM's POST /kv_cache_events."`
	KVFirst    int              `name:"kv-first" default:"-1" help:"Number of an engine's first batch: 0 or 1; -1 finds it out where there is a replay socket."`
	Topic      string           `help:"Prefix of the engine's topics; all by default."`
	LoadSocket string           `name:"load-socket" default:"auto" placeholder:"ENDPOINT" help:"ZMQ endpoint of SGLang's load reports. auto: what the engine says; off: read metrics instead."`
	Repeats    string           `default:"auto" enum:"auto,copies,once" help:"What a store of a block that is there means: one more copy (vLLM), or the same again. auto: by the kind of engine."`
	LoRAIDs    map[int64]string `name:"lora-ids" placeholder:"ID=NAME" help:"Name of an adapter that an old engine only numbers. May be repeated."`
	Config     string           `type:"existingfile" placeholder:"FILE" help:"YAML file of several engines: a list \"engines\", each with the flags above by name. Replaces them."`

	LoadEvery    time.Duration `default:"200ms" help:"How often the load is looked at, 100ms or more; it is published when it changed."`
	DrainTimeout time.Duration `default:"30s" help:"How long engines may finish their requests after a stop, before they leave the fleet."`
	SpoolDir     string        `type:"path" help:"Directory of what waits on disk while NATS is away; the temporary directory by default."`
	SpoolBytes   int64         `default:"1073741824" help:"Most bytes of it per replica; past them a new epoch tells the whole cache."`
	MemoryBlocks int           `default:"4000000" help:"Most engine blocks remembered per replica."`
	Record       string        `type:"path" placeholder:"FILE" help:"Append the raw frames of all engines to a file. It holds token ids: the file is readable by its owner only."`
	RecordBytes  int64         `default:"4294967296" help:"Most bytes of the record."`
	Replay       string        `type:"existingfile" placeholder:"FILE" help:"Read a record instead of the engines, publish what it holds, print a summary and exit."`
	EngineKey    string        `env:"WARMPATH_ENGINE_KEY" help:"API key of the engines, if they want one."`
	Listen       string        `default:"127.0.0.1:7030" help:"Address of /health, /metrics, /v1/state, POST /drain and /resume."`

	Connection streams.Connection `embed:""`
}

// Run bridges the engines until ctx ends.
func (c *Command) Run(ctx context.Context) error {
	engines := []Engine{{
		Replica: c.Replica, URL: c.Engine, Advertise: c.Advertise, Model: c.Model, Blocks: c.Blocks, Ranks: c.Ranks,
		KV: c.KV, KVListen: c.KVListen, KVReplay: c.KVReplay, KVPull: c.KVPull, KVFirst: &c.KVFirst, Topic: c.Topic,
		LoadSocket: c.LoadSocket, Repeats: c.Repeats, LoRAIDs: c.LoRAIDs,
	}}
	if c.Config != "" {
		var err error
		if engines, err = ReadEngines(c.Config); err != nil {
			return err
		}
	}
	nc, js, err := c.Connection.Connect("warmpath-bridge-" + engines[0].Replica)
	if err != nil {
		return err
	}
	defer nc.Close()
	bridge, err := New(Config{
		Pool: c.Pool, BlockTokens: c.BlockTokens, Engines: engines,
		LoadEvery: c.LoadEvery, DrainTimeout: c.DrainTimeout, Listen: c.Listen,
		SpoolDir: c.SpoolDir, SpoolBytes: c.SpoolBytes, MemoryBlocks: c.MemoryBlocks,
		Record: c.Record, RecordBytes: c.RecordBytes, Key: c.EngineKey,
	}, js, prometheus.NewRegistry())
	if err != nil {
		return err
	}
	if c.Replay == "" {
		return bridge.Run(ctx)
	}
	summary, err := bridge.ReplayCapture(ctx, c.Replay)
	if err != nil {
		return fmt.Errorf("--replay: %w", err)
	}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetIndent("", "  ")
	return encoder.Encode(summary)
}
