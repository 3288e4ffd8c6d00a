package kvevents_test

import (
	"math/rand/v2"
	"testing"

	"warmpath/services/bridge/kvevents"

	pb "warmpath/schemas/warmpathv1"
)

// run is a store of consecutive blocks with tokens as large models have them.
func run(rng *rand.Rand, blocks, size int) kvevents.Event {
	ev := kvevents.Event{Kind: kvevents.Stored, Tier: pb.Tier_TIER_GPU, BlockSize: size, HasGroup: true, Spec: "full_attention"}
	for range blocks {
		ev.Hashes = append(ev.Hashes, rng.Uint64())
	}
	for range blocks * size {
		ev.Tokens = append(ev.Tokens, uint32(rng.IntN(152_000)))
	}
	return ev
}

func BenchmarkDecode(b *testing.B) {
	for _, g := range []kvevents.Generation{kvevents.VLLMFull, kvevents.VLLMMap, kvevents.SGLangMap, kvevents.SimulatorArray} {
		b.Run(g.String(), func(b *testing.B) {
			ev := run(rand.New(rand.NewPCG(1, 2)), 64, 16)
			payload := kvevents.AppendBatch(nil, g, kvevents.Batch{TimeUS: 1, Events: []kvevents.Event{ev}})
			d := kvevents.NewDecoder(kvevents.Limits{})
			b.ReportAllocs()
			b.SetBytes(int64(len(payload)))
			for b.Loop() {
				if _, err := d.Decode(payload); err != nil {
					b.Fatal(err)
				}
			}
			seconds := b.Elapsed().Seconds()
			b.ReportMetric(float64(b.N)*float64(len(ev.Tokens))/seconds, "tokens/s")
			b.ReportMetric(float64(b.N)*float64(len(ev.Hashes))/seconds, "blocks/s")
		})
	}
}
