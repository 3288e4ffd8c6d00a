package gateway

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"warmpath/tokenize"
)

// newTransport makes the connections to the engines: many kept open, no
// compression, large buffers for long prompts.
func newTransport(cfg Config) *http.Transport {
	dialer := &net.Dialer{Timeout: cfg.DialTimeout, KeepAlive: 15 * time.Second}
	return &http.Transport{
		DialContext:         dialer.DialContext,
		MaxIdleConns:        0,
		MaxIdleConnsPerHost: 1024,
		IdleConnTimeout:     90 * time.Second,
		TLSHandshakeTimeout: cfg.DialTimeout,
		DisableCompression:  true,
		WriteBufferSize:     128 << 10,
		ReadBufferSize:      readBuffer,
	}
}

// handover is when the connection to the engine took the last byte of an
// attempt's request. Its writer sets it, so that it is safe for concurrent use.
type handover struct {
	start time.Time    // of the request
	after atomic.Int64 // nanoseconds from start; 0 before
}

func (h *handover) done() { h.after.Store(max(1, int64(time.Since(h.start)))) }

// at is when it was, or the zero time. A nil handover never was.
func (h *handover) at() time.Time {
	if h == nil {
		return time.Time{}
	}
	if n := h.after.Load(); n > 0 {
		return h.start.Add(time.Duration(n))
	}
	return time.Time{}
}

// upstreamBody notes when it has been read. The connection reads it to its end
// before it writes that end, so that an answer cannot come first.
type upstreamBody struct {
	io.Reader
	left   int
	handed *handover
}

func (b *upstreamBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if b.left -= n; b.left == 0 && n > 0 {
		b.handed.done()
	}
	return n, err
}

func (b *upstreamBody) Close() error { return nil }

// upstreamRequest is the client's request as the replica gets it.
func (x *exchange) upstreamRequest(ctx context.Context, to target) (*http.Request, error) {
	base, err := url.Parse(to.address)
	if err != nil || base.Host == "" {
		return nil, fmt.Errorf("address of replica %s is %q; its fleet entry must name a base URL", x.decided.Chosen, to.address)
	}
	target := *base
	target.Path = strings.TrimSuffix(base.Path, "/") + x.rq.path
	target.RawQuery = x.rq.query
	pieces := tokenize.Cut(x.rq.body, x.rq.edits...)
	length := 0
	for _, p := range pieces {
		length += len(p)
	}
	handed := &handover{start: x.rq.start}
	x.handed = handed
	reader := func() (io.ReadCloser, error) {
		readers := make([]io.Reader, len(pieces))
		for i, p := range pieces {
			readers[i] = bytes.NewReader(p)
		}
		return &upstreamBody{Reader: io.MultiReader(readers...), left: length, handed: handed}, nil
	}
	request := (&http.Request{
		Method: http.MethodPost, URL: &target, Host: base.Host, Header: make(http.Header, len(x.rq.header)+2),
		ContentLength: int64(length), GetBody: reader,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}).WithContext(ctx)
	request.Body, _ = reader() // never fails
	x.g.upstreamHeader(ctx, request.Header, x.rq, to)
	return request, nil
}

// upstreamHeader fills in the header that the replica gets. A client's key is
// the gateway's business: it stays here unless that is asked for.
func (g *Gateway) upstreamHeader(ctx context.Context, h http.Header, rq *request, to target) {
	copyHeader(h, rq.header)
	h.Del("Accept-Encoding") // the answer must be readable here
	h.Del("Content-Length")
	if !g.cfg.ForwardAuthorization {
		for _, name := range keyHeaders {
			h.Del(name)
		}
	}
	if g.cfg.EngineKey != "" {
		h.Set("Authorization", "Bearer "+g.cfg.EngineKey)
	}
	h.Set("X-Request-Id", rq.id)
	setRank(h, to.rank)
	g.tracer.forward(ctx, h)
}

// hopHeaders are for one connection only.
var hopHeaders = []string{"Connection", "Expect", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// copyHeader copies what is meant for the other end.
func copyHeader(to, from http.Header) {
	for name, values := range from {
		if !strings.HasPrefix(name, "X-Warmpath-") {
			to[name] = values[:len(values):len(values)]
		}
	}
	for _, list := range from["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			to.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range hopHeaders {
		to.Del(name)
	}
}
