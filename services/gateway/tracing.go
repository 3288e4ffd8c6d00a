package gateway

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// Spans of a request, as OpenTelemetry shows them. No attribute holds text of a
// prompt or an answer.
const (
	spanRequest  = "gateway.request"
	spanTokenize = "gateway.tokenize"
	spanRoute    = "gateway.route"
	spanUpstream = "gateway.upstream"
)

// tracesPath is where OTLP over HTTP takes spans.
const tracesPath = "/v1/traces"

// tracer makes spans, or none when it is nil, at no cost.
type tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

// tracingConfigured reports whether spans are to be exported: to an endpoint
// that is given, or to one that the standard environment variables name.
func tracingConfigured(endpoint string) bool {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") || os.Getenv("OTEL_TRACES_EXPORTER") == "none" {
		return false
	}
	return endpoint != "" || os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
}

// newTracer starts the exporter, or returns nil when none is configured.
func newTracer(cfg Config) (*tracer, error) {
	if !tracingConfigured(cfg.OTLPEndpoint) {
		return nil, nil
	}
	var options []otlptracehttp.Option
	if cfg.OTLPEndpoint != "" {
		u, err := url.Parse(cfg.OTLPEndpoint)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return nil, fmt.Errorf("otlp-endpoint %q is no URL; give --otlp-endpoint as http://host:4318", cfg.OTLPEndpoint)
		}
		if !strings.HasSuffix(u.Path, tracesPath) {
			u.Path = strings.TrimSuffix(u.Path, "/") + tracesPath
		}
		options = append(options, otlptracehttp.WithEndpointURL(u.String()))
	}
	exporter, err := otlptracehttp.New(context.Background(), options...)
	if err != nil {
		return nil, fmt.Errorf("export traces: %w; check --otlp-endpoint and OTEL_EXPORTER_OTLP_ENDPOINT", err)
	}
	// What the environment says of the service stands above these.
	base := resource.NewSchemaless(attribute.String("service.name", "warmpath-gateway"),
		attribute.String("service.instance.id", cfg.Name), attribute.String("warmpath.pool", cfg.Pool))
	described, err := resource.Merge(base, resource.Environment())
	if err != nil {
		described = base
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(described))
	return &tracer{provider: provider, tracer: provider.Tracer("warmpath/services/gateway")}, nil
}

// close sends what is left.
func (t *tracer) close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("export the last traces: %w", err)
	}
	return nil
}

// noSpan takes everything and keeps nothing.
var noSpan trace.Span = noop.Span{}

// request begins the span of a request, in the trace that its headers name.
func (t *tracer) request(r *http.Request, id string) (context.Context, trace.Span) {
	if t == nil {
		return r.Context(), noSpan
	}
	ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	return t.tracer.Start(ctx, spanRequest, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		attribute.String("http.request.method", r.Method), attribute.String("url.path", r.URL.Path),
		attribute.String("warmpath.request_id", id)))
}

// start begins a part of a request.
func (t *tracer) start(ctx context.Context, name string, kind trace.SpanKind) (context.Context, trace.Span) {
	if t == nil {
		return ctx, noSpan
	}
	return t.tracer.Start(ctx, name, trace.WithSpanKind(kind))
}

// forward names the current span to an engine. Without a tracer what the client
// sent stays.
func (t *tracer) forward(ctx context.Context, h http.Header) {
	if t != nil {
		propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(h))
	}
}

// fail marks a span that did not end well; the word is no message for humans.
func fail(span trace.Span, word string) {
	span.SetStatus(codes.Error, word)
}
