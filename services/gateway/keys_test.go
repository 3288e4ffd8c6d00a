package gateway

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/gateway/apikey"
)

// keyring makes a key file; each entry's options are added to its line.
type keyring struct {
	path    string
	secrets map[string]string
}

func newKeyring(t *testing.T, options map[string]string) *keyring {
	t.Helper()
	r := &keyring{path: filepath.Join(t.TempDir(), "keys.yaml"), secrets: map[string]string{}}
	var text strings.Builder
	for name, option := range options {
		secret, entry, err := apikey.New(name)
		if err != nil {
			t.Fatal(err)
		}
		r.secrets[name] = secret
		line := entry.Line()
		if option != "" {
			line = strings.Replace(line, "}", ", "+option+"}", 1)
		}
		text.WriteString(line + "\n")
	}
	if err := os.WriteFile(r.path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *keyring) bearer(name string) string { return "Bearer " + r.secrets[name] }

func TestKeysAreAsked(t *testing.T) {
	e := newEnv(t)
	var forwarded http.Header
	n := e.engine("engine-0", func(w http.ResponseWriter, r *http.Request, body []byte) {
		forwarded = r.Header.Clone()
		respond(w, body, answerJSON(40, "32"))
	}, func(entry *pb.FleetEntry) { entry.Loras = []string{"sql"} })
	e.router(choose(n))
	keys := newKeyring(t, map[string]string{"ann": "", "off": "disabled: true", "sqlonly": "models: [sql]", "slow": "requests_per_second: 0.001",
		"one": "concurrent: 1", "few": "tokens_per_minute: 30"})
	g := e.gateway(1, Config{Keys: keys.path})
	for name, c := range map[string]struct {
		header, value string
		status        int
		code          string
	}{
		"none":     {"X-Other", "x", 401, "invalid_api_key"},
		"unknown":  {"Authorization", "Bearer wp-nobody", 401, "invalid_api_key"},
		"basic":    {"Authorization", "Basic " + keys.secrets["ann"], 401, "invalid_api_key"},
		"disabled": {"Authorization", keys.bearer("off"), 403, "key_disabled"},
		"model":    {"Authorization", keys.bearer("sqlonly"), 403, "model_not_allowed"},
		"ann":      {"Authorization", keys.bearer("ann"), 200, ""},
		"azure":    {"Api-Key", keys.secrets["ann"], 200, ""},
	} {
		status, text, h := g.ask(prompt(40, ""), c.header, c.value)
		var got struct {
			Error struct{ Message, Type, Code string }
		}
		if err := json.Unmarshal([]byte(text), &got); err != nil || status != c.status || got.Error.Code != c.code || (c.status == 401) != (h.Get("WWW-Authenticate") == "Bearer") {
			t.Errorf("%s: got %d %s, %v", name, status, text, err)
		}
		if c.status != 200 && (got.Error.Message == "" || got.Error.Type == "" || h.Get("X-Request-Id") == "") {
			t.Errorf("%s: got %+v %v", name, got, h)
		}
	}
	for _, name := range keyHeaders {
		if forwarded.Get(name) != "" {
			t.Errorf("the engine was shown %s %q", name, forwarded.Get(name))
		}
	}
	// Models are those of the key.
	models := func(header ...string) (int, string) {
		request, err := http.NewRequest(http.MethodGet, g.Address()+"/v1/models", nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(header); i += 2 {
			request.Header.Set(header[i], header[i+1])
		}
		response, err := e.client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		var list struct{ Data []struct{ ID string } }
		_ = json.NewDecoder(response.Body).Decode(&list)
		ids := ""
		for _, m := range list.Data {
			ids += m.ID + " "
		}
		return response.StatusCode, ids
	}
	if status, ids := models("Authorization", keys.bearer("sqlonly")); status != 200 || ids != "sql " {
		t.Errorf("models: %d %s", status, ids)
	}
	if status, _ := models(); status != 401 {
		t.Errorf("models without a key: %d", status)
	}
	// Limits, each with its own name.
	limited := func(key, reason string) {
		t.Helper()
		status, text, h := g.ask(prompt(40, ""), "Authorization", keys.bearer(key))
		if status != 429 || h.Get("Retry-After") == "" || h.Get("Retry-After-Ms") == "" || !strings.Contains(text, "rate_limit_exceeded") || !strings.Contains(text, reason) {
			t.Errorf("%s: got %d %s %v", key, status, text, h)
		}
		if g.metric("rejected_total", "reason", reason) != 1 || g.metric("key_requests_total", "key", key, "status", "refused") != 1 {
			t.Errorf("%s: the rejection was not counted", key)
		}
	}
	for _, key := range []string{"slow", "few"} {
		g.mustAsk(prompt(40, ""), "Authorization", keys.bearer(key))
	}
	limited("slow", "requests_per_second")
	limited("few", "tokens_per_minute") // 42 of 30 are used
	source := newGated()
	n.handler = source.serve
	done := make(chan struct{})
	go func() {
		defer close(done)
		if response, err := g.send(t.Context(), completionsPath, prompt(40, `,"stream":true`), "Authorization", keys.bearer("one")); err == nil {
			_ = response.Body.Close()
		}
	}()
	wait(e, "the request at the engine", source.body)
	limited("one", "concurrent")
	source.parts <- eventHello
	close(source.parts)
	<-done
	e.until("the end", func() bool { return g.active.Load() == 0 })
	if got := g.metric("key_requests_total", "key", "ann", "status", "ok"); got != 2 {
		t.Errorf("ann has %v requests", got)
	}
	for id, s := range e.stories(g) {
		if len(s.decided) != 1 {
			t.Errorf("%s: %s", id, s.order)
		}
	}
}

// Two tenants never share blocks, whatever they send, unless their keys say so.
func TestSaltsOfKeys(t *testing.T) {
	e := newEnv(t)
	var bodies []string
	n := e.engine("engine-0", func(w http.ResponseWriter, _ *http.Request, body []byte) {
		bodies = append(bodies, string(body))
		respond(w, body, answerJSON(40, "32"))
	})
	router, _ := e.router(choose(n))
	keys := newKeyring(t, map[string]string{"ann": "", "bob": "", "pub1": "salt: shared", "pub2": "salt: shared", "team1": "salt: team", "team2": "salt: team"})
	g := e.gateway(1, Config{Keys: keys.path})
	ids := []uint32{0, 7, 14, 21, 28, 35, 42, 49}
	first := map[string]blockkey.Key{}
	salts := map[string]string{}
	for i, c := range []struct{ name, key, asked string }{
		{"ann", "ann", ""}, {"bob", "bob", ""}, {"pub1", "pub1", ""}, {"pub2", "pub2", ""}, {"team1", "team1", ""}, {"team2", "team2", ""},
		{"ann x", "ann", "x"}, {"pub1 x", "pub1", "x"}, {"pub2 x", "pub2", "x"}, {"bob as ann", "bob", "ann's salt"},
	} {
		asked := c.asked
		if asked == "ann's salt" {
			asked = salts["ann"]
		}
		rest := `,"stream":true`
		if asked != "" {
			rest += `,"cache_salt":"` + asked + `"`
		}
		g.mustAsk(prompt(8, rest), "Authorization", keys.bearer(c.key))
		var got struct {
			Salt    *string `json:"cache_salt"`
			Options struct {
				Usage bool `json:"include_usage"`
			} `json:"stream_options"`
			Prompt []uint32
		}
		if err := json.Unmarshal([]byte(bodies[i]), &got); err != nil || !got.Options.Usage || len(got.Prompt) != 8 {
			t.Fatalf("%s: the engine got %s, %v", c.name, bodies[i], err)
		}
		if got.Salt != nil {
			salts[c.name] = *got.Salt
		}
		q := router.requests()[i]
		if want := blockkey.Chain(nil, blockkey.Root(testModel, "", salts[c.name]), ids, blockTokens); len(q.Keys) != 2 || q.Keys[0] != want[0] || q.Salt != salts[c.name] {
			t.Errorf("%s: the router was asked with other keys than the engine's", c.name)
		}
		first[c.name] = q.Keys[0]
	}
	for _, pair := range [][2]string{{"ann", "bob"}, {"ann", "pub1"}, {"ann", "team1"}, {"ann", "ann x"}, {"pub1 x", "ann x"}, {"bob as ann", "ann"}, {"pub1", "pub1 x"}} {
		if first[pair[0]] == first[pair[1]] {
			t.Errorf("%s and %s share blocks", pair[0], pair[1])
		}
	}
	for _, pair := range [][2]string{{"pub1", "pub2"}, {"pub1 x", "pub2 x"}, {"team1", "team2"}} {
		if first[pair[0]] != first[pair[1]] {
			t.Errorf("%s and %s do not share blocks", pair[0], pair[1])
		}
	}
	if salts["pub1"] != "" || salts["ann"] == "" {
		t.Errorf("salts %v", salts)
	}
	e.stories(g)
}

func TestKeysAreReadAgain(t *testing.T) {
	e := newEnv(t)
	n := e.engine("engine-0", nil)
	e.router(choose(n))
	keys := newKeyring(t, map[string]string{"ann": ""})
	g := e.gateway(1, Config{Keys: keys.path})
	secret, entry, err := apikey.New("bob")
	if err != nil {
		t.Fatal(err)
	}
	if status, _, _ := g.ask(prompt(40, ""), "Authorization", "Bearer "+secret); status != 401 {
		t.Errorf("got %d before the key was there", status)
	}
	if err := apikey.Append(keys.path, entry); err != nil {
		t.Fatal(err)
	}
	e.until("the new key", func() bool {
		status, _, _ := g.ask(prompt(40, ""), "Authorization", "Bearer "+secret)
		return status == 200
	})
	if g.metric("key_reloads_total", "outcome", "ok") != 1 {
		t.Error("the change was not counted")
	}
	if err := os.WriteFile(keys.path, []byte("- {name: ann"), 0o600); err != nil {
		t.Fatal(err)
	}
	e.until("the broken file to be seen", func() bool { return g.metric("key_reloads_total", "outcome", "failed") > 0 })
	g.mustAsk(prompt(40, ""), "Authorization", keys.bearer("ann"))
	if _, err := New(Config{Pool: testPool, Keys: keys.path + ".none"}, e.nc, e.js, nil); err == nil || !strings.Contains(err.Error(), "--keys") {
		t.Errorf("got %v", err)
	}
}

func TestEngineKey(t *testing.T) {
	e := newEnv(t)
	n := e.engine("engine-0", func(w http.ResponseWriter, r *http.Request, body []byte) {
		if r.Header.Get("Authorization") != "Bearer engines" {
			http.Error(w, `{"error":{"message":"Unauthorized"}}`, http.StatusUnauthorized)
			return
		}
		respond(w, body, answerJSON(40, "32"))
	})
	e.router(choose(n))
	g := e.gateway(1, Config{Name: "gw-0", EngineKey: "engines"})
	g.mustAsk(prompt(40, ""), "Authorization", "Bearer mine")
	wrong := e.gateway(1, Config{Name: "gw-1"})
	// That is not the client's key, and must not look like it.
	status, text, _ := wrong.ask(prompt(40, ""), "X-Request-Id", "r-1", "Authorization", "Bearer mine")
	if status != http.StatusBadGateway || !strings.Contains(text, "WARMPATH_ENGINE_KEY") {
		t.Errorf("got %d %s", status, text)
	}
	if f := wrong.story("r-1").finished[0]; f.ErrorKind != kindAuth || f.HttpStatus != 401 {
		t.Errorf("got %v", f)
	}
}
