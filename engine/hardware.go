package engine

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// stepOverhead is what a step costs besides arithmetic and memory: scheduling,
// launches, sampling. An assumption of the model; with it 300 new 70B tokens on
// an H100 take the brief's 22 ms.
const stepOverhead = time.Millisecond

// memoryShare is the part of device memory that an engine uses for weights and
// KV together: vLLM's gpu_memory_utilization, 0.9 by default.
const memoryShare = 0.9

// modelSize is what the arithmetic needs of a model. Weights and KV are taken at
// one byte a value (fp8), as in the brief's section 8.
type modelSize struct {
	parameters    float64
	flopsPerToken float64
	layers        float64
	kvHeads       float64
	headDim       float64
}

// models are dense Llama 3 models: "The Llama 3 Herd of Models", arXiv 2407.21783,
// table 3. FLOP per token are twice the parameters: a multiply and an add each;
// 70B is the brief's 140 GFLOP. The quadratic part of attention is left out, as
// it is in the brief.
var models = map[string]modelSize{
	"llama-3-8b":   {parameters: 8.0e9, flopsPerToken: 16e9, layers: 32, kvHeads: 8, headDim: 128},
	"llama-3-70b":  {parameters: 70e9, flopsPerToken: 140e9, layers: 80, kvHeads: 8, headDim: 128},
	"llama-3-405b": {parameters: 405e9, flopsPerToken: 810e9, layers: 126, kvHeads: 8, headDim: 128},
}

// deviceSize is what the arithmetic needs of a GPU: peak dense FLOP/s in the
// fastest type it has for fp8 weights, bytes/s and bytes of its memory.
type deviceSize struct {
	flops     float64
	bandwidth float64
	memory    float64
}

const gib = 1 << 30

// devices are single GPUs, from NVIDIA's data sheets.
var devices = map[string]deviceSize{
	// H100 SXM: fp8 1,979 TFLOP/s dense, the brief's ~2 PFLOP/s; 3.35 TB/s, 80 GB.
	"h100": {flops: 2e15, bandwidth: 3.35e12, memory: 80 * gib},
	// H200 SXM: the compute of the H100; 4.8 TB/s, 141 GB.
	"h200": {flops: 2e15, bandwidth: 4.8e12, memory: 141e9},
	// A100 SXM 80GB: no fp8 arithmetic, bf16 312 TFLOP/s dense; 2,039 GB/s.
	"a100": {flops: 312e12, bandwidth: 2.039e12, memory: 80 * gib},
	// L40S: fp8 733 TFLOP/s dense; 864 GB/s, 48 GB.
	"l40s": {flops: 733e12, bandwidth: 864e9, memory: 48 * gib},
}

// Rates is the speed and size of one replica: a model on one or more GPUs.
// Peaks are taken as reached, and several GPUs as one that is several times as
// fast; both make it an upper bound.
type Rates struct {
	Model, GPU string
	// FlopsPerToken is the FLOP of one token, prompt or generated.
	FlopsPerToken float64
	// Flops is FLOP per second.
	Flops float64
	// WeightBytes are read once a step.
	WeightBytes float64
	// KVBytesPerToken is the KV of one token, read once a step for every token
	// that is attended to.
	KVBytesPerToken float64
	// Bandwidth is bytes per second from device memory.
	Bandwidth float64
	// Memory is all device memory in bytes.
	Memory float64
	// Overhead is the fixed part of a step.
	Overhead time.Duration
}

// Lookup returns the rates of a model on a GPU. gpu may carry a count, as in
// "4xh100". An error lists what there is, or how many GPUs the model needs.
func Lookup(model, gpu string) (Rates, error) {
	m, ok := models[model]
	if !ok {
		return Rates{}, fmt.Errorf("model %q is not in the table; choose one of %s", model, names(models))
	}
	count, kind := 1, gpu
	if n, rest, found := strings.Cut(gpu, "x"); found {
		if c, err := strconv.Atoi(n); err == nil && c >= 1 && c <= 1024 {
			count, kind = c, rest
		}
	}
	d, ok := devices[kind]
	if !ok {
		return Rates{}, fmt.Errorf("gpu %q is not in the table; choose one of %s, or several as in 4xh100", gpu, names(devices))
	}
	r := Rates{
		Model: model, GPU: gpu,
		FlopsPerToken:   m.flopsPerToken,
		Flops:           d.flops * float64(count),
		WeightBytes:     m.parameters,
		KVBytesPerToken: 2 * m.layers * m.kvHeads * m.headDim,
		Bandwidth:       d.bandwidth * float64(count),
		Memory:          d.memory * float64(count),
		Overhead:        stepOverhead,
	}
	if r.kvMemory() <= 0 {
		need := int(math.Floor(r.WeightBytes/(d.memory*memoryShare))) + 1
		return Rates{}, fmt.Errorf("model %q does not fit on gpu %q; use %dx%s or more", model, gpu, need, kind)
	}
	return r, nil
}

func names[V any](table map[string]V) string {
	return strings.Join(slices.Sorted(maps.Keys(table)), ", ")
}

func (r Rates) kvMemory() float64 { return r.Memory*memoryShare - r.WeightBytes }

// Blocks is how many KV blocks fit beside the weights.
func (r Rates) Blocks(blockTokens int) int {
	return int(r.kvMemory() / (r.KVBytesPerToken * float64(blockTokens)))
}

// PrefillTokensPerSecond is the speed of prefill alone: ~14.3k for 70B on an H100.
func (r Rates) PrefillTokensPerSecond() float64 { return r.Flops / r.FlopsPerToken }

// Flop is the FLOP of computing tokens: 868 TFLOP for 6,200 tokens of 70B.
func (r Rates) Flop(tokens int) float64 { return r.FlopsPerToken * float64(tokens) }

// StepTime is how long a step takes that computes tokens while attending to
// context tokens of KV: the overhead, plus the longer of arithmetic and memory.
func (r Rates) StepTime(tokens int, context int64) time.Duration {
	return r.costs().step(tokens, context).round()
}

// costs are the rates as whole picoseconds, so that the sum over steps is the
// same however many are added at once.
type costs struct {
	overhead, token, weights, kv picos
}

func (r Rates) costs() costs {
	const ps = 1e12
	return costs{
		overhead: picos(r.Overhead) * 1000,
		token:    picos(math.Round(r.FlopsPerToken / r.Flops * ps)),
		weights:  picos(math.Round(r.WeightBytes / r.Bandwidth * ps)),
		kv:       picos(math.Round(r.KVBytesPerToken / r.Bandwidth * ps)),
	}
}

func (c costs) step(tokens int, context int64) picos {
	return c.overhead + max(picos(tokens)*c.token, c.weights+picos(context)*c.kv)
}

// steps is the time of n steps that each compute the same number of tokens,
// where the first attends to context tokens and each later one to tokens more.
func (c costs) steps(n, tokens int, context int64) picos {
	if n <= 0 {
		return 0
	}
	// Arithmetic bounds the first steps, memory those from step bound on.
	compute := picos(tokens) * c.token
	bound := 0
	if grow := picos(tokens) * c.kv; c.weights+picos(context)*c.kv < compute {
		bound = n
		if grow > 0 {
			short := compute - c.weights - picos(context)*c.kv
			bound = int(min(picos(n), (short+grow-1)/grow))
		}
	}
	k := picos(n - bound)
	first := picos(context) + picos(bound)*picos(tokens)
	memory := k*c.weights + c.kv*(k*first+picos(tokens)*(k*(k-1)/2))
	return picos(n)*c.overhead + picos(bound)*compute + memory
}

// picos is a duration in picoseconds; 106 days fit, far more than any one leap.
type picos int64

// round is the duration rounded up to nanoseconds.
func (p picos) round() time.Duration { return time.Duration((p + 999) / 1000) }

// instant is a model time to the picosecond.
type instant struct {
	ns time.Duration
	ps picos // 0 to 999
}

func (i instant) add(p picos) instant {
	p += i.ps
	return instant{ns: i.ns + time.Duration(p/1000), ps: p % 1000}
}

// ceil is the first nanosecond that is not before i.
func (i instant) ceil() time.Duration {
	if i.ps > 0 {
		return i.ns + 1
	}
	return i.ns
}
