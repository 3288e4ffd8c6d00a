package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"warmpath/services/clickhouse/chdb"
)

// EngineConfig says where the engine keeps its data and how much it takes on
// at once. The zero value of a limit means its default.
type EngineConfig struct {
	// Library is the path of libchdb.so; empty means Locate.
	Library string
	// DataDir is made when it does not exist. One process may have it open.
	DataDir string
	// Running bounds the statements that run at once: by default four a CPU,
	// enough that short ones pass while a long one scans.
	Running int
	// Waiting bounds the statements that wait for one of these places: 512 by
	// default. Further ones are refused at once.
	Waiting int
	// Wait bounds how long one waits: 30 s by default.
	Wait time.Duration
}

// Engine is the ClickHouse engine on one data directory. A process can have
// one; its data survives a restart, and a kill as far as the engine's writes
// had reached the operating system. Safe for concurrent use.
type Engine struct {
	library *chdb.Library
	dataDir string
	base    *chdb.Conn // keeps the engine up between sessions
	version string
	// timezone is the one that the engine shows times in where a column has none.
	timezone string

	slots   chan struct{}
	wait    time.Duration
	limit   int64
	waiting atomic.Int64
	running atomic.Int64

	closing sync.Once
	closed  chan struct{}
}

// sessionArgs make an embedded session answer as a server would: a bare
// expression is not a SELECT there.
var sessionArgs = []string{"--implicit_select=0"}

// OpenEngine loads the library and boots the engine.
func OpenEngine(cfg EngineConfig) (*Engine, error) {
	path := cfg.Library
	if path == "" {
		var err error
		if path, err = Locate(); err != nil {
			return nil, err
		}
	}
	if cfg.Running <= 0 {
		cfg.Running = 4 * runtime.NumCPU()
	}
	if cfg.Waiting <= 0 {
		cfg.Waiting = 512
	}
	if cfg.Wait <= 0 {
		cfg.Wait = 30 * time.Second
	}
	dir, err := filepath.Abs(cfg.DataDir)
	if err != nil || cfg.DataDir == "" {
		return nil, fmt.Errorf("data directory %q cannot be used: %w; set --data", cfg.DataDir, errors.Join(err, errEmpty(cfg.DataDir)))
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("data directory: %w; choose another --data", err)
	}
	library, err := chdb.Load(path)
	if err != nil {
		return nil, fmt.Errorf("%w; is it the engine of this platform (glibc)? `warmpath clickhouse --install` fetches it", err)
	}
	e := &Engine{
		library: library, dataDir: dir, slots: make(chan struct{}, cfg.Running),
		wait: cfg.Wait, limit: int64(cfg.Waiting), closed: make(chan struct{}),
	}
	if e.base, err = e.connect(); err != nil {
		return nil, fmt.Errorf("open %s: %w; does another process have this directory open?", dir, err)
	}
	if err := e.greet(); err != nil {
		e.base.Close()
		return nil, err
	}
	return e, nil
}

func errEmpty(s string) error {
	if s == "" {
		return errors.New("it is empty")
	}
	return nil
}

func (e *Engine) connect() (*chdb.Conn, error) {
	return e.library.Connect(append([]string{
		"--path=" + e.dataDir,
		"--user_files_path=" + filepath.Join(e.dataDir, "user_files"),
	}, sessionArgs...)...)
}

func (e *Engine) greet() error {
	result, err := e.base.Query("SELECT version(), timezone()", "TSVRaw")
	if err != nil {
		return fmt.Errorf("open %s: %w", e.dataDir, err)
	}
	defer result.Close()
	e.version, e.timezone, _ = strings.Cut(strings.TrimSpace(string(result.Data())), "\t")
	return nil
}

// Close waits for the statements that run, and shuts the engine down. The
// process cannot open it again.
func (e *Engine) Close() {
	e.closing.Do(func() {
		close(e.closed)
		for range cap(e.slots) {
			e.slots <- struct{}{}
		}
		e.base.Close()
		if err := e.library.Shutdown(); err != nil {
			slog.Debug("clickhouse engine", "err", err) // the process's end stops what is left
		}
	})
}

// session is a connection for one request: nothing that a request sets
// outlives it.
type session struct {
	engine *Engine
	conn   *chdb.Conn
}

// errClosed refuses work while the engine shuts down.
var errClosed = newException(codeAborted, "the engine is shutting down")

// acquire waits for a place, in turn. The errors are *Exception: too many
// statements at once, or the end of ctx.
func (e *Engine) acquire(ctx context.Context) (*session, error) {
	select {
	case e.slots <- struct{}{}:
	default:
		if err := e.queue(ctx); err != nil {
			return nil, err
		}
	}
	select {
	case <-e.closed:
		<-e.slots
		return nil, errClosed
	default:
	}
	conn, err := e.connect()
	if err != nil {
		<-e.slots
		return nil, newException(codeLogical, err.Error())
	}
	e.running.Add(1)
	return &session{engine: e, conn: conn}, nil
}

func (e *Engine) queue(ctx context.Context) error {
	if n := e.waiting.Add(1); n > e.limit {
		e.waiting.Add(-1)
		return newException(codeTooMany, fmt.Sprintf("too many simultaneous queries: %d run and %d wait; retry later", cap(e.slots), e.limit))
	}
	defer e.waiting.Add(-1)
	timer := time.NewTimer(e.wait)
	defer timer.Stop()
	select {
	case e.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return newException(codeAborted, "the client went away while the query waited")
	case <-e.closed:
		return errClosed
	case <-timer.C:
		return newException(codeTooMany, fmt.Sprintf("too many simultaneous queries: no place within %s; retry later", e.wait))
	}
}

// close ends the session and gives its place to the next.
func (s *session) close() {
	s.conn.Close()
	s.engine.running.Add(-1)
	<-s.engine.slots
}

// exec runs a statement whose answer does not matter.
func (s *session) exec(sql string) error {
	result, err := s.conn.Query(sql, "TSV")
	if err != nil {
		return err
	}
	result.Close()
	return nil
}
