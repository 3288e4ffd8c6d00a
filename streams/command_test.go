package streams_test

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"warmpath/streams"
	"warmpath/streams/streamstest"
)

// command runs "warmpath streams" with arguments and returns what it prints.
func command(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var c streams.Command
	parser, err := kong.New(&c, kong.Name("streams"))
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		return "", err
	}
	out, err := os.CreateTemp(t.TempDir(), "out")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	stdout := os.Stdout
	os.Stdout = out
	parsed.BindTo(testContext(t), (*context.Context)(nil))
	err = parsed.Run()
	os.Stdout = stdout
	if _, seekErr := out.Seek(0, io.SeekStart); seekErr != nil {
		t.Fatal(seekErr)
	}
	text, readErr := io.ReadAll(out)
	if readErr != nil {
		t.Fatal(readErr)
	}
	return string(text), err
}

func TestCommand(t *testing.T) {
	url := streamstest.Start(t).URL("")
	if _, err := command(t, "check", "--nats", url, "--pools", "chat"); err == nil {
		t.Error("check of nothing succeeded")
	}
	text, err := command(t, "apply", "--nats", url, "--pools", "chat,code", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var result struct{ Changes []streams.Change }
	if err := json.Unmarshal([]byte(text), &result); err != nil || len(result.Changes) != 6 {
		t.Errorf("apply printed %s, %v", text, err)
	}
	text, err = command(t, "apply", "--nats", url, "--pools", "chat,code")
	if err != nil || text != "everything is as the topology says\n" {
		t.Errorf("apply again: %q, %v", text, err)
	}
	text, err = command(t, "check", "--nats", url, "--pools", "chat,code", "--json")
	if err != nil || text != "{\"changes\":[]}\n" {
		t.Errorf("check: %q, %v", text, err)
	}
	text, err = command(t, "check", "--nats", url, "--pools", "chat", "--route-max-age", "24h")
	if err == nil || !strings.Contains(text, "ROUTE max_age: 720h0m0s -> 24h0m0s") {
		t.Errorf("check of another topology: %q, %v", text, err)
	}
	if _, err = command(t, "check", "--nats", "nats://127.0.0.1:1", "--pools", "chat", "--wait", "100ms"); err == nil || !strings.Contains(err.Error(), "--nats") {
		t.Errorf("check without a server: %v", err)
	}
}

func TestCommandRoles(t *testing.T) {
	text, err := command(t, "roles", "--pools", "chat", "--gateway", "chat/gw1", "--bridge", "chat/e0.dp0,e0.dp1", "--password", "operator=secret")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`user: "gateway-chat-gw1"`, `user: "bridge-chat-e0.dp0"`, `"kv.chat.e0=dp1"`, `password: "secret"`, "password: $WARMPATH_PASSWORD_GATEWAY_CHAT_GW1"} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is missing in\n%s", want, text)
		}
	}
	if strings.Contains(text, `user: "gateway"`) {
		t.Error("the user for all gateways is there")
	}
	if _, err := command(t, "roles", "--pools", "chat", "--gateway", "gw1"); err == nil {
		t.Error("a gateway without pool was taken")
	}
}
