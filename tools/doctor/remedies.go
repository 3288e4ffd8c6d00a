package doctor

import (
	"fmt"

	"warmpath/services/bridge/discovery"
)

// switchOnEvents says how an engine is made to publish KV events at a port.
func switchOnEvents(kind discovery.Kind, port string) string {
	vllm := fmt.Sprintf(`start vLLM (0.9 or newer) with --kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%s"}'`, port)
	sglang := fmt.Sprintf(`start SGLang with --kv-events-config '{"publisher":"zmq","endpoint":"tcp://*:%s"}' --page-size 16`, port)
	trtllm := `set kv_cache_config.event_buffer_max_size (such as 16384) and kv_cache_config.enable_block_reuse: true for TensorRT-LLM, whose events a bridge with --kv-pull then polls at POST /kv_cache_events; newer versions also publish them with kv_cache_config.kv_events_config`
	switch kind {
	case discovery.VLLM:
		return vllm
	case discovery.SGLang:
		return sglang
	case discovery.TRTLLM:
		return trtllm
	}
	return vllm + "; " + sglang + "; " + trtllm
}

// wildcardTrap explains the endpoint that looks like binding and is not.
const wildcardTrap = `an engine that is given the endpoint tcp://0.0.0.0:PORT may connect instead of bind (vLLM, and SGLang before it was mended): it then publishes to nobody, without an error. Write tcp://*:PORT`

// switchOnReplay says how an engine is made to answer for lost batches.
func switchOnReplay(kind discovery.Kind) string {
	const add = `add "replay_endpoint":"tcp://*:5558" to its `
	switch kind {
	case discovery.TRTLLM:
		return add + "kv_cache_config.kv_events_config; polled events need none"
	case discovery.VLLM, discovery.SGLang:
		return add + "--kv-events-config, and give it to the bridge"
	}
	return "give the engine a replay endpoint if it can have one, and give it to the bridge"
}

// switchOnCaching says how an engine is made to reuse prefixes.
func switchOnCaching(kind discovery.Kind) string {
	switch kind {
	case discovery.VLLM:
		return "start vLLM with --enable-prefix-caching, and without --no-enable-prefix-caching"
	case discovery.SGLang:
		return "start SGLang without --disable-radix-cache"
	case discovery.TRTLLM:
		return "set kv_cache_config.enable_block_reuse: true"
	}
	return "switch the engine's prefix caching on"
}

// switchOnDetails says how an engine is made to report cached tokens in usage.
func switchOnDetails(kind discovery.Kind) string {
	switch kind {
	case discovery.VLLM:
		return "start vLLM with --enable-prompt-tokens-details"
	case discovery.SGLang:
		return "start SGLang with --enable-cache-report"
	case discovery.TRTLLM:
		return "use a TensorRT-LLM version whose usage has prompt_tokens_details"
	}
	return "make the engine report usage.prompt_tokens_details.cached_tokens"
}

// blockSizeFlag says how an engine is given another block size.
func blockSizeFlag(kind discovery.Kind, tokens int) string {
	switch kind {
	case discovery.SGLang:
		return fmt.Sprintf("start SGLang with --page-size %d", tokens)
	case discovery.TRTLLM:
		return fmt.Sprintf("set kv_cache_config.tokens_per_block: %d", tokens)
	}
	return fmt.Sprintf("start the engine with --block-size %d", tokens)
}
