package follow

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"warmpath/routing/blockkey"
	"warmpath/routing/policy"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/router"
	"warmpath/streams"
	"warmpath/streams/streamstest"
)

const (
	testPool    = "chat"
	testModel   = "llama-3-70b"
	blockTokens = 16
	patience    = 30 * time.Second
)

func TestMain(m *testing.M) {
	if os.Getenv("WARMPATH_TEST_LOG") == "" {
		slog.SetDefault(slog.New(slog.DiscardHandler))
	}
	streamstest.Main(m)
}

// env is a server with one pool, and a connection that plays its engines.
type env struct {
	testing.TB
	nc  *nats.Conn
	js  jetstream.JetStream
	seq map[string]uint64
}

func newEnv(t testing.TB) *env {
	t.Helper()
	nc, js := streamstest.Connect(t, streamstest.Start(t).URL(""))
	streamstest.Apply(t, js, 1, testPool)
	return &env{t, nc, js, map[string]uint64{}}
}

func (e *env) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	e.Cleanup(cancel)
	return ctx
}

func (e *env) publish(subject string, m proto.Message) uint64 {
	e.Helper()
	message, err := streams.NewMessage(subject, "", m)
	if err != nil {
		e.Fatal(err)
	}
	msg := nats.NewMsg(subject)
	msg.Header.Set("Warmpath-Schema", message.Schema)
	msg.Data = message.Data
	ack, err := e.js.PublishMsg(e.context(), msg)
	if err != nil {
		e.Fatal(err)
	}
	return ack.Sequence
}

func epochOf(replica string) []byte {
	epoch := make([]byte, 16)
	binary.BigEndian.PutUint64(epoch, 1)
	copy(epoch[8:], replica)
	return epoch
}

// engine puts a replica into the fleet.
func (e *env) engine(name string, change ...func(*pb.FleetEntry)) {
	e.Helper()
	entry := &pb.FleetEntry{
		Pool: testPool, Replica: name, Address: "http://" + name + ".example", EngineKind: "vllm", Model: testModel,
		BlockTokens: blockTokens, KvEvents: true, Epoch: epochOf(name), HeartbeatUs: time.Now().UnixMicro(), PrefillTokensPerSecond: 10_000,
	}
	for _, c := range change {
		c(entry)
	}
	if err := streams.PutFleet(e.context(), e.js, entry); err != nil {
		e.Fatal(err)
	}
}

// holds publishes that a replica now holds keys in a tier.
func (e *env) holds(name string, tier pb.Tier, keys []uint64) uint64 {
	e.Helper()
	e.seq[name]++
	return e.publish(streams.KVSubject(testPool, name), &pb.KVBatch{
		Pool: testPool, Replica: name, Epoch: epochOf(name), Seq: e.seq[name], EventTimeUs: time.Now().UnixMicro(), BlockTokens: blockTokens,
		Events: []*pb.KVEvent{{Event: &pb.KVEvent_Store{Store: &pb.KVStore{Tier: tier, Keys: keys}}}},
	})
}

func ids(subject, n int) []uint32 {
	out := make([]uint32, n*blockTokens+3)
	for i := range out {
		out[i] = uint32(subject*1_000_003+i) % 50_000
	}
	return out
}

func keysOf(subject, n int) []uint64 {
	return blockkey.Chain(nil, blockkey.Root(testModel, "", ""), ids(subject, n), blockTokens)
}

// running is a follower under test; stop ends it and checks that it ends well.
type running struct {
	*Follower
	env  *env
	stop func()
}

func (e *env) follow(cfg Config) *running {
	e.Helper()
	f := e.launch(cfg)
	select {
	case <-f.Ready():
	case <-time.After(patience):
		e.Fatal("not ready: ", f.State().Reason)
	}
	return f
}

func (e *env) launch(cfg Config) *running {
	e.Helper()
	cfg.Pool = testPool
	f, err := New(cfg, e.nc, e.js)
	if err != nil {
		e.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			e.Errorf("run: %v", err)
		}
	})
	e.Cleanup(stop)
	return &running{f, e, stop}
}

func (f *running) reaches(seq uint64) {
	f.env.Helper()
	streamstest.Until(f.env, func() bool { return f.State().KV.Position >= seq })
}

func (f *running) knows(n int) {
	f.env.Helper()
	streamstest.Until(f.env, func() bool { return len(f.State().Replicas) == n })
}

func (f *running) inFlight(replica string) uint32 { return inFlight(f.State(), replica) }

func inFlight(s router.State, replica string) uint32 {
	for _, m := range s.Replicas {
		if m.Replica == replica {
			return m.InFlight
		}
	}
	return 0
}

var made int

// request is a request for a prompt of its own id.
func request(prompt []uint32) Request {
	made++
	return Request{ID: fmt.Sprintf("req-%d", made), TokenIDs: prompt}
}

func (f *running) decide(q Request) *Decision {
	f.env.Helper()
	d, err := f.Decide(f.env.context(), q)
	if err != nil {
		f.env.Fatal(err)
	}
	return d
}

// recorded reads ROUTE to its end.
func (e *env) recorded() (all []proto.Message) {
	e.Helper()
	head, err := streams.LastSeq(e.context(), e.js, streams.RouteStream)
	if err != nil {
		e.Fatal(err)
	}
	if head == 0 {
		return nil
	}
	end := errors.New("end")
	err = streams.Follow(e.context(), e.js, streams.FollowConfig{Stream: streams.RouteStream}, func(ev streams.Event) error {
		m, err := streams.Decode(ev.Schema, ev.Data)
		if err != nil {
			return err
		}
		if all = append(all, m); ev.Seq >= head {
			return end
		}
		return nil
	})
	if !errors.Is(err, end) {
		e.Fatal(err)
	}
	return all
}

// recomputes fails the test unless a decision follows from its own record.
func (e *env) recomputes(d *pb.Decided) {
	e.Helper()
	again, err := policy.Recompute(d)
	if err != nil {
		e.Fatal(err)
	}
	if !proto.Equal(d, again) {
		e.Errorf("recomputed decision differs\nrecorded   %v\nrecomputed %v", d, again)
	}
}
