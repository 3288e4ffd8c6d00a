// Package streamstest gives tests a real NATS server: never a mock.
package streamstest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"warmpath/streams"
	"warmpath/streams/natsserver"
)

// within bounds every wait here; it is how long a test hangs before it fails.
const within = 60 * time.Second

// Start starts a single server without roles that stops with the test.
func Start(t testing.TB) *natsserver.Server {
	t.Helper()
	return start(t, natsserver.Config{StoreDir: t.TempDir()})
}

// StartRoles starts a single server that knows the roles; Server.URL(user) has
// their credentials.
func StartRoles(t testing.TB, roles []streams.Role) *natsserver.Server {
	t.Helper()
	return start(t, natsserver.Config{StoreDir: t.TempDir(), Roles: roles})
}

func start(t testing.TB, cfg natsserver.Config) *natsserver.Server {
	t.Helper()
	s, err := natsserver.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	return s
}

// Restart stops a server and starts it again on its port and data. The new
// server stops with the test.
func Restart(t testing.TB, s *natsserver.Server) *natsserver.Server {
	t.Helper()
	s.Shutdown()
	return start(t, s.Config())
}

// clusterTries bounds how often a cluster is started: a port that was free may
// be taken by another test before its server listens on it.
const clusterTries = 3

// Cluster starts n clustered servers that stop with the test, and waits until
// JetStream has a leader that all of them follow.
func Cluster(t testing.TB, n int) []*natsserver.Server {
	t.Helper()
	var started []*natsserver.Server
	var err error
	for range clusterTries {
		if started, err = startCluster(t, n); err == nil {
			break
		}
		t.Logf("cluster did not start: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range started {
		t.Cleanup(s.Shutdown)
	}
	for _, s := range started {
		Until(t, s.JetStreamReady)
	}
	return started
}

// startCluster starts all servers or none.
func startCluster(t testing.TB, n int) ([]*natsserver.Server, error) {
	t.Helper()
	peers := make([]string, n)
	ports := make([]int, n)
	for i := range n {
		ports[i] = freePort(t)
		peers[i] = fmt.Sprintf("127.0.0.1:%d", ports[i])
	}
	dir := t.TempDir()
	started := make([]*natsserver.Server, n)
	errs := make([]error, n)
	done := make(chan struct{})
	for i := range n {
		// A server of a cluster is ready only when it has seen another.
		go func() {
			defer func() { done <- struct{}{} }()
			name := fmt.Sprintf("n%d", i)
			started[i], errs[i] = natsserver.Start(natsserver.Config{
				StoreDir: filepath.Join(dir, name),
				Name:     name,
				Cluster:  natsserver.Cluster{Name: "test", Port: ports[i], Peers: peers},
			})
		}()
	}
	for range n {
		<-done
	}
	err := errors.Join(errs...)
	if err == nil {
		return started, nil
	}
	for i, s := range started {
		if errs[i] == nil {
			s.Shutdown()
		}
	}
	return nil, err
}

// freePort asks the system for a port. Somebody else could take it before the
// server does, which fails the start and not silently the test.
func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// Connect connects to a URL the way services do; the connection ends with the test.
func Connect(t testing.TB, url string) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	nc, js, err := streams.Connection{NATS: url}.Connect(t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc, js
}

// Apply makes the default topology of the pools, with as many copies as given.
func Apply(t testing.TB, js jetstream.JetStream, replicas int, pools ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	topology := streams.Topology{Pools: pools, Replicas: replicas}
	for {
		_, err := topology.Apply(ctx, js)
		if err == nil {
			return
		}
		// A cluster that has just started may still refuse.
		if replicas < 2 || ctx.Err() != nil {
			t.Fatalf("apply topology: %v", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// Until waits for a condition; it fails the test when it does not come.
func Until(t testing.TB, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the condition waited for did not come")
		}
	}
}

// Main runs a package's tests and checks that no goroutine is left behind.
func Main(m *testing.M) {
	if serveIfAsked() {
		return
	}
	goleak.VerifyTestMain(m)
}

// Run runs a service until the test ends, or stop is called, which may be again: it
// must end without an error then.
func Run(t testing.TB, service func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- service(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}
