package kvevents

import (
	"fmt"

	pb "warmpath/schemas/warmpathv1"
)

// Generation is a wire format of an engine.
type Generation uint8

// The generations, oldest first for each engine.
const (
	// VLLMv090 is vLLM 0.9.0: arrays, a batch without rank.
	VLLMv090 Generation = iota
	// VLLMRank is vLLM 0.9.1: the batch has a rank.
	VLLMRank
	// VLLMMedium is vLLM 0.10: events have a medium.
	VLLMMedium
	// VLLMLoRAName adds the LoRA name.
	VLLMLoRAName
	// VLLMFull is the last array form: extra keys, group, attention kind, window.
	VLLMFull
	// VLLMMap is vLLM 0.24: events are tagged maps, the batch an array.
	VLLMMap
	// VLLMBatchMap is VLLMMap whose batch is a map too, as in vLLM's development
	// branch.
	VLLMBatchMap
	// SGLangLegacy is SGLang of 2025: arrays, signed hashes, a batch without rank.
	SGLangLegacy
	// SGLangMedium has a rank and a medium.
	SGLangMedium
	// SGLangMetadata is SGLang 0.5.18: stores with a salt end with a map.
	SGLangMetadata
	// SGLangMap has tagged maps, the batch an array.
	SGLangMap
	// TRTLLMMap is TensorRT-LLM's push form: tagged maps, the batch an array.
	TRTLLMMap
	// SimulatorArray is llm-d-inference-sim's array form: integers of full width,
	// an absent parent as 0, nine fields.
	SimulatorArray
	// SimulatorMap is llm-d-inference-sim's map form: absent fields left out.
	SimulatorMap
)

// Generations lists all of them.
func Generations() []Generation {
	all := make([]Generation, 0, SimulatorMap+1)
	for g := VLLMv090; g <= SimulatorMap; g++ {
		all = append(all, g)
	}
	return all
}

// String is the generation's name, as ParseGeneration reads it.
func (g Generation) String() string {
	switch g {
	case VLLMv090:
		return "vllm-0.9.0"
	case VLLMRank:
		return "vllm-rank"
	case VLLMMedium:
		return "vllm-medium"
	case VLLMLoRAName:
		return "vllm-lora-name"
	case VLLMFull:
		return "vllm-full"
	case VLLMMap:
		return "vllm-map"
	case VLLMBatchMap:
		return "vllm-batch-map"
	case SGLangLegacy:
		return "sglang-legacy"
	case SGLangMedium:
		return "sglang-medium"
	case SGLangMetadata:
		return "sglang-metadata"
	case SGLangMap:
		return "sglang-map"
	case TRTLLMMap:
		return "trtllm-map"
	case SimulatorArray:
		return "simulator-array"
	case SimulatorMap:
		return "simulator-map"
	}
	return fmt.Sprintf("generation %d", uint8(g))
}

// ParseGeneration is the generation of a name.
func ParseGeneration(name string) (Generation, error) {
	for _, g := range Generations() {
		if g.String() == name {
			return g, nil
		}
	}
	return 0, fmt.Errorf("generation %q is unknown: use one of %v", name, Generations())
}

func (g Generation) sglang() bool    { return g >= SGLangLegacy && g <= SGLangMap }
func (g Generation) simulator() bool { return g >= SimulatorArray }

// ranked says that batches carry a rank.
func (g Generation) ranked() bool { return g != VLLMv090 && g != SGLangLegacy }

// maps says that events are tagged maps.
func (g Generation) maps() bool {
	switch g {
	case VLLMMap, VLLMBatchMap, SGLangMap, TRTLLMMap, SimulatorMap:
		return true
	}
	return false
}

// medium is the engine's name of a tier.
func (g Generation) medium(t pb.Tier) string {
	switch t {
	case pb.Tier_TIER_CPU:
		if g.sglang() {
			return "CPU_PINNED"
		}
		return "CPU"
	case pb.Tier_TIER_DISK:
		if g.sglang() {
			return "DISK"
		}
		return "STORAGE"
	case pb.Tier_TIER_REMOTE:
		switch {
		case g.sglang():
			return "EXTERNAL"
		case g == VLLMMap || g == VLLMBatchMap:
			return "STORAGE" // and a locality that says REMOTE
		}
		return "REMOTE"
	}
	return "GPU"
}
