package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"warmpath/routing/prefix"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/bridge/kvevents"
	"warmpath/services/bridge/zmq"
	"warmpath/streams"
	"warmpath/streams/natsserver"
)

// Bounds of the way from an engine's bytes to an index.
const (
	// minIngest is the blocks a second through one bridge, with everything on the
	// same machine.
	minIngest = 1e6
	// maxAge is the age in milliseconds at which 99 in 100 batches are in the index,
	// at half that rate.
	maxAge = 20
)

// Shape of the traffic: batches of one chain, each of which, of a full cache,
// removes the chain stored half a working set before.
const (
	ingestBlocks      = 64
	ingestBlockTokens = 16
	ingestSet         = 4096 // batches before they repeat
	ingestReplica     = "engine-0"
)

// Ingest is `warmpath bench ingest`.
type Ingest struct {
	JSON   bool          `name:"json" help:"Print a JSON object per line: the machine, then each figure."`
	Quick  bool          `help:"A moment at a low rate: shows that everything runs, judges nothing."`
	Length time.Duration `name:"seconds" default:"10s" help:"How long each rate is measured."`
	Rounds int           `default:"3" help:"Times that floor and bridge are measured in turns; medians are printed."`
}

// Run measures and prints. It returns an error when a figure misses its bound.
func (c *Ingest) Run(ctx context.Context) error { return c.run(ctx, os.Stdout) }

func (c *Ingest) run(ctx context.Context, stdout io.Writer) error {
	if c.Rounds < 1 {
		return fmt.Errorf("--rounds is %d; give at least 1", c.Rounds)
	}
	b := &bench{quick: c.Quick, rounds: c.Rounds, out: newOutput(stdout, c.JSON)}
	length := c.Length
	if c.Quick {
		b.rounds, length = 1, min(length, 500*time.Millisecond)
	}
	return b.run(ctx, []part{{"ingest", func(b *bench, ctx context.Context) error {
		return b.ingest(ctx, length)
	}}})
}

// ingest measures the blocks stored a second that one bridge sustains, beside the
// rate at which the server takes and hands out messages of the larger size from a
// publisher alone, and the age of a full cache's batches at half the promised rate.
func (b *bench) ingest(ctx context.Context, length time.Duration) error {
	dir, err := os.MkdirTemp("", "warmpath-bench-")
	if err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // in a temporary directory
	defer collectLate()()
	stores, full := newIngestFrames(false), newIngestFrames(true)
	return serve(dir, func(server *natsserver.Server) error {
		for _, traffic := range []struct {
			name   string
			frames *ingestFrames
			limit  *bound
		}{
			{"64-block batches through one bridge into an index", stores, &bound{of: "value", atLeast: true, limit: minIngest}},
			{"the same of a full cache, which removes as many in each batch", full, nil},
		} {
			var p pair
			for range b.rounds {
				floor, err := b.plainPublish(ctx, server, length)
				if err != nil {
					return err
				}
				rate, _, err := b.through(ctx, server, traffic.frames, 0, length)
				if err != nil {
					return err
				}
				p.add(floor, rate)
			}
			if err := b.report(p.figure(traffic.name, "blocks/s"), traffic.limit); err != nil {
				return err
			}
		}
		half := minIngest / 2.0
		if b.quick {
			half = minIngest / 50
		}
		_, ages, err := b.through(ctx, server, full, half, length)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("age in the index at %s blocks/s", short(half))
		if err := b.report(Figure{Name: name + ", p50", Value: quantile(ages, 0.5), Unit: "ms"}, nil); err != nil {
			return err
		}
		return b.report(Figure{Name: name + ", p99", Value: quantile(ages, 0.99), Unit: "ms"}, valueAtMost(maxAge))
	})
}

// ingestFrames are encoded batches that are sent over and over.
type ingestFrames struct {
	payloads [][]byte
	// blocks is how many each stores.
	blocks int
}

// newIngestFrames encodes the working set in the newest generation of vLLM.
func newIngestFrames(removes bool) *ingestFrames {
	f := &ingestFrames{blocks: ingestBlocks}
	names := func(set int) []uint64 {
		hashes := make([]uint64, ingestBlocks)
		for i := range hashes {
			hashes[i] = uint64(set*ingestBlocks+i+1) * 0x9e3779b97f4a7c15
		}
		return hashes
	}
	for set := range ingestSet {
		tokens := make([]uint32, ingestBlocks*ingestBlockTokens)
		for i := range tokens {
			tokens[i] = uint32(set*7919+i*31) % 150_000
		}
		tokens[0] = uint32(set)
		events := []kvevents.Event{{
			Kind: kvevents.Stored, Hashes: names(set), Tokens: tokens, BlockSize: ingestBlockTokens,
			Tier: pb.Tier_TIER_GPU, HasGroup: true, Spec: "full_attention",
		}}
		if removes {
			events = append(events, kvevents.Event{
				Kind: kvevents.Removed, Hashes: names((set + ingestSet/2) % ingestSet), Tier: pb.Tier_TIER_GPU, HasGroup: true,
			})
		}
		f.payloads = append(f.payloads, kvevents.AppendBatch(nil, kvevents.VLLMMap, kvevents.Batch{TimeUS: 1_500_000, Events: events}))
	}
	return f
}

// at is payload n with its time set: a float64 of seconds after the batch's and
// the number's first byte.
func (f *ingestFrames) at(n uint64, now time.Time) []byte {
	payload := append([]byte(nil), f.payloads[n%uint64(len(f.payloads))]...)
	binary.BigEndian.PutUint64(payload[2:], math.Float64bits(float64(now.UnixMicro())/1e6))
	return payload
}

// reader folds the pool's stream into an index, and notes how old each batch is
// when it is visible.
type reader struct {
	index   *prefix.Index
	batches atomic.Uint64
	mu      sync.Mutex
	ages    []float64 // milliseconds
	since   int64     // batches of earlier times are not noted
}

// follow folds until ctx ends.
func (r *reader) follow(ctx context.Context, server *natsserver.Server, pool string) error {
	nc, js, err := streams.Connection{NATS: server.URL("")}.Connect("warmpath bench reader")
	if err != nil {
		return err
	}
	defer nc.Close()
	err = streams.Follow(ctx, js, streams.FollowConfig{Stream: streams.KVStream(pool)}, func(e streams.Event) error {
		message, batch, err := streams.KVBatch(e)
		if err != nil {
			return err
		}
		r.index.Apply(batch)
		if message.SourceSeq == nil {
			return nil
		}
		r.batches.Add(1)
		if at := message.GetEventTimeUs(); at >= r.since {
			age := float64(time.Now().UnixMicro()-at) / 1e3
			r.mu.Lock()
			r.ages = append(r.ages, age)
			r.mu.Unlock()
		}
		return nil
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// through sends batches by an engine's socket through a bridge, a process of its
// own, for some time: at the rate given in blocks a second, or as fast as they are
// taken. It returns the rate at which they became visible in the index, and their
// ages.
func (b *bench) through(ctx context.Context, server *natsserver.Server, frames *ingestFrames, rate float64, length time.Duration) (float64, []float64, error) {
	ctx, cancel := context.WithTimeout(ctx, length+coldWithin)
	defer cancel()
	pool, err := freshPool(ctx, server)
	if err != nil {
		return 0, nil, err
	}
	publisher, err := zmq.NewPublisher(zmq.Publishing{Endpoint: "tcp://127.0.0.1:0", HWM: 256, Wait: true})
	if err != nil {
		return 0, nil, err
	}
	defer publisher.Close()
	listen, err := freeAddress()
	if err != nil {
		return 0, nil, err
	}
	engine, err := freeAddress() // nobody answers there: the bridge is told everything
	if err != nil {
		return 0, nil, err
	}
	bridge, err := startProcess(ctx, server.URL(""), "bridge", "--pool="+pool, "--replica="+ingestReplica, "--model=bench", "--engine=http://"+engine,
		"--kv="+publisher.Endpoint(), "--kv-first=0", "--listen="+listen, "--drain-timeout=0s", "--log-level=error")
	if err != nil {
		return 0, nil, err
	}
	defer bridge.stop()
	if err := publisher.AwaitSubscribers(ctx, 1); err != nil {
		return 0, nil, err
	}
	runtime.GC() // what the last measurement left
	r := &reader{index: prefix.New(), since: time.Now().UnixMicro()}
	reading, stopReading := context.WithCancel(ctx)
	defer stopReading()
	read := make(chan error, 1)
	go func() { read <- r.follow(reading, server, pool) }()

	began := time.Now()
	sent := b.send(ctx, publisher, frames, rate, length)
	for r.batches.Load() < sent && ctx.Err() == nil && len(read) == 0 {
		time.Sleep(time.Millisecond)
	}
	took := time.Since(began).Seconds()
	stopReading()
	if err := errors.Join(<-read, ctx.Err()); err != nil {
		return 0, nil, err
	}
	if lives := r.index.Lives(); len(lives) != 1 || lives[0].Suspect {
		return 0, nil, fmt.Errorf("the index does not vouch for what it was sent: %+v", lives)
	}
	return float64(sent) * float64(frames.blocks) / took, r.ages, nil
}

// send publishes batches for some time and returns how many.
func (b *bench) send(ctx context.Context, publisher *zmq.Publisher, frames *ingestFrames, rate float64, length time.Duration) (sent uint64) {
	began := time.Now()
	for now := began; now.Sub(began) < length && ctx.Err() == nil; now = time.Now() {
		if rate > 0 {
			if due := uint64(now.Sub(began).Seconds() * rate / float64(frames.blocks)); sent >= due {
				time.Sleep(200 * time.Microsecond)
				continue
			}
		}
		publisher.Send(nil, binary.BigEndian.AppendUint64(nil, sent), frames.at(sent, now))
		sent++
	}
	return sent
}

// freshPool makes the stream of a pool that has none, so that a measurement begins
// with nothing.
func freshPool(ctx context.Context, server *natsserver.Server) (name string, err error) {
	nc, js, err := streams.Connection{NATS: server.URL("")}.Connect("warmpath bench")
	if err != nil {
		return "", err
	}
	defer nc.Close()
	name = fmt.Sprintf("%s-%d", pool, time.Now().UnixNano())
	_, err = (streams.Topology{Pools: []string{name}}).Apply(ctx, js)
	return name, err
}

// plainPublish is the floor: messages of the same size from a publisher through
// the server to a follower that does nothing with them, in blocks a second.
func (b *bench) plainPublish(ctx context.Context, server *natsserver.Server, length time.Duration) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, length+coldWithin)
	defer cancel()
	pool, err := freshPool(ctx, server)
	if err != nil {
		return 0, err
	}
	nc, js, err := streams.Connection{NATS: server.URL("")}.Connect("warmpath bench floor")
	if err != nil {
		return 0, err
	}
	defer nc.Close()
	publisher := streams.NewPublisher(js, streams.PublisherConfig{Name: "warmpath bench floor"})
	defer func() { _ = publisher.Close() }() // what was not flushed is an error already
	var seen atomic.Uint64
	reading, stopReading := context.WithCancel(ctx)
	defer stopReading()
	read := make(chan error, 1)
	go func() {
		read <- streams.Follow(reading, js, streams.FollowConfig{Stream: streams.KVStream(pool)}, func(streams.Event) error {
			seen.Add(1)
			return nil
		})
	}()
	data := make([]byte, 4*8*ingestBlocks) // keys and hashes, stored and removed
	began := time.Now()
	var sent uint64
	for time.Since(began) < length {
		sent++
		m := streams.Message{Subject: streams.KVSubject(pool, ingestReplica), ID: streams.KVID(ingestReplica, nil, sent), Data: data}
		if err := publisher.Publish(ctx, m); err != nil {
			return 0, err
		}
	}
	if err := publisher.Flush(ctx); err != nil {
		return 0, err
	}
	for seen.Load() < sent && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	took := time.Since(began).Seconds()
	stopReading()
	if err := <-read; !errors.Is(err, context.Canceled) {
		return 0, err
	}
	return float64(sent) * ingestBlocks / took, ctx.Err()
}
