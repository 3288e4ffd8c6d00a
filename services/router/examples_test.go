package router

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/npmtest"
	"warmpath/services/simengine"
	"warmpath/streams"
	"warmpath/streams/streamstest"
)

// natsVersion is the npm package's, as examples/package.json has it.
const natsVersion = "2.29.3"

// site is a pool with one simulated engine, and one replica behind whose address
// nobody listens, which is said to hold the examples' prompt.
type site struct {
	*running
	url    string // of NATS, for a gateway
	engine *simengine.Server
}

func newSite(t *testing.T) *site {
	t.Helper()
	server := streamstest.StartRoles(t, streams.Roles([]string{testPool}))
	e := envAt(t, server.URL(streams.RoleOperator))
	e.apply()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := "http://" + closed.Addr().String()
	closed.Close()
	gone := e.engine("gone", func(f *pb.FleetEntry) { f.Address = address })
	last := gone.holds(textKeys(testText(t), "", ""))
	engine, err := simengine.New(simengine.Config{Pool: testPool, Replica: "here", Model: testModel, Listen: "127.0.0.1:0", Clock: simengine.NewWallClock(100)}, e.nc, e.js, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- engine.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	r := e.router(Config{Tokenizer: TokenizerBytes, DeadAfter: time.Hour})
	r.knows(2, "live")
	r.reaches(last)
	return &site{r, server.URL(streams.RoleGateway), engine}
}

// leaves takes the replica that nobody serves out of the fleet, and waits for the
// engine's own events.
func (s *site) leaves() {
	s.env.Helper()
	if err := streams.DeleteFleet(s.env.context(), s.env.js, testPool, "gone"); err != nil {
		s.env.Fatal(err)
	}
	s.knows(1, "live")
	if err := s.engine.Settle(s.env.context()); err != nil {
		s.env.Fatal(err)
	}
	last, err := streams.LastSeq(s.env.context(), s.env.js, streams.KVStream(testPool))
	if err != nil {
		s.env.Fatal(err)
	}
	s.reaches(last)
}

// result is what both examples print.
type result struct {
	RequestID string `json:"request_id"`
	Replica   string `json:"replica"`
	Attempt   uint32 `json:"attempt"`
	Predicted uint64 `json:"predicted_cached_tokens"`
	Reply     struct {
		Usage struct {
			Prompt  uint64 `json:"prompt_tokens"`
			Details struct {
				Cached uint64 `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	} `json:"reply"`
}

// run runs an example on a chat request.
func (s *site) run(name string, args []string, variables ...string) (result, error) {
	s.env.Helper()
	command := exec.CommandContext(s.env.context(), name, args...)
	command.Env = append(os.Environ(), append([]string{
		"WARMPATH_ROUTER=" + s.Address(), "WARMPATH_NATS_URL=" + s.url, "WARMPATH_POOL=" + testPool, "WARMPATH_ROUTER_TIMEOUT=15", "no_proxy=127.0.0.1",
	}, variables...)...)
	command.Stdin = strings.NewReader(testChat)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return result{}, errors.Join(err, errors.New(stderr.String()))
	}
	var r result
	if err := json.Unmarshal(out, &r); err != nil {
		s.env.Fatalf("printed %q: %v", out, err)
	}
	return r, nil
}

// check runs an example twice: past the replica that does not answer, and to the
// engine that has the prompt by then.
func (s *site) check(run func() (result, error)) (first, second result) {
	s.env.Helper()
	first, err := run()
	if err != nil {
		s.env.Fatal(err)
	}
	if first.Replica != "here" || first.Attempt != 1 || first.Predicted != 0 || first.Reply.Usage.Prompt != uint64(len(testText(s.env))) {
		s.env.Errorf("first %+v", first)
	}
	s.leaves()
	if second, err = run(); err != nil {
		s.env.Fatal(err)
	}
	if second.Replica != "here" || second.Attempt != 0 || second.Predicted != 112 || second.Reply.Usage.Details.Cached != 112 {
		s.env.Errorf("second %+v", second)
	}
	return first, second
}

func TestThePythonExample(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed")
	}
	s := newSite(t)
	args := []string{"examples/route.py"}
	s.check(func() (result, error) { return s.run(python, args) })

	_, err = s.run(python, args, "WARMPATH_POOL=other")
	if err == nil || !strings.Contains(err.Error(), "svc.route.chat") {
		t.Errorf("another pool: %v", err)
	}
	engine := s.engine.Address()
	s.stop()
	r, err := s.run(python, args, "WARMPATH_FALLBACK="+engine)
	if err != nil || r.Replica != "" || r.Reply.Usage.Prompt == 0 {
		t.Errorf("without a router: %+v, %v", r, err)
	}
	if _, err = s.run(python, args); err == nil {
		t.Error("without a router and a fallback it gets an answer")
	}
}

func TestTheJavaScriptExample(t *testing.T) {
	node, folder := natsPackage(t)
	s := newSite(t)
	args := []string{filepath.Join(folder, "route.mjs")}
	first, second := s.check(func() (result, error) { return s.run(node, args) })
	s.env.until("both outcomes at the router", func() bool { return s.inFlight("here") == 0 && len(s.confirmed()) == 0 })

	// What it published is what a gateway publishes.
	var decisions []*pb.Decided
	var moves []*pb.Moved
	var ends []*pb.Finished
	for _, ev := range s.env.recorded() {
		if ev.Digest != streams.Digest(ev.Data) || ev.ID == "" || ev.Subject != "route.chat.js-example" {
			t.Errorf("event %s of %s has id %q and digest %q", ev.Schema, ev.Subject, ev.ID, ev.Digest)
		}
		m, err := streams.Decode(ev.Schema, ev.Data)
		if err != nil {
			t.Fatal(err)
		}
		switch m := m.(type) {
		case *pb.Decided:
			decisions = append(decisions, m)
		case *pb.Moved:
			moves = append(moves, m)
		case *pb.Finished:
			ends = append(ends, m)
		}
	}
	if len(decisions) != 3 || len(moves) != 1 || len(ends) != 2 {
		t.Fatalf("decisions %v\nmoves %v\noutcomes %v", decisions, moves, ends)
	}
	if d := decisions[0]; d.Chosen != "gone" || d.RequestId != first.RequestID || d.TokenSource != "in_process" || d.Gateway != "js-example" {
		t.Errorf("first decision %v", d)
	}
	if m := moves[0]; m.Pool != testPool || m.RequestId != first.RequestID || m.Attempt != 0 || m.From != "gone" || m.Cause != "dial" || m.MovedAtUs == 0 {
		t.Errorf("move %v", m)
	}
	want := &pb.Finished{
		Pool: testPool, Gateway: "js-example", RequestId: second.RequestID, Replica: "here", Status: pb.Status_STATUS_OK, HttpStatus: 200,
		PromptTokens: proto.Uint64(second.Reply.Usage.Prompt), CompletionTokens: proto.Uint64(8), CachedTokens: proto.Uint64(112), Clock: pb.Clock_CLOCK_WALL,
		FinishedAtUs: ends[1].FinishedAtUs, E2EUs: ends[1].E2EUs,
	}
	if !proto.Equal(ends[1], want) || want.E2EUs == 0 || time.Since(time.UnixMicro(want.FinishedAtUs)).Abs() > time.Hour {
		t.Errorf("outcome %v, want %v", ends[1], want)
	}
	if f := ends[0]; f.CachedTokens == nil || *f.CachedTokens != 0 || f.Attempt != 1 {
		t.Errorf("the first outcome does not say that nothing was cached: %v", f)
	}
	s.env.audit(decisions...)

	if _, err := s.run(node, args, "WARMPATH_POOL=other"); err == nil {
		t.Error("a pool without routers gives an answer")
	}
}

// recorded reads ROUTE to its end.
func (e *env) recorded() (all []streams.Event) {
	e.Helper()
	head, err := streams.LastSeq(e.context(), e.js, streams.RouteStream)
	if err != nil {
		e.Fatal(err)
	}
	end := errors.New("end")
	err = streams.Follow(e.context(), e.js, streams.FollowConfig{Stream: streams.RouteStream}, func(ev streams.Event) error {
		if all = append(all, ev); ev.Seq >= head {
			return end
		}
		return nil
	})
	if !errors.Is(err, end) {
		e.Fatal(err)
	}
	return all
}

// natsPackage installs the npm package nats into the user's cache, and returns node
// and a folder with the example beside it.
func natsPackage(t *testing.T) (node, folder string) {
	t.Helper()
	pinned, err := os.ReadFile("examples/package.json")
	if err != nil || !strings.Contains(string(pinned), `"nats": "`+natsVersion+`"`) {
		t.Fatalf("examples/package.json does not name nats %s: %v", natsVersion, err)
	}
	node, modules := npmtest.Install(t, "nats", natsVersion)
	folder = t.TempDir()
	example, err := os.ReadFile("examples/route.mjs")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "route.mjs"), example, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(modules, filepath.Join(folder, "node_modules")); err != nil {
		t.Fatal(err)
	}
	return node, folder
}
