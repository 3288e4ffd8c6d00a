package streams

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Defaults of a topology. A zero field of Topology takes them.
const (
	// DefaultKVMaxAge: an index is rebuilt from snapshots and the stream's tail,
	// and a block that nobody touched for two days is evicted anyway.
	DefaultKVMaxAge = 48 * time.Hour
	// DefaultKVMaxBytes holds some 40 million blocks stored and removed.
	DefaultKVMaxBytes = 4 << 30
	// DefaultRouteMaxAge: questions about an incident come within weeks.
	DefaultRouteMaxAge = 30 * 24 * time.Hour
	// DefaultRouteMaxBytes holds about a million decisions over long prompts.
	DefaultRouteMaxBytes = 16 << 30
	// DefaultLoadMaxAge: an older report says nothing of the load now.
	DefaultLoadMaxAge = time.Minute
	// DefaultLoadMaxBytes is for a report (200 bytes) of each of many replicas.
	DefaultLoadMaxBytes = 64 << 20
	// DefaultFleetTTL is three heartbeats of five seconds.
	DefaultFleetTTL = 15 * time.Second
	// DefaultIndexMaxBytes holds a few snapshots of a large index per pool.
	DefaultIndexMaxBytes = 8 << 30
	// DefaultDuplicateWindow is the server's own default; a publisher gives up
	// well before it ends, so that resending never stores a message twice.
	DefaultDuplicateWindow = 2 * time.Minute
	// applyTimeout and applyTries bound a change of one stream: a cluster that
	// changes its leader may swallow a request, and asking again is harmless.
	applyTimeout = 5 * time.Second
	applyTries   = 6
	// fleetMarkerTTL is how long the server keeps the marker of an entry that
	// expired, for watchers that were away.
	fleetMarkerTTL = time.Minute
	// fleetMaxBytes is for entries of 300 bytes of many replicas.
	fleetMaxBytes = 64 << 20
)

// Topology is the streams and buckets of a deployment. The zero value of every
// field but Pools is its default.
type Topology struct {
	// Pools have a KV stream each.
	Pools []string
	// Replicas of every stream: 1, or 3 or 5 in a cluster; 0 is 1.
	Replicas int

	KVMaxAge        time.Duration
	KVMaxBytes      int64
	RouteMaxAge     time.Duration
	RouteMaxBytes   int64
	LoadMaxAge      time.Duration
	LoadMaxBytes    int64
	FleetTTL        time.Duration
	IndexMaxBytes   int64
	DuplicateWindow time.Duration
}

func or[T comparable](value, fallback T) T {
	var zero T
	if value == zero {
		return fallback
	}
	return value
}

// withDefaults returns t with every zero field replaced.
func (t Topology) withDefaults() Topology {
	t.Replicas = or(t.Replicas, 1)
	t.KVMaxAge = or(t.KVMaxAge, DefaultKVMaxAge)
	t.KVMaxBytes = or(t.KVMaxBytes, DefaultKVMaxBytes)
	t.RouteMaxAge = or(t.RouteMaxAge, DefaultRouteMaxAge)
	t.RouteMaxBytes = or(t.RouteMaxBytes, DefaultRouteMaxBytes)
	t.LoadMaxAge = or(t.LoadMaxAge, DefaultLoadMaxAge)
	t.LoadMaxBytes = or(t.LoadMaxBytes, DefaultLoadMaxBytes)
	t.FleetTTL = or(t.FleetTTL, DefaultFleetTTL)
	t.IndexMaxBytes = or(t.IndexMaxBytes, DefaultIndexMaxBytes)
	t.DuplicateWindow = or(t.DuplicateWindow, DefaultDuplicateWindow)
	return t
}

// Validate says what is wrong with the topology, naming the field.
func (t Topology) Validate() error {
	t = t.withDefaults()
	if len(t.Pools) == 0 {
		return errors.New("pools is empty; name at least one pool")
	}
	for i, pool := range t.Pools {
		if err := ValidName(pool); err != nil {
			return fmt.Errorf("pools: %w", err)
		}
		if slices.Contains(t.Pools[:i], pool) {
			return fmt.Errorf("pools: %s is named twice; name it once", pool)
		}
	}
	if t.Replicas < 1 || t.Replicas > 5 || t.Replicas%2 == 0 {
		return fmt.Errorf("replicas is %d; give 1, 3 or 5", t.Replicas)
	}
	for _, f := range []struct {
		name string
		d    time.Duration
	}{
		{"kv max age", t.KVMaxAge}, {"route max age", t.RouteMaxAge}, {"load max age", t.LoadMaxAge},
		{"fleet ttl", t.FleetTTL}, {"duplicate window", t.DuplicateWindow},
	} {
		if f.d < time.Second {
			return fmt.Errorf("%s is %v; give at least 1s", f.name, f.d)
		}
	}
	for _, f := range []struct {
		name string
		n    int64
	}{
		{"kv max bytes", t.KVMaxBytes}, {"route max bytes", t.RouteMaxBytes},
		{"load max bytes", t.LoadMaxBytes}, {"index max bytes", t.IndexMaxBytes},
	} {
		if f.n < 1<<20 {
			return fmt.Errorf("%s is %d; give at least 1 MiB", f.name, f.n)
		}
	}
	return nil
}

// fleetStream and indexStream are the streams behind the two buckets, by the
// naming of NATS key-value and object stores.
const (
	fleetStream  = "KV_" + FleetBucket
	fleetSubject = "$KV." + FleetBucket + "."
	indexStream  = "OBJ_" + IndexBucket
)

// Streams returns the configuration of every stream, buckets included, in the
// order of their names here: KV of each pool, ROUTE, LOAD, FLEET, INDEX.
func (t Topology) Streams() []jetstream.StreamConfig {
	t = t.withDefaults()
	var all []jetstream.StreamConfig
	for _, pool := range t.Pools {
		all = append(all, t.kvStream(pool))
	}
	return append(all, t.routeStream(), t.loadStream(), t.fleetStream(), t.indexStream())
}

// base is what all streams share.
func (t Topology) base(name, description string, subjects ...string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              name,
		Description:       description,
		Subjects:          subjects,
		Retention:         jetstream.LimitsPolicy,
		Discard:           jetstream.DiscardOld,
		Storage:           jetstream.FileStorage,
		Replicas:          t.Replicas,
		MaxMsgs:           -1,
		MaxMsgsPerSubject: -1,
		MaxMsgSize:        -1,
		MaxConsumers:      -1,
		Duplicates:        t.DuplicateWindow,
		AllowDirect:       true,
	}
}

func (t Topology) kvStream(pool string) jetstream.StreamConfig {
	c := t.base(KVStream(pool), "KV cache changes of pool "+pool, "kv."+pool+".*")
	c.MaxAge, c.MaxBytes = t.KVMaxAge, t.KVMaxBytes
	c.Duplicates = min(t.DuplicateWindow, c.MaxAge)
	c.AllowBatchPublish = true
	return c
}

func (t Topology) routeStream() jetstream.StreamConfig {
	c := t.base(RouteStream, "decisions and outcomes", "route.*.*")
	c.MaxAge, c.MaxBytes = t.RouteMaxAge, t.RouteMaxBytes
	c.Duplicates = min(t.DuplicateWindow, c.MaxAge)
	c.Compression = jetstream.S2Compression
	c.DenyDelete, c.DenyPurge = true, true
	c.AllowBatchPublish = true
	c.RePublish = &jetstream.RePublish{Source: "route.>", Destination: "live.route.>"}
	return c
}

func (t Topology) loadStream() jetstream.StreamConfig {
	c := t.base(LoadStream, "last load report of each replica", "load.*.*")
	// On file although it is soon stale: a single server forgets a memory stream
	// altogether when it restarts, its configuration too.
	c.MaxMsgsPerSubject = 1
	c.MaxAge, c.MaxBytes = t.LoadMaxAge, t.LoadMaxBytes
	c.Duplicates = min(t.DuplicateWindow, c.MaxAge)
	c.AllowBatchPublish = true
	return c
}

// fleetStream has the shape that a key-value bucket must have, so that any NATS
// tool can read it.
func (t Topology) fleetStream() jetstream.StreamConfig {
	c := t.base(fleetStream, "what is known of each replica", fleetSubject+">")
	c.MaxMsgsPerSubject = 1
	c.MaxAge, c.MaxBytes = t.FleetTTL, fleetMaxBytes
	c.Duplicates = min(t.DuplicateWindow, c.MaxAge)
	c.Discard = jetstream.DiscardNew
	c.DenyDelete = true
	c.AllowRollup = true
	// An entry that expires leaves a marker, which watchers see.
	c.AllowMsgTTL = true
	c.SubjectDeleteMarkerTTL = fleetMarkerTTL
	return c
}

// indexStream has the shape of an object store.
func (t Topology) indexStream() jetstream.StreamConfig {
	c := t.base(indexStream, "index snapshots", "$O."+IndexBucket+".C.>", "$O."+IndexBucket+".M.>")
	c.MaxBytes = t.IndexMaxBytes
	c.Discard = jetstream.DiscardNew
	c.AllowRollup = true
	// Leases expire, and what a removed snapshot leaves behind.
	c.AllowMsgTTL = true
	return c
}

// plan is what must be done to one stream.
type plan struct {
	want    jetstream.StreamConfig
	info    *jetstream.StreamInfo // nil when the stream is not there
	changes []Change
}

// plans compares every stream with what the server has.
func (t Topology) plans(ctx context.Context, js jetstream.JetStream) ([]plan, error) {
	if err := t.Validate(); err != nil {
		return nil, err
	}
	var all []plan
	for _, want := range t.Streams() {
		p := plan{want: want}
		stream, err := js.Stream(ctx, want.Name)
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
			p.changes = []Change{{Stream: want.Name, Field: "stream", Have: "absent", Want: "present"}}
		case err != nil:
			return nil, fmt.Errorf("ask for stream %s: %w", want.Name, err)
		default:
			p.info = stream.CachedInfo()
			p.changes = diff(p.info.Config, want)
		}
		all = append(all, p)
	}
	return all, nil
}

// Check lists the differences between the topology and the server's streams.
// Streams that the topology does not name are left out. It needs the right to
// ask for stream information only.
func (t Topology) Check(ctx context.Context, js jetstream.JetStream) ([]Change, error) {
	plans, err := t.plans(ctx, js)
	if err != nil {
		return nil, err
	}
	var changes []Change
	for _, p := range plans {
		changes = append(changes, p.changes...)
	}
	return changes, nil
}

// Apply makes the server's streams as the topology says and returns what it
// changed; twice is the same as once. A change that would lose data is refused
// with a *LossError before anything is changed. Streams that the topology does
// not name are not touched. Concurrent calls are safe: the server decides.
func (t Topology) Apply(ctx context.Context, js jetstream.JetStream) ([]Change, error) {
	plans, err := t.plans(ctx, js)
	if err != nil {
		return nil, err
	}
	loss := &LossError{}
	for _, p := range plans {
		if p.info != nil {
			loss.Refusals = append(loss.Refusals, refusals(*p.info, p.want, p.changes)...)
		}
	}
	if len(loss.Refusals) > 0 {
		return nil, loss
	}
	var done []Change
	for _, p := range plans {
		if len(p.changes) == 0 {
			continue
		}
		if err := p.apply(ctx, js); err != nil {
			return done, err
		}
		done = append(done, p.changes...)
	}
	return done, nil
}

// request asks the server once to create or update the stream.
func (p plan) request(ctx context.Context, js jetstream.JetStream) (jetstream.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	if p.info == nil {
		return js.CreateStream(ctx, p.want)
	}
	return js.UpdateStream(ctx, overlay(p.info.Config, p.want))
}

// apply creates or updates one stream, and makes sure that the server took it
// all: an old server silently ignores fields that it does not know.
func (p plan) apply(ctx context.Context, js jetstream.JetStream) error {
	stream, err := p.request(ctx, js)
	for tries := 1; err != nil && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && tries < applyTries; tries++ {
		stream, err = p.request(ctx, js)
	}
	if err != nil {
		return fmt.Errorf("apply stream %s: %w", p.want.Name, err)
	}
	if left := diff(stream.CachedInfo().Config, p.want); len(left) > 0 {
		return fmt.Errorf("apply stream %s: the server did not take %v; nats-server 2.14 or newer is needed", p.want.Name, left)
	}
	return nil
}
