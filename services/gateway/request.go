package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/zeebo/xxh3"

	"warmpath/routing/blockkey"
	"warmpath/tokenize"
)

const (
	chatPath        = "/v1/chat/completions"
	completionsPath = "/v1/completions"

	maxRequestID = 128
	// maxSession and maxSalt are what the router takes.
	maxSession = 512
	maxSalt    = 512
	// bytesPerToken estimates the length of a prompt whose tokens are not known.
	bytesPerToken = 4
)

// request is what the gateway knows of a request before it decides.
type request struct {
	id, session string
	start       time.Time
	path        string
	header      http.Header
	query       string
	model, lora string
	stream      bool
	// stripUsage is set when the usage event was asked for by the gateway only.
	stripUsage bool

	// The body to send: the client's, with at most one insertion.
	body   []byte
	edit   tokenize.Edit
	edited bool

	keyed        bool // false when the prompt's token ids are not known
	keys         []blockkey.Key
	blockTokens  uint32
	promptTokens uint64
}

// sessionKey is the hash of the session id that events carry.
func (r *request) sessionKey() uint64 {
	if r.session == "" {
		return 0
	}
	return xxh3.HashString(r.session)
}

// idBuffers are reused between requests: the ids of a long prompt take megabytes
// and are only needed until its keys are known.
var idBuffers = sync.Pool{New: func() any { return new([]uint32) }}

// maxPooledIDs keeps one huge prompt from staying in memory for good.
const maxPooledIDs = 1 << 20

// read takes a request in: body, identity, tokens, keys.
func (g *Gateway) read(w http.ResponseWriter, r *http.Request, start time.Time, id string) (*request, *apiError) {
	body, failure := g.readBody(w, r)
	if failure != nil {
		return nil, failure
	}
	rq := &request{id: id, start: start, path: r.URL.Path, header: r.Header, query: r.URL.RawQuery, body: body}
	buffer := idBuffers.Get().(*[]uint32)
	defer func() {
		if cap(*buffer) <= maxPooledIDs {
			idBuffers.Put(buffer)
		}
	}()
	scanned, err := tokenize.ScanRequest(body, (*buffer)[:0])
	*buffer = scanned.IDs[:0]
	if err != nil {
		return nil, refuse(fieldOf(err), err)
	}
	rq.stream = scanned.Stream
	if scanned.Stream {
		rq.edit, rq.edited = scanned.AskUsage()
		rq.stripUsage = rq.edited
	}
	if len(scanned.CacheSalt) > maxSalt {
		return nil, refuse("cache_salt", fmt.Errorf("cache_salt has %d bytes; the limit is %d: send a hash of it", len(scanned.CacheSalt), maxSalt))
	}
	rq.session = sessionOf(r.Header, scanned.User)
	pool, known := g.view.shape()
	if failure := g.nameModel(rq, scanned.Model, pool, known); failure != nil {
		return nil, failure
	}
	return rq, g.tokens(rq, &scanned, buffer, pool)
}

// fieldOf returns the member that an error of the scanner starts with.
func fieldOf(err error) string {
	name, _, ok := strings.Cut(err.Error(), ":")
	if !ok || strings.ContainsAny(name, " \"") {
		return ""
	}
	return name
}

// readBody reads the body within its limit.
func (g *Gateway) readBody(w http.ResponseWriter, r *http.Request) ([]byte, *apiError) {
	if r.ContentLength > g.cfg.MaxBody {
		return nil, tooLarge(g.cfg.MaxBody)
	}
	var body []byte
	if r.ContentLength > 0 {
		body = make([]byte, 0, r.ContentLength+1) // one more, so that the end is seen without growing
	}
	limited := http.MaxBytesReader(w, r.Body, g.cfg.MaxBody)
	for {
		if len(body) == cap(body) {
			body = append(body, 0)[:len(body)]
		}
		n, err := limited.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case errors.Is(err, io.EOF):
			return body, nil
		case err != nil:
			var limit *http.MaxBytesError
			if errors.As(err, &limit) {
				return nil, tooLarge(g.cfg.MaxBody)
			}
			return nil, refuse("", fmt.Errorf("the request body ended early: %w; send it whole", err))
		}
	}
}

// nameModel finds the model and adapter that a request is for. A pool serves one
// model; its name is what the fleet says, so that keys are those of the engines.
func (g *Gateway) nameModel(rq *request, asked string, pool shape, known bool) *apiError {
	rq.model = pool.model
	if !known {
		rq.model = asked
		return nil // there is no replica, which the decision will find
	}
	if asked == "" || asked == pool.model {
		return nil
	}
	for _, lora := range g.cfg.LoRAs {
		if asked == lora {
			rq.lora = lora
			return nil
		}
	}
	return &apiError{
		status: http.StatusNotFound, kind: "invalid_request_error", code: "model_not_found", param: "model",
		message: fmt.Sprintf("model %q is not served here; use %q, or one of GET /v1/models", asked, pool.model),
	}
}

// tokens finds the prompt's tokens, and from them its keys.
func (g *Gateway) tokens(rq *request, scanned *tokenize.Request, buffer *[]uint32, pool shape) *apiError {
	ids := scanned.IDs
	switch chat := rq.path == chatPath; {
	case chat && scanned.Messages == nil:
		return refuse("messages", errors.New("messages: missing; send an array of objects with role and content"))
	case !chat && scanned.PromptKind == tokenize.NoPrompt:
		return refuse("prompt", errors.New("prompt: missing; send a string or an array of token ids"))
	case !chat && scanned.PromptKind == tokenize.IDPrompt:
	case g.cfg.Tokenizer == TokenizerClient:
		rq.promptTokens = max(1, uint64(len(scanned.Text)+len(scanned.Messages)+len(scanned.Tools))/bytesPerToken)
		rq.blockTokens = pool.blockTokens
		g.metrics.unkeyed.Inc()
		return nil
	case chat:
		text, err := (tokenize.Bytes{}).Render(scanned.Messages, scanned.Tools)
		if err != nil {
			return refuse(fieldOf(err), err)
		}
		ids = tokenize.AppendText(ids, text)
	default:
		ids = tokenize.AppendText(ids, scanned.Text)
	}
	*buffer = ids[:0]
	if len(ids) == 0 {
		return refuse("prompt", errors.New("prompt: empty; send at least one token"))
	}
	rq.keyed = true
	rq.promptTokens = uint64(len(ids))
	if rq.blockTokens = pool.blockTokens; rq.blockTokens > 0 {
		root := blockkey.Root(rq.model, rq.lora, scanned.CacheSalt)
		keys := make([]blockkey.Key, 0, len(ids)/int(rq.blockTokens))
		rq.keys = blockkey.Chain(keys, root, ids, int(rq.blockTokens))
	}
	return nil
}

// sessionOf names the conversation: the header, or else the body's user. What
// the router would not take as a name is replaced by its hash.
func sessionOf(header http.Header, user string) string {
	session := header.Get("X-Session-Id")
	if session == "" {
		session = user
	}
	if len(session) > maxSession || strings.ContainsFunc(session, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return strconv.FormatUint(xxh3.HashString(session), 16)
	}
	return session
}

// recentIDs remembers the request ids that clients chose, for longer than
// JetStream remembers message ids: an id that came twice within that time would
// make one request's events vanish as duplicates of the other's.
type recentIDs struct {
	mu       sync.Mutex
	now      map[string]struct{}
	before   map[string]struct{}
	turnedAt time.Time
}

const (
	// recentFor is above the duplicate window of ROUTE, two minutes.
	recentFor = 3 * time.Minute
	// maxRecent bounds one generation; 100,000 ids are about 15 MB.
	maxRecent = 100_000
)

// add reports whether an id is new.
func (s *recentIDs) add(id string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now == nil || now.Sub(s.turnedAt) > recentFor || len(s.now) >= maxRecent {
		if now.Sub(s.turnedAt) > 2*recentFor {
			s.now = nil // all of it is too old
		}
		s.before, s.now, s.turnedAt = s.now, map[string]struct{}{}, now
	}
	if _, seen := s.now[id]; seen {
		return false
	}
	if _, seen := s.before[id]; seen {
		return false
	}
	s.now[id] = struct{}{}
	return true
}

// requestID keeps the client's X-Request-Id when it can be used as one, else
// makes a UUIDv7.
func (g *Gateway) requestID(header http.Header, now time.Time) string {
	if id := header.Get("X-Request-Id"); id != "" {
		switch {
		case !validRequestID(id):
			g.metrics.idsChanged.WithLabelValues("invalid").Inc()
		case !g.recent.add(id, now):
			g.metrics.idsChanged.WithLabelValues("duplicate").Inc()
		default:
			return id
		}
	}
	id, err := uuid.NewV7()
	if err != nil { // only when the system has no randomness
		return uuid.NewString()
	}
	return id.String()
}

// validRequestID accepts what is safe in a message id, a header and a log line.
func validRequestID(id string) bool {
	if len(id) > maxRequestID {
		return false
	}
	for i := range len(id) {
		c := id[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("._:-", c) >= 0:
		default:
			return false
		}
	}
	return id != ""
}

// reserve takes n bytes of the budget for bodies, or reports that there are none.
func (g *Gateway) reserve(n int64) bool {
	if g.bodies.Add(n) > g.cfg.MaxBodies {
		g.bodies.Add(-n)
		return false
	}
	return true
}

// bodyReservation is what a request's body may take: its length, or the limit
// when that is not known.
func (g *Gateway) bodyReservation(r *http.Request) int64 {
	if r.ContentLength >= 0 {
		return min(r.ContentLength, g.cfg.MaxBody)
	}
	return g.cfg.MaxBody
}

// detached is a context that outlives the client, for what must be recorded.
func detached(ctx context.Context) context.Context { return context.WithoutCancel(ctx) }
