package route

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/router"
	"warmpath/streams"
	"warmpath/streams/streamstest"
	"warmpath/tokenize"
)

const (
	testPool    = "chat"
	testModel   = "llama-3-70b"
	blockTokens = 16
	messages    = `[{"role":"system","content":"You are a careful assistant. Answer in one sentence."},{"role":"user","content":"Why is the sky blue?"}]`
	chatBody    = `{"model":"llama-3-70b","messages":` + messages + `,"max_tokens":20}`
)

func TestMain(m *testing.M) {
	if os.Getenv("WARMPATH_TEST_LOG") == "" {
		slog.SetDefault(slog.New(slog.DiscardHandler))
	}
	streamstest.Main(m)
}

// env is a pool with two replicas: a holds the chat's prompt, b drains.
type env struct {
	testing.TB
	url    string
	js     jetstream.JetStream
	router *router.Router
	text   string
	keys   []uint64
}

func epochOf(replica string) []byte { return []byte((replica + strings.Repeat("-", 16))[:16]) }

func newEnv(t testing.TB, cfg router.Config) *env {
	t.Helper()
	server := streamstest.Start(t)
	nc, js := streamstest.Connect(t, server.URL(""))
	streamstest.Apply(t, js, 1, testPool)
	e := &env{TB: t, url: server.URL(""), js: js}
	var err error
	if e.text, err = (tokenize.Bytes{}).Render(json.RawMessage(messages), nil); err != nil {
		t.Fatal(err)
	}
	e.keys = blockkey.Chain(nil, blockkey.Root(testModel, "", ""), tokenize.AppendText(nil, e.text), blockTokens)
	e.engine("a", nil)
	e.engine("b.dp1", func(f *pb.FleetEntry) { f.Draining = true })
	e.publish(streams.KVSubject(testPool, "a"), &pb.KVBatch{
		Pool: testPool, Replica: "a", Epoch: epochOf("a"), Seq: 1, EventTimeUs: time.Now().UnixMicro(), BlockTokens: blockTokens,
		Events: []*pb.KVEvent{store(pb.Tier_TIER_GPU, e.keys[:4]), store(pb.Tier_TIER_CPU, e.keys[4:6])},
	})
	e.publish(streams.LoadSubject(testPool, "a"), &pb.LoadReport{
		Pool: testPool, Replica: "a", Epoch: epochOf("a"), TimeUs: time.Now().UnixMicro(), Running: proto.Uint32(3), KvUsed: proto.Float64(0.5),
	})
	cfg.Pool, cfg.Name = testPool, "router-1"
	if e.router, err = router.New(cfg, nc, js, prometheus.NewRegistry()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.router.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	<-e.router.Ready()
	streamstest.Until(t, func() bool { return len(e.router.State().Replicas) == 2 })
	return e
}

func store(tier pb.Tier, keys []uint64) *pb.KVEvent {
	return &pb.KVEvent{Event: &pb.KVEvent_Store{Store: &pb.KVStore{Tier: tier, Keys: keys}}}
}

func (e *env) engine(name string, change func(*pb.FleetEntry)) {
	e.Helper()
	entry := &pb.FleetEntry{
		Pool: testPool, Replica: name, Address: "http://" + name + ".example", EngineKind: "vllm", Model: testModel, BlockTokens: blockTokens,
		KvEvents: true, Epoch: epochOf(name), HeartbeatUs: time.Now().UnixMicro(), PrefillTokensPerSecond: 10_000, Loras: []string{"sql"},
	}
	if change != nil {
		change(entry)
	}
	if err := streams.PutFleet(context.Background(), e.js, entry); err != nil {
		e.Fatal(err)
	}
}

func (e *env) publish(subject string, m proto.Message) {
	e.Helper()
	publisher := streams.NewPublisher(e.js, streams.PublisherConfig{})
	defer publisher.Close()
	message, err := streams.NewMessage(subject, "", m)
	if err == nil {
		err = publisher.Publish(context.Background(), message)
	}
	if err == nil {
		err = publisher.Flush(context.Background())
	}
	if err != nil {
		e.Fatal(err)
	}
}

// output runs the command line on a request.
func (e *env) output(body string, args ...string) (string, error) {
	e.Helper()
	file := filepath.Join(e.TempDir(), "request.json")
	if err := os.WriteFile(file, []byte(body), 0o600); err != nil {
		e.Fatal(err)
	}
	c := parse(e, append([]string{"--pool", testPool, "--nats", e.url, "--file", file, "--timeout", "1m"}, args...)...)
	var out bytes.Buffer
	err := c.run(context.Background(), strings.NewReader(""), &out)
	return out.String(), err
}

func parse(t testing.TB, args ...string) *Command {
	t.Helper()
	c := &Command{}
	parser, err := kong.New(c, kong.Exit(func(int) { t.Error("the parser exited") }))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse(args); err != nil {
		t.Fatal(err)
	}
	return c
}

func (e *env) report(body string, args ...string) *Report {
	e.Helper()
	out, err := e.output(body, append(args, "--json")...)
	if err != nil {
		e.Fatal(err)
	}
	r := &Report{}
	if err := json.Unmarshal([]byte(out), r); err != nil {
		e.Fatal(err)
	}
	return r
}

func TestTable(t *testing.T) {
	e := newEnv(t, router.Config{Tokenizer: router.TokenizerBytes})
	out, err := e.output(chatBody)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`request  chat`,
		fmt.Sprintf(`text     %d bytes, rendered`, len(e.text)),
		fmt.Sprintf(`tokens   %d, by the router \(in_process\)`, len(e.text)),
		fmt.Sprintf(`keys     %d blocks of 16 tokens: %016x … %016x`, len(e.keys), e.keys[0], e.keys[len(e.keys)-1]),
		`pool     chat, model llama-3-70b`,
		`router   router-1, at KV sequence 1 \(.* old when it was applied\), decided in .*`,
		`policy   ttft version 1  cpu_rate=150000 .*`,
		` +REPLICA +GPU +CPU +HELD +SOON +CACHED +QUEUED +IN FLIGHT +RUNNING +WAITING +KV +REPORT +PREFILL/S +SCORE +NOTE *`,
		` +> +a +4 +2 +6 +6 +96 +0 +0 +3 +0 +50% +\S+s +10000 +[0-9.]+ +- *`,
		` +b.dp1 +0 +0 +0 +0 +0 +0 +0 +0 +0 +0% +none +10000 +- +draining *`,
		fmt.Sprintf(`choice   a at http://a.example: the only one that can take it; 96 of %d prompt tokens expected from its cache`, len(e.text)),
	} {
		if !regexp.MustCompile(`(?m)^` + line + `$`).MatchString(out) {
			t.Errorf("no line %q in\n%s", line, out)
		}
	}
}

// However tokens are made, and by whom, the answer is the same.
func TestTokenizers(t *testing.T) {
	e := newEnv(t, router.Config{Tokenizer: router.TokenizerBytes})
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var q struct{ Messages, Prompt json.RawMessage }
		if err := json.Unmarshal(body, &q); err != nil || r.Header.Get("Authorization") != "Bearer secret" {
			t.Errorf("asked %s with %v: %v", body, r.Header, err)
		}
		ids, err := (tokenize.Bytes{}).Chat(q.Messages, nil)
		if err != nil {
			t.Error(err)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"count": len(ids), "tokens": ids})
	}))
	defer engine.Close()
	ids, err := json.Marshal(tokenize.AppendText(nil, e.text))
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(e.text)
	if err != nil {
		t.Fatal(err)
	}
	completion := `{"prompt":` + string(text) + `}`
	for name, c := range map[string]struct {
		body   string
		args   []string
		kind   string
		by     string
		source string
		bytes  int
	}{
		"chat, by the router":       {chatBody, nil, "chat", "the router", "in_process", len(e.text)},
		"chat, by bytes":            {chatBody, []string{"--tokenizer", "bytes"}, "chat", "bytes", "in_process", len(e.text)},
		"chat, by an engine":        {chatBody, []string{"--tokenizer", engine.URL + "/", "--engine-key", "secret"}, "chat", engine.URL + "/", "engine", 0},
		"completion, by the router": {completion, nil, "completion", "the router", "in_process", len(e.text)},
		"completion, by bytes":      {completion, []string{"--tokenizer", "bytes"}, "completion", "bytes", "in_process", len(e.text)},
		"ids":                       {`{"prompt":` + string(ids) + `}`, nil, "token ids", "the request", "client", 0},
	} {
		r := e.report(c.body, c.args...)
		if r.Kind != c.kind || r.TokensBy != c.by || r.TokenSource != c.source || r.TextBytes != c.bytes || r.Tokens != uint64(len(e.text)) || r.Keys != len(e.keys) ||
			r.FirstKey != fmt.Sprintf("%016x", e.keys[0]) || r.LastKey != fmt.Sprintf("%016x", e.keys[len(e.keys)-1]) {
			t.Errorf("%s: %+v", name, r)
		}
		if r.Chosen != "a" || r.Address != "http://a.example" || r.PredictedCachedTokens != 96 || len(r.Candidates) != 2 {
			t.Errorf("%s: %+v", name, r)
		}
		if a := r.Candidates[0]; a.GPU != 4 || a.Held != 6 || a.Tiers["cpu"] != 2 || a.Tiers["gpu"] != 4 || a.Running != 3 || a.ReportAgeUS == nil || a.Score == 0 {
			t.Errorf("%s: candidate %+v", name, a)
		}
	}
	r := e.report(chatBody, "--tokenizer", "../../tokenize/model/testdata/tiny")
	if r.TextBytes == 0 || r.Tokens == 0 || r.TokenSource != "in_process" || r.FirstKey == fmt.Sprintf("%016x", e.keys[0]) {
		t.Errorf("by a model's folder: %+v", r)
	}
}

// Asking leaves no trace.
func TestNothingIsCounted(t *testing.T) {
	e := newEnv(t, router.Config{Tokenizer: router.TokenizerBytes})
	before := e.report(chatBody)
	for range 3 {
		e.report(chatBody, "--tokenizer", "bytes")
	}
	after := e.report(chatBody)
	s := e.router.State()
	if s.Decisions != 0 || s.Predictions != 0 || s.Replicas[0].InFlight != 0 {
		t.Errorf("left behind %+v", s)
	}
	if before.Candidates[0].InFlight != 0 || after.Candidates[0].InFlight != 0 || after.Chosen != before.Chosen {
		t.Errorf("before %+v\nafter  %+v", before, after)
	}
	if last, err := streams.LastSeq(context.Background(), e.js, streams.RouteStream); err != nil || last != 0 {
		t.Errorf("%d decisions are recorded, %v", last, err)
	}
}

func TestAdaptersSaltsAndExclusions(t *testing.T) {
	e := newEnv(t, router.Config{Tokenizer: router.TokenizerBytes})
	e.engine("c", nil)
	streamstest.Until(t, func() bool { return len(e.router.State().Replicas) == 3 })
	keysOf := func(lora, salt string) string {
		return fmt.Sprintf("%016x", blockkey.Chain(nil, blockkey.Root(testModel, lora, salt), tokenize.AppendText(nil, e.text), blockTokens)[0])
	}
	adapter := strings.Replace(chatBody, testModel, "sql", 1)
	salted := strings.Replace(chatBody, `{`, `{"cache_salt":"theirs",`, 1)
	for _, by := range [][]string{nil, {"--tokenizer", "bytes"}} {
		if r := e.report(adapter, by...); r.LoRA != "sql" || r.Model != testModel || r.FirstKey != keysOf("sql", "") {
			t.Errorf("by %v: %+v", by, r)
		}
		if r := e.report(chatBody, append(by, "--lora", "other")...); r.LoRA != "other" || r.FirstKey != keysOf("other", "") {
			t.Errorf("by %v: %+v", by, r)
		}
		if r := e.report(salted, by...); r.FirstKey != keysOf("", "theirs") {
			t.Errorf("by %v: %+v", by, r)
		}
		if r := e.report(salted, append(by, "--salt", "ours")...); r.FirstKey != keysOf("", "ours") {
			t.Errorf("by %v: %+v", by, r)
		}
		if r := e.report(chatBody, append(by, "--exclude", "a")...); r.Chosen != "c" || r.Candidates[0].Ineligible != "excluded" {
			t.Errorf("by %v: %+v", by, r)
		}
	}
}

func TestErrorsNameTheRemedy(t *testing.T) {
	e := newEnv(t, router.Config{})
	for name, c := range map[string]struct {
		body string
		args []string
		says []string
	}{
		"no tokenizer":      {chatBody, nil, []string{"chat", "--tokenizer"}},
		"no JSON":           {"hello", nil, []string{"--file", "request object"}},
		"nothing to route":  {`{"model":"m"}`, nil, []string{"no messages and no prompt"}},
		"both":              {`{"prompt":"a","messages":[]}`, nil, []string{"one of them"}},
		"another model":     {`{"model":"gpt-9","prompt":"a"}`, []string{"--tokenizer", "bytes"}, []string{"gpt-9", testModel}},
		"a message":         {`{"messages":[{"content":"a"}]}`, []string{"--tokenizer", "bytes"}, []string{"--tokenizer bytes", "role"}},
		"no folder":         {chatBody, []string{"--tokenizer", "/no/such"}, []string{"/no/such", "folder of a model"}},
		"all excluded":      {`{"prompt":[1,2]}`, []string{"--exclude", "a"}, []string{"1 draining", "1 excluded"}},
		"another pool":      {chatBody, []string{"--pool", "nobody"}, []string{"svc.route.nobody", "router of pool nobody"}},
		"no name of a pool": {chatBody, []string{"--pool", "a b"}, []string{"--pool"}},
	} {
		out, err := e.output(c.body, c.args...)
		if err == nil {
			t.Errorf("%s: printed %s", name, out)
			continue
		}
		for _, part := range c.says {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q does not contain %q", name, err, part)
			}
		}
	}
	c := parse(t, "--pool", testPool, "--file", "-", "--nats", "nats://127.0.0.1:1", "--timeout", "50ms")
	if err := c.run(context.Background(), strings.NewReader(chatBody), io.Discard); err == nil || !strings.Contains(err.Error(), "--nats") {
		t.Errorf("without NATS: %v", err)
	}
	if err := parse(t, "--pool", testPool, "--file", "/no/such").run(context.Background(), nil, io.Discard); err == nil || !strings.Contains(err.Error(), "/no/such") {
		t.Errorf("without a file: %v", err)
	}
}

// A text whose tokens nobody can tell is routed by load, and that is said.
func TestATextWithoutTokens(t *testing.T) {
	e := newEnv(t, router.Config{Tokenizer: router.TokenizerEngine}) // there is no engine behind its address
	e.engine("a", func(f *pb.FleetEntry) { f.EngineKind = "trtllm" })
	streamstest.Until(t, func() bool { return e.report(chatBody).Unkeyed != "" })
	out, err := e.output(chatBody)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"keys     none: load alone decides", "text     not rendered", "tokens   about "} {
		if !strings.Contains(out, part) {
			t.Errorf("no %q in\n%s", part, out)
		}
	}
}
