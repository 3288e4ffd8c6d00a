package prefix

import (
	"fmt"

	pb "warmpath/schemas/warmpathv1"
)

// Tier says where KV lies, best first.
type Tier uint8

// The tiers, from the one that costs nothing to use to the slowest to load from.
const (
	GPU Tier = iota
	CPU
	Disk
	Remote
	// NumTiers is the number of tiers, not a tier.
	NumTiers
)

// String returns the tier's name as dashboards and logs show it.
func (t Tier) String() string {
	switch t {
	case GPU:
		return "gpu"
	case CPU:
		return "cpu"
	case Disk:
		return "disk"
	case Remote:
		return "remote"
	}
	return fmt.Sprintf("tier(%d)", uint8(t))
}

// ToProto returns the tier as events carry it.
func (t Tier) ToProto() pb.Tier {
	return pb.Tier(t + 1)
}

// TierFromProto returns an event's tier; ok is false for an unspecified one and
// for one that this version does not know.
func TierFromProto(t pb.Tier) (tier Tier, ok bool) {
	if t < pb.Tier_TIER_GPU || t > pb.Tier_TIER_REMOTE {
		return 0, false
	}
	return Tier(t - 1), true
}
