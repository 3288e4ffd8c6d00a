package router

import (
	"context"
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"warmpath/routing/prefix"
	pb "warmpath/schemas/warmpathv1"
)

// offline is a router that is ready and has no NATS: decisions need none.
func offline(tb testing.TB, replicas int) *Router {
	tb.Helper()
	r, err := New(Config{Pool: testPool}, nil, nil, prometheus.NewRegistry())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { r.listener.Close() })
	for i := range replicas {
		epoch := newEpoch()
		r.fleetChanged(&pb.FleetEntry{
			Pool: testPool, Replica: fmt.Sprintf("engine-%02d", i), Address: "http://x", Model: testModel, BlockTokens: blockTokens,
			KvEvents: true, Epoch: epoch[:], PrefillTokensPerSecond: 10_000,
		}, "")
	}
	r.started.Store(true)
	return r
}

// BenchmarkDecide is one decision over 64 replicas that each hold some of a
// prompt of 256 blocks, and its outcome.
func BenchmarkDecide(b *testing.B) {
	const replicas, blocks = 64, 256
	for _, by := range []string{"keys", "token_ids"} {
		b.Run(by, func(b *testing.B) {
			r := offline(b, replicas)
			ids, keys := prompt(1, blocks)
			for i, s := range r.replicas(r.now()) {
				batch, err := prefix.FromProto(&pb.KVBatch{
					Replica: s.entry.Replica, Epoch: s.entry.Epoch, Seq: 1, Events: []*pb.KVEvent{stored(pb.Tier_TIER_GPU, keys[:(i+1)*blocks/replicas])},
				}, uint64(i+1))
				if err != nil {
					b.Fatal(err)
				}
				r.index().Apply(batch)
			}
			q := request(keys)
			if by == "token_ids" {
				q.Keys, q.PromptTokens, q.TokenIds = nil, 0, ids
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				q.RequestId = fmt.Sprintf("req-%d", i)
				d := r.Decide(context.Background(), q).Decision
				if d == nil {
					b.Fatal("no decision")
				}
				r.liveFinished(finished(d))
			}
		})
	}
}
