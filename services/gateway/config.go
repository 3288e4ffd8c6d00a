package gateway

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"warmpath/services/tokensource"
	"warmpath/streams"
)

// Tokenizers that a gateway can be told to use beside the folder of a model: the
// pool's engines decide which is right, because keys of other tokens never match.
const (
	// TokenizerBytes is one token a byte, as the simulated engines do.
	TokenizerBytes = string(tokensource.Bytes)
	// TokenizerClient takes token ids from the request's prompt; requests
	// without ids are routed by load alone.
	TokenizerClient = string(tokensource.Client)
	// TokenizerEngine asks the engines' /tokenize.
	TokenizerEngine = string(tokensource.Engine)
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
	// Requests is the connection by which routers are asked, so that they are not
	// asked behind what is read of the streams. Default: the gateway's connection.
	Requests *nats.Conn
	// Name is this gateway's name in events and subjects, unique in the pool.
	// Default: gateway-<host>-<process id>.
	Name string
	// Listen is the address of the HTTP API. Default 127.0.0.1:7000.
	Listen string
	// RouterBudget is how long a request waits for the router before the gateway
	// decides by itself. Default 50ms: a router answers in under 1 ms, and 50 ms
	// is below what a lost prefix costs.
	RouterBudget time.Duration
	// Tokenizer is the folder of the model, which is what real engines want, or
	// TokenizerBytes (default), TokenizerEngine or TokenizerClient. Not used when
	// Tokens is set.
	Tokenizer string
	// Rendering is how the pool's engines make prompts of chats, for the folder of a
	// model.
	tokensource.Rendering
	// WithoutEvents says that replicas without KV events are meant to be so.
	WithoutEvents bool
	// Tokens turns prompts into tokens, if Tokenizer is not to do it.
	Tokens TokenSource
	// Clock is ClockWall (default) or ClockModel.
	Clock string
	// LoRAs are adapter names that requests may give as their model, beside those
	// that FLEET lists.
	LoRAs []string
	// Keys is a file of API keys (package apikey), read again when it changes.
	// Empty: everyone may use the gateway.
	Keys string
	// TLSCert and TLSKey are PEM files with the server's certificate and its key,
	// read again when they change. Empty: HTTP without TLS.
	TLSCert, TLSKey string
	// EngineKey is what engines are shown as their API key; empty for none.
	EngineKey string
	// ForwardAuthorization shows engines the client's key. Not with EngineKey.
	ForwardAuthorization bool
	// OTLPEndpoint is the base URL of an OpenTelemetry collector (OTLP over HTTP).
	// Empty: what OTEL_EXPORTER_OTLP_ENDPOINT names, or no spans.
	OTLPEndpoint string
	// MaxBody bounds a request body in bytes. Default 64 MiB: 900,000 ids take 7.
	MaxBody int64
	// MaxBodies bounds the bytes of all bodies held at once. Default 1 GiB.
	MaxBodies int64
	// MaxConcurrent bounds the requests in flight. Default 4096.
	MaxConcurrent int
	// Queue bounds the requests that wait for a place among those. Default 1024, a
	// quarter of them; negative for none.
	Queue int
	// QueueTimeout bounds how long they wait. Default 10s: a client has waited for
	// a slow first token as long, and beyond that another gateway may do better.
	QueueTimeout time.Duration
	// FailuresToSkip is after how many failures in a row a replica is skipped.
	// Default 3: one is an accident, and each costs a request a retry.
	FailuresToSkip int
	// SkipFor is for how long at first; each further failure doubles it, up to a
	// minute. Default 1s.
	SkipFor time.Duration
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
	setDefault(&c.Queue, 1024)
	setDefault(&c.QueueTimeout, 10*time.Second)
	setDefault(&c.FailuresToSkip, 3)
	setDefault(&c.SkipFor, time.Second)
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
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return c, errors.New("a certificate needs its key; give both --tls-cert and --tls-key, or neither")
	}
	if c.EngineKey != "" && c.ForwardAuthorization {
		return c, errors.New("engines cannot be shown two keys; leave WARMPATH_ENGINE_KEY or --forward-authorization out")
	}
	if c.Clock != ClockWall && c.Clock != ClockModel {
		return c, fmt.Errorf("clock %q is not known; --clock takes wall or model", c.Clock)
	}
	for _, limit := range []struct {
		name  string
		value int64
	}{
		{"router-budget", int64(c.RouterBudget)}, {"max-body", c.MaxBody}, {"max-bodies", c.MaxBodies},
		{"max-concurrent", int64(c.MaxConcurrent)}, {"queue-timeout", int64(c.QueueTimeout)},
		{"failures-to-skip", int64(c.FailuresToSkip)}, {"skip-for", int64(c.SkipFor)}, {"max-attempts", int64(c.MaxAttempts)},
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
