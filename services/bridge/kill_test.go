package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"warmpath/routing/prefix"
	"warmpath/services/bridge/kvevents"
	"warmpath/services/bridge/wireengine"
	"warmpath/streams"
	"warmpath/streams/streamstest"
)

// bridgeVariable makes the test binary a bridge; its value says which.
const bridgeVariable = "WARMPATH_BRIDGE_TEST"

// asked is the value of bridgeVariable.
type asked struct {
	NATS   string
	Config Config
}

// bridgeIfAsked is the bridge process. It ends with its standard input, so that
// it never outlives the test.
func bridgeIfAsked() bool {
	text := os.Getenv(bridgeVariable)
	if text == "" {
		return false
	}
	if err := bridgeAsAsked(text); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

func bridgeAsAsked(text string) error {
	var a asked
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return err
	}
	nc, js, err := streams.Connection{NATS: a.NATS}.Connect("bridge process")
	if err != nil {
		return err
	}
	defer nc.Close()
	b, err := New(a.Config, js, prometheus.NewRegistry())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // any end of the pipe is the end
		cancel()
	}()
	return b.Run(ctx)
}

// process is a bridge in a process of its own, to be killed the hard way.
type process struct {
	t    *testing.T
	what string
	cmd  *exec.Cmd
	said bytes.Buffer // what its lives logged; read when none runs
}

func newProcess(t *testing.T, nats string, cfg Config) *process {
	t.Helper()
	what, err := json.Marshal(asked{NATS: nats, Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, what: string(what)}
	p.start()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("the bridges said:\n%s", p.said.String())
		}
	})
	return p
}

func (p *process) start() {
	p.t.Helper()
	p.cmd = exec.Command(os.Args[0], "-test.run=^$")
	p.cmd.Env = append(os.Environ(), bridgeVariable+"="+p.what)
	p.cmd.Stderr = &p.said
	if _, err := p.cmd.StdinPipe(); err != nil {
		p.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
}

// kill gives the process no chance to clean up. It may be called again.
func (p *process) kill() {
	if p.cmd == nil {
		return
	}
	// Killing what has ended is no failure, and neither is having been killed.
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	p.cmd = nil
}

// killable is a fixture on a server process, with an engine and a bridge process.
type killable struct {
	*fixture
	nats   *streamstest.Process
	engine *wireengine.Engine
	bridge *process
}

func newKillable(t *testing.T, cfg wireengine.Config) *killable {
	server := streamstest.StartProcess(t)
	nc, js := streamstest.Connect(t, server.URL())
	k := &killable{fixture: newFixtureAt(t, nc, js), nats: server}
	cfg.ReplayEndpoint = "tcp://127.0.0.1:0"
	engines, _, url := k.fixture.engine(cfg, wireengine.APIConfig{
		Kind: wireengine.VLLM, Missing: wireengine.Missing{CacheInfo: true}, // its capacity does not count copies
	}, 1)
	k.engine = engines[0]
	first := int(cfg.FirstSeq)
	k.bridge = newProcess(t, server.URL(), Config{
		Pool: "demo", BlockTokens: 16, LoadEvery: 100 * time.Millisecond, Listen: "127.0.0.1:0", SpoolDir: t.TempDir(),
		Engines: []Engine{{Replica: "e0", URL: url, KV: k.engine.Endpoint(), KVReplay: k.engine.ReplayEndpoint(), KVFirst: &first}},
	})
	return k
}

// epoch is the replica's as readers know it.
func (k *killable) epoch() prefix.Epoch {
	for _, l := range k.reader.index.Lives() {
		if l.Replica == "e0" {
			return l.Epoch
		}
	}
	return prefix.Epoch{}
}

// honest waits until the index is what the engine holds, or its readers are warned.
func (k *killable) honest() {
	k.t.Helper()
	streamstest.Until(k.t, func() bool {
		truth, err := k.engine.Truth(chaosModel, 16)
		if err != nil {
			k.t.Fatal(err)
		}
		return len(k.reader.index.Lives()) > 0 && (k.reader.suspect("e0") || k.reader.difference("e0", truth) == "")
	})
}

// A bridge that is killed goes on where it was: the same epoch, nothing lost,
// nothing in doubt, also when what it saw last told readers nothing.
func TestKilledBridgeGoesOn(t *testing.T) {
	k := newKillable(t, wireengine.Config{Cache: wireengine.CacheConfig{Generation: kvevents.VLLMMap, Seed: 11}, Buffer: 100})
	// More than the buffer has, but never in one go: from the beginning nothing
	// could be told again.
	grow := func() {
		for range 4 {
			churn(k.engine, 40)
			k.same("e0", k.engine, 16)
		}
	}
	k.same("e0", k.engine, 16)
	grow()
	began := k.epoch()
	for i := range 4 {
		switch i {
		case 1: // in the middle of work
			churn(k.engine, 20)
		case 2: // the last batch said nothing, and the connection had broken off
			k.engine.PublishRaw([]byte("\x93\xcb\x41\xda\x00\x00\x00\x00\x00\x00\x91\x81\xa4type\xa5Shiny\xc0"), wireengine.Delivered)
			k.engine.Drain()
			k.engine.HangUp(true)
			streamstest.Until(t, func() bool { return k.reader.suspect("e0") })
		}
		k.bridge.kill()
		k.engine.HangUp(false)
		churn(k.engine, 20)
		k.bridge.start()
		k.same("e0", k.engine, 16)
		grow()
		if now := k.epoch(); now != began {
			t.Fatalf("kill %d began epoch %x after %x, though nothing was lost", i, now, began)
		}
	}
	if err := k.reader.failure(); err != nil {
		t.Error(err)
	}
}

// Whatever is killed while batches are lost and the engine restarts, the index is
// the engine's cache or its readers are warned, and what is clear again is known
// again.
func TestKilledBridgeIsHonest(t *testing.T) {
	k := newKillable(t, wireengine.Config{Cache: wireengine.CacheConfig{Generation: kvevents.VLLMFull, Seed: 12, Capacity: 600}, Buffer: 300})
	chaos := wireengine.NewChaos(k.engine, wireengine.Odds{Dropped: 300, Lost: 30, Twice: 200, Clears: 40, Restarts: 40, HangUps: 40, Shorten: 20}, 12)
	steps := func(n int) {
		for range n {
			chaos.Step()
		}
	}
	for i := range 5 {
		steps(100)
		if i != 3 { // sometimes with all that was on its way
			k.honest()
		}
		k.bridge.kill()
		steps(60)
		if i == 2 {
			k.nats.Kill()
			steps(30)
			k.nats.Start()
		}
		k.bridge.start()
	}
	k.honest()
	k.engine.Change((*wireengine.Cache).Clear, wireengine.Delivered)
	churn(k.engine, 30)
	k.same("e0", k.engine, 16)
	if err := k.reader.failure(); err != nil {
		t.Error(err)
	}
	t.Logf("%+v", chaos.Did())
}
