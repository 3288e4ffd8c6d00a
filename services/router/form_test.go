package router

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
	"warmpath/tokenize"
)

const (
	testMessages = `[{"role":"system","content":"You are a careful assistant. Answer in one sentence."},{"role":"user","content":"Why is the sky blue?"}]`
	testChat     = `{"messages":` + testMessages + `,"model":"` + testModel + `","max_tokens":8}`
)

// testText is what the bytes tokenizer renders of testMessages.
func testText(t testing.TB) string {
	t.Helper()
	text, err := (tokenize.Bytes{}).Render(json.RawMessage(testMessages), nil)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func textKeys(text, lora, salt string) []uint64 {
	return blockkey.Chain(nil, blockkey.Root(testModel, lora, salt), tokenize.AppendText(nil, text), blockTokens)
}

// askJSON sends a JSON request over NATS.
func (e *env) askJSON(body string, header nats.Header) (*pb.RouteResponse, nats.Header) {
	e.Helper()
	msg, err := e.nc.RequestMsgWithContext(e.context(), &nats.Msg{Subject: streams.ServiceSubject(testPool), Data: []byte(body), Header: header})
	if err != nil {
		e.Fatal(err)
	}
	response := &pb.RouteResponse{}
	if err := protojson.Unmarshal(msg.Data, response); err != nil {
		e.Fatalf("answer %q: %v", msg.Data, err)
	}
	return response, msg.Header
}

// postForProtobuf asks over HTTP, in JSON and for an answer in protobuf.
func (r *running) postForProtobuf(body string) *pb.RouteResponse {
	r.env.Helper()
	req, err := http.NewRequestWithContext(r.env.context(), http.MethodPost, r.Address()+"/v1/route", strings.NewReader(body))
	if err != nil {
		r.env.Fatal(err)
	}
	req.Header.Set("Accept", contentProtobuf)
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		r.env.Fatal(err)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil || answer.Header.Get("Content-Type") != contentProtobuf || answer.Header.Get(headerTextBytes) == "" {
		r.env.Fatalf("answer %q with %v: %v", data, answer.Header, err)
	}
	return r.env.response(data)
}

// One prompt in all its forms, on all ways, is one decision.
func TestEveryFormOfAPromptGivesTheSameDecision(t *testing.T) {
	e := newEnv(t)
	a := e.engine("a")
	e.engine("b")
	text := testText(t)
	keys := textKeys(text, "", "")
	last := a.holds(keys)
	r := e.router(Config{Tokenizer: TokenizerBytes})
	r.knows(2, "live")
	r.reaches(last)

	form := func(change func(q *pb.RouteRequest)) *pb.RouteRequest {
		q := request(nil)
		q.PromptTokens, q.Model, q.DryRun = 0, "", true
		change(q)
		return q
	}
	forms := map[string]*pb.RouteRequest{
		"keys":      form(func(q *pb.RouteRequest) { q.Keys, q.PromptTokens = keys, uint64(len(text)) }),
		"token_ids": form(func(q *pb.RouteRequest) { q.TokenIds = tokenize.AppendText(nil, text) }),
		"prompt":    form(func(q *pb.RouteRequest) { q.Prompt = text }),
		"chat":      form(func(q *pb.RouteRequest) { q.Chat = []byte(testChat) }),
	}
	var decisions []*pb.Decided
	check := func(name string, response *pb.RouteResponse) {
		t.Helper()
		d := response.GetDecision()
		if d == nil {
			t.Errorf("%s: %v", name, response)
			return
		}
		source := map[bool]string{true: "in_process"}[strings.HasPrefix(name, "prompt") || strings.HasPrefix(name, "chat")]
		if d.Chosen != "a" || response.Address != "http://a.example" || !slices.Equal(d.Keys, keys) || d.PromptTokens != uint64(len(text)) ||
			d.TokenSource != source || candidate(d, "a").GpuBlocks != uint32(len(keys)) {
			t.Errorf("%s: %v", name, d)
		}
		decisions = append(decisions, d)
	}
	for name, q := range forms {
		again := proto.Clone(q).(*pb.RouteRequest)
		check(name+", NATS", e.ask(q))
		code, response := r.postRequest(q)
		check(name+", HTTP", response)
		if code != http.StatusOK {
			t.Errorf("%s: status %d", name, code)
		}
		body, err := protojson.Marshal(q)
		if err != nil {
			t.Fatal(err)
		}
		response, header := e.askJSON(string(body), nil)
		check(name+", JSON over NATS", response)
		if header.Get("Content-Type") != "application/json" || header.Get(schemaHeader) != "warmpath.v1.RouteResponse" {
			t.Errorf("%s: header %v", name, header)
		}
		response, _ = e.askJSON(" \n"+string(body), nats.Header{"Content-Type": {"application/json"}})
		check(name+", JSON by its content type", response)
		if !proto.Equal(q, again) {
			t.Errorf("%s: the request was changed to %v", name, q)
		}
	}
	object := `{"pool":"chat","gateway":"gw","request_id":"object", "dry_run":true, "chat" : ` + testChat + ` ,"exclude":["b"]}`
	_, response := r.post([]byte(object))
	check("chat object, HTTP", response)
	response, header := e.askJSON(object, nil)
	check("chat object, NATS", response)
	check("chat object, HTTP, for protobuf", r.postForProtobuf(object))
	if got := header.Get(headerTextBytes); got != strconv.Itoa(len(text)) {
		t.Errorf("%d bytes of text are told as %q", len(text), got)
	}
	e.audit(decisions...)
}

// What of a chat's body decides its keys is taken from it.
func TestWhatAChatsBodySays(t *testing.T) {
	e := newEnv(t)
	e.engine("a", func(f *pb.FleetEntry) { f.Loras = []string{"sql"} })
	r := e.router(Config{Tokenizer: TokenizerBytes})
	r.knows(1, "live")
	text := testText(t)
	chat := func(members string) []byte { return []byte(`{"messages":` + testMessages + members + `}`) }
	for name, c := range map[string]struct {
		change             func(q *pb.RouteRequest)
		lora, salt, person string
	}{
		"nothing":           {change: func(q *pb.RouteRequest) { q.Chat = chat("") }},
		"an adapter":        {change: func(q *pb.RouteRequest) { q.Chat, q.Model = chat(`,"model":"sql"`), "" }, lora: "sql"},
		"adapter and model": {change: func(q *pb.RouteRequest) { q.Chat = chat(`,"model":"sql"`) }, lora: "sql"},
		"an adapter beside": {change: func(q *pb.RouteRequest) { q.Chat, q.Lora, q.Model = chat(`,"model":"poem"`), "poem", "" }, lora: "poem"},
		"a salt":            {change: func(q *pb.RouteRequest) { q.Chat = chat(`,"cache_salt":"tenant"`) }, salt: "tenant"},
		"a salt beside":     {change: func(q *pb.RouteRequest) { q.Chat, q.Salt = chat(`,"cache_salt":"theirs"`), "ours" }, salt: "ours"},
		"a user":            {change: func(q *pb.RouteRequest) { q.Chat = chat(`,"user":"jo"`) }, person: "jo"},
		"a session beside":  {change: func(q *pb.RouteRequest) { q.Chat, q.SessionId = chat(`,"user":"jo"`), "s1" }, person: "s1"},
	} {
		q := request(nil)
		q.PromptTokens = 0
		c.change(q)
		d := r.mustDecide(q)
		session := uint64(0)
		if c.person != "" {
			session = xxh3.HashString(c.person)
		}
		if d.Model != testModel || d.Lora != c.lora || d.SessionKey != session || !slices.Equal(d.Keys, textKeys(text, c.lora, c.salt)) {
			t.Errorf("%s: %v", name, d)
		}
	}
	q := request(nil)
	q.PromptTokens, q.Model, q.Chat = 0, "", chat(`,"model":"gpt-9"`)
	response := r.Decide(e.context(), q)
	if response.ErrorCode != pb.RouteErrorCode_ROUTE_ERROR_CODE_NO_REPLICA {
		t.Errorf("another model: %v", response)
	}
	mustContain(t, response.Error, "gpt-9", testModel)
}

func TestFormsThatCannotBe(t *testing.T) {
	e := newEnv(t)
	e.engine("a")
	r := e.router(Config{Tokenizer: TokenizerBytes})
	r.knows(1, "live")
	for name, c := range map[string]struct {
		change func(q *pb.RouteRequest)
		says   []string
	}{
		"two texts":         {func(q *pb.RouteRequest) { q.Prompt, q.Chat = "a", []byte("{}") }, []string{"prompt and chat", "one of them"}},
		"all":               {func(q *pb.RouteRequest) { q.Keys, q.TokenIds, q.Prompt = keysOf(1, 1), []uint32{1}, "a" }, []string{"keys and token_ids and prompt"}},
		"a length beside":   {func(q *pb.RouteRequest) { q.Prompt, q.PromptTokens = "a", 1 }, []string{"prompt_tokens", "leave it out"}},
		"no object":         {func(q *pb.RouteRequest) { q.Chat = []byte(`[]`) }, []string{"chat:", "request object"}},
		"no messages":       {func(q *pb.RouteRequest) { q.Chat = []byte(`{}`) }, []string{"chat: messages", "missing"}},
		"a completion":      {func(q *pb.RouteRequest) { q.Chat = []byte(`{"prompt":"a"}`) }, []string{"chat:", "prompt"}},
		"a message's role":  {func(q *pb.RouteRequest) { q.Chat = []byte(`{"messages":[{"content":"a"}]}`) }, []string{"chat:", "role"}},
		"salt with control": {func(q *pb.RouteRequest) { q.Chat = []byte(`{"messages":[],"cache_salt":"a\u0000b"}`) }, []string{"chat: cache_salt", "control"}},
	} {
		q := request(nil)
		q.PromptTokens = 0
		c.change(q)
		response := r.Decide(e.context(), q)
		if response.ErrorCode != pb.RouteErrorCode_ROUTE_ERROR_CODE_INVALID || response.Decision != nil {
			t.Errorf("%s: %v", name, response)
		}
		mustContain(t, response.Error, c.says...)
	}
	for body, says := range map[string]string{
		`{"pool":"chat","chat":{"messages":[}}`:                     "request",
		`{"pool":"chat","chat":{},"chat":{}}`:                       "chat",
		`{"pool":"chat","chat":7}`:                                  "chat",
		`{"pool":"chat","gateway":"gw","request_id":"x","chat":{}}`: "messages",
	} {
		response, header := e.askJSON(body, nil)
		if response.ErrorCode != pb.RouteErrorCode_ROUTE_ERROR_CODE_INVALID || header.Get("Nats-Service-Error-Code") != "400" {
			t.Errorf("%s: %v %v", body, response, header)
		}
		mustContain(t, response.Error, says)
	}

	bare := e.router(Config{Name: "bare"})
	bare.knows(1, "live")
	q := request(nil)
	q.PromptTokens, q.Prompt = 0, "a text"
	response := bare.Decide(e.context(), q)
	if response.ErrorCode != pb.RouteErrorCode_ROUTE_ERROR_CODE_INVALID {
		t.Errorf("without a tokenizer: %v", response)
	}
	mustContain(t, response.Error, "--tokenizer", "token_ids")
}

// A prompt of which only the length is known goes where the load is least.
func TestALengthAloneIsDecidedByLoad(t *testing.T) {
	e := newEnv(t)
	e.engine("a")
	e.engine("b")
	r := e.router(Config{})
	r.knows(2, "live")
	q := request(nil)
	q.PromptTokens = 5000
	first := r.mustDecide(q)
	if len(first.Keys) != 0 || first.PromptTokens != 5000 || first.TokenSource != "none" || first.BlockTokens != blockTokens {
		t.Errorf("decision %v", first)
	}
	q = request(nil)
	q.PromptTokens = 5000
	second := r.mustDecide(q)
	if second.Chosen == first.Chosen {
		t.Errorf("both went to %s", first.Chosen)
	}
	e.audit(first, second)
}

func TestADryRunCountsForNothing(t *testing.T) {
	e := newEnv(t)
	e.engine("a")
	e.engine("b")
	r := e.router(Config{Policy: "round_robin"})
	r.knows(2, "live")
	q := request(keysOf(1, 8))
	q.DryRun = true
	first, second := e.ask(q).Decision, e.ask(q).Decision
	if first == nil || first.Chosen != second.GetChosen() || first.Turn != second.GetTurn() {
		t.Fatalf("the second is another decision: %v, %v", first, second)
	}
	if s := r.State(); r.inFlight("a")+r.inFlight("b") != 0 || s.Predictions != 0 || s.Decisions != 0 || len(r.confirmed()) != 0 {
		t.Errorf("left behind: %+v, %v", s, r.confirmed())
	}
	if stats := r.stats(); stats.Decisions != 0 {
		t.Errorf("%d decisions counted", stats.Decisions)
	}
	// A real one, asked about meanwhile, is not taken back.
	real := request(keysOf(1, 8))
	d := r.mustDecide(real)
	trial := proto.Clone(real).(*pb.RouteRequest)
	trial.DryRun, trial.Exclude = true, []string{d.Chosen}
	if other := r.mustDecide(trial); other.Chosen == d.Chosen {
		t.Errorf("decision %v", other)
	}
	if r.inFlight(d.Chosen) != 1 {
		t.Errorf("%d in flight at %s", r.inFlight(d.Chosen), d.Chosen)
	}
	if _, metrics := r.get("/metrics"); !strings.Contains(metrics, `warmpath_router_dry_runs_total{pool="chat"} 3`) {
		t.Error("dry runs are not counted")
	}
	e.audit(first, d)
}

// Whatever is sent, the JSON form is protobuf's, but for a chat that is an object.
func FuzzDecodeJSON(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"pool":"chat","chat":"e30="}`, `{"pool":"chat","chat": {"messages":[{"role":"user","content":"\u00e9}"}]} }`, `{"chat":{},"chat":{}}`,
		`{"chat":{}`, `{"\u0063hat":{}}`, `{"keys":[1,"2"],"chat":{"a":{"chat":{}}}}`, ` { "prompt" : "\"chat\":{}" }`, "{\"chat\":{}}\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := decodeJSON(slices.Clone(data))
		plain := &pb.RouteRequest{}
		if plainErr := protojson.Unmarshal(data, plain); plainErr == nil {
			if err != nil || !proto.Equal(got, plain) {
				t.Fatalf("%q: %v, %v; protobuf's own reading is %v", data, got, err, plain)
			}
			return
		}
		if err != nil {
			return
		}
		var members map[string]json.RawMessage
		if err := json.Unmarshal(data, &members); err != nil || !json.Valid(got.Chat) || got.Chat[0] != '{' || string(members["chat"]) != string(got.Chat) {
			t.Fatalf("%q: read as %v with chat %q: %v", data, got, got.Chat, err)
		}
	})
}
