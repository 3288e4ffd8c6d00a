package router

import (
	pb "warmpath/schemas/warmpathv1"
)

const (
	// maxSent bounds the requests in flight at replicas without events whose keys
	// are remembered; of more, the cache is not learned.
	maxSent = 1 << 14
	// sentTTL is when a request without an outcome is forgotten, in microseconds.
	sentTTL = 30 * 60 * 1_000_000
	// assumedCapacity is the blocks to assume in a cache whose size its fleet entry
	// does not say: a quarter of a million tokens at 16 a block, below what engines
	// on current hardware have, because a prediction of what is gone costs more than
	// a missed one.
	assumedCapacity = 1 << 14
)

// sent are the attempts in flight at replicas that publish no events, by id: what
// those have cached is learned when their requests have ended well. Guarded by
// decide.
type sent map[string]sending

type sending struct {
	replica string
	keys    []uint64
	at      int64
}

func (s sent) expire(now int64) {
	for id, one := range s {
		if now-one.at > sentTTL {
			delete(s, id)
		}
	}
}

// noteSent remembers a decision for a replica without events. The caller holds
// decide.
func (r *Router) noteSent(id string, d *pb.Decided, at int64) {
	delete(r.decide.sent, id)
	if r.capacity(d.Chosen) > 0 && len(d.Keys) > 0 && len(r.decide.sent) < maxSent {
		r.decide.sent[id] = sending{d.Chosen, d.Keys, at}
	}
}

// learn takes what a request that has ended leaves in the cache of a replica
// without events. The caller holds decide.
func (r *Router) learn(id string, f *pb.Finished) bool {
	one, ok := r.decide.sent[id]
	delete(r.decide.sent, id)
	if !ok || f.Status != pb.Status_STATUS_OK || f.Replica != one.replica {
		return false
	}
	capacity := r.capacity(one.replica)
	if capacity == 0 {
		return false
	}
	r.predictions.Learn(one.replica, one.keys, capacity)
	r.metrics.learned.Inc()
	return true
}

// capacity is the blocks that a replica without events has room for; 0 for one
// that publishes them, or is not known.
func (r *Router) capacity(name string) int {
	r.fleet.RLock()
	defer r.fleet.RUnlock()
	entry := r.fleet.Get(name)
	if entry == nil || entry.KvEvents {
		return 0
	}
	for _, c := range entry.Capacities {
		if c.Tier == pb.Tier_TIER_GPU && c.Blocks > 0 {
			return int(min(c.Blocks, 1<<30))
		}
	}
	return assumedCapacity
}
