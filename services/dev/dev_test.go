package dev

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"warmpath/services/clickhouse"
)

// patience is how long a test waits for what must happen.
const patience = 3 * time.Minute

// binaryDir holds the program that the tests run; empty before it was built.
var binaryDir string

// removeBinary removes it after the last test.
func removeBinary() {
	if binaryDir != "" {
		_ = os.RemoveAll(binaryDir) // in a temporary directory
	}
}

// binary builds the program once.
var binary = sync.OnceValues(func() (string, error) {
	var err error
	if binaryDir, err = os.MkdirTemp("", "warmpath-dev-test-"); err != nil {
		return "", err
	}
	name := filepath.Join(binaryDir, "warmpath")
	output, err := exec.Command("go", "build", "-o", name, "warmpath").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, output)
	}
	return name, nil
})

// program is the built program; the test is skipped without a ClickHouse engine.
func program(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("a whole pipeline in child processes is not short")
	}
	if _, err := clickhouse.Locate(); errors.Is(err, clickhouse.ErrNotInstalled) && os.Getenv("CI") != "true" {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	name, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// session is a running `warmpath dev`.
type session struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout bytes.Buffer
	tmp    string // where it makes its temporary directory

	mu     sync.Mutex
	stderr strings.Builder
	lines  chan struct{} // a signal for every line
	read   chan struct{} // closed when stderr has ended
}

// startDev runs dev with args, in a temporary directory of its own.
func startDev(t *testing.T, args ...string) *session {
	t.Helper()
	s := &session{t: t, tmp: t.TempDir(), lines: make(chan struct{}, 1), read: make(chan struct{})}
	s.cmd = exec.Command(program(t), append([]string{"dev"}, args...)...)
	s.cmd.Env = append(os.Environ(), "TMPDIR="+s.tmp)
	s.cmd.Stdout = &s.stdout
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill() // it has ended, if all went well
		<-s.read
		if t.Failed() {
			t.Logf("stderr:\n%s", s.text())
		}
	})
	go func() {
		defer close(s.read)
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			s.mu.Lock()
			fmt.Fprintln(&s.stderr, lines.Text())
			s.mu.Unlock()
			select {
			case s.lines <- struct{}{}:
			default:
			}
		}
	}()
	return s
}

func (s *session) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stderr.String()
}

// component is a child's pid and URL, once dev has printed it.
func (s *session) component(name string) (pid int, url string) {
	s.t.Helper()
	pattern := regexp.MustCompile(`(?m)^  ` + name + `\s+pid (\d+)\s+(\S+)`)
	deadline := time.After(patience)
	for {
		if found := pattern.FindStringSubmatch(s.text()); found != nil {
			pid, _ = strconv.Atoi(found[1]) // digits
			return pid, found[2]
		}
		select {
		case <-s.lines:
		case <-s.read:
			s.t.Fatalf("dev ended before it printed where %s is", name)
		case <-deadline:
			s.t.Fatalf("dev did not print where %s is", name)
		}
	}
}

// wait waits for dev's end and returns its exit code.
func (s *session) wait() int {
	s.t.Helper()
	timer := time.AfterFunc(patience, func() { _ = s.cmd.Process.Kill() })
	defer timer.Stop()
	<-s.read
	var exit *exec.ExitError
	if err := s.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	return s.cmd.ProcessState.ExitCode()
}

// printed decodes the report.
func (s *session) printed() whole {
	s.t.Helper()
	var w whole
	if err := json.Unmarshal(s.stdout.Bytes(), &w); err != nil {
		s.t.Fatalf("stdout is not one JSON object: %v\n%s", err, s.stdout.String())
	}
	return w
}

// decisions waits until the router has taken n.
func decisions(t *testing.T, router string, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, router+"/v1/state", nil)
		if err != nil {
			t.Fatal(err)
		}
		var state struct {
			Decisions int `json:"decisions"`
		}
		if response, err := client.Do(request); err == nil {
			err = json.NewDecoder(response.Body).Decode(&state)
			response.Body.Close()
			if err == nil && state.Decisions >= n {
				return
			}
		}
		if ctx.Err() != nil {
			t.Fatalf("the router took %d decisions, not %d", state.Decisions, n)
		}
	}
}

// gone waits until a process has ended.
func gone(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || bytes.Contains(stat, []byte(") Z ")) { // a zombie nobody waits for has ended
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d did not end", pid)
		}
	}
}

// complete checks what must hold of every report.
func complete(t *testing.T, what string, r *result, requests uint64) {
	t.Helper()
	if r.Requests != requests || r.Rows != requests || r.RowsDistinct != requests || *r.PublishedOutcomes != requests ||
		*r.PublishedDecisions < requests || r.Failed != 0 || r.FailedForClient != 0 {
		t.Errorf("%s: %d requests wanted, %d reported, %d rows, %d distinct, %d outcomes, %d decisions, %d failed, %d failed for the client",
			what, requests, r.Requests, r.Rows, r.RowsDistinct, *r.PublishedOutcomes, *r.PublishedDecisions, r.Failed, r.FailedForClient)
	}
}

func TestDevReplaysAndCompares(t *testing.T) {
	s := startDev(t, "--exit", "--json", "--sessions=40", "--requests=250", "--replicas=4", "--blocks=1024", "--seed=3")
	code := s.wait()
	w := s.printed()
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	complete(t, "ttft", &w.result, 250)
	if w.Baseline == nil || w.Gain == nil {
		t.Fatal("no baseline")
	}
	complete(t, "random", w.Baseline, 250)
	if w.Clock != "model" || w.ClockMeans == "" || w.Trace != "generated" || w.Policy != "ttft" || w.Baseline.Policy != "random" ||
		w.Pool != "demo" || w.Replicas != 4 || w.Blocks != 1024 || w.BlockTokens != 64 || w.Seed != 3 || len(w.PerReplica) != 4 {
		t.Errorf("report says %+v", w)
	}
	if *w.Gain.HitRateRatio <= 1 || *w.Gain.ComputedTokensSaved <= 0 || w.ExpiredHolds != 0 || w.Restarts != 0 {
		t.Errorf("gain %+v, %d holds expired, %d restarts", *w.Gain, w.ExpiredHolds, w.Restarts)
	}
	if *w.PublishedDecisions != 250 || w.Fallbacks != 0 {
		t.Errorf("%d decisions, %d fallbacks", *w.PublishedDecisions, w.Fallbacks)
	}
	left, err := os.ReadDir(s.tmp)
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// Random chooses by seed alone, so its run repeats to the token and the microsecond.
func TestModelRunsRepeat(t *testing.T) {
	var first whole
	for i := range 2 {
		s := startDev(t, "--exit", "--json", "--policy=random", "--baseline=none", "--sessions=20", "--requests=100", "--replicas=3")
		if code := s.wait(); code != 0 {
			t.Fatalf("exit code %d", code)
		}
		w := s.printed()
		if i == 0 {
			first = w
			continue
		}
		if *w.CachedTokens != *first.CachedTokens || *w.TTFT.All.P99 != *first.TTFT.All.P99 || *w.E2E.P50 != *first.E2E.P50 {
			t.Errorf("two runs differ: %d and %d cached tokens, ttft p99 %v and %v, end to end p50 %v and %v ms",
				*first.CachedTokens, *w.CachedTokens, *first.TTFT.All.P99, *w.TTFT.All.P99, *first.E2E.P50, *w.E2E.P50)
		}
	}
}

func TestDevSurvivesKilledComponents(t *testing.T) {
	s := startDev(t, "--exit", "--json", "--baseline=none", "--requests=1500")
	router, routerURL := s.component("router")
	analytics, _ := s.component("analytics")
	clickhouse, _ := s.component("clickhouse")
	for _, kill := range []struct{ after, pid int }{{150, analytics}, {250, clickhouse}, {350, router}} {
		decisions(t, routerURL, kill.after)
		if err := syscall.Kill(kill.pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	decisions(t, routerURL, 100) // the router is back and decides
	code := s.wait()
	w := s.printed()
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	complete(t, "ttft", &w.result, 1500)
	if w.Restarts < 3 || !strings.Contains(s.text(), "A COMPONENT DIED") {
		t.Errorf("%d restarts", w.Restarts)
	}
	t.Logf("%d fallbacks, %d moves, hit rate %.3f", w.Fallbacks, w.Moves, *w.HitRate)
}

func TestDevServesUntilInterrupted(t *testing.T) {
	s := startDev(t, "--replicas=2", "--blocks=256")
	pid, gateway := s.component("gateway")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Post(gateway+"/v1/completions", "application/json",
		strings.NewReader(`{"model":"llama-3-70b","prompt":"hello","max_tokens":4}`))
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Choices []struct {
			Text string `json:"text"`
		} `json:"choices"`
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || response.StatusCode != http.StatusOK || len(answer.Choices) != 1 || answer.Choices[0].Text == "" {
		t.Errorf("answer %s %+v %v", response.Status, answer, err)
	}
	response.Body.Close()
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := s.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	gone(t, pid)
	if left, err := os.ReadDir(s.tmp); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// Children must not outlive dev, however it ended.
func TestChildrenEndWithDev(t *testing.T) {
	s := startDev(t, "--replicas=1", "--blocks=64")
	var pids []int
	for _, name := range []string{"gateway", "router", "analytics", "clickhouse"} {
		pid, _ := s.component(name)
		pids = append(pids, pid)
	}
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	s.wait()
	for _, pid := range pids {
		gone(t, pid)
	}
}

func TestDevRefusesWhatItCannotRun(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--policy=fastest", "--policy"},
		{"--baseline=fastest --exit", "--baseline"},
		{"--param=nonsense=1", "nonsense"},
		{"--speed=fast", "--speed"},
		{"--gpu=tpu", "tpu"},
		{"--replicas=0", "--replicas"},
		{"--pool=a.b", "--pool"},
		{"--trace=missing.jsonl", "missing.jsonl"},
	} {
		t.Run(c.args, func(t *testing.T) {
			s := startDev(t, strings.Fields(c.args)...)
			if code := s.wait(); code == 0 || !strings.Contains(s.text(), c.want) {
				t.Errorf("exit code %d", code)
			}
		})
	}
}
