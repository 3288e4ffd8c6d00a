package router

import (
	"testing"
	"time"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
)

// A cold start with a long tail: a snapshot, then 200,000 batches.
func TestColdStart(t *testing.T) {
	tail := 200_000
	if testing.Short() || raceDetector {
		tail = 20_000
	}
	e := newEnv(t)
	var engines []*engine
	for _, name := range []string{"a", "b", "c", "d"} {
		engines = append(engines, e.engine(name))
	}
	var last uint64
	for i, one := range engines {
		last = one.holds(keysOf(i, 50))
	}
	e.snapshotAt(last)
	publisher := streams.NewPublisher(e.js, streams.PublisherConfig{})
	defer publisher.Close()
	for i := range tail {
		one := engines[i%len(engines)]
		keys := keysOf(i%97, 8)
		events := []*pb.KVEvent{stored(pb.Tier_TIER_GPU, keys)}
		if i%3 == 0 {
			events = append(events, removed(pb.Tier_TIER_GPU, keys[4:]))
		}
		batch := one.batch(events...)
		m, err := streams.NewMessage(streams.KVSubject(testPool, one.name), streams.KVID(one.name, batch.Epoch, batch.Seq), batch)
		if err != nil {
			t.Fatal(err)
		}
		if err := publisher.Publish(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	if err := publisher.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, one := range engines {
		one.beat() // publishing may have outlasted the first heartbeat
	}
	began := time.Now()
	r := e.router(Config{NoSnapshots: true})
	took := time.Since(began)
	if s := r.State(); s.Start.From != startSnapshot || s.Start.Seq != last || s.KV.Position != last+uint64(tail) || s.Index.Suspects != 0 {
		t.Errorf("started from %+v, at %+v, %+v", s.Start, s.KV, s.Index)
	}
	t.Logf("ready %v after the start, with a tail of %d batches", took, tail)
}
