package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"warmpath/services/bridge/discovery"
)

// questionTimeout bounds each page; a remote engine may be slower than a bridge's.
const questionTimeout = 5 * time.Second

// examination is one look at an engine.
type examination struct {
	BridgeCommand
	http   http.RoundTripper
	client *discovery.Client
	engine discovery.Engine
	// answers is true when the engine answers HTTP at all.
	answers bool
	report  Report
}

func newExamination(c BridgeCommand) *examination {
	x := &examination{BridgeCommand: c, http: http.DefaultTransport, report: Report{Engine: c.URL, Findings: []Finding{}}}
	x.client = discovery.New(c.URL, &http.Client{Transport: x.http, Timeout: questionTimeout})
	x.client.Key = c.EngineKey
	return x
}

func (x *examination) found(check string, state State, seen, means, do string) {
	x.report.add(Finding{Check: check, State: state, Seen: seen, Means: means, Do: do})
}

// run makes all checks that what was seen before allows.
func (x *examination) run(ctx context.Context) {
	x.examineEngine(ctx)
	if x.answers {
		x.examineLoad(ctx)
	}
	watched, stop := x.watch(ctx)
	defer stop()
	asked := x.probe(ctx)
	x.await(ctx, watched, asked)
	stop()
	x.judge(watched, asked)
	x.examineReplay(ctx, watched)
	x.judgeUsage(watched, asked)
}

// examineEngine asks the engine what it is.
func (x *examination) examineEngine(ctx context.Context) {
	engine, err := x.client.Discover(ctx, x.Model)
	x.engine = engine
	switch {
	case errors.Is(err, discovery.ErrKey):
		x.found("engine", Problem, err.Error(), "nothing can be asked without its key, and the bridge cannot either", "give the key by WARMPATH_ENGINE_KEY or --engine-key")
		return
	case err != nil && !errors.Is(err, discovery.ErrModel):
		x.found("engine", Problem, err.Error(), "there is no engine that answers at this URL", "check the URL and that the engine has finished loading; GET "+x.URL+"/v1/models must answer")
		return
	}
	x.answers = true
	seen := fmt.Sprintf("%s %s", nameOf(engine.Kind), orWord(engine.Version, "of an unknown version"))
	if engine.GPUBlocks > 0 {
		seen += fmt.Sprintf(", %d blocks of %d tokens", engine.GPUBlocks, engine.BlockTokens)
	}
	if engine.Kind == discovery.OpenAI {
		x.found("engine", Unknown, seen, "its metrics and its model list do not show vLLM, SGLang or TensorRT-LLM, so that what follows is general", "")
	} else {
		x.found("engine", OK, seen, "", "")
	}
	x.examineModel(err)
	x.examineRanks()
}

func (x *examination) examineModel(err error) {
	e := x.engine
	listed := append(slices.Clone(e.Models), e.LoRAs...)
	switch {
	case err != nil:
		x.found("model", Problem, err.Error(), "the bridge cannot tell which model the replica serves, and block keys begin with the model's name", "give the bridge, and this command, --model NAME")
	case len(listed) > 0 && !slices.Contains(listed, e.Model):
		x.found("model", Problem, fmt.Sprintf("%s is not among those that the engine lists: %s", e.Model, strings.Join(listed, ", ")),
			"requests for it are refused, and keys that begin with this name match nothing", "give --model as the engine lists it (its --served-model-name)")
	default:
		seen := e.Model
		if len(e.LoRAs) > 0 {
			seen += ", with the adapters " + strings.Join(e.LoRAs, ", ")
		}
		x.found("model", OK, seen, "", "")
	}
}

func (x *examination) examineRanks() {
	if n := x.engine.Ranks; n > 1 {
		x.found("ranks", OK, fmt.Sprintf("%d data-parallel ranks", n), "each is a replica of its own, with its own cache and its own event port (the first port plus the rank)", "")
		return
	}
	x.found("ranks", OK, "one", "", "")
}

func (x *examination) examineLoad(ctx context.Context) {
	loads, err := x.client.Load(ctx)
	if err != nil {
		x.found("load", Problem, err.Error(), "the router knows nothing of the engine's queue but what it sent there itself", "make /metrics reachable at the same address as the API")
		return
	}
	missing := x.client.Missing()
	switch {
	case len(missing) > 0:
	case len(loads) == 0:
		x.found("load", Unknown, "the engine ran nothing since it was last asked", "it tells its load with each iteration only, and who reads it may take it from another reader", "set return_perf_metrics: true, so that /prometheus/metrics tells it at any time")
		return
	default:
		x.found("load", OK, fmt.Sprintf("running, waiting and kv_used of %s", plural(len(loads), "rank")), "", "")
		return
	}
	var names, whys []string
	for _, m := range missing {
		names = append(names, m.Figure)
		if !slices.Contains(whys, m.Why) {
			whys = append(whys, m.Why)
		}
	}
	x.found("load", Problem, "the engine does not report "+strings.Join(names, ", "), "the figures are left out of the load, not read as zero, so that the router trusts its own count alone", strings.Join(whys, "; "))
}

func nameOf(kind discovery.Kind) string {
	switch kind {
	case discovery.VLLM:
		return "vLLM"
	case discovery.SGLang:
		return "SGLang"
	case discovery.TRTLLM:
		return "TensorRT-LLM"
	}
	return "an engine that answers the OpenAI API"
}

func orWord(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	if strings.HasSuffix(thing, "ch") {
		thing += "e"
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
