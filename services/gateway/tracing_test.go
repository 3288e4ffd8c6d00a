package gateway

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	traceservice "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// sink is an OpenTelemetry collector that keeps the spans it gets.
type sink struct {
	server *httptest.Server
	mu     sync.Mutex
	spans  map[string]*otlp.Span
	names  []string // of services
}

func newSink(t *testing.T) *sink {
	s := &sink{spans: map[string]*otlp.Span{}}
	s.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		request := &traceservice.ExportTraceServiceRequest{}
		if err != nil || r.URL.Path != tracesPath || proto.Unmarshal(body, request) != nil {
			http.Error(w, "no spans", http.StatusBadRequest)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, resource := range request.ResourceSpans {
			for _, a := range resource.Resource.Attributes {
				if a.Key == "service.name" {
					s.names = append(s.names, a.Value.GetStringValue())
				}
			}
			for _, scope := range resource.ScopeSpans {
				for _, span := range scope.Spans {
					s.spans[span.Name] = span
				}
			}
		}
	}))
	t.Cleanup(s.server.Close)
	return s
}

const (
	clientTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	traceparent = "00-" + clientTrace + "-00f067aa0ba902b7-01"
)

func TestSpans(t *testing.T) {
	for name, use := range map[string]func(*testing.T, *Config, string){
		"flag": func(_ *testing.T, c *Config, url string) { c.OTLPEndpoint = url },
		"environment": func(t *testing.T, _ *Config, url string) {
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
			t.Setenv("OTEL_SERVICE_NAME", "mine")
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			var forwarded http.Header
			n := e.engine("engine-0", func(w http.ResponseWriter, r *http.Request, body []byte) {
				forwarded = r.Header.Clone()
				respond(w, body, answerJSON(40, "32"))
			})
			e.router(choose(n))
			sink := newSink(t)
			var cfg Config
			use(t, &cfg, sink.server.URL)
			g := e.gateway(1, cfg)
			g.mustAsk(prompt(40, `,"stream":true`), "X-Request-Id", "r-1", "Traceparent", traceparent, "Tracestate", "a=b")
			g.stop() // sends what is left
			sink.mu.Lock()
			defer sink.mu.Unlock()
			want := "warmpath-gateway"
			if name == "environment" {
				want = "mine"
			}
			if len(sink.names) == 0 || sink.names[0] != want {
				t.Errorf("services %q, want %s", sink.names, want)
			}
			root := sink.spans[spanRequest]
			for _, name := range []string{spanRequest, spanTokenize, spanRoute, spanUpstream} {
				span := sink.spans[name]
				if span == nil || hex.EncodeToString(span.TraceId) != clientTrace {
					t.Fatalf("span %s is %v", name, span)
				}
				if name != spanRequest && string(span.ParentSpanId) != string(root.SpanId) {
					t.Errorf("span %s has another parent than the request", name)
				}
			}
			if hex.EncodeToString(root.ParentSpanId) != "00f067aa0ba902b7" || root.Status.GetCode() == otlp.Status_STATUS_CODE_ERROR {
				t.Errorf("the request's span is %v", root)
			}
			attributes := map[string]string{}
			for _, a := range sink.spans[spanUpstream].Attributes {
				attributes[a.Key] = strings.Trim(a.Value.String(), " ")
			}
			for key, value := range map[string]string{"warmpath.replica": "engine-0", "warmpath.cached_tokens": "32", "warmpath.attempt": "0"} {
				if !strings.Contains(attributes[key], value) {
					t.Errorf("%s is %q, want %s", key, attributes[key], value)
				}
			}
			upstream := "00-" + clientTrace + "-" + hex.EncodeToString(sink.spans[spanUpstream].SpanId) + "-01"
			if got := forwarded.Get("Traceparent"); got != upstream || forwarded.Get("Tracestate") != "a=b" {
				t.Errorf("the engine got %q %q, want %q", got, forwarded.Get("Tracestate"), upstream)
			}
		})
	}
}

// Without an exporter a client's trace still reaches the engine.
func TestTraceparentPassesThrough(t *testing.T) {
	for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} {
		t.Setenv(name, "")
	}
	e := newEnv(t)
	var forwarded string
	n := e.engine("engine-0", func(w http.ResponseWriter, r *http.Request, body []byte) {
		forwarded = r.Header.Get("Traceparent")
		respond(w, body, answerJSON(40, "32"))
	})
	e.router(choose(n))
	g := e.gateway(1, Config{})
	g.mustAsk(prompt(40, ""), "Traceparent", traceparent)
	if forwarded != traceparent || g.tracer != nil {
		t.Errorf("the engine got %q", forwarded)
	}
}

func TestTracingConfiguration(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	if !tracingConfigured("") {
		t.Error("the environment does not count")
	}
	t.Setenv("OTEL_SDK_DISABLED", "true")
	if tracingConfigured("http://127.0.0.1:1") {
		t.Error("OTEL_SDK_DISABLED does not count")
	}
	t.Setenv("OTEL_SDK_DISABLED", "")
	if _, err := newTracer(Config{OTLPEndpoint: "127.0.0.1:4318"}); err == nil || !strings.Contains(err.Error(), "--otlp-endpoint") {
		t.Errorf("got %v", err)
	}
}
