package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strconv"
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
	kindTruncated = "truncated"    // a stream that ended before its answer did
	kindClient    = "client_error" // the engine found fault with the request
	kindAuth      = "engine_auth"  // the engine does not take the gateway's key
	kindBusy      = "http_429"
	kindServer    = "http_5xx"
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

var readBuffers = sync.Pool{New: func() any { return new([readBuffer]byte) }}

// try sends the request to the chosen replica and passes the answer on. It
// returns nil when the outcome is recorded, else why there was no answer; the
// client has then seen nothing.
func (x *exchange) try(ctx context.Context, to target) *failure {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(x.g.cfg.ModelTimeout, func() { cancel(errModelTimeout) })
	defer watchdog.Stop()
	request, err := x.upstreamRequest(ctx, to)
	if err != nil {
		x.g.log.Error("a replica cannot be reached", "replica", x.decided.Chosen, "error", err)
		return &failure{kind: kindAddress, retry: true, blame: true}
	}
	response, err := x.g.upstream.RoundTrip(request)
	if err != nil {
		return failureOf(ctx, err)
	}
	defer response.Body.Close()
	if failed := x.unserved(response); failed != nil {
		return failed
	}
	buffer := readBuffers.Get().(*[readBuffer]byte)
	defer readBuffers.Put(buffer)
	source := &source{body: response.Body, buffer: buffer[:], watchdog: watchdog, idle: x.g.cfg.IdleTimeout}
	first, err := source.next()
	if len(first) == 0 && (!errors.Is(err, io.EOF) || response.StatusCode == http.StatusOK) {
		if errors.Is(err, io.EOF) {
			return &failure{kind: kindEmpty, retry: true, blame: true}
		}
		return failureOf(ctx, err)
	}
	x.httpStatus = response.StatusCode
	x.blame = response.StatusCode >= http.StatusInternalServerError
	if response.StatusCode == http.StatusOK && isEventStream(response.Header) {
		x.passEvents(ctx, response, source)
	} else {
		x.passBody(ctx, response, source)
	}
	return nil
}

// unserved is the failure of an answer that says nothing of the request, but
// that this replica does not serve it now: nil for any other.
func (x *exchange) unserved(response *http.Response) *failure {
	status := response.StatusCode
	failed := &failure{kind: httpKind(status), status: status, header: response.Header}
	switch status {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		failed.retry, failed.blame = true, true
	case http.StatusTooManyRequests:
		failed.retry = true
	case http.StatusUnauthorized, http.StatusForbidden:
		if x.g.cfg.ForwardAuthorization {
			return nil // the client's own key
		}
		x.httpStatus = status
		x.g.log.Error("the engine refused the gateway", "replica", x.decided.Chosen, "status", status)
		return &failure{kind: kindAuth, advice: fmt.Sprintf("replica %s does not take the gateway's key (status %d); the operator must set WARMPATH_ENGINE_KEY to the engine's", x.decided.Chosen, status)}
	default:
		return nil
	}
	failed.body, _ = io.ReadAll(io.LimitReader(response.Body, maxErrorBody)) // what came of it is what is passed on
	return failed
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
	failed := kind == kindTimeout || ctx.Err() == nil
	return &failure{kind: kind, retry: failed, blame: failed}
}

// httpKind is the word for an answer that is an error.
func httpKind(status int) string {
	switch {
	case status < 400:
		return ""
	case status == http.StatusTooManyRequests:
		return kindBusy
	case status < 500:
		return kindClient
	default:
		return kindServer
	}
}

// begin sends the head of the answer, which announces trailers.
func (x *exchange) begin(response *http.Response, trailers ...string) {
	h := x.w.Header()
	copyHeader(h, response.Header)
	x.headers()
	for _, name := range trailers {
		h.Add("Trailer", name)
	}
	x.w.WriteHeader(response.StatusCode)
}

// cached says how many tokens the engine served from its cache: in a header
// before the answer begins, or in a trailer after a stream that announced it.
func (x *exchange) cached() {
	if n := x.answer.cachedTokens; n != nil {
		x.w.Header().Set(headerCached, strconv.FormatUint(*n, 10))
	}
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
	x.begin(response, headerCached)
	defer x.cached()
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
		x.blame = true
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
		x.blame = true
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
			x.blame = true
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
		x.cached()
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
