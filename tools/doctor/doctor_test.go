package doctor

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/bridge/kvevents"
	"warmpath/services/bridge/zmq"
)

func TestHealthyEngineHasNoProblem(t *testing.T) {
	p := healthy(t)
	replay, err := zmq.NewRouter("tcp://127.0.0.1:0", func(from uint64, reply func(...[]byte) error) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		for seq := from; seq < uint64(len(p.ring)); seq++ {
			if err := reply(nil, binary.BigEndian.AppendUint64(nil, seq), p.ring[seq]); err != nil {
				return err
			}
		}
		return reply(nil, bytes.Repeat([]byte{0xff}, 8), nil)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(replay.Close)
	c := p.command(patience)
	c.KVReplay = replay.Endpoint()
	found := examine(t, c)
	if problems(found) != "" {
		t.Errorf("problems: %s", problems(found))
	}
	want(t, found, "engine", OK, "vLLM 0.26.0", "1000 blocks of 16 tokens")
	want(t, found, "model", OK, "llama")
	want(t, found, "ranks", OK, "one")
	want(t, found, "load", OK, "1 rank")
	want(t, found, "kv port", OK, p.pub.Endpoint())
	want(t, found, "kv events", OK, "stored blocks")
	want(t, found, "encoding", OK, "maps (vLLM 0.24", "unsigned integers")
	want(t, found, "groups", OK, `"full_attention" 1`)
	want(t, found, "block size", OK, "16 tokens, the pool's of 16")
	want(t, found, "tokens", OK)
	want(t, found, "sequence", OK, "without a gap")
	want(t, found, "replay", OK, "answers, from batch 0")
	want(t, found, "prefix caching", OK, "80 came from the cache")
	want(t, found, "cached tokens", OK, "0, then 80")
	if len(p.prompts) < 2 || p.prompts[0] != p.prompts[1] || len(strings.Fields(p.prompts[0])) < 96 {
		t.Errorf("the prompts are %q", p.prompts)
	}
}

// Every other sound encoding, named as what it is.
func TestEncodingsAreNamed(t *testing.T) {
	for g, words := range map[kvevents.Generation]string{
		kvevents.VLLMv090: "arrays of 6 fields (vLLM 0.9", kvevents.VLLMMedium: "arrays of 7 fields (vLLM 0.10", kvevents.VLLMFull: "arrays of 12 fields",
		kvevents.SGLangLegacy: "signed", kvevents.SimulatorArray: "llm-d's simulator", kvevents.SGLangMap: "maps",
	} {
		event := kvevents.Event{Kind: kvevents.Stored, Hashes: []uint64{1<<63 + 5}, Tokens: make([]uint32, 16), BlockSize: 16, Tier: pb.Tier_TIER_GPU}
		if form := formOf(encode(g, event)); !strings.Contains(form, words) {
			t.Errorf("%s is called %q", g, form)
		}
	}
	bytesForm := formOf(kvevents.Encoder{Generation: kvevents.VLLMMedium, HashBytes: 32}.AppendBatch(nil, kvevents.Batch{Events: []kvevents.Event{{Hashes: []uint64{1}, BlockSize: 16}}}))
	if !strings.Contains(bytesForm, "hashes are bytes") {
		t.Errorf("bytes hashes are called %q", bytesForm)
	}
	whole := stored(16, "")
	for n := range whole {
		formOf(whole[:n]) // must not panic
	}
	if formOf([]byte("xxBlockStored")) == "" || formOf(nil) != "" {
		t.Error("a payload cut after its tag has a form, one without has none")
	}
}

func TestEngineThatDoesNotAnswer(t *testing.T) {
	p := healthy(t)
	p.Close()
	found := examine(t, p.command(glance))
	want(t, found, "engine", Problem, "/v1/models")
	want(t, found, "kv events", Unknown, "does not tell")
	if problems(found) != "engine" {
		t.Errorf("problems: %s", problems(found))
	}
}

func TestEngineThatAsksForAKey(t *testing.T) {
	p := healthy(t)
	inner := p.Config.Handler
	p.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer k" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	})
	c := p.command(glance)
	want(t, examine(t, c), "engine", Problem, "WARMPATH_ENGINE_KEY")
	c.EngineKey, c.Wait = "k", patience
	if found := examine(t, c); problems(found) != "" {
		t.Errorf("with the key: %s", problems(found))
	}
}

func TestSeveralModels(t *testing.T) {
	p := healthy(t)
	p.pages["/v1/models"] = `{"data":[{"id":"a"},{"id":"b"}]}`
	c := p.command(glance)
	want(t, examine(t, c), "model", Problem, "2 models (a, b)", "--model")
	c.Model = "c"
	want(t, examine(t, c), "model", Problem, "c is not among", "served-model-name")
	c.Model = "b"
	want(t, examine(t, c), "model", OK, "b")
}

func TestLoadFiguresMissing(t *testing.T) {
	p := healthy(t)
	p.pages["/metrics"] = "vllm:num_requests_running 0\n"
	want(t, examine(t, p.command(patience)), "load", Problem, "waiting, kv_used", "not read as zero", "--disable-log-stats")
	delete(p.pages, "/metrics")
	want(t, examine(t, p.command(patience)), "load", Problem, "reachable")
	p.pages["/metrics"] = "[]" // an idle TensorRT-LLM
	want(t, examine(t, p.command(patience)), "load", Unknown, "return_perf_metrics")
}

// closedPort is one that nothing listens at: it was another's a moment ago, and
// the host does not give it out again so soon.
func closedPort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "tcp://" + l.Addr().String()
}

func TestEventsOff(t *testing.T) {
	p := healthy(t)
	c := p.command(glance)
	c.KV = closedPort(t)
	p.publish = nil
	found := examine(t, c)
	want(t, found, "kv port", Problem, "refused", "tcp://0.0.0.0:PORT", "0.9 or newer",
		`--kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:`+portOf(c.KV)+`"}'`)
	want(t, found, "prefix caching", OK, "80 came from the cache") // what does not need events is still told
	if problems(found) != "kv port" {
		t.Errorf("problems: %s", problems(found))
	}
}

// sglang makes the patient an SGLang server that says so much of its events.
func (p *patient) sglang(kvEvents string) {
	p.pages = map[string]string{
		"/v1/models":   `{"data":[{"id":"llama","owned_by":"sglang"}]}`,
		"/v1/loads":    `{"loads":[{"dp_rank":0,"num_running_reqs":0,"num_waiting_reqs":0,"token_usage":0}]}`,
		"/server_info": `{"version":"0.5.18","page_size":16,"dp_size":1,"disable_radix_cache":false,"enable_cache_report":true,"max_total_num_tokens":3200,"kv_events":` + kvEvents + `}`,
	}
}

func TestSGLangSaysThatEventsAreOff(t *testing.T) {
	p := healthy(t)
	p.sglang("null")
	p.publish = nil
	c := p.command(glance)
	c.KV = closedPort(t)
	want(t, examine(t, c), "kv port", Problem, "says itself that it does not publish", "start SGLang with --kv-events-config", "--page-size 16")
}

func TestSGLangThatConnectsInsteadOfBinding(t *testing.T) {
	p := healthy(t)
	p.publish = nil
	port := portOf(closedPort(t))
	p.sglang(`{"publisher":"zmq","endpoint_host":"0.0.0.0","endpoint_port_base":` + port + `,"topic":"","block_size":16,"dp_size":1}`)
	c := p.command(glance)
	c.KV = "" // as the engine says
	want(t, examine(t, c), "kv port", Problem, `on host "0.0.0.0"`, "connect instead of bind", "tcp://*:"+port)
}

func TestTensorRTLLMIsPolled(t *testing.T) {
	p := healthy(t)
	p.pages = map[string]string{"/v1/models": `{"data":[{"id":"llama","owned_by":"tensorrt_llm"}]}`, "/metrics": `[{"numActiveRequests":0,"numQueuedRequests":0,"kvCacheStats":{"usedNumBlocks":0,"maxNumBlocks":9,"tokensPerBlock":32}}]`, "/kv_cache_events": "405"}
	p.publish = nil
	c := p.command(glance)
	c.KV = ""
	x := newExamination(c)
	if !x.polled(context.Background()) {
		t.Error("the page of events is not seen")
	}
	if endpoint, _ := x.endpoint(); endpoint != "tcp://127.0.0.1:5557" {
		t.Errorf("the default endpoint is %s", endpoint)
	}
	x.examineEngine(context.Background())
	x.closed(context.Background(), &sight{endpoint: "tcp://127.0.0.1:5557"}, refused, errors.New("connection refused"))
	want(t, x.report.Findings, "kv port", Unknown, "POST /kv_cache_events", "event_buffer_max_size", "enable_block_reuse")
	delete(p.pages, "/kv_cache_events")
	x.report.Findings = nil
	x.closed(context.Background(), &sight{endpoint: "tcp://127.0.0.1:5557"}, refused, errors.New("connection refused"))
	want(t, x.report.Findings, "kv port", Problem, "event_buffer_max_size")
}

func TestPortThatIsNoPublisher(t *testing.T) {
	p := healthy(t)
	p.publish = nil
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	go func() {
		for {
			conn, err := other.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(conn, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n") // as the engine's HTTP port does
			conn.Close()
		}
	}()
	c := p.command(glance)
	c.KV = "tcp://" + other.Addr().String()
	want(t, examine(t, c), "kv port", Problem, "accepts connections, but", "no ZMQ publisher", "--kv")
}

func TestHostThatHasNoName(t *testing.T) {
	x := newExamination(BridgeCommand{URL: "http://h"})
	for err, words := range map[error]string{
		&net.DNSError{Err: "no such host", Name: "x.invalid", IsNotFound: true}: "cannot be resolved",
		context.DeadlineExceeded: "firewall",
		errors.New("no route"):   "tcp://host:port",
	} {
		x.report.Findings = nil
		d := map[string]door{"cannot be resolved": noName, "firewall": silent, "tcp://host:port": otherwise}[words]
		x.closed(context.Background(), &sight{endpoint: "tcp://x:1"}, d, err)
		want(t, x.report.Findings, "kv port", Problem, words)
	}
}

func TestNothingIsPublished(t *testing.T) {
	p := healthy(t)
	p.publish = nil
	p.cached = func(int) any { return 0 }
	found := examine(t, p.command(glance))
	want(t, found, "kv events", Problem, "published nothing", "enable_kv_cache_events", "--enable-prefix-caching")
	want(t, found, "prefix caching", Problem, "--no-enable-prefix-caching")
	if n := len(p.prompts); n != 3 || p.prompts[2] == p.prompts[0] {
		t.Errorf("%d prompts; a third and new one is due when nothing comes", n)
	}

	p.pages["/metrics"] = strings.ReplaceAll(vllmMetrics(1), `block_size="16"`, `block_size="512"`)
	want(t, examine(t, p.command(glance)), "kv events", Problem, "does not fill one of its blocks of 512", "hybrid")
}

func TestWithoutProbe(t *testing.T) {
	p := healthy(t)
	c := p.command(glance)
	c.Probe = false
	found := examine(t, c)
	want(t, found, "kv events", Unknown, "--probe")
	want(t, found, "prefix caching", OK, "says that it is on")
	want(t, found, "cached tokens", Unknown, "--probe")
	if len(p.prompts) != 0 {
		t.Errorf("it sent %d prompts all the same", len(p.prompts))
	}
	p.pages["/metrics"] = strings.ReplaceAll(vllmMetrics(1), "True", "False")
	want(t, examine(t, c), "prefix caching", Problem, "says that it is off", "--enable-prefix-caching")
	p.sglang("null")
	p.pages["/server_info"] = strings.ReplaceAll(p.pages["/server_info"], `"enable_cache_report":true`, `"enable_cache_report":false`)
	want(t, examine(t, c), "cached tokens", Problem, "--enable-cache-report")
}

func TestCachedTokensAreNotReported(t *testing.T) {
	p := healthy(t)
	p.cached = func(int) any { return nil }
	found := examine(t, p.command(patience))
	want(t, found, "cached tokens", Problem, "absent in both", "--enable-prompt-tokens-details")
	want(t, found, "prefix caching", OK, "stored blocks")

	p.sglang("null")
	want(t, examine(t, p.command(patience)), "cached tokens", Problem, "--enable-cache-report")

	p.prompts = nil
	p.cached = func(n int) any {
		if n == 1 {
			return nil
		}
		return 64
	}
	want(t, examine(t, p.command(patience)), "cached tokens", OK, "absent is a miss here")
}

func TestRepeatedPromptThatHitsNothing(t *testing.T) {
	p := healthy(t)
	p.cached = func(int) any { return 0 }
	want(t, examine(t, p.command(patience)), "prefix caching", Problem, "although events told", "balancer")
}

func TestProbeThatIsRefused(t *testing.T) {
	p := healthy(t)
	p.refuse = http.StatusBadRequest
	found := examine(t, p.command(glance))
	want(t, found, "probe", Problem, "400", "--model")
	want(t, found, "kv events", Unknown)

	p.refuse = http.StatusNotFound // completions, not chats
	if found := examine(t, p.command(patience)); problems(found) != "" {
		t.Errorf("an engine of chats only has problems: %s", problems(found))
	}
}

func TestUnknownEngine(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
			return
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(server.Close)
	found := examine(t, BridgeCommand{URL: server.URL, KV: closedPort(t), Wait: glance, Probe: true, JSON: true})
	want(t, found, "engine", Unknown, "general")
	want(t, found, "kv port", Problem, "start vLLM", "start SGLang", "event_buffer_max_size")
	want(t, found, "probe", Problem, "no prefix cache to route by")
}

func TestFlagsAreChecked(t *testing.T) {
	for args, words := range map[string]string{
		"localhost:8000":                                "base URL",
		"http://h --block-tokens=-1":                    "--block-tokens",
		"http://h --wait=0s":                            "--wait",
		"http://h --kv=tcp://h:1 --kv-listen=tcp://*:1": "not both",
		"http://h --kv=tcp://*:5557":                    "--kv-listen",
		"http://h --kv-listen=tcp://*:5557":             "",
		"http://h --no-probe --kv=tcp://h:5557/":        "",
	} {
		var program struct {
			Doctor Command `cmd:""`
		}
		parser, err := kong.New(&program)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parser.Parse(append([]string{"doctor", "bridge"}, strings.Fields(args)...)); err != nil {
			t.Fatalf("%s: %v", args, err)
		}
		err = program.Doctor.Bridge.check()
		if (err == nil) != (words == "") || err != nil && !strings.Contains(err.Error(), words) {
			t.Errorf("%s gives %v", args, err)
		}
		if probe := program.Doctor.Bridge.Probe; probe == strings.Contains(args, "--no-probe") {
			t.Errorf("%s: probe is %t", args, probe)
		}
	}
}

func TestReportInWords(t *testing.T) {
	r := Report{Engine: "http://h", Findings: []Finding{
		{Check: "engine", State: OK, Seen: "vLLM"},
		{Check: "kv port", State: Problem, Seen: "refused", Means: "off", Do: "switch on"},
	}}
	var out bytes.Buffer
	if err := r.write(&out, false); err != nil {
		t.Fatal(err)
	}
	const text = `engine http://h
ok       engine: vLLM
problem  kv port: refused
         means: off
         do: switch on
`
	if out.String() != text {
		t.Errorf("got\n%s", out.String())
	}
}

func TestCancelled(t *testing.T) {
	p := healthy(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	c := p.command(patience)
	if err := c.run(ctx, new(bytes.Buffer)); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled examination gives %v", err)
	}
}
