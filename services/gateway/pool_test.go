package gateway

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "warmpath/schemas/warmpathv1"
)

// Embeddings go where the load is least, and are recorded like other requests.
func TestEmbeddings(t *testing.T) {
	e := newEnv(t)
	const answer = `{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.5,1]}],"model":"m","usage":{"prompt_tokens":6,"total_tokens":6}}`
	const body = `{"model":"` + testModel + `","input":["one","two"],"encoding_format":"float"}`
	var got string
	n := e.engine("engine-0", func(w http.ResponseWriter, r *http.Request, body []byte) {
		got = r.URL.Path + " " + string(body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(answer))
	})
	router, _ := e.router(choose(n))
	g := e.gateway(1, Config{})
	for _, path := range []string{embeddingsPath, "/v1/rerank", "/v1/score"} {
		response := g.post(path, body, "X-Request-Id", "r"+strings.ReplaceAll(path, "/", "-"))
		var out struct{ Data []json.RawMessage }
		err := json.NewDecoder(response.Body).Decode(&out)
		_ = response.Body.Close()
		if err != nil || response.StatusCode != http.StatusOK || len(out.Data) != 1 || got != path+" "+body {
			t.Errorf("%s: got %d %v, %v; the engine got %s", path, response.StatusCode, out, err, got)
		}
		s := g.story("r" + strings.ReplaceAll(path, "/", "-"))
		if d, f := s.decided[0], s.finished[0]; s.order != "df" || d.TokenSource != SourceNone || len(d.Keys) != 0 || d.Decider != "router-test" ||
			f.Status != pb.Status_STATUS_OK || f.GetPromptTokens() != 6 || f.CachedTokens != nil || f.TtftUs != nil {
			t.Errorf("%s: got %v %v", path, d, f)
		}
	}
	if q := router.requests()[0]; len(q.Keys) != 0 || q.PromptTokens == 0 {
		t.Errorf("the router was asked %v", q)
	}
	if g.metric("unkeyed_requests_total") != 0 {
		t.Error("embeddings count as prompts whose tokens are not known")
	}
}

// An adapter that the fleet lists can be asked for, and goes only where it is.
func TestLoRAsOfTheFleet(t *testing.T) {
	e := newEnv(t)
	without := e.engine("engine-0", nil)
	with := e.engine("engine-1", nil, func(entry *pb.FleetEntry) { entry.Loras = []string{"sql"} })
	router, _ := e.router(choose(without, with))
	g := e.gateway(2, Config{})
	body := strings.Replace(prompt(40, ""), testModel, "sql", 1)
	if h := g.mustAsk(body, "X-Request-Id", "r-1"); h.Get(headerReplica) != with.name {
		t.Errorf("got %v", h)
	}
	if q := router.requests()[0]; q.Lora != "sql" || !slices.Equal(q.Exclude, []string{without.name}) {
		t.Errorf("the router was asked %v", q)
	}
	// A fallback knows it, too.
	d := &pb.Decided{Model: testModel}
	g.view.candidates(d, g.view.unfit("sql", nil, nil))
	if len(d.Candidates) != 2 || d.Candidates[0].Ineligible != ineligibleExcluded || d.Candidates[1].Ineligible != "" {
		t.Errorf("candidates %v", d.Candidates)
	}
	// Nobody lists it any more: an adapter of the configuration may be anywhere.
	if got := g.view.unfit("other", []string{"x"}, nil); !slices.Equal(got, []string{"x"}) {
		t.Errorf("unfit %v", got)
	}
}

func TestDataParallelRank(t *testing.T) {
	entry := func(rank *uint32) *pb.FleetEntry { return &pb.FleetEntry{DataParallelRank: rank} }
	for name, c := range map[string]struct {
		replica  string
		entry    *pb.FleetEntry
		answered *uint32
		want     int // -1 none, -2 an error
	}{
		"none":           {"e", entry(nil), nil, -1},
		"unknown":        {"e", nil, nil, -1},
		"name":           {"e.dp3", entry(nil), nil, 3},
		"no number":      {"e.dpx", nil, nil, -1},
		"fleet":          {"e", entry(proto.Uint32(0)), nil, 0},
		"fleet over id":  {"e.dp3", entry(proto.Uint32(1)), nil, 1},
		"router":         {"e.dp3", entry(nil), proto.Uint32(2), 2},
		"both":           {"e", entry(proto.Uint32(2)), proto.Uint32(2), 2},
		"contradiction":  {"e", entry(proto.Uint32(1)), proto.Uint32(2), -2},
		"out of range":   {"e", entry(nil), proto.Uint32(1 << 20), -2},
		"name too large": {"e.dp99999", nil, nil, -2},
	} {
		rank, ok, err := rankOf(c.replica, c.entry, c.answered)
		got := int(rank)
		if !ok {
			got = -1
		}
		if err != nil {
			got = -2
		}
		if got != c.want {
			t.Errorf("%s: got %d, %v", name, got, err)
		}
	}
}

// The rank reaches the engine, and a wrong one does not.
func TestDataParallelRankIsForwarded(t *testing.T) {
	e := newEnv(t)
	var got []string
	n := e.engine("engine-0", func(w http.ResponseWriter, r *http.Request, body []byte) {
		got = append(got, r.Header.Get(headerRank))
		respond(w, body, answerJSON(40, "0"))
	}, func(entry *pb.FleetEntry) { entry.DataParallelRank = proto.Uint32(1) })
	answer := choose(n)
	router, _ := e.router(answer)
	g := e.gateway(1, Config{})
	g.mustAsk(prompt(40, ""), headerRank, "7")
	router.set(func(q *pb.RouteRequest) *pb.RouteResponse {
		r := answer(q)
		r.DataParallelRank = proto.Uint32(5)
		return r
	})
	g.mustAsk(prompt(40, ""), "X-Request-Id", "r-1")
	if !slices.Equal(got, []string{"1", "1"}) {
		t.Errorf("the engine was asked for ranks %q", got)
	}
	if d := g.story("r-1").decided[0]; d.FallbackCause != causeBadAnswer {
		t.Errorf("got %v", d)
	}
}
