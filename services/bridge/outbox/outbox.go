// Package outbox publishes one replica's KV batches: numbered within an epoch,
// in order, once each. While the server is away they wait in memory, then on
// disk; past both bounds the epoch is given up, and a new one tells the whole
// cache when the server is back. A hole is never published.
package outbox

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
)

const (
	// DefaultMemoryBytes holds some 30,000 batches of 64 blocks: a few seconds of a
	// busy engine.
	DefaultMemoryBytes = 32 << 20
	// DefaultSpoolBytes holds a million such batches: an outage of ten minutes.
	DefaultSpoolBytes = 1 << 30
	// chunkLimit is how many batches are published before their outcome is awaited.
	chunkLimit = 1024
)

// Reasons for which an epoch is given up here, in Stats and as Begin's reason.
const (
	// ReasonOverflow: more batches waited than the bounds allow.
	ReasonOverflow = "spool full"
	// ReasonSpool: the disk could not be written or read.
	ReasonSpool = "spool failed"
	// ReasonConflict: somebody else publishes for this replica.
	ReasonConflict = "another publisher"
	// ReasonRefused: the server does not take a batch.
	ReasonRefused = "batch refused"
)

// Config says whose batches are published. Zero values take the defaults.
type Config struct {
	Pool, Replica string
	BlockTokens   uint32
	// MemoryBytes and SpoolBytes bound what waits, in memory and on disk.
	MemoryBytes, SpoolBytes int64
	// SpoolDir is where the spool lies; the system's temporary directory when empty.
	SpoolDir string
}

// Stats is what an outbox did and holds.
type Stats struct {
	Epoch uuid.UUID
	// Seq is the last batch numbered, Published how many the stream has taken.
	Seq, Published uint64
	// Waiting is batches not yet in the stream, SpoolBytes those of them on disk.
	Waiting    int
	SpoolBytes int64
	// Dropped counts batches that were given up with their epoch, Epochs the epochs
	// begun, by reason.
	Dropped, Epochs map[string]uint64
	// Broken is why the epoch was given up while a new one is waited for.
	Broken string
}

// item is an encoded batch that waits.
type item struct {
	seq  uint64
	data []byte
}

// Outbox is the way of one replica's batches into its stream. Begin and Push are
// called from one goroutine; Run is called once, the rest from anywhere.
type Outbox struct {
	cfg     Config
	js      jetstream.JetStream
	subject string
	log     *slog.Logger

	wake  chan struct{}
	whole chan string

	mu    sync.Mutex
	epoch uuid.UUID
	seq   uint64
	// life counts epochs, so that an outcome that comes late is not taken for the
	// next epoch's.
	life      uint64
	queue     []item
	bytes     int64
	spool     spool
	broken    string
	published uint64
	dropped   map[string]uint64
	epochs    map[string]uint64
	gapped    bool
}

// New makes an outbox; nothing is published before Begin or Resume, and Run.
func New(cfg Config, js jetstream.JetStream) *Outbox {
	if cfg.MemoryBytes == 0 {
		cfg.MemoryBytes = DefaultMemoryBytes
	}
	if cfg.SpoolBytes == 0 {
		cfg.SpoolBytes = DefaultSpoolBytes
	}
	if cfg.SpoolDir == "" {
		cfg.SpoolDir = os.TempDir()
	}
	return &Outbox{
		cfg: cfg, js: js, subject: streams.KVSubject(cfg.Pool, cfg.Replica),
		log:     slog.With("pool", cfg.Pool, "replica", cfg.Replica),
		wake:    make(chan struct{}, 1),
		whole:   make(chan string, 1),
		spool:   spool{dir: cfg.SpoolDir, limit: cfg.SpoolBytes},
		dropped: map[string]uint64{}, epochs: map[string]uint64{},
	}
}

// Resume continues an epoch after its batch seq.
func (o *Outbox) Resume(epoch uuid.UUID, seq uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.epoch, o.seq = epoch, seq
}

// Follow makes the next epoch later than one that the stream holds already.
func (o *Outbox) Follow(epoch uuid.UUID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if string(epoch[:]) > string(o.epoch[:]) {
		o.epoch = epoch
	}
}

// Begin starts a new epoch whose first batches are events, which must tell the
// whole cache, from a clear on. What waited of the last epoch is dropped. source
// is the engine's number of the last batch that is in events, nil for none.
func (o *Outbox) Begin(reason string, timeUS int64, events []*pb.KVEvent, source *uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := len(o.queue) + o.spool.count; n > 0 {
		o.dropped[reason] += uint64(n)
	}
	o.epoch, o.seq, o.broken = nextEpoch(o.epoch), 0, ""
	o.life++
	o.queue, o.bytes = nil, 0
	o.spool.close()
	o.epochs[reason]++
	select {
	case <-o.whole: // answered by this
	default:
	}
	o.enqueue(timeUS, events, source)
}

// Push publishes what one batch of the engine did. timeUS is when the engine did
// it, source its own number of the batch, nil for none.
func (o *Outbox) Push(timeUS int64, events []*pb.KVEvent, source *uint64) {
	if len(events) == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.enqueue(timeUS, events, source)
}

func (o *Outbox) enqueue(timeUS int64, events []*pb.KVEvent, source *uint64) {
	parts := streams.SplitKV(events, streams.MaxBatchWords)
	for i, part := range parts {
		if o.broken != "" {
			o.dropped[o.broken]++
			continue
		}
		batch := &pb.KVBatch{
			Pool: o.cfg.Pool, Replica: o.cfg.Replica, Epoch: o.epoch[:], Seq: o.seq + 1,
			EventTimeUs: timeUS, BlockTokens: o.cfg.BlockTokens, Events: part,
		}
		if i == len(parts)-1 {
			batch.SourceSeq = source
		}
		m, err := streams.NewMessage(o.subject, "", batch)
		if err != nil {
			o.giveUp(ReasonRefused, err)
			continue
		}
		o.seq++
		o.put(item{o.seq, m.Data})
	}
	o.signal()
}

// put queues a batch: in memory, or behind those on disk.
func (o *Outbox) put(it item) {
	if o.spool.count == 0 && (o.bytes+int64(len(it.data)) <= o.cfg.MemoryBytes || len(o.queue) == 0) {
		o.queue = append(o.queue, it)
		o.bytes += int64(len(it.data))
		return
	}
	switch err := o.spool.put(it.seq, it.data); {
	case errors.Is(err, errSpoolFull):
		o.giveUp(ReasonOverflow, err)
	case err != nil:
		o.giveUp(ReasonSpool, err)
	}
}

// giveUp ends the epoch: nothing more of it is published.
func (o *Outbox) giveUp(reason string, err error) {
	if o.broken != "" {
		return
	}
	o.broken = reason
	o.dropped[reason] += uint64(len(o.queue) + o.spool.count + 1)
	o.life++
	o.queue, o.bytes = nil, 0
	o.spool.close()
	o.log.Error("kv history was given up; a new epoch will tell the whole cache", "reason", reason, "error", err)
}

// refill moves batches from disk to memory when memory is empty.
func (o *Outbox) refill() {
	for len(o.queue) < chunkLimit && o.spool.count > 0 {
		seq, data, ok, err := o.spool.take()
		if err != nil {
			o.giveUp(ReasonSpool, err)
			return
		}
		if !ok {
			return
		}
		o.queue = append(o.queue, item{seq, data})
		o.bytes += int64(len(data))
	}
}

func (o *Outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// Whole says that the epoch was given up, why, and that the server is back:
// answer with Begin and the whole cache.
func (o *Outbox) Whole() <-chan string { return o.whole }

// Stats returns the counts so far.
func (o *Outbox) Stats() Stats {
	o.mu.Lock()
	defer o.mu.Unlock()
	return Stats{
		Epoch: o.epoch, Seq: o.seq, Published: o.published,
		Waiting: len(o.queue) + o.spool.count, SpoolBytes: o.spool.bytes(),
		Dropped: maps.Clone(o.dropped), Epochs: maps.Clone(o.epochs), Broken: o.broken,
	}
}

// nextEpoch returns a UUIDv7 greater than last, also when the clock went back:
// readers ignore an epoch that is not later than the one they know.
func nextEpoch(last uuid.UUID) uuid.UUID {
	next := uuid.Must(uuid.NewV7())
	if string(next[:]) > string(last[:]) {
		return next
	}
	// The first 48 bits are milliseconds: the last epoch's, and one more.
	for i := 5; i >= 0; i-- {
		next[i] = last[i] + 1
		if next[i] != 0 {
			copy(next[:i], last[:i])
			break
		}
	}
	return next
}

// errConflict says that the stream holds a later epoch than this outbox's.
type errConflict struct{ epoch uuid.UUID }

func (e errConflict) Error() string {
	return fmt.Sprintf("the stream has epoch %s of this replica, which is not this bridge's; stop the other bridge", e.epoch)
}

// conflictPause keeps two bridges of one replica from outbidding each other
// without end.
const conflictPause = 5 * time.Second
