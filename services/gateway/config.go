package gateway

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"warmpath/streams"
)

// Tokenizers that a gateway can be told to use: the pool's engines decide which
// is right, because keys of other tokens never match.
const (
	// TokenizerBytes is one token a byte, as the simulated engines do.
	TokenizerBytes = "bytes"
	// TokenizerClient takes token ids from the request's prompt; requests
	// without ids are routed by load alone.
	TokenizerClient = "client"
)

// Clocks that outcomes can be timed by.
const (
	// ClockWall measures at the gateway.
	ClockWall = "wall"
	// ClockModel trusts the warmpath_timing of simulated engines.
	ClockModel = "model"
)

// Config says what a gateway serves and how patient it is. Zero values take the
// defaults that the fields name.
type Config struct {
	// Pool is the pool that requests go to. Required.
	Pool string
	// Name is this gateway's name in events and subjects, unique in the pool.
	// Default: gateway-<host>-<process id>.
	Name string
	// Listen is the address of the HTTP API. Default 127.0.0.1:7000.
	Listen string
	// RouterBudget is how long a request waits for the router before the gateway
	// decides by itself. Default 50ms: a router answers in under 1 ms, and 50 ms
	// is below what a lost prefix costs.
	RouterBudget time.Duration
	// Tokenizer is TokenizerBytes (default) or TokenizerClient.
	Tokenizer string
	// Clock is ClockWall (default) or ClockModel.
	Clock string
	// LoRAs are adapter names that requests may give as their model.
	LoRAs []string
	// MaxBody bounds a request body in bytes. Default 64 MiB: 900,000 ids take 7.
	MaxBody int64
	// MaxBodies bounds the bytes of all bodies held at once. Default 1 GiB.
	MaxBodies int64
	// MaxConcurrent bounds the requests in flight. Default 4096.
	MaxConcurrent int
	// MaxAttempts bounds the replicas that one request tries. Default 3.
	MaxAttempts int
	// DialTimeout bounds connecting to a replica. Default 2s.
	DialTimeout time.Duration
	// ModelTimeout bounds the wait for the first byte of an answer; without
	// streaming that is all of the generation. Default 10m.
	ModelTimeout time.Duration
	// IdleTimeout bounds the silence between parts of an answer. Default 2m.
	IdleTimeout time.Duration
	// DrainTimeout bounds how long requests may finish after a stop. Default 5m.
	DrainTimeout time.Duration
}

func (c Config) withDefaults() (Config, error) {
	if c.Name == "" {
		c.Name = defaultName()
	}
	setDefault(&c.Listen, "127.0.0.1:7000")
	setDefault(&c.RouterBudget, 50*time.Millisecond)
	setDefault(&c.Tokenizer, TokenizerBytes)
	setDefault(&c.Clock, ClockWall)
	setDefault(&c.MaxBody, 64<<20)
	setDefault(&c.MaxBodies, 1<<30)
	setDefault(&c.MaxConcurrent, 4096)
	setDefault(&c.MaxAttempts, 3)
	setDefault(&c.DialTimeout, 2*time.Second)
	setDefault(&c.ModelTimeout, 10*time.Minute)
	setDefault(&c.IdleTimeout, 2*time.Minute)
	setDefault(&c.DrainTimeout, 5*time.Minute)
	if err := streams.ValidName(c.Pool); err != nil {
		return c, fmt.Errorf("pool: %w; choose another --pool", err)
	}
	if err := streams.ValidName(c.Name); err != nil {
		return c, fmt.Errorf("name: %w; choose another --name", err)
	}
	if c.Tokenizer != TokenizerBytes && c.Tokenizer != TokenizerClient {
		return c, fmt.Errorf("tokenizer %q is not known; --tokenizer takes bytes or client", c.Tokenizer)
	}
	if c.Clock != ClockWall && c.Clock != ClockModel {
		return c, fmt.Errorf("clock %q is not known; --clock takes wall or model", c.Clock)
	}
	for _, limit := range []struct {
		name  string
		value int64
	}{
		{"router-budget", int64(c.RouterBudget)}, {"max-body", c.MaxBody}, {"max-bodies", c.MaxBodies},
		{"max-concurrent", int64(c.MaxConcurrent)}, {"max-attempts", int64(c.MaxAttempts)},
		{"dial-timeout", int64(c.DialTimeout)}, {"model-timeout", int64(c.ModelTimeout)},
		{"idle-timeout", int64(c.IdleTimeout)}, {"drain-timeout", int64(c.DrainTimeout)},
	} {
		if limit.value < 0 {
			return c, fmt.Errorf("%s is negative; give --%s a positive value", limit.name, limit.name)
		}
	}
	return c, nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// defaultName makes a name that differs between the gateways of a pool.
func defaultName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "host"
	}
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, host)
	return fmt.Sprintf("gateway-%.60s-%d", clean, os.Getpid())
}

// Command is the gateway command of the command line.
type Command struct {
	streams.Connection

	Pool          string        `required:"" env:"WARMPATH_POOL" help:"Pool of replicas that serves the requests."`
	Name          string        `env:"WARMPATH_NAME" help:"Name of this gateway in events and subjects, unique in the pool. Default: gateway-<host>-<process id>."`
	Listen        string        `help:"Address of the OpenAI API, /health and /metrics." default:"127.0.0.1:7000"`
	RouterBudget  time.Duration `help:"How long a request waits for the router before the gateway decides by itself, in HRW order by prefix." default:"50ms"`
	Tokenizer     string        `help:"How prompts become tokens, the same as in the engines: bytes (simulated engines), client (the prompt is an array of token ids)." enum:"bytes,client" default:"bytes"`
	Clock         string        `help:"What times outcomes: wall (measured here), model (the warmpath_timing of simulated engines)." enum:"wall,model" default:"wall"`
	LoRA          []string      `name:"lora" help:"LoRA adapter that requests may name as their model; repeat for several."`
	MaxBody       int64         `help:"Largest request body in bytes." default:"67108864"`
	MaxBodies     int64         `help:"Most bytes of request bodies held at once; above it, requests get 503." default:"1073741824"`
	MaxConcurrent int           `help:"Most requests in flight; above it, requests get 503." default:"4096"`
	MaxAttempts   int           `help:"Most replicas that one request tries before its first byte." default:"3"`
	DialTimeout   time.Duration `help:"Longest time to connect to a replica." default:"2s"`
	ModelTimeout  time.Duration `help:"Longest wait for the first byte of an answer; without streaming that is the whole generation." default:"10m"`
	IdleTimeout   time.Duration `help:"Longest silence inside an answer." default:"2m"`
	DrainTimeout  time.Duration `help:"Longest time that requests in flight may take after a stop." default:"5m"`
}

// Run serves until ctx ends, then lets requests in flight finish.
func (c *Command) Run(ctx context.Context) error {
	name := c.Name
	if name == "" {
		name = defaultName()
	}
	nc, js, err := c.Connect("warmpath gateway " + name)
	if err != nil {
		return err
	}
	defer nc.Close()
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	gateway, err := New(Config{
		Pool: c.Pool, Name: name, Listen: c.Listen, RouterBudget: c.RouterBudget, Tokenizer: c.Tokenizer, Clock: c.Clock,
		LoRAs: c.LoRA, MaxBody: c.MaxBody, MaxBodies: c.MaxBodies, MaxConcurrent: c.MaxConcurrent, MaxAttempts: c.MaxAttempts,
		DialTimeout: c.DialTimeout, ModelTimeout: c.ModelTimeout, IdleTimeout: c.IdleTimeout, DrainTimeout: c.DrainTimeout,
	}, nc, js, reg)
	if err != nil {
		return err
	}
	return gateway.Run(ctx)
}
