package bridge

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"warmpath/services/bridge/mirror"
	"warmpath/services/bridge/zmq"
	"warmpath/streams"
)

// EventsAuto takes the event endpoints that the engine names itself.
const EventsAuto = "auto"

// Engine is one engine and how to reach it. Its field names in a --config file
// are those of the flags.
type Engine struct {
	// Replica names the engine in the pool. With several ranks each is a replica of
	// its own, <replica>.dp<rank>.
	Replica string `yaml:"replica"`
	// URL is the base URL at which this bridge reaches the engine, Advertise the one
	// at which gateways do; the same when empty.
	URL       string `yaml:"engine"`
	Advertise string `yaml:"advertise"`
	// Model as the engine serves it; asked from the engine when empty.
	Model string `yaml:"model"`
	// Blocks is the capacity of the engine's KV cache; asked when 0.
	Blocks uint64 `yaml:"blocks"`
	// Ranks is how many data-parallel ranks publish, each at port + rank; asked when 0.
	Ranks int `yaml:"ranks"`

	// KV is the ZMQ endpoint of rank 0's events: EventsAuto (also when empty) takes
	// what the engine says, which only SGLang does; "off" is none.
	KV string `yaml:"kv"`
	// KVListen is bound instead, for engines that dial. Several engines may share
	// one; their topics tell them apart.
	KVListen string `yaml:"kv-listen"`
	// KVReplay is the endpoint of rank 0's replay socket.
	KVReplay string `yaml:"kv-replay"`
	// KVPull polls TensorRT-LLM's POST /kv_cache_events.
	KVPull bool `yaml:"kv-pull"`
	// KVFirst is the number of an engine's first batch, -1 to find it out.
	KVFirst *int `yaml:"kv-first"`
	// Topic is the prefix of the engine's topics.
	Topic string `yaml:"topic"`
	// LoadSocket is the ZMQ endpoint of SGLang's load reports; "auto" as above.
	LoadSocket string `yaml:"load-socket"`
	// Repeats says what a store of a block that is there means: copies, once, or
	// auto by the kind of engine.
	Repeats string `yaml:"repeats"`
	// LoRAIDs names the adapters that old engines only number.
	LoRAIDs map[int64]string `yaml:"lora-ids"`
}

// Config says which engines are bridged, and how the fleet knows them.
type Config struct {
	Pool string
	// BlockTokens is the pool's block size.
	BlockTokens int
	Engines     []Engine
	// LoadEvery is how often the load is looked at; it is published on change.
	LoadEvery time.Duration
	// DrainTimeout bounds how long an engine may finish its requests after a stop;
	// 0 leaves at once.
	DrainTimeout time.Duration
	Listen       string
	// SpoolDir and SpoolBytes are where and how much may wait while NATS is away.
	SpoolDir   string
	SpoolBytes int64
	// MemoryBlocks bounds the engine blocks that are remembered per replica.
	MemoryBlocks int
	// Record appends raw frames to a file, RecordBytes bounds it.
	Record      string
	RecordBytes int64
	// Key is the engines' API key, if they want one.
	Key string
}

// file is a --config file.
type file struct {
	Engines []Engine `yaml:"engines"`
}

// ReadEngines reads a --config file: a YAML list "engines", each with the flags
// of one engine by name. A field that is not known is an error.
func ReadEngines(path string) ([]Engine, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	defer f.Close()
	decoder := yaml.NewDecoder(f)
	decoder.KnownFields(true)
	var out file
	if err := decoder.Decode(&out); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("--config %s: %w", path, err)
	}
	if len(out.Engines) == 0 {
		return nil, fmt.Errorf("--config %s: no engines; give a list under \"engines\"", path)
	}
	return out.Engines, nil
}

// check returns the configuration with its defaults, or an error that names the
// flag that is wrong.
func (c Config) check() (Config, error) {
	if err := streams.ValidName(c.Pool); err != nil {
		return c, fmt.Errorf("--pool: %w", err)
	}
	if c.BlockTokens <= 0 {
		return c, fmt.Errorf("--block-tokens is %d; give the pool's block size, such as 16", c.BlockTokens)
	}
	if c.LoadEvery < 100*time.Millisecond {
		return c, fmt.Errorf("--load-every is %v; give 100ms or more", c.LoadEvery)
	}
	if len(c.Engines) == 0 {
		return c, errors.New("no engine is named; give --replica and --engine, or --config")
	}
	if err := c.checkBounds(); err != nil {
		return c, err
	}
	engines := make([]Engine, len(c.Engines))
	seen := map[string]bool{}
	for i, e := range c.Engines {
		var err error
		if engines[i], err = e.check(); err != nil {
			return c, err
		}
		if seen[e.Replica] {
			return c, fmt.Errorf("--replica %s is given twice; every engine needs its own name", e.Replica)
		}
		seen[e.Replica] = true
	}
	for name := range seen {
		if of, _, ranked := strings.Cut(name, ".dp"); ranked && seen[of] {
			return c, fmt.Errorf("--replica %s is also the name of a rank of %s; give one of them another", name, of)
		}
	}
	c.Engines = engines
	return c, nil
}

// checkBounds checks what is bounded.
func (c Config) checkBounds() error {
	for flag, bytes := range map[string]int64{"--spool-bytes": c.SpoolBytes, "--record-bytes": c.RecordBytes} {
		if bytes < 0 {
			return fmt.Errorf("%s is %d; give a number of bytes, or 0 for the default", flag, bytes)
		}
	}
	if c.MemoryBlocks < 0 || c.MemoryBlocks > maxMemoryBlocks {
		return fmt.Errorf("--memory-blocks is %d; give at most %d, or 0 for %d", c.MemoryBlocks, maxMemoryBlocks, mirror.DefaultMaxBlocks)
	}
	if c.DrainTimeout < 0 {
		return fmt.Errorf("--drain-timeout is %v; give a time, or 0 to leave at once", c.DrainTimeout)
	}
	if c.SpoolDir == "" {
		return nil
	}
	// It is needed when NATS is away, which is too late to learn that it is missing.
	if info, err := os.Stat(c.SpoolDir); err != nil {
		return fmt.Errorf("--spool-dir: %w; create it", err)
	} else if !info.IsDir() {
		return fmt.Errorf("--spool-dir %s is no directory", c.SpoolDir)
	}
	return nil
}

// maxMemoryBlocks is the most that a mirror can number.
const maxMemoryBlocks = 1 << 30

func (e Engine) check() (Engine, error) {
	if err := streams.ValidReplica(e.Replica); err != nil {
		return e, fmt.Errorf("--replica: %w", err)
	}
	var err error
	if e.URL, err = baseURL("--engine", e.URL); err != nil {
		return e, err
	}
	if e.Advertise == "" {
		e.Advertise = e.URL
	}
	if e.Advertise, err = baseURL("--advertise", e.Advertise); err != nil {
		return e, err
	}
	if e.Ranks < 0 {
		return e, fmt.Errorf("--ranks is %d; give how many data-parallel ranks the engine has, or leave it out", e.Ranks)
	}
	if e.KV == "" {
		e.KV = EventsAuto
	}
	sources := 0
	for _, given := range []bool{e.KV != EventsAuto && e.KV != eventsOff, e.KVListen != "", e.KVPull} {
		if given {
			sources++
		}
	}
	if sources > 1 {
		return e, fmt.Errorf("replica %s: --kv, --kv-listen and --kv-pull exclude each other; give the one by which the engine publishes", e.Replica)
	}
	if err := e.checkEndpoints(); err != nil {
		return e, err
	}
	if first := e.first(); first > 1 {
		return e, fmt.Errorf("--kv-first is %d; give 0 or 1, or -1 to find it out", first)
	}
	switch e.Repeats {
	case "", "auto", "copies", "once":
	default:
		return e, fmt.Errorf("--repeats is %q; give auto, copies or once", e.Repeats)
	}
	return e, nil
}

// checkEndpoints checks the endpoints of the last rank that is configured, and so
// of all.
func (e Engine) checkEndpoints() error {
	for _, given := range []struct {
		flag, endpoint string
		listens        bool
	}{{"--kv", e.KV, false}, {"--kv-listen", e.KVListen, true}, {"--kv-replay", e.KVReplay, false}, {"--load-socket", e.LoadSocket, false}} {
		if given.endpoint == "" || given.endpoint == EventsAuto || given.endpoint == eventsOff {
			continue
		}
		_, err := zmq.AtRank(given.endpoint, max(e.Ranks, 1)-1)
		if err == nil && !given.listens {
			err = zmq.Dialable(given.endpoint)
		}
		if err != nil {
			return fmt.Errorf("replica %s: %s: %w", e.Replica, given.flag, err)
		}
	}
	for rank := range e.Ranks {
		// Engines add the rank to both ports.
		if at, err := zmq.AtRank(e.KV, rank); err == nil && rank > 0 && at == e.KVReplay {
			return fmt.Errorf("replica %s: --kv-replay %s is also where rank %d publishes; put the engine's replay endpoint %d ports or more above its events", e.Replica, e.KVReplay, rank, e.Ranks)
		}
	}
	return nil
}

// eventsOff is the value of --kv and --load-socket for what is not read.
const eventsOff = "off"

func (e Engine) first() int {
	if e.KVFirst == nil {
		return -1
	}
	return *e.KVFirst
}

// repeats is what a repeated store means: vLLM tells every physical copy, the
// radix trees of the others hold a block once.
func (e Engine) repeats(kind string) mirror.Repeats {
	if e.Repeats == "once" || e.Repeats != "copies" && (kind == "sglang" || kind == "trtllm") {
		return mirror.Once
	}
	return mirror.Copies
}

// baseURL checks a URL that a flag names, and drops its trailing slash.
func baseURL(flag, value string) (string, error) {
	value = strings.TrimRight(value, "/")
	if u, err := url.Parse(value); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return "", fmt.Errorf("%s is %q; give the engine's base URL, such as http://127.0.0.1:8000", flag, value)
	}
	return value, nil
}
