// Package clickhousetest gives tests a database of their own on the real
// embedded ClickHouse engine, behind its HTTP interface.
package clickhousetest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/prometheus/client_golang/prometheus"

	"warmpath/services/clickhouse"
	"warmpath/services/clickhouse/tables"
)

// shared is the engine of this test binary. The engine stays up until the
// process ends, since it starts only once a process; its HTTP server stops
// whenever no test uses it, so that leak checks find nothing.
var shared struct {
	sync.Mutex
	engine  *clickhouse.Engine
	server  *http.Server
	handler http.Handler
	address string
	users   int
	failed  error
}

const dirPrefix = "warmpath-clickhousetest-"

// Open returns a connection to a fresh, empty database, and its DSN for
// components that open their own. The database is dropped when the test ends.
// Without the engine on this machine the test is skipped with the reason; with
// CI=true it fails.
func Open(t testing.TB) (conn driver.Conn, dsn string) {
	t.Helper()
	address, err := acquire()
	if errors.Is(err, clickhouse.ErrNotInstalled) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatalf("clickhouse engine: %v", err)
	}
	t.Cleanup(release)

	name := "test_" + randomName()
	root := connect(t, address, "default")
	if err := root.Exec(context.Background(), "CREATE DATABASE "+name); err != nil {
		t.Fatalf("create database: %v", err)
	}
	t.Cleanup(func() {
		if err := root.Exec(context.Background(), "DROP DATABASE "+name+" SYNC"); err != nil {
			t.Errorf("drop database: %v", err)
		}
		if err := root.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	conn = connect(t, address, name)
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return conn, "http://" + address + "/" + name
}

func connect(t testing.TB, address, database string) driver.Conn {
	t.Helper()
	conn, err := tables.Connection{Clickhouse: "http://" + address + "/" + database}.Open()
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	return conn
}

func randomName() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// acquire counts a user in, and starts what is not up.
func acquire() (string, error) {
	shared.Lock()
	defer shared.Unlock()
	if shared.failed != nil {
		return "", shared.failed
	}
	if shared.engine == nil {
		if shared.failed = boot(); shared.failed != nil {
			return "", shared.failed
		}
	}
	if shared.users == 0 {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", err
		}
		shared.address = listener.Addr().String()
		shared.server = &http.Server{Handler: shared.handler}
		go func(s *http.Server) { _ = s.Serve(listener) }(shared.server) // ends with Close
	}
	shared.users++
	return shared.address, nil
}

func boot() error {
	sweep()
	engine, err := clickhouse.OpenEngine(clickhouse.EngineConfig{
		DataDir: filepath.Join(os.TempDir(), dirPrefix+strconv.Itoa(os.Getpid())),
	})
	if err != nil {
		return err
	}
	shared.engine, shared.handler = engine, clickhouse.Handler(engine, prometheus.NewRegistry())
	return nil
}

func release() {
	shared.Lock()
	defer shared.Unlock()
	if shared.users--; shared.users == 0 {
		_ = shared.server.Close() // its connections are the tests', which are over
	}
}

// sweep removes the data of test binaries that have ended: none can do so
// itself, since the engine runs until the end.
func sweep() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), dirPrefix+"*")) // the pattern is right
	for _, dir := range dirs {
		pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), dirPrefix))
		if err == nil && (pid == os.Getpid() || errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)) {
			if err := os.RemoveAll(dir); err != nil {
				fmt.Fprintln(os.Stderr, "clickhousetest:", err)
			}
		}
	}
}
