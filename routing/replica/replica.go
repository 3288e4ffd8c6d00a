// Package replica holds what is known of the fleet.
package replica

import (
	"slices"
	"strings"
	"time"

	pb "warmpath/schemas/warmpathv1"
)

// Fleet is the last known entry of each replica of a pool. A replica is live
// while its heartbeat is recent. It is pure (the caller gives the time) and not
// safe for concurrent use. Entries that it returns must not be modified.
type Fleet struct {
	maxAgeUS int64
	// entries are sorted by replica: every decision wants them so.
	entries []*pb.FleetEntry
}

// NewFleet returns an empty fleet whose replicas count as live for maxAge after
// their last heartbeat. maxAge must cover a few heartbeats and the difference
// between the clocks of the machines: heartbeats carry their sender's clock.
func NewFleet(maxAge time.Duration) *Fleet {
	return &Fleet{maxAgeUS: maxAge.Microseconds()}
}

// Put records an entry in place of the replica's earlier one: the last one put
// counts, whatever its heartbeat says, for the bucket they come from is ordered
// and clocks are not. An entry without a replica is ignored.
func (f *Fleet) Put(e *pb.FleetEntry) {
	if e.GetReplica() == "" {
		return
	}
	if i, known := f.find(e.Replica); known {
		f.entries[i] = e
	} else {
		f.entries = slices.Insert(f.entries, i, e)
	}
}

// Delete forgets a replica.
func (f *Fleet) Delete(replica string) {
	if i, known := f.find(replica); known {
		f.entries = slices.Delete(f.entries, i, i+1)
	}
}

// Get returns the replica's last entry, live or not, or nil.
func (f *Fleet) Get(replica string) *pb.FleetEntry {
	if i, known := f.find(replica); known {
		return f.entries[i]
	}
	return nil
}

// find returns where a replica is, or would be.
func (f *Fleet) find(replica string) (at int, known bool) {
	return slices.BinarySearchFunc(f.entries, replica, func(e *pb.FleetEntry, name string) int {
		return strings.Compare(e.Replica, name)
	})
}

// All returns every entry, live or not, sorted by replica.
func (f *Fleet) All() []*pb.FleetEntry {
	return slices.Clone(f.entries)
}

// Live returns the entries whose heartbeat is recent at nowUS, wall-clock Unix
// microseconds, sorted by replica. Draining replicas are among them: they still
// finish what they have.
func (f *Fleet) Live(nowUS int64) []*pb.FleetEntry {
	live := make([]*pb.FleetEntry, 0, len(f.entries))
	for _, e := range f.entries {
		if nowUS-e.HeartbeatUs <= f.maxAgeUS {
			live = append(live, e)
		}
	}
	return live
}
