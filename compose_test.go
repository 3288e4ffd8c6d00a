package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"

	"warmpath/services/clickhouse/clickhousetest"
	"warmpath/streams"
	"warmpath/streams/natsserver"
)

// composeService is what this test reads of a service; the file may say more.
type composeService struct {
	Image       string            `yaml:"image"`
	Command     []string          `yaml:"command"`
	Environment map[string]string `yaml:"environment"`
	Volumes     []string          `yaml:"volumes"`
	DependsOn   map[string]any    `yaml:"depends_on"`
}

func readCompose(t *testing.T) (services map[string]composeService, volumes map[string]any) {
	t.Helper()
	raw, err := os.ReadFile("compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services map[string]composeService `yaml:"services"`
		Volumes  map[string]any            `yaml:"volumes"`
	}
	if err := yaml.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	return file.Services, file.Volumes
}

// deployedRoles are the users of the compose file.
func deployedRoles(t *testing.T) []streams.Role {
	t.Helper()
	roles := slices.DeleteFunc(streams.Roles([]string{"demo"}), func(r streams.Role) bool {
		return r.Kind == streams.RoleGateway || r.Kind == streams.RoleBridge
	})
	gateway, err := streams.GatewayRole("demo", "gateway-1")
	if err != nil {
		t.Fatal(err)
	}
	roles = append(roles, gateway)
	for i := 1; i <= 4; i++ {
		bridge, err := streams.BridgeRole("demo", fmt.Sprintf("engine-%d", i))
		if err != nil {
			t.Fatal(err)
		}
		roles = append(roles, bridge)
	}
	return roles
}

func TestDeployedRolesAreCurrent(t *testing.T) {
	var want bytes.Buffer
	if err := streams.WriteServerConf(&want, deployedRoles(t), nil); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("deploy/roles.conf")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want.Bytes()) {
		t.Error("deploy/roles.conf is not what streams says: run make generate")
	}
}

func TestComposeFileHoldsTogether(t *testing.T) {
	services, volumes := readCompose(t)
	example, err := os.ReadFile("deploy/passwords.env.example")
	if err != nil {
		t.Fatal(err)
	}
	variable := regexp.MustCompile(`\$\{(\w+)`)
	for name, s := range services {
		for dependency := range s.DependsOn {
			if _, ok := services[dependency]; !ok {
				t.Errorf("%s depends on %s, which is not a service", name, dependency)
			}
		}
		for _, v := range s.Volumes {
			from, _, _ := strings.Cut(v, ":")
			if strings.HasPrefix(from, "./") {
				if _, err := os.Stat(from); err != nil {
					t.Errorf("%s mounts %s: %v", name, from, err)
				}
			} else if _, ok := volumes[from]; !ok {
				t.Errorf("%s mounts volume %s, which is not declared", name, from)
			}
		}
		for key, value := range s.Environment {
			for _, m := range variable.FindAllStringSubmatch(value, -1) {
				if !strings.Contains(string(example), m[1]+"=") {
					t.Errorf("%s: %s needs %s, which deploy/passwords.env.example lacks", name, key, m[1])
				}
			}
		}
	}
	for _, want := range []string{"nats-1", "nats-2", "nats-3", "clickhouse", "router-1", "router-2", "gateway", "analytics",
		"engine-1", "engine-2", "engine-3", "engine-4", "prometheus", "grafana"} {
		if _, ok := services[want]; !ok {
			t.Errorf("no service %s", want)
		}
	}
}

// Every service starts by the exact command line of the compose file, as the
// user and with the permissions it has there; only addresses are local.
func TestComposeCommandsStart(t *testing.T) {
	services, _ := readCompose(t)
	_, dsn := clickhousetest.Open(t)
	server, err := natsserver.Start(natsserver.Config{StoreDir: t.TempDir(), Roles: deployedRoles(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	binary := buildBinary(t)

	start := func(name string) {
		s := services[name]
		health := startService(t, binary, name, localCommand(t, s.Command), []string{
			"WARMPATH_NATS_URL=" + server.URL(userOf(t, s)), "WARMPATH_CLICKHOUSE_URL=" + dsn,
		})
		if health != nil {
			waitHealthy(t, name, health)
		}
	}
	start("topology")
	for _, name := range []string{"engine-1", "engine-2", "engine-3", "engine-4", "router-1", "router-2", "gateway", "analytics"} {
		start(name)
	}
}

// userOf returns the NATS user a service's URL names.
func userOf(t *testing.T, s composeService) string {
	t.Helper()
	_, rest, _ := strings.Cut(s.Environment["WARMPATH_NATS_URL"], "nats://")
	user, _, ok := strings.Cut(rest, ":")
	if !ok {
		t.Fatalf("no user in WARMPATH_NATS_URL of %v", s.Command)
	}
	return user
}

// localCommand is a command line with its listening and advertised addresses
// replaced by one on loopback, and one server in place of a cluster.
func localCommand(t *testing.T, command []string) []string {
	t.Helper()
	var cmds commands
	parser, err := kong.New(&cmds, kong.BindTo(context.Background(), (*context.Context)(nil)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse(command); err != nil {
		t.Fatalf("%v: %v", command, err)
	}
	out := slices.Clone(command)
	address := freeAddress(t)
	for i := range out {
		switch {
		case i == 0:
		case out[i-1] == "--listen":
			out[i] = address
		case out[i-1] == "--advertise":
			out[i] = "http://" + address
		case out[i-1] == "--replicas":
			out[i] = "1"
		}
	}
	return out
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func buildBinary(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "warmpath")
	build := exec.Command("go", "build", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return binary
}

// startService starts a command and returns a check of its health, or, for one
// that does not listen, waits for its end and returns nil.
func startService(t *testing.T, binary, name string, command, env []string) func() error {
	t.Helper()
	cmd := exec.Command(binary, command...)
	cmd.Env = append(os.Environ(), env...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	at := slices.Index(command, "--listen")
	if at < 0 {
		if err := cmd.Run(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, log.String())
		}
		return nil
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s stopped with %v\n%s", name, err, log.String())
		} else if t.Failed() {
			t.Logf("%s:\n%s", name, log.String())
		}
	})
	url := "http://" + command[at+1] + "/health"
	return func() error {
		answer, err := http.Get(url)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("health is %s", answer.Status)
		}
		return nil
	}
}

func waitHealthy(t *testing.T, name string, healthy func() error) {
	t.Helper()
	var err error
	for range 300 {
		if err = healthy(); err == nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("%s does not get healthy: %v", name, err)
}
