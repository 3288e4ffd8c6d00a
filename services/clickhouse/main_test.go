package clickhouse_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"warmpath/services/clickhouse"
	"warmpath/services/clickhouse/tables"
)

// serverEnv, when set, makes the test binary a server with that configuration:
// an engine starts once a process, so a restart needs another process.
const serverEnv = "WARMPATH_TEST_CLICKHOUSE_SERVER"

func TestMain(m *testing.M) {
	if text := os.Getenv(serverEnv); text != "" {
		if err := serve(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func serve(text string) error {
	var cfg clickhouse.Config
	if err := json.Unmarshal([]byte(text), &cfg); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	server, err := clickhouse.New(cfg, prometheus.NewRegistry())
	if err != nil {
		return err
	}
	fmt.Println(server.Address())
	return server.Run(ctx)
}

// child is a server in a process of its own.
type child struct {
	t       *testing.T
	cmd     *exec.Cmd
	address string
}

// childCommand is this binary as a server.
func childCommand(t *testing.T, cfg clickhouse.EngineConfig, password string) *exec.Cmd {
	t.Helper()
	needEngine(t)
	text, err := json.Marshal(clickhouse.Config{EngineConfig: cfg, Listen: "127.0.0.1:0", Password: password})
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), serverEnv+"="+string(text))
	return cmd
}

func startChild(t *testing.T, cfg clickhouse.EngineConfig) *child { return startLocked(t, cfg, "") }

// startLocked starts one that asks for a password.
func startLocked(t *testing.T, cfg clickhouse.EngineConfig, password string) *child {
	t.Helper()
	c := &child{t: t, cmd: childCommand(t, cfg, password)}
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.stop(syscall.SIGKILL) })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the server did not start: %v", err)
	}
	c.address = strings.TrimSpace(line)
	return c
}

// stop ends the process with sig, and returns how it ended.
func (c *child) stop(sig os.Signal) error {
	if c.cmd.ProcessState != nil {
		return nil
	}
	if err := c.cmd.Process.Signal(sig); err != nil {
		return err
	}
	return c.cmd.Wait()
}

func (c *child) conn() driver.Conn {
	c.t.Helper()
	conn, err := tables.Connection{Clickhouse: "http://" + c.address + "/default"}.Open()
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { conn.Close() })
	return conn
}

// needEngine skips a test where clickhousetest.Open would.
func needEngine(t *testing.T) {
	t.Helper()
	if _, err := clickhouse.Locate(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, conn driver.Conn, sql string, args ...any) {
	t.Helper()
	if err := conn.Exec(testContext(t), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func count(t *testing.T, conn driver.Conn, sql string, args ...any) uint64 {
	t.Helper()
	var n uint64
	if err := conn.QueryRow(testContext(t), sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}
