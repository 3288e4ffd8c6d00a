package gateway

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"warmpath/routing/policy"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/router"
	"warmpath/streams"
	"warmpath/streams/streamstest"
)

// Without NATS requests are served, and what happened is published when it is back.
func TestNATSIsAway(t *testing.T) {
	e := newEnv(t)
	e.nc, e.js = streamstest.Connect(t, e.server.URL(""))
	n := e.engine("engine-0", nil)
	g := e.gateway(1, Config{})
	g.mustAsk(prompt(40, ""), "X-Request-Id", "before")
	e.server.Shutdown()
	e.until("the loss of NATS", func() bool { return !e.nc.IsConnected() })
	for i := range 5 {
		if h := g.mustAsk(prompt(40, ""), "X-Request-Id", fmt.Sprintf("without-%d", i)); h.Get(headerReplica) != n.name {
			t.Errorf("got %v", h)
		}
	}
	e.server = streamstest.Restart(t, e.server)
	e.until("NATS", e.nc.IsConnected)
	g.mustAsk(prompt(40, ""), "X-Request-Id", "after")
	all := e.stories(g)
	if len(all) != 7 {
		t.Errorf("%d requests have events", len(all))
	}
	for i := range 5 {
		if s := all[fmt.Sprintf("without-%d", i)]; s == nil || s.order != "df" || s.decided[0].FallbackCause != causeDisconnected {
			t.Errorf("without-%d: got %+v", i, s)
		}
	}
}

// Heartbeats cannot arrive without NATS; their absence must not empty the fleet.
func TestViewWithoutHeartbeats(t *testing.T) {
	now := int64(1e15)
	v := newView(func() int64 { return now })
	beat := func(name string) {
		v.changed(&pb.FleetEntry{Replica: name, Address: "http://" + name, Model: "m", BlockTokens: 16}, name)
	}
	beat("a")
	beat("b")
	now += time.Minute.Microseconds()
	if n := len(v.Live()); n != 0 {
		t.Errorf("%d replicas are live without a heartbeat for a minute", n)
	}
	if s, ok := v.shape(); !ok || s.model != "m" {
		t.Error("with every heartbeat gone at once, known replicas must still be tried")
	}
	beat("a")
	if s := v.Live(); len(s) != 1 {
		t.Errorf("live: %v", s)
	}
	v.setConnected(false)
	now += time.Hour.Microseconds()
	v.changed(nil, "a") // expired for want of heartbeats
	v.expire()
	if s := v.Live(); len(s) != 1 {
		t.Errorf("live without NATS: %v", s)
	}
	v.setConnected(true)
	now += time.Second.Microseconds()
	if s := v.Live(); len(s) != 1 {
		t.Errorf("live after NATS is back, before the next heartbeat: %v", s)
	}
	now += time.Minute.Microseconds()
	if s := v.Live(); len(s) != 0 {
		t.Errorf("live without a heartbeat after NATS is back: %v", s)
	}
	beat("b")
	v.changed(nil, "b")
	if s := v.Live(); len(s) != 0 || v.entry("b").GetAddress() == "" {
		t.Errorf("after it left: live %v, address %q", s, v.entry("b").GetAddress())
	}
	now += 2 * forgetAfter.Microseconds()
	v.expire()
	if v.entry("b").GetAddress() != "" {
		t.Error("a replica that left long ago is still known")
	}
}

// With the router that will really be there: decisions come from it, recompute,
// and its absence and return are noticed.
func TestWithTheRouter(t *testing.T) {
	e := newEnv(t)
	for i := range 3 {
		e.engine(fmt.Sprintf("engine-%d", i), nil)
	}
	ctx, cancel := context.WithCancel(context.Background())
	start := func() (stop func()) {
		r, err := router.New(router.Config{Pool: testPool, Name: "router-0"}, e.nc, e.js, prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		wait(e, "the router", r.Ready())
		return func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	stop := start()
	defer cancel()
	g := e.gateway(3, Config{})
	for i := range 10 {
		g.mustAsk(prompt(40+i, `,"stream":true`), "X-Request-Id", fmt.Sprintf("with-%d", i), "X-Session-Id", "s")
	}
	stop()
	for i := range 3 {
		g.mustAsk(prompt(40, ""), "X-Request-Id", fmt.Sprintf("alone-%d", i), "X-Session-Id", "s")
	}
	stop = start()
	defer stop()
	for i := range 3 {
		g.mustAsk(prompt(40, ""), "X-Request-Id", fmt.Sprintf("again-%d", i))
	}
	all := e.stories(g)
	if len(all) != 16 {
		t.Errorf("%d requests have events", len(all))
	}
	for id, s := range all {
		d := s.decided[0]
		again, err := policy.Recompute(d)
		if err != nil || !proto.Equal(d, again) {
			t.Errorf("%s: recomputed decision differs (%v)\nrecorded   %v\nrecomputed %v", id, err, d, again)
		}
		if alone := id[:5] == "alone"; alone != (d.Reason == pb.DecisionReason_DECISION_REASON_FALLBACK) || alone == (d.Decider == "router-0") ||
			len(d.Keys) == 0 || (id[:5] != "again" && d.SessionKey != all["with-0"].decided[0].SessionKey) {
			t.Errorf("%s: got %v", id, d)
		}
	}
}

// The rights of the gateway's role are enough for all that it does.
func TestRoleIsEnough(t *testing.T) {
	role, err := streams.GatewayRole(testPool, "gw-0")
	if err != nil {
		t.Fatal(err)
	}
	e := newEnvWith(t, streamstest.StartRoles(t, append(streams.Roles([]string{testPool}), role)))
	n := e.engine("engine-0", nil)
	e.router(choose(n))
	operator := e.nc
	e.nc, e.js = streamstest.Connect(t, e.server.URL(role.User))
	errors := make(chan error, 100)
	e.nc.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { errors <- err })
	g := e.gateway(1, Config{Name: "gw-0"})
	h := g.mustAsk(prompt(40, ""), "X-Request-Id", "r-1")
	if err := g.publisher.Flush(e.context()); err != nil {
		t.Error(err)
	}
	if s := g.publisher.Stats(); h.Get(headerReplica) != "engine-0" || s.Acked != 2 {
		t.Errorf("got %v, publisher %+v", h, s)
	}
	// What others do must arrive, too.
	message, err := streams.NewMessage(streams.RouteSubject(testPool, "gw-1"), "x/0/decided", &pb.Decided{Pool: testPool, Gateway: "gw-1", RequestId: "x", Chosen: "engine-0"})
	if err != nil {
		t.Fatal(err)
	}
	m := nats.NewMsg(message.Subject)
	m.Data = message.Data
	m.Header.Set("Warmpath-Schema", message.Schema)
	if _, err := operator.RequestMsgWithContext(e.context(), m); err != nil {
		t.Fatal(err)
	}
	e.until("the other gateway's load", func() bool { return g.InFlight("engine-0") == 1 })
	g.stop()
	select {
	case err := <-errors:
		t.Errorf("nats reported %v", err)
	default:
	}
}

// The command line starts the same thing.
func TestCommand(t *testing.T) {
	e := newEnv(t)
	n := e.engine("engine-0", nil)
	e.router(choose(n))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	_ = free.Close()
	command := &ServeCommand{Connection: streams.Connection{NATS: e.server.URL("")}, Pool: testPool, Listen: address}
	done := make(chan error, 1)
	go func() { done <- command.Run(ctx) }()
	e.until("health", func() bool {
		response, err := e.client.Get("http://" + address + "/health")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	cancel()
	if err := wait(e, "the end", done); err != nil {
		t.Error(err)
	}
}
