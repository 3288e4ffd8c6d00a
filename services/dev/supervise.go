package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// stopGrace is how long a child may take to finish what it has.
	stopGrace = 15 * time.Second
	// readyWithin is how long a child may take to answer /health with 200: recovery
	// of a large ClickHouse directory is the slowest.
	readyWithin = 90 * time.Second
	// restartPause to restartPauseMax are the pauses before a restart.
	restartPause    = 100 * time.Millisecond
	restartPauseMax = 2 * time.Second
	// shortLife is a life after which the next death is another failure, not the same.
	shortLife = 10 * time.Second
	// maxShortLives in a row, and the child is broken.
	maxShortLives = 10
)

// exitWithStdin makes a child stop when its standard input ends, so that it
// never outlives this process, however that ends.
const exitWithStdin = "WARMPATH_EXIT_WITH_STDIN=1"

// component is a child process: one service, by its real command line.
type component struct {
	name string
	args []string // of this executable
	env  []string // besides this process's own
	url  string   // base URL of its HTTP side

	log      string // file of its stderr
	cancel   context.CancelFunc
	finished chan struct{} // closed when the supervision has ended

	mu       sync.Mutex
	process  *os.Process
	restarts int
}

// supervisor starts children and starts them again when they die.
type supervisor struct {
	executable string
	logs       string // directory
	broken     func(error)

	mu       sync.Mutex
	children []*component
}

// start starts a child and waits until it is healthy.
func (s *supervisor) start(ctx context.Context, c *component) error {
	c.log = filepath.Join(s.logs, c.name+".log")
	c.finished = make(chan struct{})
	// The child's life does not end with ctx but with stop, in the order of the caller.
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c.cancel = cancel
	s.mu.Lock()
	s.children = append(s.children, c)
	s.mu.Unlock()
	died := make(chan error, 1)
	go func() {
		defer close(c.finished)
		if err := s.supervise(life, c); err != nil {
			died <- err
			s.broken(err)
		}
	}()
	healthy, stop := context.WithTimeout(ctx, readyWithin)
	defer stop()
	for {
		reason := health(healthy, c.url)
		if reason == nil {
			slog.Debug("component is ready", "name", c.name, "pid", c.pid(), "url", c.url)
			return nil
		}
		select {
		case err := <-died:
			return err
		case <-healthy.Done():
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("%s was not ready within %v: %w; its log ends: %s", c.name, readyWithin, reason, tail(c.log))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// supervise runs the child again and again until life ends. It returns an error
// when the child keeps dying.
func (s *supervisor) supervise(life context.Context, c *component) error {
	pause, short := restartPause, 0
	for {
		began := time.Now()
		err := s.runOnce(life, c)
		if life.Err() != nil {
			return nil
		}
		if time.Since(began) >= shortLife {
			pause, short = restartPause, 0
		}
		if short++; short > maxShortLives {
			return fmt.Errorf("%s died %d times in a row (%w); its log ends: %s", c.name, short, err, tail(c.log))
		}
		slog.Error("A COMPONENT DIED; starting it again", "name", c.name, "reason", err, "log", c.log)
		select {
		case <-life.Done():
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, restartPauseMax)
	}
}

// runOnce is one life of the child. It returns how it ended.
func (s *supervisor) runOnce(life context.Context, c *component) error {
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(s.executable, c.args...)
	cmd.Env = append(append(os.Environ(), c.env...), exitWithStdin)
	cmd.Stdout, cmd.Stderr = log, log
	// A signal from the terminal goes to this process, which stops its children in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	c.mu.Lock()
	again := c.process != nil
	c.process = cmd.Process
	if again {
		c.restarts++
	}
	c.mu.Unlock()
	if again {
		slog.Warn("component is started again", "name", c.name, "pid", cmd.Process.Pid)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err == nil {
			err = errors.New("it ended by itself")
		}
		return err
	case <-life.Done():
	}
	stdin.Close()
	select {
	case err = <-ended:
	case <-time.After(stopGrace):
		slog.Warn("component did not stop in time and is killed", "name", c.name, "pid", cmd.Process.Pid, "grace", stopGrace)
		_ = cmd.Process.Kill() // it may have just ended
		err = <-ended
	}
	return err
}

// stop ends the children named, one after the other, or all in reverse order of
// their start.
func (s *supervisor) stop(children ...*component) {
	if len(children) == 0 {
		s.mu.Lock()
		children = slices.Clone(s.children)
		s.mu.Unlock()
		slices.Reverse(children)
	}
	for _, c := range children {
		c.cancel()
		<-c.finished
	}
	s.mu.Lock()
	s.children = slices.DeleteFunc(s.children, func(c *component) bool { return slices.Contains(children, c) })
	s.mu.Unlock()
}

// restarts is how often children were started again.
func (c *component) restarted() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.restarts
}

// pid is the process id, 0 before the first start.
func (c *component) pid() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process == nil {
		return 0
	}
	return c.process.Pid
}

// health is nil when the service at url says that it is ready.
func health(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/health", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 500)) // the status says enough
		return fmt.Errorf("%s: %s", response.Status, strings.TrimSpace(string(text)))
	}
	return nil
}

// tail is the end of a log, for an error message.
func tail(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}

// address is the address asked for, or a free port of the loopback. The port is
// free now and not reserved; a child that finds it taken says so and is started
// again.
func address(asked string) (string, error) {
	if asked != "" {
		return asked, nil
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}
