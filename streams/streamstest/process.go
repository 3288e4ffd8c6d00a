package streamstest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"warmpath/streams/natsserver"
)

// processVariable makes the test binary a NATS server; its value is the
// configuration.
const processVariable = "WARMPATH_STREAMSTEST_SERVER"

// Process is a NATS server in a process of its own, so that a test can kill it
// the hard way. The package's TestMain must be Main.
type Process struct {
	t   testing.TB
	cfg natsserver.Config
	cmd *exec.Cmd
}

// StartProcess starts a server process that is killed with the test.
func StartProcess(t testing.TB) *Process {
	t.Helper()
	p := &Process{t: t, cfg: natsserver.Config{StoreDir: t.TempDir(), Port: freePort(t)}}
	p.Start()
	t.Cleanup(p.Kill)
	return p
}

// URL is where the server listens, in this and every later life.
func (p *Process) URL() string { return fmt.Sprintf("nats://127.0.0.1:%d", p.cfg.Port) }

// Start starts the process, and returns when clients can connect.
func (p *Process) Start() {
	p.t.Helper()
	cfg, err := json.Marshal(p.cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	p.cmd = exec.Command(os.Args[0], "-test.run=^$")
	p.cmd.Env = append(os.Environ(), processVariable+"="+string(cfg))
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	// The process ends when this pipe does, so that it never outlives the test.
	if _, err := p.cmd.StdinPipe(); err != nil {
		p.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		p.t.Fatalf("server process said %q and ended: %v", line, err)
	}
}

// Kill kills the process without a chance to clean up. It may be called again.
func (p *Process) Kill() {
	if p.cmd == nil {
		return
	}
	// Killing what has ended is no failure, and neither is having been killed.
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	p.cmd = nil
}

// serveIfAsked is the server process.
func serveIfAsked() bool {
	text := os.Getenv(processVariable)
	if text == "" {
		return false
	}
	var cfg natsserver.Config
	if err := json.Unmarshal([]byte(text), &cfg); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	s, err := natsserver.Start(cfg)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	s.Shutdown()
	return true
}
