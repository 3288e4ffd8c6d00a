package gateway

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zeebo/xxh3"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"warmpath/routing/blockkey"
	"warmpath/services/gateway/apikey"
	"warmpath/services/tokensource"
	"warmpath/tokenize"
)

// endpoint is what kind of request a path takes.
type endpoint uint8

const (
	endpointChat endpoint = iota
	endpointCompletion
	// endpointPooling are requests that generate nothing, such as embeddings. They
	// go where the load is least, without keys: their prompts are many and short.
	endpointPooling
)

const (
	chatPath        = "/v1/chat/completions"
	completionsPath = "/v1/completions"
	embeddingsPath  = "/v1/embeddings"
)

// endpoints are the paths that are forwarded.
var endpoints = map[string]endpoint{
	chatPath: endpointChat, completionsPath: endpointCompletion,
	embeddingsPath: endpointPooling, "/v1/rerank": endpointPooling, "/v1/score": endpointPooling,
}

// Limits of names, which are what the router takes.
const (
	maxSession = 512
	maxSalt    = 512
)

// request is what the gateway knows of a request before it decides.
type request struct {
	identity
	session string
	start   time.Time
	queued  time.Duration // spent waiting for a place
	kind    endpoint
	path    string
	header  http.Header
	query   string
	client  *apikey.Client // nil without keys
	// model is the pool's, lora the adapter, salt what keeps its blocks apart.
	model, lora, salt string
	stream            bool
	// stripUsage is set when the usage event was asked for by the gateway only.
	stripUsage bool

	body  []byte          // as the client sent it
	edits []tokenize.Edit // what the engine gets instead

	prompt       *tokensource.Prompt // what the tokens were made of; nil for ids from the client
	source       string              // where the tokens came from; SourceNone when they are not known
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

// asked is the model by the name that a client uses for it.
func (r *request) asked() string {
	if r.lora != "" {
		return r.lora
	}
	return r.model
}

// read takes a request in: body, identity, tokens, keys. What it returns beside
// an error has at most its body.
func (g *Gateway) read(ctx context.Context, w http.ResponseWriter, r *http.Request, rq *request) *apiError {
	var failure *apiError
	if rq.body, failure = g.readBody(w, r); failure != nil {
		return failure
	}
	buffer := tokensource.BorrowIDs()
	defer tokensource.ReturnIDs(buffer)
	scanned, err := tokenize.ScanRequest(rq.body, (*buffer)[:0])
	*buffer = scanned.IDs[:0]
	if err != nil {
		return refuse(fieldOf(err), err)
	}
	pool, known := g.view.shape()
	if failure := g.nameModel(rq, scanned.Model, pool, known); failure != nil {
		return failure
	}
	if failure := mayUse(rq.client, rq.asked()); failure != nil {
		return failure
	}
	if failure := rq.prepare(&scanned); failure != nil {
		return failure
	}
	ctx, span := g.tracer.start(ctx, spanTokenize, trace.SpanKindInternal)
	defer span.End()
	failure = g.tokens(ctx, rq, &scanned, buffer, pool)
	if span.IsRecording() {
		span.SetAttributes(attribute.String("warmpath.token_source", rq.source), attribute.Int64("warmpath.prompt_tokens", int64(rq.promptTokens)))
	}
	return failure
}

// prepare takes what routing and forwarding need of the body, but its tokens.
func (r *request) prepare(scanned *tokenize.Request) *apiError {
	if len(scanned.CacheSalt) > maxSalt {
		return refuse("cache_salt", fmt.Errorf("cache_salt has %d bytes; the limit is %d: send a hash of it", len(scanned.CacheSalt), maxSalt))
	}
	r.session = sessionOf(r.header, scanned.User)
	r.stream = scanned.Stream
	if scanned.Stream && r.kind != endpointPooling {
		if edit, needed := scanned.AskUsage(); needed {
			r.edits = append(r.edits, edit)
			r.stripUsage = true
		}
	}
	r.salt = scanned.CacheSalt
	if r.client == nil {
		return nil
	}
	// Whatever a client asks for, its blocks are those of its key.
	if r.salt = r.client.Key().CacheSalt(scanned.CacheSalt); r.salt != scanned.CacheSalt {
		r.edits = append(r.edits, scanned.SetSalt(r.salt))
	}
	return nil
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
	if slices.Contains(g.cfg.LoRAs, asked) || g.view.hasLoRA(asked) {
		rq.lora = asked
		return nil
	}
	return &apiError{
		status: http.StatusNotFound, kind: "invalid_request_error", code: "model_not_found", param: "model", reason: rejectedInvalid,
		message: fmt.Sprintf("model %.200q is not served here; use %q, or one of GET /v1/models", asked, pool.model),
	}
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
