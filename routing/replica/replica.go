// Package replica holds what is known of the fleet.
package replica

import (
	"slices"
	"time"

	pb "warmpath/schemas/warmpathv1"
)

// Fleet is the last known entry of each replica of a pool. A replica is live
// while its heartbeat is recent. It is pure (the caller gives the time) and not
// safe for concurrent use. Entries that it returns must not be modified.
type Fleet struct {
	maxAgeUS int64
	entries  map[string]*pb.FleetEntry
}

// NewFleet returns an empty fleet whose replicas count as live for maxAge after
// their last heartbeat. maxAge must cover a few heartbeats and the difference
// between the clocks of the machines: heartbeats carry their sender's clock.
func NewFleet(maxAge time.Duration) *Fleet {
	return &Fleet{maxAgeUS: maxAge.Microseconds(), entries: map[string]*pb.FleetEntry{}}
}

// Put records an entry in place of the replica's earlier one: the last one put
// counts, whatever its heartbeat says, for the bucket they come from is ordered
// and clocks are not. An entry without a replica is ignored.
func (f *Fleet) Put(e *pb.FleetEntry) {
	if e.GetReplica() == "" {
		return
	}
	f.entries[e.Replica] = e
}

// Delete forgets a replica.
func (f *Fleet) Delete(replica string) {
	delete(f.entries, replica)
}

// Get returns the replica's last entry, live or not, or nil.
func (f *Fleet) Get(replica string) *pb.FleetEntry {
	return f.entries[replica]
}

// All returns every entry, live or not, sorted by replica.
func (f *Fleet) All() []*pb.FleetEntry {
	return f.sorted(func(*pb.FleetEntry) bool { return true })
}

// Live returns the entries whose heartbeat is recent at nowUS, wall-clock Unix
// microseconds, sorted by replica. Draining replicas are among them: they still
// finish what they have.
func (f *Fleet) Live(nowUS int64) []*pb.FleetEntry {
	return f.sorted(func(e *pb.FleetEntry) bool { return nowUS-e.HeartbeatUs <= f.maxAgeUS })
}

func (f *Fleet) sorted(keep func(*pb.FleetEntry) bool) []*pb.FleetEntry {
	out := make([]*pb.FleetEntry, 0, len(f.entries))
	for _, e := range f.entries {
		if keep(e) {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b *pb.FleetEntry) int {
		if a.Replica < b.Replica {
			return -1
		}
		return 1
	})
	return out
}
