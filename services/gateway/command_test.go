package gateway

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"warmpath/services/gateway/apikey"
)

func parse(t *testing.T, args ...string) (*Command, string, error) {
	t.Helper()
	var line struct {
		Gateway Command `cmd:""`
	}
	parser, err := kong.New(&line, kong.Name("warmpath"), kong.Exit(func(int) {}))
	if err != nil {
		t.Fatal(err)
	}
	call, err := parser.Parse(append([]string{"gateway"}, args...))
	if err != nil {
		return nil, "", err
	}
	return &line.Gateway, call.Command(), nil
}

// The command serves without naming a subcommand, as it always did.
func TestCommandLine(t *testing.T) {
	command, path, err := parse(t, "--pool", "chat", "--queue=0", "--queue-timeout=3s", "--keys=k.yaml", "--otlp-endpoint=http://c:4318", "--lora=a", "--lora=b", "--forward-authorization")
	if err != nil || path != "gateway serve" {
		t.Fatalf("got %s, %v", path, err)
	}
	c := command.Serve.config("gw")
	if c.Pool != "chat" || c.Queue != -1 || c.QueueTimeout != 3*time.Second || filepath.Base(c.Keys) != "k.yaml" || c.OTLPEndpoint != "http://c:4318" ||
		len(c.LoRAs) != 2 || !c.ForwardAuthorization || c.MaxConcurrent != 4096 || c.FailuresToSkip != 3 || c.SkipFor != time.Second {
		t.Errorf("got %+v", c)
	}
	t.Setenv("WARMPATH_ENGINE_KEY", "secret")
	if command, _, err = parse(t, "--pool", "chat"); err != nil || command.Serve.config("gw").EngineKey != "secret" || command.Serve.config("gw").Queue != 1024 {
		t.Errorf("got %+v, %v", command, err)
	}
	if _, _, err := parse(t); err == nil || !strings.Contains(err.Error(), "--pool") {
		t.Errorf("without a pool: %v", err)
	}
	if _, path, err := parse(t, "keys", "new", "ann"); err != nil || path != "gateway keys new <name>" {
		t.Errorf("got %s, %v", path, err)
	}
}

func TestNewKeyCommand(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.yaml")
	var out bytes.Buffer
	if err := (&NewKeyCommand{Name: "ann", File: path}).write(&out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	store, err := apikey.Open(path)
	if err != nil || len(lines) != 3 {
		t.Fatalf("got %q, %v", lines, err)
	}
	if c, err := store.Authenticate(lines[0]); err != nil || c.Key().Name != "ann" {
		t.Errorf("the printed key does not open: %v", err)
	}
	if keys, err := apikey.Parse([]byte(lines[1])); err != nil || len(keys) != 1 {
		t.Errorf("the printed line is no entry: %v, %v", keys, err)
	}
	if err := (&NewKeyCommand{Name: "ann", File: path}).write(&out); err == nil {
		t.Error("a second key of the same name was added")
	}
	out.Reset()
	if err := (&NewKeyCommand{Name: "bob", JSON: true}).write(&out); err != nil {
		t.Fatal(err)
	}
	var object struct{ Name, Key, Hash, Line string }
	if err := json.Unmarshal(out.Bytes(), &object); err != nil || object.Name != "bob" || object.Key == "" || !strings.Contains(object.Line, object.Hash) {
		t.Errorf("got %s, %v", out.String(), err)
	}
}
