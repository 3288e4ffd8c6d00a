package router

import (
	"testing"

	"google.golang.org/protobuf/proto"

	pb "warmpath/schemas/warmpathv1"
)

// A sheet that was full of another decision is as a new one.
func TestSheetsAreUsedAgain(t *testing.T) {
	fleet := []seen{{entry: &pb.FleetEntry{Replica: "a", Epoch: make([]byte, 16)}}, {entry: &pb.FleetEntry{Replica: "b"}}}
	full := &pb.Candidate{
		GpuBlocks: 1, TotalBlocks: 2, PredictedBlocks: 3, Suspect: true, PrefillTokensPerSecond: 4, Score: 5, Ineligible: "x", ExpectedCachedTokens: 6,
		IndexedBlocks: proto.Uint64(7), Load: &pb.LoadTerms{QueuedPrefillTokens: 8, InFlight: 9, Running: 10, Waiting: 11, KvUsed: 12, ReportAgeUs: proto.Int64(13)},
	}
	used := newSheet(2)
	for _, c := range used.fill(nil, shape{}, fleet) {
		*c.IndexedBlocks = *full.IndexedBlocks
		c.Tiers = appendTier(appendTier(c.Tiers, pb.Tier_TIER_CPU, 1), pb.Tier_TIER_DISK, 2)
		proto.Merge(c.Load, full.Load)
		proto.Merge(c, full)
	}
	used.empty()
	exclude := []string{"b"}
	want := newSheet(2)
	for i, c := range used.fill(exclude, shape{}, fleet) {
		if fresh := want.fill(exclude, shape{}, fleet)[i]; !proto.Equal(c, fresh) {
			t.Errorf("candidate %d is %v, want %v", i, c, fresh)
		}
	}
}
