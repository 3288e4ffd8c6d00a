package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// healthEvery is how often a starting process is asked whether it is ready.
const healthEvery = 2 * time.Millisecond

// lateLimit is how much memory this process takes before it collects.
const lateLimit = 2 << 30

// collectLate puts off this process's garbage collector until it holds lateLimit;
// the function returned ends that. This process plays a server, engines and
// gateways at once, on the cores of what is measured: on two of them its
// collections are what the slowest hundredth waits for, and no part of it.
func collectLate() func() {
	percent, limit := debug.SetGCPercent(-1), debug.SetMemoryLimit(lateLimit)
	return func() {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	}
}

// touch has the kernel give this process most of the memory that it will take: on a
// virtual machine the first use of a page may cost more than a whole request.
func touch() {
	const page = 4 << 10
	memory := make([]byte, lateLimit*7/8)
	for at := 0; at < len(memory); at += page {
		memory[at] = 1
	}
	runtime.KeepAlive(memory)
	runtime.GC()
}

// process is a service of this program in a process of its own.
type process struct {
	name  string
	cmd   *exec.Cmd
	stdin io.Closer
	log   bytes.Buffer
	ended chan error
	over  bool
}

// startProcess starts a service, named by its command, on a server.
func startProcess(ctx context.Context, natsURL, name string, args ...string) (*process, error) {
	executable, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	p := &process{name: name, cmd: exec.CommandContext(ctx, executable, append([]string{name}, args...)...), ended: make(chan error, 1)}
	// It ends when its standard input does, so that it never outlives this process.
	p.cmd.Env = append(os.Environ(), "WARMPATH_NATS_URL="+natsURL, "WARMPATH_EXIT_WITH_STDIN=1")
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a %s: %w", name, err)
	}
	go func() { p.ended <- p.cmd.Wait() }()
	return p, nil
}

// await returns when the process says at listen that it is ready.
func (p *process) await(ctx context.Context, listen string) error {
	for {
		if _, err := get(ctx, listen, "/health"); err == nil {
			return nil
		}
		select {
		case err := <-p.ended:
			p.over = true
			return fmt.Errorf("the %s ended: %w; it said: %s", p.name, err, strings.TrimSpace(p.log.String()))
		case <-ctx.Done():
			return fmt.Errorf("the %s was not ready in time: %w", p.name, ctx.Err())
		case <-time.After(healthEvery):
		}
	}
}

// stop ends the process and waits for it; its context bounds that.
func (p *process) stop() {
	if p.over {
		return
	}
	p.over = true
	p.stdin.Close()
	if err := <-p.ended; err != nil {
		slog.Warn("a process that was measured did not stop well", "process", p.name, "error", err)
	}
}

// get returns the body of an answer with status 200.
func get(ctx context.Context, address, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, strings.TrimSpace(string(body)))
	}
	return body, err
}

// freeAddress is a port of the loopback that is free now.
func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}
