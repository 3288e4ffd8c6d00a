package router

import (
	"context"
	"log/slog"

	"google.golang.org/protobuf/proto"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
)

// fleetStream is the stream behind the bucket, by the naming of NATS buckets.
const fleetStream = "KV_" + streams.FleetBucket

// runFleet follows the pool's entries in FLEET.
func (r *Router) runFleet(ctx context.Context) error {
	first, err := r.expect(ctx, partFleet, fleetStream, "$KV."+streams.FleetBucket+"."+r.cfg.Pool+".>")
	if err != nil {
		return err
	}
	defer first.stop()
	return streams.WatchFleet(ctx, r.js, r.cfg.Pool, func(entry *pb.FleetEntry, name string) {
		r.fleetChanged(entry, name)
		first.heard(name)
	})
}

// fleetChanged takes an entry, or with a nil one that the replica is gone.
func (r *Router) fleetChanged(entry *pb.FleetEntry, name string) {
	now := r.now()
	if entry == nil && !r.nc.IsConnected() {
		return // it was not heard; nothing can be heard
	}
	if entry == nil {
		r.fleet.Lock()
		r.fleet.Delete(name)
		r.fleet.gone[name] = now
		r.fleet.Unlock()
		slog.Info("a replica left the fleet", "router", r.cfg.Name, "replica", name)
		return
	}
	// A heartbeat counts from when it arrived: clocks of machines differ, and a
	// replica whose clock is behind is not dead.
	entry = proto.Clone(entry).(*pb.FleetEntry)
	entry.HeartbeatUs = now
	if _, ok := epochOf(entry.Epoch); !ok {
		entry.Epoch = nil
	}
	r.fleet.Lock()
	earlier := r.fleet.Get(entry.Replica)
	r.fleet.Put(entry)
	delete(r.fleet.gone, entry.Replica)
	r.fleet.Unlock()
	if rate := entry.PrefillTokensPerSecond; rate > 0 {
		r.decide.Lock()
		r.decide.ledger.SetPrefillRateHint(entry.Replica, rate)
		r.decide.Unlock()
	}
	if earlier != nil && (newer(entry.Epoch, earlier.Epoch) || entry.KvEvents && !earlier.KvEvents) {
		// What its last life was about to hold, or what was guessed before it told.
		r.predictions.DropReplica(entry.Replica)
	}
	if earlier == nil {
		slog.Info("a replica joined the fleet", "router", r.cfg.Name, "replica", entry.Replica,
			"engine", entry.EngineKind, "model", entry.Model, "block_tokens", entry.BlockTokens, "kv_events", entry.KvEvents)
	}
}

// seen is a replica as one decision sees it.
type seen struct {
	entry *pb.FleetEntry
	dead  bool
}

// replicas returns the fleet sorted by replica id. While NATS is away no
// heartbeat can come, and that is no replica's fault.
func (r *Router) replicas(now int64) []seen {
	r.fleet.RLock()
	defer r.fleet.RUnlock()
	all := r.fleet.All()
	out := make([]seen, len(all))
	for i, e := range all {
		out[i] = seen{e, r.silence(e, now) > r.cfg.DeadAfter.Microseconds()}
	}
	return out
}

// silence is how long a replica could have been heard and was not.
func (r *Router) silence(e *pb.FleetEntry, now int64) int64 {
	return now - max(e.HeartbeatUs, r.away.Load())
}

// publishesKV says whether a replica tells what its cache holds.
func (r *Router) publishesKV(name string) bool {
	r.fleet.RLock()
	defer r.fleet.RUnlock()
	return r.fleet.Get(name).GetKvEvents()
}

// forgettable lists replicas that have been gone for long enough, and notes
// which have gone: those whose heartbeats ended without a word, and those that
// only the stream remembers.
func (r *Router) forgettable(now int64) []string {
	lives := r.lives()
	long := r.cfg.ForgetAfter.Microseconds()
	r.fleet.Lock()
	defer r.fleet.Unlock()
	for _, e := range r.fleet.All() {
		if r.silence(e, now) > long {
			r.fleet.Delete(e.Replica)
		}
	}
	for _, name := range lives {
		if _, noted := r.fleet.gone[name]; !noted && r.fleet.Get(name) == nil {
			r.fleet.gone[name] = now
		}
	}
	var names []string
	for name, since := range r.fleet.gone {
		if now-since > long {
			names = append(names, name)
		}
	}
	return names
}
