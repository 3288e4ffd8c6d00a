package doctor

import (
	"warmpath/services/bridge/kvevents"
	"warmpath/services/bridge/zmq"

	pb "warmpath/schemas/warmpathv1"
)

// facts count what came from a publisher.
type facts struct {
	batches, events, stored int
	// unreadable are payloads, skipped and unknown events that could not be read
	// or are of unknown kinds.
	unreadable, skipped, unknown int
	lastError                    error
	form                         string
	topics                       map[string]int
	ignored                      map[string]int
	// sizes are the block sizes of stored events of groups that count, groups the
	// kinds of all groups.
	sizes  map[int]int
	groups map[string]int
	// bare are stored events on GPU without token ids.
	bare int
	// ranks are the data-parallel ranks that batches are stamped with.
	ranks map[int]int
	// first and last are sequences; missing is what lies between batches that came
	// one after the other, back how often they went back.
	first, last   uint64
	missing, back uint64
	byConn        map[uint64]uint64
}

func newFacts() facts {
	return facts{
		topics: map[string]int{}, ignored: map[string]int{}, sizes: map[int]int{}, groups: map[string]int{},
		ranks: map[int]int{}, byConn: map[uint64]uint64{},
	}
}

// take counts one message.
func (f *facts) take(frame zmq.Frame, batch *kvevents.Batch, err error) {
	f.topics[string(frame.Topic)]++
	f.sequence(frame)
	f.batches++
	if err != nil {
		f.unreadable++
		f.lastError = err
		return
	}
	f.skipped += batch.Skipped
	f.unknown += batch.Unknown
	f.ranks[batch.Rank]++
	f.events += len(batch.Events)
	for i := range batch.Events {
		f.event(&batch.Events[i])
	}
	if f.form == "" {
		f.form = formOf(frame.Payload)
	}
}

func (f *facts) sequence(frame zmq.Frame) {
	last, again := f.byConn[frame.Conn]
	switch {
	case !again:
	case frame.Seq <= last:
		f.back++
	default:
		f.missing += frame.Seq - last - 1
	}
	f.byConn[frame.Conn] = frame.Seq
	if f.batches == 0 {
		f.first = frame.Seq
	}
	f.last = frame.Seq
}

func (f *facts) event(e *kvevents.Event) {
	if e.Kind != kvevents.Stored {
		return
	}
	f.stored++
	f.groups[e.Spec]++
	if !counts(e.Spec) {
		return
	}
	if e.BlockSize > 0 {
		f.sizes[e.BlockSize]++
	}
	if e.Tier == pb.Tier_TIER_GPU && len(e.Tokens) == 0 {
		f.bare++
	}
}

// counts reports whether blocks of a cache group of that kind are a prompt's
// prefix: sliding windows and states are not.
func counts(spec string) bool {
	switch spec {
	case "", "full_attention", "mla_attention", "sink_full_attention":
		return true
	}
	return false
}

// add adds what another rank's publisher showed. Sequences are each rank's own.
func (f *facts) add(other facts) {
	f.batches += other.batches
	f.events += other.events
	f.stored += other.stored
	f.unreadable += other.unreadable
	f.skipped += other.skipped
	f.unknown += other.unknown
	f.bare += other.bare
	f.missing += other.missing
	f.back += other.back
	if other.lastError != nil {
		f.lastError = other.lastError
	}
	if f.form == "" {
		f.form = other.form
	}
	merge(f.topics, other.topics)
	merge(f.ignored, other.ignored)
	merge(f.sizes, other.sizes)
	merge(f.groups, other.groups)
	merge(f.ranks, other.ranks)
}

func merge[K comparable](into, from map[K]int) {
	for k, n := range from {
		into[k] += n
	}
}

// blockTokens is the engine's block size: the largest, because partial entries
// say smaller ones. 0 when no event told.
func (f *facts) blockTokens() int {
	most := 0
	for size := range f.sizes {
		most = max(most, size)
	}
	return most
}
