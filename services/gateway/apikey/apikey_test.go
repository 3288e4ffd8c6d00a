package apikey_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"warmpath/services/gateway/apikey"
)

func newKey(t *testing.T, name string) (string, apikey.Key) {
	t.Helper()
	secret, entry, err := apikey.New(name)
	if err != nil {
		t.Fatal(err)
	}
	return secret, entry
}

func open(t *testing.T, text string) (*apikey.Store, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys.yaml")
	write(t, path, text)
	store, err := apikey.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return store, path
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".tmp", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		t.Fatal(err)
	}
}

func TestAuthenticate(t *testing.T) {
	a, entryA := newKey(t, "a")
	b, entryB := newKey(t, "b")
	store, _ := open(t, "# ours\n"+entryA.Line()+"\n- {name: b, hash: \""+entryB.Hash+"\", disabled: true}\n")
	c, err := store.Authenticate(a)
	if err != nil || c.Key().Name != "a" || c.Key().Salt != apikey.SaltOwn {
		t.Errorf("got %v, %v", c, err)
	}
	for presented, want := range map[string]error{
		"": apikey.ErrMissing, b: apikey.ErrDisabled, a + "x": apikey.ErrUnknown, entryA.Hash: apikey.ErrUnknown,
		strings.Repeat("x", 1000): apikey.ErrUnknown,
	} {
		if _, err := store.Authenticate(presented); !errors.Is(err, want) {
			t.Errorf("%.20q: got %v, want %v", presented, err, want)
		}
	}
	if a == b || len(a) < 40 || !strings.HasPrefix(a, "wp-") {
		t.Errorf("keys %q, %q", a, b)
	}
}

func TestParseRefuses(t *testing.T) {
	_, a := newKey(t, "a")
	for words, text := range map[string]string{
		"list of keys":             `{keys: []}`,
		"field hsah":               `- {name: a, hsah: x}`,
		"64 hexadecimal":           `- {name: a, hash: "sha256:12"}`,
		"keys new a":               `- {name: a, hash: "` + strings.TrimPrefix(a.Hash, "sha256:") + `"}`,
		"name":                     `- {hash: "` + a.Hash + `"}`,
		"given twice":              a.Line() + "\n" + a.Line(),
		"hash of a":                a.Line() + "\n" + strings.Replace(a.Line(), "name: a", "name: b", 1),
		"concurrent of key a":      strings.Replace(a.Line(), "}", ", concurrent: -1}", 1),
		"requests_per_second of a": strings.Replace(a.Line(), "}", ", requests_per_second: .nan}", 1),
		"give both":                strings.Replace(a.Line(), "}", ", burst: 5}", 1),
		"salt of key a":            strings.Replace(a.Line(), "}", ", salt: \"a b\"}", 1),
	} {
		words = strings.Replace(words, "second of a", "second of key a", 1)
		if _, err := apikey.Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: got %v, want %q", text, err, words)
		}
	}
	list, err := json.Marshal([]apikey.Key{a})
	if err != nil {
		t.Fatal(err)
	}
	if keys, err := apikey.Parse(list); err != nil || len(keys) != 1 || keys[0].Name != "a" {
		t.Errorf("JSON: got %v, %v", keys, err)
	}
	if keys, err := apikey.Parse([]byte("[]")); err != nil || len(keys) != 0 {
		t.Errorf("no keys: got %v, %v", keys, err)
	}
	if _, err := apikey.Parse(nil); err == nil || !strings.Contains(err.Error(), "write []") {
		t.Errorf("an empty file: got %v", err)
	}
}

func TestReloadKeepsUsageAndOldKeys(t *testing.T) {
	a, entryA := newKey(t, "a")
	limited := strings.Replace(entryA.Line(), "}", ", concurrent: 1}", 1)
	store, path := open(t, limited+"\n")
	c, err := store.Authenticate(a)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1000, 0)
	if err := c.Begin(now); err != nil {
		t.Fatal(err)
	}
	reports := make(chan error, 16)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- store.Watch(ctx, time.Millisecond, func(_ int, err error) { reports <- err }) }()
	b, entryB := newKey(t, "b")
	write(t, path, limited+"\n"+entryB.Line()+"\n")
	if err := <-reports; err != nil {
		t.Fatal(err)
	}
	if _, err := store.Authenticate(b); err != nil {
		t.Error(err)
	}
	again, err := store.Authenticate(a)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Begin(now); err == nil {
		t.Error("a reload forgot the request in flight")
	}
	write(t, path, "- {name: broken")
	if err := <-reports; err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
	if _, err := store.Authenticate(b); err != nil || store.Len() != 2 {
		t.Errorf("a broken file took the keys away: %v", err)
	}
	write(t, path, entryB.Line()+"\n\n")
	if err := <-reports; err != nil {
		t.Fatal(err)
	}
	if _, err := store.Authenticate(a); !errors.Is(err, apikey.ErrUnknown) {
		t.Errorf("a removed key: got %v", err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestLimits(t *testing.T) {
	a, entry := newKey(t, "a")
	store, _ := open(t, strings.Replace(entry.Line(), "}", ", requests_per_second: 2, burst: 3, concurrent: 4, tokens_per_minute: 600}", 1))
	c, err := store.Authenticate(a)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1000, 0)
	begin := func(limit string, after time.Duration) {
		t.Helper()
		err := c.Begin(now)
		var reached *apikey.LimitError
		switch {
		case limit == "" && err != nil:
			t.Errorf("got %v", err)
		case limit != "" && (!errors.As(err, &reached) || reached.Limit != limit || reached.RetryAfter != after):
			t.Errorf("got %v (%+v), want %s after %v", err, reached, limit, after)
		}
	}
	for range 3 {
		begin("", 0)
	}
	begin("requests_per_second", 500*time.Millisecond)
	now = now.Add(500 * time.Millisecond)
	begin("", 0)
	now = now.Add(time.Hour)
	begin("concurrent", time.Second)
	for range 4 {
		c.Done()
	}
	// Ten tokens a second: 700 of 600 are used, so that 100 are missing.
	c.Use(700, now)
	begin("tokens_per_minute", 10*time.Second)
	now = now.Add(10*time.Second + time.Millisecond)
	begin("", 0)
	c.Done()
}

func TestCacheSalt(t *testing.T) {
	own := &apikey.Key{Name: "a"}
	other := &apikey.Key{Name: "b", Salt: apikey.SaltOwn}
	shared := &apikey.Key{Name: "c", Salt: apikey.SaltShared}
	team1, team2 := &apikey.Key{Name: "d", Salt: "team"}, &apikey.Key{Name: "e", Salt: "team"}
	if shared.CacheSalt("") != "" {
		t.Error("a shared key without a salt gets one")
	}
	if team1.CacheSalt("") != team2.CacheSalt("") || team1.CacheSalt("x") != team2.CacheSalt("x") {
		t.Error("keys with the same salt do not share")
	}
	seen := map[string]string{}
	for name, salt := range map[string]string{
		"own": own.CacheSalt(""), "own x": own.CacheSalt("x"), "other": other.CacheSalt(""), "other x": other.CacheSalt("x"),
		"shared x": shared.CacheSalt("x"), "team": team1.CacheSalt(""), "named as a key": (&apikey.Key{Name: "f", Salt: "a"}).CacheSalt(""),
		// What a client could try to reach the salts above with.
		"forged own": shared.CacheSalt(own.CacheSalt("")), "forged name": shared.CacheSalt("key a"), "forged team": own.CacheSalt("salt team"),
	} {
		if len(salt) != 32 || seen[salt] != "" {
			t.Errorf("%s and %s have the salt %q", name, seen[salt], salt)
		}
		seen[salt] = name
	}
}

func TestAppend(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.yaml")
	a, entryA := newKey(t, "a")
	_, entryB := newKey(t, "b")
	for _, entry := range []apikey.Key{entryA, entryB} {
		if err := apikey.Append(path, entry); err != nil {
			t.Fatal(err)
		}
	}
	if err := apikey.Append(path, entryA); err == nil || !strings.Contains(err.Error(), "given twice") {
		t.Errorf("got %v", err)
	}
	store, err := apikey.Open(path)
	if err != nil || store.Len() != 2 {
		t.Fatalf("got %v, %v", store, err)
	}
	if _, err := store.Authenticate(a); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v", info.Mode(), err)
	}
	if _, err := apikey.Open(path + ".none"); err == nil || !strings.Contains(err.Error(), "--keys") {
		t.Errorf("got %v", err)
	}
	if _, _, err := apikey.New("not a name"); err == nil {
		t.Error("a name with spaces was taken")
	}
}

func BenchmarkAuthenticate(b *testing.B) {
	var text strings.Builder
	secret := ""
	for i := range 1000 {
		key, entry, err := apikey.New("k" + string(rune('a'+i%26)) + strings.Repeat("x", i/26))
		if err != nil {
			b.Fatal(err)
		}
		secret = key
		text.WriteString(entry.Line() + "\n")
	}
	path := filepath.Join(b.TempDir(), "keys.yaml")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		b.Fatal(err)
	}
	store, err := apikey.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := store.Authenticate(secret); err != nil {
			b.Fatal(err)
		}
	}
}
