package router

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/tokensource"
	"warmpath/streams"
	"warmpath/tokenize"
)

// tokenFunc is a token source made for a test.
type tokenFunc func(ctx context.Context, p *tokensource.Prompt, dst []uint32) (tokensource.Tokens, error)

func (f tokenFunc) Tokens(ctx context.Context, p *tokensource.Prompt, dst []uint32) (tokensource.Tokens, error) {
	return f(ctx, p, dst)
}

func textRequest(text string) *pb.RouteRequest {
	q := request(nil)
	q.PromptTokens, q.Prompt = 0, text
	return q
}

func TestWhatTheTokenizerSays(t *testing.T) {
	e := newEnv(t)
	e.engine("a")
	keys := keysOf(1, 3)
	r := e.router(Config{Tokens: tokenFunc(func(_ context.Context, p *tokensource.Prompt, dst []uint32) (tokensource.Tokens, error) {
		if p.Model != testModel || p.BlockTokens != blockTokens || p.Chat {
			t.Errorf("prompt %+v", p)
		}
		switch p.Text {
		case "refused":
			return tokensource.Tokens{}, &tokensource.PromptError{Param: "messages", Err: errors.New("roles must alternate")}
		case "unavailable":
			return tokensource.Tokens{}, &tokensource.UnavailableError{Reason: "engine", Err: errors.New("no\nanswer")}
		case "empty":
			return tokensource.Tokens{Source: "in_process"}, nil
		case "keys":
			return tokensource.Tokens{Keys: keys, Count: 50, Source: "engine"}, nil
		case "long":
			return tokensource.Tokens{Count: maxPromptTokens + 1, Source: "engine"}, nil
		case "many":
			return tokensource.Tokens{IDs: append(dst, make([]uint32, (maxKeys+1)*blockTokens)...), Source: "engine"}, nil
		}
		return tokensource.Tokens{IDs: append(dst, 1, 2, 3), Source: "in_process"}, nil
	})})
	r.knows(1, "live")
	for text, says := range map[string][]string{
		"refused": {"prompt: ", "roles must alternate"},
		"empty":   {"prompt has no tokens"},
		"long":    {"prompt_tokens", "limit"},
		"many":    {"131073 full blocks", "limit"},
	} {
		response := r.Decide(e.context(), textRequest(text))
		if response.ErrorCode != pb.RouteErrorCode_ROUTE_ERROR_CODE_INVALID {
			t.Errorf("%s: %v", text, response)
		}
		mustContain(t, response.Error, says...)
	}
	withKeys, withIDs := r.mustDecide(textRequest("keys")), r.mustDecide(textRequest("x"))
	if withKeys.PromptTokens != 50 || len(withKeys.Keys) != 3 || withKeys.TokenSource != "engine" || withIDs.PromptTokens != 3 || len(withIDs.Keys) != 0 {
		t.Errorf("decisions %v, %v", withKeys, withIDs)
	}
	data, err := proto.Marshal(textRequest("unavailable"))
	if err != nil {
		t.Fatal(err)
	}
	msg, err := e.nc.RequestWithContext(e.context(), streams.ServiceSubject(testPool), data)
	if err != nil {
		t.Fatal(err)
	}
	d := e.response(msg.Data).Decision
	if d.GetTokenSource() != "none" || d.GetPromptTokens() != 2 || len(d.GetKeys()) != 0 {
		t.Errorf("decision %v", d)
	}
	if got := msg.Header.Get(headerUnkeyed); got != "tokens: no answer" {
		t.Errorf("header %q", got)
	}
	e.audit(withKeys, withIDs, d)
}

// Texts wait for a place, few at a time, and hold up nobody else.
func TestTokenizingHoldsUpNobody(t *testing.T) {
	e := newEnv(t)
	e.engine("a")
	release := make(chan struct{})
	var at, most atomic.Int64
	r := e.router(Config{Tokens: tokenFunc(func(_ context.Context, _ *tokensource.Prompt, dst []uint32) (tokensource.Tokens, error) {
		n := at.Add(1)
		defer at.Add(-1)
		for seen := most.Load(); n > seen && !most.CompareAndSwap(seen, n); seen = most.Load() {
		}
		<-release
		return tokensource.Tokens{IDs: append(dst, 1), Source: "in_process"}, nil
	})})
	r.knows(1, "live")
	const asked = engineQuestions + 6
	var asking sync.WaitGroup
	answers := make(chan *nats.Msg, asked)
	for range asked {
		data, err := proto.Marshal(textRequest("a text"))
		if err != nil {
			t.Fatal(err)
		}
		asking.Go(func() {
			msg, err := e.nc.RequestWithContext(e.context(), streams.ServiceSubject(testPool), data)
			if err != nil {
				t.Error(err)
				return
			}
			answers <- msg
		})
	}
	e.until("all places are taken", func() bool { return at.Load() == engineQuestions })
	if d := e.ask(request(keysOf(1, 2))).Decision; d == nil {
		t.Error("no decision by keys while texts are tokenized")
	}
	code, response := r.postRequest(textRequest("one more"))
	if code != http.StatusServiceUnavailable || response.ErrorCode != pb.RouteErrorCode_ROUTE_ERROR_CODE_NOT_READY {
		t.Errorf("beyond the limit: %d %v", code, response)
	}
	mustContain(t, response.Error, "token_ids")
	close(release)
	asking.Wait()
	close(answers)
	for msg := range answers { // on a slow machine, some took too long meanwhile
		a := e.response(msg.Data)
		if a.Decision == nil && a.ErrorCode != pb.RouteErrorCode_ROUTE_ERROR_CODE_NOT_READY {
			t.Errorf("answer %v", a)
		}
	}
	if most.Load() != engineQuestions {
		t.Errorf("%d at once", most.Load())
	}
	if d := e.ask(textRequest("after all")).Decision; d == nil || d.PromptTokens != 1 {
		t.Errorf("after the rush: %v", d)
	}
}

// With --tokenizer engine the replicas are asked.
func TestTheEngineTokenizes(t *testing.T) {
	e := newEnv(t)
	served := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if r.URL.Path != "/tokenize" || err != nil || r.Header.Get("Authorization") != "Bearer secret" {
			t.Errorf("%s %v %v", r.URL, r.Header, err)
		}
		scanned, err := tokenize.ScanRequest(body, nil)
		if err != nil || scanned.Text != "some text" {
			t.Errorf("asked %s: %v", body, err)
		}
		fmt.Fprint(w, `{"count":18,"tokens":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}`)
	}))
	defer served.Close()
	e.engine("a", func(f *pb.FleetEntry) { f.Address, f.EngineKind = served.URL, "vllm" })
	r := e.router(Config{Tokenizer: TokenizerEngine, EngineKey: "secret"})
	r.knows(1, "live")
	d := r.mustDecide(textRequest("some text"))
	if d.TokenSource != "engine" || d.PromptTokens != 18 || len(d.Keys) != 1 {
		t.Errorf("decision %v", d)
	}
	served.CloseClientConnections()
}

// With a model's folder the router renders and tokenizes as its engines do.
func TestAModelsFolderTokenizes(t *testing.T) {
	e := newEnv(t)
	e.engine("a")
	r := e.router(Config{Tokenizer: "../../tokenize/model/testdata/tiny"})
	r.knows(1, "live")
	q := request(nil)
	q.PromptTokens, q.Chat = 0, []byte(`{"messages":[{"role":"user","content":"hello hello hello hello hello hello hello"}]}`)
	d := r.mustDecide(q)
	if d.TokenSource != "in_process" || d.PromptTokens == 0 || uint64(len(d.Keys)) != d.PromptTokens/blockTokens {
		t.Errorf("decision %v", d)
	}
	q.Chat = []byte(`{"messages":[{"role":"user","content":"hello hello hello hello hello hello hello"},{"role":"assistant","content":"hi"},{"role":"user","content":"again"}]}`)
	q.RequestId = "second"
	second := r.mustDecide(q)
	if second.PromptTokens <= d.PromptTokens || len(d.Keys) > 0 && second.Keys[0] != d.Keys[0] {
		t.Errorf("the second turn does not begin as the first: %v, %v", d, second)
	}
	if _, err := New(Config{Pool: testPool, Tokenizer: t.TempDir()}, e.nc, e.js, nil); err == nil {
		t.Error("an empty folder is a tokenizer")
	} else {
		mustContain(t, err.Error(), "tokenizer", "--tokenizer takes the folder")
	}
}
