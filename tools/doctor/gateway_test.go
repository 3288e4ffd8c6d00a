package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/gateway"
	"warmpath/services/gateway/mismatch"
	"warmpath/streams"
	"warmpath/streams/streamstest"
)

// front is a gateway as its pages show it.
type front struct {
	status  int // of /health; 0 is 200
	health  string
	models  string
	key     string // asked for by /v1/models
	alarms  []*pb.Mismatch
	tokens  string
	fell    string // why the engines tokenize
	hasNone bool   // /v1/mismatches is not served
}

func (f *front) start(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/health":
			if f.status != 0 {
				w.WriteHeader(f.status)
			}
			fmt.Fprintln(w, f.health)
		case "/v1/models":
			if f.key != "" && r.Header.Get("Authorization") != "Bearer "+f.key {
				w.WriteHeader(http.StatusUnauthorized)
				fmt.Fprint(w, `{"error":{"message":"unknown key"}}`)
				return
			}
			fmt.Fprintf(w, `{"object":"list","data":[%s]}`, f.models)
		case "/v1/mismatches":
			if f.hasNone {
				http.NotFound(w, r)
				return
			}
			raw := []json.RawMessage{}
			for _, m := range f.alarms {
				text, err := protojson.Marshal(m)
				if err != nil {
					t.Error(err)
				}
				raw = append(raw, text)
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"pool": "chat", "gateway": "gw", "tokenizer": f.tokens, "fallback": f.fell, "mismatches": raw})
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return server.URL
}

const oneModel = `{"id":"llama"},{"id":"sql","parent":"llama"}`

// look runs the command, and checks that its error goes with its findings.
func look(t *testing.T, c GatewayCommand) []Finding {
	t.Helper()
	c.JSON = true
	var out bytes.Buffer
	err := c.run(t.Context(), &out)
	var got struct {
		Report
		OK *bool `json:"ok"`
	}
	if e := json.Unmarshal(out.Bytes(), &got); e != nil || got.Gateway != c.URL || got.Engine != "" || got.OK == nil {
		t.Fatalf("%v: %s", e, out.String())
	}
	if bad := problems(got.Findings) != ""; bad != (err != nil) || bad == *got.OK {
		t.Errorf("error %v, ok %t, findings %+v", err, *got.OK, got.Findings)
	}
	return got.Findings
}

func TestGatewayWithoutAlarms(t *testing.T) {
	f := front{health: "ok", models: oneModel, tokens: "/models/llama"}
	found := look(t, GatewayCommand{URL: f.start(t)})
	want(t, found, "gateway", OK, "ready, for pool chat")
	want(t, found, "models", OK, "llama, with the adapters sql")
	want(t, found, "tokens", OK, "made by /models/llama")
	want(t, found, "alarms", OK, "none")
	if problems(found) != "" {
		t.Errorf("problems: %s", problems(found))
	}
}

func TestEveryCauseHasARemedy(t *testing.T) {
	cases := map[string][]string{
		mismatch.Template:   {"--chat-template", "--tokenizer", "--engine-kind"},
		mismatch.Tokenizer:  {"--tokenizer", "tokenizer.json"},
		mismatch.BlockSize:  {"--block-size", "--page-size", "--block-tokens"},
		mismatch.Salt:       {"cache_salt"},
		mismatch.LoRA:       {"--lora", "lora-ids"},
		mismatch.EventsOff:  {"warmpath doctor bridge", "--without-events"},
		mismatch.UsageOff:   {"--enable-prompt-tokens-details", "--enable-cache-report"},
		mismatch.CachingOff: {"--enable-prefix-caching", "--disable-radix-cache"},
		"sunspots":          {"a doctor of the gateway's version"},
	}
	f := front{health: "ok", models: oneModel, tokens: "/models/llama"}
	for cause := range cases {
		f.alarms = append(f.alarms,
			&pb.Mismatch{Pool: "chat", Cause: cause, Detail: "evidence of " + cause, Requests: 8, PromptTokens: 4000, PredictedCachedTokens: 3000},
			&pb.Mismatch{Pool: "chat", Cause: cause, Replica: "e-1", Requests: 6, CachedTokens: proto.Uint64(1 << 60)})
	}
	found := look(t, GatewayCommand{URL: f.start(t)})
	for cause, words := range cases {
		want(t, found, cause+" of the pool", Problem, append(words, "evidence of "+cause, "8 requests of 4000 prompt tokens, 3000", "no cached tokens reported")...)
		want(t, found, cause+" of e-1", Problem, append(words, fmt.Sprint(1<<60)+" reported")...)
	}
	if n := strings.Count(problems(found), " of "); n != 2*len(cases) {
		t.Errorf("%d alarms, findings: %s", 2*len(cases), problems(found))
	}
}

func TestGatewayThatFellBack(t *testing.T) {
	f := front{health: "ok", models: oneModel, tokens: "/models/llama", fell: "template: +37 tokens"}
	want(t, look(t, GatewayCommand{URL: f.start(t)}), "tokens", Problem, "/models/llama", "+37 tokens", "--chat-template", "then restart")
	for tokens, words := range map[string]string{"client": "routed by load alone", "engine": "/tokenize", "bytes": "--tokenizer"} {
		f = front{health: "ok", models: oneModel, tokens: tokens}
		want(t, look(t, GatewayCommand{URL: f.start(t)}), "tokens", OK, words)
	}
}

func TestGatewayThatIsNoneOrNotReady(t *testing.T) {
	f := front{status: http.StatusServiceUnavailable, health: "no replica of pool chat is known yet"}
	found := look(t, GatewayCommand{URL: f.start(t)})
	want(t, found, "gateway", Problem, "no replica", "warmpath bridge", "warmpath doctor bridge")
	want(t, found, "models", Problem, "none", "warmpath bridge")

	f = front{status: http.StatusServiceUnavailable, health: "the gateway is stopping", models: oneModel}
	want(t, look(t, GatewayCommand{URL: f.start(t)}), "gateway", Problem, "stopping", "successor")

	f = front{health: "ok", models: `{"id":"a"},{"id":"b"}`, hasNone: true}
	found = look(t, GatewayCommand{URL: f.start(t)})
	want(t, found, "models", Problem, "a, b", "one model")
	want(t, found, "alarms", Unknown, "404")

	none := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(none.Close)
	want(t, look(t, GatewayCommand{URL: none.URL}), "gateway", Problem, "404", "own URL")
	none.Close()
	if found := look(t, GatewayCommand{URL: none.URL}); len(found) != 1 {
		t.Errorf("got %+v", found)
	}
}

func TestGatewayThatAsksForAKey(t *testing.T) {
	f := front{health: "ok", models: oneModel, key: "k"}
	url := f.start(t)
	want(t, look(t, GatewayCommand{URL: url}), "models", Unknown, "WARMPATH_KEY")
	want(t, look(t, GatewayCommand{URL: url, Key: "x"}), "models", Unknown, "unknown key")
	want(t, look(t, GatewayCommand{URL: url, Key: "k"}), "models", OK, "llama")
}

func TestGatewayFlags(t *testing.T) {
	var program struct {
		Doctor Command `cmd:""`
	}
	parser, err := kong.New(&program)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse([]string{"doctor", "gateway", "localhost:7000", "--key", "k", "--json"}); err != nil {
		t.Fatal(err)
	}
	c := program.Doctor.Gateway
	if err := c.run(t.Context(), new(bytes.Buffer)); err == nil || !strings.Contains(err.Error(), "base URL") || c.Key != "k" || !c.JSON {
		t.Errorf("%+v gives %v", c, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c.URL = "http://127.0.0.1:1"
	if err := c.run(ctx, new(bytes.Buffer)); err == nil || !strings.Contains(err.Error(), "canceled") {
		t.Errorf("a cancelled visit gives %v", err)
	}
}

// A real gateway: before it knows a replica, and after.
func TestRealGateway(t *testing.T) {
	nc, js := streamstest.Connect(t, streamstest.Start(t).URL(""))
	streamstest.Apply(t, js, 1, "chat")
	g, err := gateway.New(gateway.Config{Pool: "chat", Name: "gw", Listen: "127.0.0.1:0"}, nc, js, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	found := look(t, GatewayCommand{URL: g.Address()})
	want(t, found, "gateway", Problem, "no replica of pool chat")
	want(t, found, "tokens", OK, "one a byte")
	want(t, found, "alarms", OK, "none")
	if err := streams.PutFleet(t.Context(), js, &pb.FleetEntry{
		Pool: "chat", Replica: "e-0", Address: "http://127.0.0.1:1", Model: "llama", BlockTokens: 16, HeartbeatUs: time.Now().UnixMicro(),
	}); err != nil {
		t.Fatal(err)
	}
	streamstest.Until(t, func() bool {
		var out bytes.Buffer
		return (&GatewayCommand{URL: g.Address()}).run(t.Context(), &out) == nil && strings.HasPrefix(out.String(), "gateway http") &&
			strings.Contains(out.String(), "ok       gateway: ready, for pool chat\nok       models: llama\n")
	})
}
