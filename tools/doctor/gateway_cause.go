package doctor

import (
	"warmpath/services/bridge/discovery"

	pb "warmpath/schemas/warmpathv1"
)

// cause is what an alarm's cause means, and what to do about it.
type cause struct{ means, do string }

// causeOf is the cause of an alarm, by the name that gateways give it.
func causeOf(m *pb.Mismatch) cause {
	engines := "each engine of the pool"
	if m.Replica != "" {
		engines = "the engine of " + m.Replica
	}
	switch m.Cause {
	case "template":
		return cause{
			"the gateway renders chats otherwise than the engines, so that its keys name other prompts: their hits are not foreseen, and requests go astray",
			"give --tokenizer the folder that the engines serve, and --chat-template the file that they were given by theirs; --engine-kind says whose rules hold (sglang has its own); a template with a date in it wants both clocks in one time zone",
		}
	case "tokenizer":
		return cause{
			"the gateway makes other tokens of the same text than the engines, so that no key names what they hold",
			"give --tokenizer the folder that the engines serve: its tokenizer.json must be of the same revision",
		}
	case "block_size":
		return cause{
			"keys are made of blocks of another size than the engine caches by",
			"give all engines of the pool one block size (vLLM --block-size, SGLang --page-size, TensorRT-LLM kv_cache_config.tokens_per_block) and their bridges the pool's --block-tokens, of which it must be a multiple or a part; warmpath doctor bridge ENGINE --block-tokens N looks at " + engines,
		}
	case "salt":
		return cause{
			"engine and keys do not part tenants alike: cache_salt is in the one's blocks and not in the other's",
			"use engines that heed cache_salt and tell it in their events (vLLM's with extra keys, of 2026; SGLang 0.5.18 or newer), and let nothing between gateway and engine drop or add it; where the engines cannot, give the keys of the gateway's key file no salt of their own",
		}
	case "lora":
		return cause{
			"the adapter has another name in the engine's events than in requests, or none, so that its blocks are not found",
			"serve adapters by the names that clients use (vLLM --lora-modules NAME=PATH) and list them to the gateway by --lora; engines that only number theirs need lora-ids in the bridge's --config",
		}
	case "events_off":
		return cause{
			"the index has not what the engine holds: its KV events are off, do not arrive, or some were lost",
			"run warmpath doctor bridge ENGINE against " + engines + ": it says which; if engines are meant to publish none, start the gateway with --without-events",
		}
	case "usage_off":
		return cause{
			"hits happen and nobody can tell: predicted and actual hits cannot be compared, and other faults stay hidden",
			switchOnDetails(discovery.VLLM) + "; " + switchOnDetails(discovery.SGLang) + "; " + switchOnDetails(discovery.TRTLLM),
		}
	case "caching_off":
		return cause{
			"the engine computes every prompt anew: there is nothing to hit",
			switchOnCaching(discovery.VLLM) + "; " + switchOnCaching(discovery.SGLang) + "; " + switchOnCaching(discovery.TRTLLM),
		}
	}
	return cause{"a cause that this version does not know", "use a doctor of the gateway's version, and see what the alarm itself says"}
}
