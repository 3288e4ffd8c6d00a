package bridge

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"warmpath/services/bridge/discovery"
	"warmpath/services/bridge/feed"
	"warmpath/services/bridge/kvevents"
	"warmpath/services/bridge/mirror"
	"warmpath/services/bridge/outbox"
)

const (
	// idleAfter is how long nothing must come until it is asked whether something
	// was missed, idleEvery how often from then on.
	idleAfter = 500 * time.Millisecond
	idleEvery = 5 * time.Second
	// maxSkew is how far an engine's clock may be off until the time of arrival is
	// taken for an event's time: index ages would be nonsense.
	maxSkew = 24 * time.Hour
)

// Reasons for which an epoch begins, beside those of package outbox.
const (
	epochBridge = "bridge started"
	epochEngine = "engine started"
	epochModel  = "engine serves another model"
	// doubtUnseen is in force until the engine has shown what it holds.
	doubtUnseen = "engine not seen yet"
	// doubtBatch: a batch or an event of it could not be read.
	doubtBatch = "unreadable batch"
)

// replica is one rank of an engine: its events on their way into the stream.
type replica struct {
	engine *engine
	name   string
	rank   int
	// ranked is true when several ranks stand behind the engine's address.
	ranked bool
	source source
	log    *slog.Logger
	out    *outbox.Outbox
	// began is closed when the memory is rebuilt and frames may come.
	began chan struct{}
	load  atomic.Pointer[discovery.Load] // as last reported
	known atomic.Pointer[Status]         // as last looked at

	// mu is held while something of the engine is taken in, a replay of its history
	// included; everything below is under it.
	mu      sync.Mutex
	kind    discovery.Kind
	model   string
	mirror  *mirror.Mirror
	feed    *feed.Feed
	decoder *kvevents.Decoder
	pulled  kvevents.Batch
	// epoch is the life of a replica without events; see status.
	epoch uuid.UUID
	// last is when something came last, lastEvent the engine's time of it.
	last      time.Time
	lastEvent int64
	// told is the engine's number of the last batch of which the stream has
	// something, nil before one of this epoch: where the next life begins.
	told    *uint64
	problem string // why events cannot be read at all
	// conn is the connection that the replica's events come by, topic their topic.
	conn    uint64
	topic   string
	foreign string // another publisher's topic that was seen
	blocks  uint64
}

func newReplica(e *engine, name string, rank int, ranked bool, s source, facts discovery.Engine) *replica {
	cfg := e.bridge.cfg
	r := &replica{
		engine: e, name: name, rank: rank, ranked: ranked, source: s,
		log:  slog.With("pool", cfg.Pool, "replica", name),
		kind: facts.Kind, model: facts.Model, epoch: uuid.Must(uuid.NewV7()),
		decoder: kvevents.NewDecoder(kvevents.Limits{}), began: make(chan struct{}),
		out: outbox.New(outbox.Config{
			Pool: cfg.Pool, Replica: name, BlockTokens: uint32(cfg.BlockTokens),
			SpoolDir: cfg.SpoolDir, SpoolBytes: cfg.SpoolBytes,
		}, e.bridge.js),
	}
	r.blocks = facts.GPUBlocks
	r.mirror = r.newMirror()
	r.feed = feed.New(feed.Config{First: e.cfg.first(), Replay: r.replayer()}, sink{r}, r.log)
	return r
}

// newMirror makes an empty memory. It is called with what New has checked.
func (r *replica) newMirror() *mirror.Mirror {
	cfg := r.engine.bridge.cfg
	m, err := mirror.New(mirror.Config{
		Model: r.model, BlockTokens: cfg.BlockTokens, MaxBlocks: cfg.MemoryBlocks,
		Repeats: r.engine.cfg.repeats(string(r.kind)), Capacity: int(r.blocks), LoRAs: r.engine.cfg.LoRAIDs,
	})
	if err != nil {
		panic(fmt.Sprintf("bridge: a checked configuration is refused: %v", err))
	}
	return m
}

// run reads the replica's events until ctx ends.
func (r *replica) run(ctx context.Context) error {
	switch {
	case r.source.err != nil:
		r.setProblem(r.source.err.Error())
		return nil
	case !r.source.any():
		r.log.Warn("no KV events are read of this engine; the router predicts its cache from its own decisions",
			"remedy", "switch them on in the engine and give --kv, --kv-listen or --kv-pull; see warmpath doctor bridge "+r.engine.cfg.URL)
		return nil
	}
	if err := r.rebuild(ctx); err != nil {
		return err
	}
	close(r.began)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.out.Run(ctx) })
	group.Go(func() error { r.watch(ctx); return nil })
	if r.source.dial != "" {
		group.Go(func() error { return r.subscribe(ctx) })
	}
	// What dials or is polled is handed over by the listener and by the engine.
	return group.Wait()
}

// watch asks for what was missed when nothing comes, and tells the whole cache
// when the outbox has given an epoch up.
func (r *replica) watch(ctx context.Context) {
	tick := time.NewTicker(idleAfter / 2)
	defer tick.Stop()
	var asked time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case reason := <-r.out.Whole():
			r.retell(reason)
		case now := <-tick.C:
			r.mu.Lock()
			quiet := now.Sub(r.last)
			if quiet >= idleAfter && (asked.Before(r.last) || now.Sub(asked) >= idleEvery) {
				asked = now
				r.feed.Idle(ctx)
			}
			r.mu.Unlock()
		}
	}
}

// retell begins an epoch that tells everything the replica holds.
func (r *replica) retell(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.lastEvent
	if at == 0 {
		at = r.now()
	}
	r.told = r.lastSeq()
	r.out.Begin(reason, at, r.mirror.Resident(), r.told)
}

// lastSeq is the engine's number of the last batch taken in, nil before one.
func (r *replica) lastSeq() *uint64 {
	if seq, ok := r.feed.Last(); ok {
		return &seq
	}
	return nil
}

func (r *replica) now() int64 { return time.Now().UnixMicro() }

// engineGone says that the engine does not answer: what it does is unseen.
func (r *replica) engineGone() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.source.any() {
		r.feed.Disconnected()
	}
}

// engineBack takes what the engine says when it answers again.
func (r *replica) engineBack(facts discovery.Engine) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.source.any() {
		// Nobody saw what happened to its cache.
		r.epoch = uuid.Must(uuid.NewV7())
		return
	}
	r.kind = facts.Kind
	if facts.Model != r.model {
		r.log.Warn("engine serves another model", "was", r.model, "is", facts.Model)
		r.model, r.blocks = facts.Model, facts.GPUBlocks
		r.mirror = r.newMirror()
		r.out.Begin(epochModel, r.now(), r.mirror.Lost(doubtUnseen), nil)
	}
}

func (r *replica) setProblem(problem string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.problem != problem {
		r.problem = problem
		r.engine.announce()
		if problem != "" {
			r.log.Error("KV events are not used", "problem", problem)
		}
	}
}

// sink is a replica as its feed sees it. Its methods are called under mu.
type sink struct{ r *replica }

// Begin begins an epoch of an engine that began.
func (s sink) Begin() {
	s.r.told = nil
	s.r.out.Begin(epochEngine, s.r.now(), s.r.mirror.Reset(), nil)
}

// Lost begins an epoch of which not everything is known.
func (s sink) Lost(reason string) {
	s.r.told = nil
	s.r.out.Begin(reason, s.r.now(), s.r.mirror.Lost(reason), nil)
	s.r.engine.announce()
}

// Doubt says that the replica is in doubt, or no longer. It stands behind the last
// batch that the stream tells of, not behind later ones that said nothing: only
// of that one the stream has the time, by which the next life knows it again.
func (s sink) Doubt(reason string) {
	s.r.out.Push(s.r.now(), s.r.mirror.Suspect(reason), s.r.told)
	s.r.engine.announce()
}

// Batch takes the next batch into the memory, and publishes what it did.
func (s sink) Batch(b feed.Batch) int64 {
	r := s.r
	seq := b.Seq
	batch, err := r.decode(b.Payload)
	if err != nil {
		r.log.Error("a batch cannot be read", "seq", seq, "error", err)
		r.lostBatch(b.AtUS, &seq)
		return 0
	}
	events := r.mirror.Apply(batch.Events)
	if batch.Skipped > 0 {
		r.log.Error("events of a batch cannot be read", "seq", seq, "skipped", batch.Skipped)
		r.lostBatch(b.AtUS, &seq)
		return batch.TimeUS
	}
	at := batch.TimeUS
	if skew := time.Duration(b.AtUS-at) * time.Microsecond; skew.Abs() > maxSkew {
		at = b.AtUS
	}
	r.lastEvent = at
	if len(events) > 0 {
		r.told = &seq
	}
	r.out.Push(at, events, &seq)
	return batch.TimeUS
}

// TimeUS reads a batch's time.
func (s sink) TimeUS(payload []byte) int64 {
	batch, err := s.r.decode(payload)
	if err != nil {
		return 0
	}
	return batch.TimeUS
}
