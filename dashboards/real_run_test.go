package dashboards_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"warmpath/services/clickhouse"
	"warmpath/services/clickhouse/tables"
)

// Every panel shows something of a run of the real pipeline: engines, router,
// gateway and analytics wrote these rows.
func TestPanelsShowARealRun(t *testing.T) {
	if testing.Short() {
		t.Skip("a whole pipeline in child processes is not short")
	}
	if _, err := clickhouse.Locate(); errors.Is(err, clickhouse.ErrNotInstalled) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	conn := realRun(t)
	files, err := filepath.Glob("sql/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("no panels: %v", err)
	}
	now := time.Now()
	everything := scope{from: now.Add(-time.Hour), to: now.Add(time.Hour), interval: time.Minute}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			sql, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := run(t, conn, everything.expand(t, string(sql)))
			// What went wrong shows only where something did.
			quiet := strings.Contains(file, "mismatch") || strings.Contains(file, "reroutes")
			if len(got.rows) == 0 && !quiet {
				t.Error("shows nothing")
			}
		})
	}
}

// realRun replays generated traffic and returns a connection to what it left.
func realRun(t *testing.T) driver.Conn {
	t.Helper()
	dir := t.TempDir()
	binary := filepath.Join(dir, "warmpath")
	if out, err := exec.Command("go", "build", "-o", binary, "warmpath").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	data := filepath.Join(dir, "data")
	if out, err := exec.Command(binary, "dev", "--exit", "--baseline", "none", "--requests", "400", "--data", data).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	engine := exec.Command(binary, "clickhouse", "--data", filepath.Join(data, "clickhouse"), "--listen", address)
	var log bytes.Buffer
	engine.Stderr = &log
	if err := engine.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = engine.Process.Signal(os.Interrupt)
		if err := engine.Wait(); err != nil {
			t.Errorf("the engine stopped with %v\n%s", err, log.String())
		}
	})
	conn, err := tables.Connection{Clickhouse: fmt.Sprintf("http://%s/default", address)}.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	for range 300 {
		if err = conn.Ping(context.Background()); err == nil {
			return conn
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("the engine does not answer: %v\n%s", err, log.String())
	return nil
}
