package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel"

	"warmpath/services/gateway/apikey"
	"warmpath/services/tokensource"
	"warmpath/streams"
)

// Command is the gateway command of the command line. Without a subcommand it
// serves.
type Command struct {
	Serve ServeCommand `cmd:"" default:"withargs" help:"Serve the OpenAI API (what gateway alone does)."`
	Keys  KeysCommand  `cmd:"" help:"Make API keys."`
}

// Help is what the command line's help says below its first line.
func (Command) Help() string {
	return "Without a subcommand it serves: \"gateway --pool chat\" is \"gateway serve --pool chat\", and \"gateway serve --help\" lists the flags."
}

// ServeCommand serves a pool.
type ServeCommand struct {
	streams.Connection

	Pool         string        `required:"" env:"WARMPATH_POOL" help:"Pool of replicas that serves the requests."`
	Name         string        `env:"WARMPATH_NAME" help:"Name of this gateway in events and subjects, unique in the pool. Default: gateway-<host>-<process id>."`
	Listen       string        `help:"Address of the OpenAI API, /v1/mismatches, /health and /metrics." default:"127.0.0.1:7000"`
	RouterBudget time.Duration `help:"How long a request waits for the router before the gateway decides by itself, in HRW order by prefix." default:"50ms"`
	Tokenizer    string        `help:"How prompts become tokens, the same as in the engines: the folder of the model (tokenizer.json and chat template), engine (ask the engines' /tokenize), bytes (simulated engines), client (the prompt is an array of token ids)." default:"bytes" placeholder:"DIR|engine|bytes|client"`
	tokensource.Rendering
	WithoutEvents bool          `help:"The pool's engines publish no KV events, and that is meant so: no alarm about it."`
	Clock         string        `help:"What times outcomes: wall (measured here), model (the warmpath_timing of simulated engines)." enum:"wall,model" default:"wall"`
	LoRA          []string      `name:"lora" help:"LoRA adapter that requests may name as their model, beside those that the fleet lists; repeat for several."`
	MaxBody       int64         `help:"Largest request body in bytes." default:"67108864"`
	MaxBodies     int64         `help:"Most bytes of request bodies held at once; above it, requests get 503." default:"1073741824"`
	MaxConcurrent int           `help:"Most requests in flight; more wait in the queue." default:"4096"`
	Queue         int           `help:"Most requests that wait for a place; above it, requests get 503. 0 for none." default:"1024"`
	QueueTimeout  time.Duration `help:"Longest time in the queue; then a request gets 503." default:"10s"`
	MaxAttempts   int           `help:"Most replicas that one request tries before its first byte." default:"3"`
	DialTimeout   time.Duration `help:"Longest time to connect to a replica." default:"2s"`
	ModelTimeout  time.Duration `help:"Longest wait for the first byte of an answer; without streaming that is the whole generation." default:"10m"`
	IdleTimeout   time.Duration `help:"Longest silence inside an answer." default:"2m"`
	DrainTimeout  time.Duration `help:"Longest time that requests in flight may take after a stop." default:"5m"`

	FailuresToSkip int           `help:"Failures in a row after which a replica is skipped for a while." default:"3"`
	SkipFor        time.Duration `help:"How long at first; each further failure doubles it, up to a minute." default:"1s"`

	KeyFile              string `name:"keys" type:"path" env:"WARMPATH_KEYS" help:"File of API keys with their limits, read again when it changes; see gateway keys new. Without it everyone may use the gateway." placeholder:"FILE"`
	TLSCert              string `name:"tls-cert" type:"path" help:"PEM file of the server's certificate, read again when it changes; with --tls-key the API is HTTPS." placeholder:"FILE"`
	TLSKey               string `name:"tls-key" type:"path" help:"PEM file of the certificate's key." placeholder:"FILE"`
	EngineKey            string `env:"WARMPATH_ENGINE_KEY" help:"API key that engines are shown; best given by the environment." placeholder:"KEY"`
	ForwardAuthorization bool   `help:"Show engines the client's own Authorization and X-Api-Key headers."`
	OTLPEndpoint         string `name:"otlp-endpoint" help:"OpenTelemetry collector that spans go to, OTLP over HTTP, as in http://localhost:4318. Default: OTEL_EXPORTER_OTLP_ENDPOINT, whose other variables count, too; without either no spans are made." placeholder:"URL"`
}

// gcPercent lets the heap grow to several times what is live before it is
// collected: what a request leaves is short-lived, and on few cores a collection is
// what the slowest requests wait for.
const gcPercent = 400

// Run serves until ctx ends, then lets requests in flight finish.
func (c *ServeCommand) Run(ctx context.Context) error {
	if os.Getenv("GOGC") == "" {
		defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	}
	name := c.Name
	if name == "" {
		name = defaultName()
	}
	nc, js, err := c.Connect("warmpath gateway " + name)
	if err != nil {
		return err
	}
	defer nc.Close()
	requests, _, err := c.Connect("warmpath gateway "+name+" requests", streams.Unbuffered())
	if err != nil {
		return err
	}
	defer requests.Close()
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if tracingConfigured(c.OTLPEndpoint) {
		otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { slog.Warn("spans were not exported", "error", err) }))
	}
	cfg := c.config(name)
	cfg.Requests = requests
	gateway, err := New(cfg, nc, js, reg)
	if err != nil {
		return err
	}
	return gateway.Run(ctx)
}

func (c *ServeCommand) config(name string) Config {
	queue := c.Queue
	if queue == 0 {
		queue = -1 // the flag's default is not zero
	}
	return Config{
		Pool: c.Pool, Name: name, Listen: c.Listen, RouterBudget: c.RouterBudget, Tokenizer: c.Tokenizer, Clock: c.Clock,
		Rendering: c.Rendering, WithoutEvents: c.WithoutEvents,
		LoRAs: c.LoRA, MaxBody: c.MaxBody, MaxBodies: c.MaxBodies, MaxConcurrent: c.MaxConcurrent, MaxAttempts: c.MaxAttempts,
		Queue: queue, QueueTimeout: c.QueueTimeout, FailuresToSkip: c.FailuresToSkip, SkipFor: c.SkipFor,
		DialTimeout: c.DialTimeout, ModelTimeout: c.ModelTimeout, IdleTimeout: c.IdleTimeout, DrainTimeout: c.DrainTimeout,
		TLSCert: c.TLSCert, TLSKey: c.TLSKey, Keys: c.KeyFile, EngineKey: c.EngineKey, ForwardAuthorization: c.ForwardAuthorization, OTLPEndpoint: c.OTLPEndpoint,
	}
}

// KeysCommand is about API keys.
type KeysCommand struct {
	New NewKeyCommand `cmd:"" help:"Make an API key: print it, which is the only time that it can be seen, and its entry for the key file."`
}

// NewKeyCommand makes an API key.
type NewKeyCommand struct {
	Name string `arg:"" help:"Whose key it is: letters, digits, dash and underscore."`
	File string `type:"path" help:"Key file to add the entry to; made when it is not there." placeholder:"FILE"`
	JSON bool   `name:"json" help:"Print one JSON object."`
}

// Run prints the key to standard output.
func (c *NewKeyCommand) Run() error { return c.write(os.Stdout) }

func (c *NewKeyCommand) write(w io.Writer) error {
	secret, entry, err := apikey.New(c.Name)
	if err != nil {
		return err
	}
	if c.File != "" {
		if err := apikey.Append(c.File, entry); err != nil {
			return err
		}
	}
	if c.JSON {
		return json.NewEncoder(w).Encode(map[string]string{"name": entry.Name, "key": secret, "hash": entry.Hash, "line": entry.Line()})
	}
	_, err = fmt.Fprintf(w, "%s\n%s\n", secret, entry.Line())
	return err
}
