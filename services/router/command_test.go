package router

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
	"warmpath/streams/streamstest"
)

// parse is what the command line gives.
func parse(t *testing.T, args ...string) *Command {
	t.Helper()
	c := &Command{}
	parser, err := kong.New(c, kong.Exit(func(int) { t.Error("the parser exited") }))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse(args); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCommandLine(t *testing.T) {
	c := parse(t, "--pool", "chat", "--policy", "weighted", "--param", "alpha=2", "--param", "beta=0.5", "--dispatch-grace", "0s",
		"--no-snapshots", "--index-bytes", "1000000", "--name", "r1", "--seed", "9", "--lease", "1m", "--prediction-ttl", "5s", "--nats", "nats://127.0.0.1:1")
	if c.Pool != "chat" || c.Policy != "weighted" || c.Param["alpha"] != 2 || c.Param["beta"] != 0.5 || c.DispatchGrace != 0 ||
		c.Name != "r1" || c.Seed != 9 || c.Lease != time.Minute || c.PredictionTTL != 5*time.Second || c.Listen != "127.0.0.1:7010" ||
		c.Snapshots || c.IndexBytes != 1_000_000 || c.SnapshotKeep != 3 || !parse(t, "--pool", "chat").Snapshots {
		t.Errorf("parsed %+v", c)
	}
	if err := streams.ValidReplica(defaultName()); err != nil {
		t.Error(err)
	}
}

// The whole command, as the user that its role has, on a server that denies
// everything else; asked by a gateway's user.
func TestCommandWorksWithItsRolesRights(t *testing.T) {
	roles := streams.Roles([]string{testPool})
	server := streamstest.StartRoles(t, roles)
	operator := envAt(t, server.URL(streams.RoleOperator))
	operator.apply()
	a := operator.engine("a")
	b := operator.engine("b.dp1")
	a.holds(keysOf(1, 4))
	last := b.holds(keysOf(2, 4))
	operator.publish(streams.LoadSubject(testPool, "a"), &pb.LoadReport{Pool: testPool, Replica: "a", TimeUs: time.Now().UnixMicro()})

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c := parse(t, "--pool", testPool, "--listen", "127.0.0.1:0", "--nats", server.URL(streams.RoleRouter))
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()

	gateway := envAt(t, server.URL(streams.RoleGateway))
	gateway.until("an answer", func() bool {
		_, err := gateway.nc.Request(streams.ServiceSubject(testPool), []byte("\xff"), patience)
		return err == nil
	})
	d := gateway.ask(request(keysOf(2, 4))).Decision
	if d == nil || d.Chosen != "b.dp1" || d.KvSeq != last {
		t.Fatalf("decision %v", d)
	}
	gateway.route(d)
	gateway.until("the decision in the ledger", func() bool {
		load := candidate(gateway.ask(request(keysOf(3, 4))).Decision, "b.dp1").Load
		return load.InFlight > 0
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A router outlives its NATS server: it keeps answering over HTTP meanwhile, and
// goes on where it was.
func TestRouterOutlivesTheServer(t *testing.T) {
	server := streamstest.StartProcess(t)
	e := envAt(t, server.URL())
	e.until("the topology", func() bool {
		_, err := (streams.Topology{Pools: []string{testPool}}).Apply(e.context(), e.js)
		return err == nil
	})
	a := e.engine("a")
	r := e.router(Config{DeadAfter: time.Hour})
	r.knows(1, "live")
	r.reaches(a.holds(keysOf(1, 4)))

	server.Kill()
	if code, response := r.postRequest(request(keysOf(1, 4))); code != http.StatusOK || response.Decision.GetChosen() != "a" {
		t.Errorf("without NATS: %d %v", code, response)
	}
	server.Start()
	e.until("the connection", e.nc.IsConnected)
	e.until("the stream", func() bool {
		_, err := streams.LastSeq(e.context(), e.js, streams.KVStream(testPool))
		return err == nil
	})
	r.reaches(a.holds(keysOf(2, 4)))
	e.until("an answer over NATS", func() bool {
		_, err := e.nc.Request(streams.ServiceSubject(testPool), []byte("\xff"), time.Second)
		return err == nil
	})
	if r.follower.Load().Restarts() == 0 {
		t.Error("no restart was counted")
	}
	d := e.ask(request(keysOf(2, 4))).Decision
	if c := candidate(d, "a"); c.GpuBlocks != 4 || c.IndexedBlocks == nil || c.GetIndexedBlocks() < 4 {
		t.Errorf("decision %v", d)
	}
	e.route(d)
	e.until("live decisions", func() bool {
		_, waiting := r.confirmed()[attemptID(d.RequestId, d.Attempt)]
		return !waiting
	})
}
