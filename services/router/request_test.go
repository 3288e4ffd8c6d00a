package router

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
)

func TestMalformedRequestsAreNamed(t *testing.T) {
	e := newEnv(t)
	e.engine("a")
	r := e.router(Config{})
	r.knows(1, "live")
	long := strings.Repeat("x", 2000)
	for name, c := range map[string]struct {
		break_ func(q *pb.RouteRequest)
		says   []string
	}{
		"no pool":            {func(q *pb.RouteRequest) { q.Pool = "" }, []string{"pool", testPool}},
		"another pool":       {func(q *pb.RouteRequest) { q.Pool = "other" }, []string{"pool", "svc.route.chat"}},
		"no gateway":         {func(q *pb.RouteRequest) { q.Gateway = "" }, []string{"gateway", "empty"}},
		"gateway with dot":   {func(q *pb.RouteRequest) { q.Gateway = "a.b" }, []string{"gateway"}},
		"gateway wildcard":   {func(q *pb.RouteRequest) { q.Gateway = ">" }, []string{"gateway"}},
		"no request id":      {func(q *pb.RouteRequest) { q.RequestId = "" }, []string{"request_id", "empty"}},
		"long request id":    {func(q *pb.RouteRequest) { q.RequestId = long }, []string{"request_id", "256"}},
		"request id newline": {func(q *pb.RouteRequest) { q.RequestId = "a\nb" }, []string{"request_id", "control"}},
		"attempt":            {func(q *pb.RouteRequest) { q.Attempt = 1 << 20 }, []string{"attempt", "1024"}},
		"model with zero":    {func(q *pb.RouteRequest) { q.Model = "a\x00b" }, []string{"model", "control"}},
		"long lora":          {func(q *pb.RouteRequest) { q.Lora = long }, []string{"lora"}},
		"long salt":          {func(q *pb.RouteRequest) { q.Salt = long }, []string{"salt"}},
		"long session":       {func(q *pb.RouteRequest) { q.SessionId = long }, []string{"session_id"}},
		"no prompt":          {func(q *pb.RouteRequest) { q.Keys, q.PromptTokens = nil, 0 }, []string{"prompt_tokens", "token_ids"}},
		"keys without size":  {func(q *pb.RouteRequest) { q.PromptTokens = 0 }, []string{"prompt_tokens"}},
		"both":               {func(q *pb.RouteRequest) { q.TokenIds = []uint32{1} }, []string{"keys", "token_ids", "one of them"}},
		"length differs":     {func(q *pb.RouteRequest) { q.Keys, q.TokenIds = nil, make([]uint32, 40) }, []string{"prompt_tokens is 67", "40"}},
		"too long":           {func(q *pb.RouteRequest) { q.PromptTokens = 1 << 40 }, []string{"prompt_tokens", "limit"}},
		"too many keys":      {func(q *pb.RouteRequest) { q.Keys = make([]uint64, maxKeys+1); q.PromptTokens = 1 << 22 }, []string{"keys", "limit"}},
		"other block size":   {func(q *pb.RouteRequest) { q.Keys = q.Keys[:2] }, []string{"keys", "2 keys", "67 prompt_tokens", "16 tokens"}},
		"exclude":            {func(q *pb.RouteRequest) { q.Exclude = []string{"a", "b c"} }, []string{"exclude[1]"}},
		"many excluded":      {func(q *pb.RouteRequest) { q.Exclude = make([]string, maxExcluded+1) }, []string{"exclude", "limit"}},
	} {
		t.Run(name, func(t *testing.T) {
			q := request(keysOf(1, 4))
			c.break_(q)
			response := r.Decide(context.Background(), q)
			if response.ErrorCode != pb.RouteErrorCode_ROUTE_ERROR_CODE_INVALID || response.Decision != nil {
				t.Fatalf("answer %v", response)
			}
			mustContain(t, response.Error, c.says...)
		})
	}
	q := request(keysOf(1, 4))
	q.Model = "gpt-9"
	if response := e.ask(q); response.ErrorCode != pb.RouteErrorCode_ROUTE_ERROR_CODE_NO_REPLICA {
		t.Errorf("answer %v", response)
	} else {
		mustContain(t, response.Error, "gpt-9", testModel)
	}
	if n := r.inFlight("a"); n != 0 {
		t.Errorf("refused requests left %d in flight", n)
	}
}

func TestBodiesThatAreNoRequests(t *testing.T) {
	e := newEnv(t)
	e.engine("a")
	r := e.router(Config{})
	r.knows(1, "live")

	msg, err := e.nc.RequestWithContext(e.context(), streams.ServiceSubject(testPool), []byte("\xff\xff\xff\xff"))
	if err != nil {
		t.Fatal(err)
	}
	if response := e.response(msg.Data); response.ErrorCode != pb.RouteErrorCode_ROUTE_ERROR_CODE_INVALID || msg.Header.Get("Nats-Service-Error-Code") != "400" {
		t.Errorf("answer %v %v", response, msg.Header)
	}
	for body, says := range map[string]string{
		``:                      "body",
		`[]`:                    "body",
		`{"pool":1}`:            "pool",
		`{"surprise":1}`:        "surprise",
		`{"keys":["minus"]}`:    "keys",
		`{"token_ids":[-1]}`:    "tokenIds",
		`{"pool":"chat"} trail`: "body",
	} {
		code, response := r.post([]byte(body))
		if code != 400 || response.ErrorCode != pb.RouteErrorCode_ROUTE_ERROR_CODE_INVALID {
			t.Errorf("%s: %d %v", body, code, response)
		}
		mustContain(t, response.Error, says)
	}
	code, response := r.post(bytes.Repeat([]byte(" "), maxBody+1))
	if code != 400 {
		t.Errorf("%d %v", code, response)
	}
	mustContain(t, response.Error, "larger than")
	if code, _ := r.get("/v1/route"); code != 405 {
		t.Errorf("GET /v1/route gives %d", code)
	}
}

func TestADecisionTooLargeForTheServerIsAnError(t *testing.T) {
	small, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, MaxPayload: 1 << 14, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	small.Start()
	defer small.Shutdown()
	if !small.ReadyForConnections(patience) {
		t.Fatal("server is not ready")
	}
	nc, err := nats.Connect(small.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	sub, err := nc.SubscribeSync("answer")
	if err != nil {
		t.Fatal(err)
	}
	r := offline(t, 1)
	r.nc = nc
	r.cfg.Requests = r.nc
	q := request(nil)
	q.PromptTokens, q.TokenIds = 0, make([]uint32, 1<<16) // four times the limit as keys
	response := r.Decide(context.Background(), q)
	if response.Decision == nil {
		t.Fatal(response.Error)
	}
	r.respond(question{reply: "answer"}, reply{RouteResponse: response})
	msg, err := sub.NextMsg(patience)
	if err != nil {
		t.Fatal(err)
	}
	answer := &pb.RouteResponse{}
	if err := proto.Unmarshal(msg.Data, answer); err != nil {
		t.Fatal(err)
	}
	if answer.ErrorCode != pb.RouteErrorCode_ROUTE_ERROR_CODE_INVALID || answer.Decision != nil {
		t.Fatalf("answer %v", answer.ErrorCode)
	}
	mustContain(t, answer.Error, "max_payload", "16384")
}

func TestConfigIsChecked(t *testing.T) {
	e := bareEnv(t)
	for says, cfg := range map[string]Config{
		"pool":        {},
		"name":        {Pool: testPool, Name: "a b"},
		"policy":      {Pool: testPool, Policy: "clairvoyant"},
		"surprise":    {Pool: testPool, Params: map[string]float64{"surprise": 1}},
		"256.0.0.1:1": {Pool: testPool, Listen: "256.0.0.1:1"},
	} {
		_, err := New(cfg, e.nc, e.js, nil)
		if err == nil {
			t.Errorf("%s: accepted", says)
			continue
		}
		mustContain(t, err.Error(), says)
	}
}

func FuzzDecideNeverPanics(f *testing.F) {
	seed, err := proto.Marshal(request(keysOf(1, 4)))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte{})
	r := offline(f, 3)
	f.Fuzz(func(t *testing.T, data []byte) {
		q := &pb.RouteRequest{}
		if proto.Unmarshal(data, q) != nil {
			return
		}
		response := r.Decide(context.Background(), q)
		if (response.Decision == nil) == (response.ErrorCode == 0) {
			t.Errorf("answer %v", response)
		}
	})
}
