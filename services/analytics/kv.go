package analytics

import (
	"cmp"
	"slices"
	"time"

	pb "warmpath/schemas/warmpathv1"
)

// activityRow is what happened in one replica's cache in one bucket.
type activityRow struct {
	pool, replica                        string
	bucket                               time.Time
	batches, stored                      uint64
	evicted, offloaded, removed, cleared uint64
	epochs                               uint64
	blockTokens                          uint32
	firstSeq, lastSeq                    uint64
}

// activityBatch is the rows of one bucket.
type activityBatch struct {
	rows        []*activityRow
	first, last uint64
}

// activity sums up KV batches by replica and bucket of stream time. Like cutter
// it goes by stream content only. Not safe for concurrent use.
type activity struct {
	bucket      time.Time
	first, last uint64
	rows        map[replicaName]*activityRow
}

type replicaName struct{ pool, replica string }

func newActivity() *activity { return &activity{rows: make(map[replicaName]*activityRow)} }

// apply takes the batch at seq and returns the bucket that it closed, or nil. A
// nil batch is one that could not be read, which still moves time.
func (a *activity) apply(seq uint64, at time.Time, b *pb.KVBatch) *activityBatch {
	var closed *activityBatch
	if bucket := bucketOf(at); !bucket.Equal(a.bucket) {
		closed = a.flush()
		a.bucket = bucket
	}
	if b == nil {
		return closed
	}
	if len(a.rows) == 0 {
		a.first = seq
	}
	a.last = seq
	name := replicaName{pool: b.GetPool(), replica: b.GetReplica()}
	row := a.rows[name]
	if row == nil {
		row = &activityRow{pool: name.pool, replica: name.replica, bucket: a.bucket, firstSeq: seq}
		a.rows[name] = row
	}
	row.add(seq, b)
	return closed
}

func (r *activityRow) add(seq uint64, b *pb.KVBatch) {
	r.batches++
	r.lastSeq = seq
	r.blockTokens = b.GetBlockTokens()
	if b.GetSeq() == 1 {
		r.epochs++ // an epoch begins with seq 1, whatever was seen before
	}
	for _, event := range b.GetEvents() {
		switch e := event.GetEvent().(type) {
		case *pb.KVEvent_Store:
			r.stored += uint64(len(e.Store.GetKeys()))
		case *pb.KVEvent_Clear:
			r.cleared++
		case *pb.KVEvent_Remove:
			n := uint64(len(e.Remove.GetKeys()))
			switch e.Remove.GetReason() {
			case pb.KVRemoveReason_KV_REMOVE_REASON_EVICTED:
				r.evicted += n
			case pb.KVRemoveReason_KV_REMOVE_REASON_OFFLOADED:
				r.offloaded += n
			default:
				r.removed += n
			}
		}
	}
}

// flush closes the bucket, or returns nil when nothing is in it.
func (a *activity) flush() *activityBatch {
	if len(a.rows) == 0 {
		return nil
	}
	b := &activityBatch{first: a.first, last: a.last}
	for _, row := range a.rows {
		b.rows = append(b.rows, row)
	}
	slices.SortFunc(b.rows, func(x, y *activityRow) int {
		return cmp.Or(cmp.Compare(x.pool, y.pool), cmp.Compare(x.replica, y.replica))
	})
	clear(a.rows)
	return b
}

// due is cutter.due for the open bucket.
func (a *activity) due(now time.Time, grace time.Duration) bool {
	return len(a.rows) > 0 && now.After(a.bucket.Add(bucketWidth+grace))
}
