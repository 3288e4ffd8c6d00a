// Package wireengine is an engine as seen from its sockets: it holds a cache of
// blocks, and publishes what happens to it as vLLM, SGLang and TensorRT-LLM do,
// byte for byte, in every generation. It computes nothing.
//
// It does on command what engines do to those who listen: it loses batches, has
// them or not when asked for them again, sends twice, restarts. And it knows the
// truth, so that whoever listened can be compared with it block for block. All is
// decided by a seed.
package wireengine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"warmpath/services/bridge/kvevents"
	"warmpath/services/bridge/zmq"
)

// defaultBuffer is the engines' own (vLLM's buffer_steps).
const defaultBuffer = 10_000

// Config says what engine it is. The zero value is a vLLM 0.9.0 on a port of the
// system's choice, without a replay socket.
type Config struct {
	Cache CacheConfig
	// Encoder's Generation is taken from Cache.
	Encoder kvevents.Encoder
	// Topic is the first part of every message.
	Topic string
	// Endpoint is bound, or with Dial dialed, for bridges that listen; empty means
	// tcp://127.0.0.1:0. ReplayEndpoint is bound; empty means that there is none.
	Endpoint, ReplayEndpoint string
	Dial                     bool
	// Rank is stamped on batches where the generation has a place for it.
	Rank int
	// FirstSeq is the first batch's number: 0 for vLLM and SGLang, 1 for simulators.
	FirstSeq uint64
	// Buffer is how many batches the replay socket has; 0 means 10,000.
	Buffer int
}

// Fault is what becomes of a batch on its way.
type Fault uint8

// The faults.
const (
	// Delivered: sent, and kept for replay.
	Delivered Fault = iota
	// Dropped: numbered and kept for replay, but not sent.
	Dropped
	// Lost: numbered, but neither sent nor kept.
	Lost
	// Twice: sent two times.
	Twice
)

// Engine is a running engine: one rank. It is safe for concurrent use.
type Engine struct {
	cfg    Config
	pub    *zmq.Publisher
	router *zmq.Router // nil when there is no replay

	mu    sync.Mutex
	cache *Cache
	seq   uint64
	ring  []kept // the last Buffer batches, not of consecutive numbers after a loss
	lives int
	// What replays do, see Mute and DropReplies.
	mute  bool
	every int
	pull  pull
}

// kept is a batch for replay.
type kept struct {
	seq     uint64
	payload []byte
}

// Start binds the sockets. Close ends it.
func Start(cfg Config) (*Engine, error) {
	if cfg.Endpoint == "" {
		cfg.Endpoint = "tcp://127.0.0.1:0"
	}
	if cfg.Buffer <= 0 {
		cfg.Buffer = defaultBuffer
	}
	cfg.Encoder.Generation = cfg.Cache.Generation
	e := &Engine{cfg: cfg, cache: NewCache(cfg.Cache), seq: cfg.FirstSeq, lives: 1}
	e.cfg.Cache = e.cache.cfg // with its defaults
	e.pull.begin(e.cfg.Cache)
	var err error
	if e.pub, err = zmq.NewPublisher(zmq.Publishing{Endpoint: cfg.Endpoint, Dial: cfg.Dial}); err != nil {
		return nil, err
	}
	if cfg.ReplayEndpoint != "" {
		if e.router, err = zmq.NewRouter(cfg.ReplayEndpoint, e.answer); err != nil {
			e.pub.Close()
			return nil, err
		}
	}
	return e, nil
}

// StartRanks starts n data-parallel ranks of one engine: rank i is at the
// endpoints' port + i, and has the seed + i. Where a port is 0 it looks for free
// ones that follow each other.
func StartRanks(cfg Config, n int) ([]*Engine, error) {
	const tries = 50
	var err error
	for range tries {
		var ranks []*Engine
		if ranks, err = startRanks(cfg, n); err == nil {
			return ranks, nil
		}
	}
	return nil, err
}

func startRanks(cfg Config, n int) (ranks []*Engine, err error) {
	base := cfg
	for i := range n {
		c := base
		c.Rank, c.Cache.Seed = cfg.Rank+i, cfg.Cache.Seed+uint64(i)
		if i > 0 {
			var replayErr error
			c.Endpoint, err = zmq.AtRank(base.Endpoint, i)
			if base.ReplayEndpoint != "" {
				c.ReplayEndpoint, replayErr = zmq.AtRank(base.ReplayEndpoint, i)
			}
			err = errors.Join(err, replayErr)
		}
		var e *Engine
		if err == nil {
			e, err = Start(c)
		}
		if err != nil {
			for _, started := range ranks {
				started.Close()
			}
			return nil, fmt.Errorf("rank %d: %w", i, err)
		}
		ranks = append(ranks, e)
		base.Endpoint, base.ReplayEndpoint = ranks[0].Endpoint(), ranks[0].ReplayEndpoint()
	}
	return ranks, nil
}

// Close ends it.
func (e *Engine) Close() {
	e.pub.Close()
	if e.router != nil {
		e.router.Close()
	}
}

// Endpoint is where it publishes.
func (e *Engine) Endpoint() string { return e.pub.Endpoint() }

// ReplayEndpoint is where it is asked for batches again; empty when it is not.
func (e *Engine) ReplayEndpoint() string {
	if e.router == nil {
		return ""
	}
	return e.router.Endpoint()
}

// AwaitSubscribers waits until n subscribers get what is published.
func (e *Engine) AwaitSubscribers(ctx context.Context, n int) error {
	return e.pub.AwaitSubscribers(ctx, n)
}

// Drain waits until what was published is written to the subscribers' sockets.
func (e *Engine) Drain() { e.pub.Drain() }

// Next is the number of the next batch, and lives how often the engine began.
func (e *Engine) Next() (seq uint64, lives int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.seq, e.lives
}

// Change changes the cache and publishes what change returns as one batch, unless
// that is nothing. It returns the batch's number.
func (e *Engine) Change(change func(*Cache) []kvevents.Event, fault Fault) (seq uint64, published bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	events := change(e.cache)
	if len(events) == 0 {
		return 0, false
	}
	return e.publish(events, fault), true
}

// Publish publishes events that say nothing of the cache: an empty batch, or what
// no engine should send.
func (e *Engine) Publish(events []kvevents.Event, fault Fault) (seq uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.publish(events, fault)
}

// PublishRaw publishes a payload as it is.
func (e *Engine) PublishRaw(payload []byte, fault Fault) (seq uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.send(payload, fault)
}

func (e *Engine) publish(events []kvevents.Event, fault Fault) uint64 {
	if e.pull.on {
		if fault == Lost {
			e.pull.skip(len(events))
		} else {
			e.pull.add(events)
		}
		e.seq++
		return e.seq - 1
	}
	batch := kvevents.Batch{TimeUS: time.Now().UnixMicro(), Rank: e.cfg.Rank, Events: events}
	return e.send(e.cfg.Encoder.AppendBatch(nil, batch), fault)
}

func (e *Engine) send(payload []byte, fault Fault) uint64 {
	seq := e.seq
	e.seq++
	if fault != Lost {
		e.ring = append(e.ring, kept{seq, payload})
		if len(e.ring) >= 2*e.cfg.Buffer {
			e.ring = append([]kept(nil), e.ring[len(e.ring)-e.cfg.Buffer:]...)
		}
	}
	parts := [][]byte{[]byte(e.cfg.Topic), seqPart(seq), payload}
	switch fault {
	case Twice:
		e.pub.Send(parts...)
		fallthrough
	case Delivered:
		e.pub.Send(parts...)
	}
	return seq
}

// Truth is Cache.Truth of what it holds now.
func (e *Engine) Truth(model string, blockTokens int) (map[Held]bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cache.Truth(model, blockTokens)
}

// Restart is the process's end and beginning: connections break, the cache and the
// batches for replay are gone, and the numbers begin again. It keeps the ports, so
// that no other process takes them.
func (e *Engine) Restart() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cache.Reset()
	e.seq, e.ring = e.cfg.FirstSeq, nil
	e.lives++
	e.pull.begin(e.cfg.Cache)
	e.pub.HangUp(false)
	if e.router != nil {
		e.router.HangUp(false)
	}
}

// HangUp breaks the connections, as a network does; the engine goes on. While it is
// down, new connections to the ports it has bound break too.
func (e *Engine) HangUp(down bool) {
	e.pub.HangUp(down)
	if e.router != nil {
		e.router.HangUp(down)
	}
}
