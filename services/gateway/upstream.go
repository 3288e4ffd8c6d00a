package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	pb "warmpath/schemas/warmpathv1"
)

// Words for how an attempt failed, as Finished.error_kind and Moved.cause name them.
const (
	kindDial      = "dial"      // no connection
	kindTimeout   = "timeout"   // silent for too long
	kindReset     = "reset"     // the connection broke off
	kindTransport = "transport" // any other failure of the exchange
	kindEmpty     = "empty"     // an answer without a body
	kindAddress   = "address"   // the replica's address is no URL
	kindStream    = "stream_error"
	kindTruncated = "truncated" // a stream that ended before its answer did
)

const (
	readBuffer = 32 << 10
	// maxParsedBody bounds the answers that are read whole to learn their usage;
	// larger ones pass through unread.
	maxParsedBody = 32 << 20
	// maxErrorBody bounds what is kept of an error to pass on.
	maxErrorBody = 64 << 10
	// afterDone is how long a stream may take to close after its last event, so
	// that its connection can be used again.
	afterDone = 2 * time.Second
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

var readBuffers = sync.Pool{New: func() any { return new([readBuffer]byte) }}

// upstreamRequest is the client's request as the replica gets it.
func (x *exchange) upstreamRequest(ctx context.Context, address string) (*http.Request, error) {
	base, err := url.Parse(address)
	if err != nil || base.Host == "" {
		return nil, fmt.Errorf("address of replica %s is %q; its fleet entry must name a base URL", x.decided.Chosen, address)
	}
	target := *base
	target.Path = strings.TrimSuffix(base.Path, "/") + x.rq.path
	target.RawQuery = x.rq.query
	body, edit := x.rq.body, x.rq.edit
	length := len(body)
	if x.rq.edited {
		length += len(edit.Insert) - (edit.To - edit.From)
	}
	reader := func() (io.ReadCloser, error) {
		if !x.rq.edited {
			return io.NopCloser(bytes.NewReader(body)), nil
		}
		return io.NopCloser(io.MultiReader(bytes.NewReader(body[:edit.From]), strings.NewReader(edit.Insert), bytes.NewReader(body[edit.To:]))), nil
	}
	request := (&http.Request{
		Method: http.MethodPost, URL: &target, Host: base.Host, Header: http.Header{},
		ContentLength: int64(length), GetBody: reader,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}).WithContext(ctx)
	request.Body, _ = reader() // never fails
	copyHeader(request.Header, x.rq.header)
	request.Header.Del("Accept-Encoding") // the answer must be readable here
	request.Header.Del("Content-Length")
	request.Header.Set("X-Request-Id", x.rq.id)
	if rank, ok := dataParallelRank(x.decided.Chosen); ok {
		request.Header.Set("X-data-parallel-rank", rank)
	}
	return request, nil
}

// dataParallelRank returns the rank in a replica id <engine>.dp<rank>.
func dataParallelRank(replica string) (string, bool) {
	i := strings.LastIndex(replica, ".dp")
	if i < 0 {
		return "", false
	}
	rank := replica[i+len(".dp"):]
	return rank, rank != "" && strings.Trim(rank, "0123456789") == ""
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

// try sends the request to the chosen replica and passes the answer on. It
// returns nil when the outcome is recorded, else why there was no answer; the
// client has then seen nothing.
func (x *exchange) try(address string) *failure {
	ctx, cancel := context.WithCancelCause(x.ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(x.g.cfg.ModelTimeout, func() { cancel(errModelTimeout) })
	defer watchdog.Stop()
	request, err := x.upstreamRequest(ctx, address)
	if err != nil {
		x.g.log.Error("a replica cannot be reached", "replica", x.decided.Chosen, "error", err)
		return &failure{kind: kindAddress, retry: true}
	}
	response, err := x.g.upstream.RoundTrip(request)
	if err != nil {
		return failureOf(ctx, err)
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		body, _ := io.ReadAll(io.LimitReader(response.Body, maxErrorBody)) // what came of it is what is passed on
		return &failure{kind: httpKind(response.StatusCode), retry: true, status: response.StatusCode, header: response.Header, body: body}
	}
	buffer := readBuffers.Get().(*[readBuffer]byte)
	defer readBuffers.Put(buffer)
	source := &source{body: response.Body, buffer: buffer[:], watchdog: watchdog, idle: x.g.cfg.IdleTimeout}
	first, err := source.next()
	if len(first) == 0 && (!errors.Is(err, io.EOF) || response.StatusCode == http.StatusOK) {
		if errors.Is(err, io.EOF) {
			return &failure{kind: kindEmpty, retry: true}
		}
		return failureOf(ctx, err)
	}
	x.httpStatus = response.StatusCode
	if response.StatusCode == http.StatusOK && isEventStream(response.Header) {
		x.passEvents(ctx, response, source)
	} else {
		x.passBody(ctx, response, source)
	}
	return nil
}

// source reads an answer part by part, and wakes the watchdog.
type source struct {
	body     io.Reader
	buffer   []byte
	watchdog *time.Timer
	idle     time.Duration

	part []byte // read and not taken
	err  error
}

// next reads the next part, which stays until take. It has no bytes only at the
// end, whose error it then returns.
func (s *source) next() ([]byte, error) {
	for len(s.part) == 0 && s.err == nil {
		var n int
		n, s.err = s.body.Read(s.buffer)
		s.part = s.buffer[:n]
	}
	if len(s.part) > 0 {
		s.watchdog.Reset(s.idle)
		return s.part, nil
	}
	return nil, s.err
}

func (s *source) take() { s.part = nil }

func isEventStream(h http.Header) bool {
	kind, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	encoding := h.Get("Content-Encoding")
	return err == nil && kind == "text/event-stream" && (encoding == "" || encoding == "identity")
}

// failureOf names what went wrong with an exchange.
func failureOf(ctx context.Context, err error) *failure {
	kind := kindTransport
	var operation *net.OpError
	switch {
	case errors.Is(context.Cause(ctx), errModelTimeout):
		kind = kindTimeout
	case errors.As(err, &operation) && operation.Op == "dial":
		kind = kindDial
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		strings.Contains(err.Error(), "server closed idle connection"): // not exported by net/http
		kind = kindReset
	}
	return &failure{kind: kind, retry: kind == kindTimeout || ctx.Err() == nil}
}

// httpKind is the word for an answer that is an error.
func httpKind(status int) string {
	switch {
	case status < 400:
		return ""
	case status < 500:
		return "http_4xx"
	default:
		return "http_5xx"
	}
}

// begin sends the head of the answer.
func (x *exchange) begin(response *http.Response) {
	copyHeader(x.w.Header(), response.Header)
	x.headers()
	x.w.WriteHeader(response.StatusCode)
}

// emit passes bytes on to the client, who must take them within the idle timeout.
func (x *exchange) emit(b []byte) error {
	_ = x.control.SetWriteDeadline(time.Now().Add(x.g.cfg.IdleTimeout)) // not every writer has one
	_, err := x.w.Write(b)
	return err
}

// passEvents streams an answer through.
func (x *exchange) passEvents(ctx context.Context, response *http.Response, source *source) {
	response.Header.Del("Content-Length") // an event may be left out
	x.begin(response)
	stream := &eventStream{answer: &x.answer, strip: x.rq.stripUsage, emit: x.emit, onDone: x.complete}
	for {
		part, err := source.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			x.broken(ctx, err)
			return
		}
		if err := stream.feed(part, time.Now()); err != nil {
			x.left() // what the engine still sends is of no use
			return
		}
		source.take()
		if err := x.control.Flush(); err != nil {
			x.left()
			return
		}
		if stream.done {
			source.watchdog.Reset(afterDone)
		}
	}
	if !stream.done && x.answer.finishReason == "" && !x.answer.failed {
		x.finish(pb.Status_STATUS_UPSTREAM_ERROR, kindTruncated)
	}
	x.complete()
	_ = stream.close() // the client may be gone
}

// complete records an answer that came to its end.
func (x *exchange) complete() {
	switch {
	case x.answer.failed:
		x.finish(pb.Status_STATUS_UPSTREAM_ERROR, kindStream)
	default:
		x.finish(pb.Status_STATUS_OK, "")
	}
}

// broken ends an answer that broke off after the client saw a part of it. The
// connection is cut, so that the client does not take it for whole.
func (x *exchange) broken(ctx context.Context, err error) {
	if x.ctx.Err() != nil {
		x.left()
	} else if !x.recorded {
		x.finish(pb.Status_STATUS_UPSTREAM_ERROR, failureOf(ctx, err).kind)
	} else {
		return // only the end after the last event is missing
	}
	panic(http.ErrAbortHandler)
}

// passBody passes an answer that is not a stream of events on: whole, to learn
// its usage before the client has it, or in parts when it is very large.
func (x *exchange) passBody(ctx context.Context, response *http.Response, source *source) {
	var body []byte
	if n := response.ContentLength; n > 0 && n <= maxParsedBody {
		body = make([]byte, 0, n)
	}
	begun := false
	for {
		part, err := source.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && !begun && x.ctx.Err() == nil {
			x.fail(&failure{kind: failureOf(ctx, err).kind})
			return
		}
		if err != nil {
			x.broken(ctx, err)
			return
		}
		if len(body)+len(part) > maxParsedBody {
			// Too large to keep: send all but the newest part, which may be the last.
			if !begun {
				x.begin(response)
				begun = true
			}
			if err := x.emit(body); err != nil {
				x.left()
				return
			}
			body = body[:0]
		}
		body = append(body, part...)
		source.take()
	}
	if !begun {
		x.answer.takeBody(body)
	}
	x.ended(response.StatusCode)
	if !begun {
		x.begin(response)
	}
	_ = x.emit(body) // the client may be gone
}

// ended records a whole answer by its status.
func (x *exchange) ended(status int) {
	if kind := httpKind(status); kind != "" {
		x.finish(pb.Status_STATUS_UPSTREAM_ERROR, kind)
		return
	}
	x.finish(pb.Status_STATUS_OK, "")
}
