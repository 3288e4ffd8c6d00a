package discovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Kind is the make of an engine.
type Kind string

// The kinds that are told apart. OpenAI is any other engine with its API.
const (
	VLLM   Kind = "vllm"
	SGLang Kind = "sglang"
	TRTLLM Kind = "trtllm"
	OpenAI Kind = "openai"
)

const (
	// maxBlockTokens bounds a block size that is believed: the largest known ones,
	// of hybrid models, are some thousand tokens.
	maxBlockTokens = 1 << 16
	// maxRanks bounds the data-parallel ranks that are believed.
	maxRanks = 4096
)

// Engine is what an engine says of itself. Zero values are unknown, and Missing
// says in words which of them an operator may have to give.
type Engine struct {
	Kind    Kind
	Version string
	// Model is the one asked for, or the only one that the engine lists. Models are
	// all that it lists, without LoRA adapters, which are LoRAs.
	Model         string
	Models, LoRAs []string
	// BlockTokens is the engine's own block (or page) size in tokens.
	BlockTokens int
	// GPUBlocks is the capacity of one rank in blocks of that size; of the largest
	// one where ranks differ. TensorRT-LLM's older cache manager counts the blocks
	// of its host tier too.
	GPUBlocks uint64
	// MaxModelLen is the longest context in tokens.
	MaxModelLen int
	// Ranks is how many data-parallel ranks answer behind the address, at least 1.
	// RankNumbers are the ones that label the engine's figures: a single rank that
	// is served alone still carries its own number.
	Ranks       int
	RankNumbers []int
	// PrefixCaching and CachedTokensReported are nil where the engine does not say
	// whether it reuses prefixes, and whether usage tells how much of them.
	PrefixCaching, CachedTokensReported *bool
	KVEvents                            KVEvents
	Missing                             []string
}

// KVEvents is what an engine says of its KV event publisher.
type KVEvents struct {
	// Known is true when the engine says whether it publishes; only SGLang does.
	Known, Enabled bool
	// Host is the one that the engine says it binds, which may be a wildcard.
	Host string
	// Endpoint and ReplayEndpoint are rank 0's; other ranks add their number to the
	// ports. A wildcard host is replaced by the host at which the engine was asked.
	Endpoint, ReplayEndpoint string
	// Topic is the prefix of the topic frames.
	Topic string
	// BlockTokens is the size of the blocks in events.
	BlockTokens int
	// LoadEndpoint is rank 0's load socket, and LoadTopic its topic.
	LoadEndpoint, LoadTopic string
}

// Discover asks the engine for everything it says. model names the one that is
// meant where it lists several; empty takes the only one. The error is one of the
// connection when the engine does not answer, ErrKey when it wants a key, and
// ErrModel when the model cannot be told, in which case the Engine is filled as
// far as it goes.
func (c *Client) Discover(ctx context.Context, model string) (Engine, error) {
	c.mu.Lock()
	clear(c.absent)
	c.mu.Unlock()
	e := Engine{Kind: OpenAI}
	listed, err := c.models(ctx)
	if err != nil {
		return e, err
	}
	listed.into(&e)
	c.version(ctx, &e)
	c.serverInfo(ctx, &e)
	c.metricsInto(ctx, &e)
	if e.Ranks = max(e.Ranks, len(e.RankNumbers), 1); e.Ranks > maxRanks {
		e.Ranks = 1
	}
	err = e.choose(model)
	e.nameMissing()
	c.mu.Lock()
	c.ranks, c.kind = e.Ranks, e.Kind
	c.mu.Unlock()
	return e, err
}

// modelList is the engine's /v1/models; empty when it has no such page.
type modelList struct {
	models, loras []string
	kind          Kind
	maxLen        int
}

func (c *Client) models(ctx context.Context) (modelList, error) {
	var out modelList
	body, err := c.get(ctx, "/v1/models")
	switch {
	case errors.Is(err, ErrKey):
		return out, fmt.Errorf("engine %s: %w: %w", c.base, ErrKey, err)
	case notThere(err):
		return out, nil
	case err != nil:
		return out, fmt.Errorf("engine %s: %w", c.base, err)
	}
	list, err := readFields(body)
	if err != nil {
		return out, fmt.Errorf("engine %s: /v1/models: %w", c.base, err)
	}
	for _, m := range list.objects("data") {
		id := m.text("id")
		switch {
		case id == "":
		case m.text("parent") != "": // a LoRA adapter names its base model
			out.loras = append(out.loras, id)
		default:
			out.models = append(out.models, id)
			out.maxLen = max(out.maxLen, m.count("max_model_len"))
		}
		if out.kind == "" {
			out.kind = kindByOwner(m.text("owned_by"))
		}
	}
	return out, nil
}

func kindByOwner(owner string) Kind {
	switch owner {
	case "vllm":
		return VLLM
	case "sglang":
		return SGLang
	case "tensorrt_llm":
		return TRTLLM
	}
	return ""
}

func (l modelList) into(e *Engine) {
	e.Models, e.LoRAs, e.MaxModelLen = l.models, l.loras, l.maxLen
	if l.kind != "" {
		e.Kind = l.kind
	}
}

func (c *Client) version(ctx context.Context, e *Engine) {
	body, err := c.get(ctx, "/version")
	if err != nil {
		return
	}
	if said, err := readFields(body); err == nil {
		e.Version = said.text("version")
	}
}

// metricsInto learns from the metrics page what the engine is. A page that cannot
// be read leaves things unknown; Load says why.
func (c *Client) metricsInto(ctx context.Context, e *Engine) {
	for _, path := range []string{"/metrics", "/prometheus/metrics"} {
		body, err := c.getIfThere(ctx, path)
		if err != nil {
			continue
		}
		if iterations := readIterations(body); iterations != nil {
			e.fromIterations(iterations)
			continue
		}
		page := readMetrics(body)
		if page.kind == "" {
			continue
		}
		e.Kind = page.kind
		e.fromMetrics(page)
		return
	}
}

func (e *Engine) fromMetrics(page metricsPage) {
	for rank := range page.ranks() {
		e.RankNumbers = append(e.RankNumbers, rank)
	}
	slices.Sort(e.RankNumbers)
	for _, said := range page.info(vllmCacheInfo) {
		e.size(said.count("block_size"), said.count("num_gpu_blocks"))
		if e.PrefixCaching == nil {
			e.PrefixCaching = said.truth("enable_prefix_caching")
		}
	}
	for _, said := range page.info(sglangCacheInfo) {
		e.size(said.count("page_size"), said.count("num_pages"))
	}
	e.size(page.largest(sglangPageSize), page.largest(sglangPages))
	e.size(page.largest(trtllmTokensInBlock), page.largest(maxBlocks[0].name))
	if e.BlockTokens > 0 {
		e.size(0, page.largest(sglangTokens)/e.BlockTokens)
	}
}

// size takes a block size and a capacity, where they are said and not yet known
// from a better source. Of several ranks the largest counts.
func (e *Engine) size(blockTokens, blocks int) {
	if e.BlockTokens == 0 && blockTokens <= maxBlockTokens {
		e.BlockTokens = blockTokens
	}
	e.GPUBlocks = max(e.GPUBlocks, uint64(blocks))
}

// choose tells the model.
func (e *Engine) choose(model string) error {
	switch {
	case model != "":
		e.Model = model
	case len(e.Models) == 1:
		e.Model = e.Models[0]
	case len(e.Models) == 0:
		return fmt.Errorf("%w: the engine lists none; name it by --model", ErrModel)
	default:
		return fmt.Errorf("%w: the engine serves %d models (%s); name one by --model", ErrModel, len(e.Models), strings.Join(e.Models, ", "))
	}
	return nil
}

// nameMissing says in words what is not known.
func (e *Engine) nameMissing() {
	say := func(missing bool, words string) {
		if missing {
			e.Missing = append(e.Missing, words)
		}
	}
	say(e.Kind == OpenAI, "kind: neither its metrics nor its model list show vLLM, SGLang or TensorRT-LLM")
	say(e.Version == "", "version")
	say(e.Model != "" && len(e.Models)+len(e.LoRAs) > 0 && !slices.Contains(e.Models, e.Model) && !slices.Contains(e.LoRAs, e.Model),
		fmt.Sprintf("model: %s is not among those it lists (%s)", e.Model, strings.Join(e.Models, ", ")))
	say(e.BlockTokens == 0, "block size")
	say(e.GPUBlocks == 0, "capacity in KV blocks")
	say(e.MaxModelLen == 0, "longest context")
	say(!e.KVEvents.Known, "whether and where it publishes KV events")
}
