package streams_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"warmpath/streams"
	"warmpath/streams/natsserver"
	"warmpath/streams/streamstest"
)

func TestTopologyApplyTwice(t *testing.T) {
	everyDeployment(t, func(t *testing.T, _ []*natsserver.Server, js jetstream.JetStream, replicas int) {
		ctx := testContext(t)
		topology := streams.Topology{Pools: []string{"chat", "code"}, Replicas: replicas}
		differences, err := topology.Check(ctx, js)
		if err != nil {
			t.Fatal(err)
		}
		if len(differences) != 6 {
			t.Errorf("differences before are %v", differences)
		}
		streamstest.Apply(t, js, replicas, "chat", "code")
		for range 2 {
			changes, err := topology.Apply(ctx, js)
			if err != nil {
				t.Fatal(err)
			}
			if len(changes) != 0 {
				t.Errorf("applied again: %v", changes)
			}
		}
		differences, err = topology.Check(ctx, js)
		if err != nil || len(differences) != 0 {
			t.Errorf("differences after are %v, %v", differences, err)
		}
		// Buckets are what NATS takes for buckets.
		if _, err := js.KeyValue(ctx, streams.FleetBucket); err != nil {
			t.Error(err)
		}
		store, err := js.ObjectStore(ctx, streams.IndexBucket)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := store.PutString(ctx, "chat/1", "snapshot"); err != nil {
			t.Error(err)
		}
		if text, err := store.GetString(ctx, "chat/1"); err != nil || text != "snapshot" {
			t.Errorf("got %q, %v", text, err)
		}
	})
}

func TestTopologyGrowsAndKeepsWhatIsTheOperators(t *testing.T) {
	server := streamstest.Start(t)
	_, js := streamstest.Connect(t, server.URL(""))
	streamstest.Apply(t, js, 1, "chat")
	ctx := testContext(t)
	stream, err := js.Stream(ctx, "KV_chat")
	if err != nil {
		t.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	cfg.Metadata = map[string]string{"owner": "team"}
	if _, err := js.UpdateStream(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	bigger := streams.Topology{Pools: []string{"chat"}, KVMaxBytes: 8 << 30, KVMaxAge: 96 * time.Hour}
	changes, err := bigger.Apply(ctx, js)
	if err != nil {
		t.Fatal(err)
	}
	want := []streams.Change{
		{Stream: "KV_chat", Field: "max_age", Have: "48h0m0s", Want: "96h0m0s"},
		{Stream: "KV_chat", Field: "max_bytes", Have: "4294967296", Want: "8589934592"},
	}
	if len(changes) != 2 || changes[0] != want[0] || changes[1] != want[1] {
		t.Errorf("changes are %v, want %v", changes, want)
	}
	info, err := stream.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if info.Config.Metadata["owner"] != "team" || info.Config.MaxBytes != 8<<30 {
		t.Errorf("config is %+v", info.Config)
	}
	// What is held is small, so smaller limits lose nothing.
	if _, err := (streams.Topology{Pools: []string{"chat"}}).Apply(ctx, js); err != nil {
		t.Error(err)
	}
}

func TestTopologyRefusesLoss(t *testing.T) {
	want := streams.Topology{Pools: []string{"chat"}}.Streams()
	for _, test := range []struct {
		name   string
		change func(*jetstream.StreamConfig)
		hint   string
	}{
		{"subject", func(c *jetstream.StreamConfig) { c.Subjects = append(c.Subjects, "other.>") }, "other.> would no longer be stored"},
		{"storage", func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage }, "cannot change this"},
		{"retention", func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy }, "cannot change this"},
		{"deny purge", func(c *jetstream.StreamConfig) { c.DenyPurge = true }, "keep it denied"},
		{"deny delete", func(c *jetstream.StreamConfig) { c.DenyDelete = true }, "keep it denied"},
	} {
		t.Run(test.name, func(t *testing.T) {
			// A server of its own: one that has just deleted a stream may not yet be able
			// to make it again.
			_, js := streamstest.Connect(t, streamstest.Start(t).URL(""))
			ctx := testContext(t)
			cfg := want[0]
			test.change(&cfg)
			if _, err := js.CreateStream(ctx, cfg); err != nil {
				t.Fatal(err)
			}
			wantLoss(t, js, streams.Topology{Pools: []string{"chat"}}, test.hint)
			// Nothing was changed, also not what could have been.
			if _, err := js.Stream(ctx, streams.RouteStream); !errors.Is(err, jetstream.ErrStreamNotFound) {
				t.Errorf("ROUTE: %v", err)
			}
		})
	}
}

func TestTopologyRefusesToShrinkBelowWhatIsHeld(t *testing.T) {
	server := streamstest.Start(t)
	_, js := streamstest.Connect(t, server.URL(""))
	streamstest.Apply(t, js, 1, "chat")
	ctx := testContext(t)
	p := streams.NewPublisher(js, streams.PublisherConfig{})
	for i := range 3 {
		m := message(streams.KVSubject("chat", "e0"), i)
		m.Data = make([]byte, 1<<20)
		if err := p.Publish(ctx, m); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	wantLoss(t, js, streams.Topology{Pools: []string{"chat"}, KVMaxBytes: 2 << 20}, "it holds 31")
	streamstest.Until(t, func() bool {
		stream, err := js.Stream(ctx, "KV_chat")
		return err == nil && time.Since(stream.CachedInfo().State.FirstTime) > time.Second
	})
	wantLoss(t, js, streams.Topology{Pools: []string{"chat"}, KVMaxAge: time.Second}, "old and would go")
	if ids := contents(t, js, "KV_chat"); len(ids) != 3 {
		t.Errorf("%d messages are left", len(ids))
	}
}

func wantLoss(t *testing.T, js jetstream.JetStream, topology streams.Topology, hint string) {
	t.Helper()
	changes, err := topology.Apply(testContext(t), js)
	var loss *streams.LossError
	if !errors.As(err, &loss) || !strings.Contains(err.Error(), hint) {
		t.Errorf("got %v, want a refusal with %q", err, hint)
	}
	if len(changes) != 0 {
		t.Errorf("changed %v", changes)
	}
}

func TestTopologyRefusesFewerCopies(t *testing.T) {
	servers := streamstest.Cluster(t, 3)
	_, js := streamstest.Connect(t, servers[0].URL(""))
	streamstest.Apply(t, js, 3, "chat")
	wantLoss(t, js, streams.Topology{Pools: []string{"chat"}}, "--replicas 3")
}

func TestTopologyValidate(t *testing.T) {
	for _, topology := range []streams.Topology{
		{},
		{Pools: []string{"a.b"}},
		{Pools: []string{"FLEET"}},
		{Pools: []string{"a", "a"}},
		{Pools: []string{"a"}, Replicas: 2},
		{Pools: []string{"a"}, KVMaxAge: time.Millisecond},
		{Pools: []string{"a"}, RouteMaxBytes: 5},
	} {
		if topology.Validate() == nil {
			t.Errorf("%+v is taken as valid", topology)
		}
	}
}
