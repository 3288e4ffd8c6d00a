package bridge

import (
	"testing"

	"warmpath/services/bridge/feed"
	"warmpath/services/bridge/kvevents"
	"warmpath/services/bridge/wireengine"
	"warmpath/streams"
	"warmpath/streams/streamstest"
)

// A bridge with the rights of its own role and replicas, and no more, does all
// that a bridge does.
func TestLeastPrivilege(t *testing.T) {
	role, err := streams.BridgeRole("demo", "e0")
	if err != nil {
		t.Fatal(err)
	}
	server := streamstest.StartRoles(t, append(streams.Roles([]string{"demo"}), role))
	nc, js := streamstest.Connect(t, server.URL(streams.RoleOperator))
	f := newFixtureAt(t, nc, js)
	_, f.js = streamstest.Connect(t, server.URL(role.User))
	engines, face, url := f.engine(wireengine.Config{
		Cache: wireengine.CacheConfig{Generation: kvevents.VLLMMap, Seed: 13}, ReplayEndpoint: "tcp://127.0.0.1:0",
	}, wireengine.APIConfig{Kind: wireengine.VLLM}, 1)
	face.SetFigures(0, wireengine.Figures{Running: 3})
	member := Engine{Replica: "e0", URL: url, KV: engines[0].Endpoint(), KVReplay: engines[0].ReplayEndpoint()}

	first, stop := f.run(nil, member)
	churn(engines[0], 30)
	f.same("e0", engines[0], 16)
	streamstest.Until(t, func() bool { return f.loadOf("e0").GetRunning() == 3 && f.entry("e0").GetKvEvents() })
	was := first.State()[0].Epoch
	stop()
	streamstest.Until(t, func() bool { return f.entry("e0") == nil })

	churn(engines[0], 30)
	second, stop := f.run(nil, member)
	defer stop()
	f.same("e0", engines[0], 16)
	if now := second.State()[0].Epoch; now != was {
		t.Errorf("epoch %v follows %v: the memory was not read from the stream", now, was)
	}
	streamstest.Until(t, func() bool { return f.entry("e0") != nil })
}

// The metrics can be read at any time, have no series twice, only grow where they
// count, and name every reason before the first time.
func TestMetricsWhileItWorks(t *testing.T) {
	f := newFixture(t)
	engines, _, url := f.engine(wireengine.Config{
		Cache: wireengine.CacheConfig{Generation: kvevents.VLLMMap, Seed: 14}, ReplayEndpoint: "tcp://127.0.0.1:0",
	}, wireengine.APIConfig{Kind: wireengine.VLLM}, 2)
	b := f.bridge(nil, Engine{Replica: "e0", URL: url, KV: engines[0].Endpoint(), KVReplay: engines[0].ReplayEndpoint()})
	was := map[string]float64{}
	for range 5 {
		churn(engines[0], 20)
		churn(engines[1], 20)
		for series, v := range counters(t, b) {
			if v < was[series] {
				t.Errorf("%s went from %v to %v", series, was[series], v)
			}
			was[series] = v
		}
	}
	f.same("e0.dp0", engines[0], 16)
	f.same("e0.dp1", engines[1], 16)
	all := counters(t, b)
	for _, series := range []string{`warmpath_bridge_batches_total e0.dp0`, `warmpath_bridge_published_batches_total e0.dp1`} {
		if all[series] == 0 {
			t.Errorf("%s is 0", series)
		}
	}
	if _, ok := all["warmpath_bridge_history_lost_total "+feed.LostGap+" e0.dp0"]; !ok {
		t.Error("a loss that has not happened yet is not counted as 0")
	}
}

// counters is the counters by name and label values.
func counters(t *testing.T, b *Bridge) map[string]float64 {
	t.Helper()
	families, err := b.reg.Gather() // fails when a series is there twice
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := family.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			if c := m.GetCounter(); c != nil {
				out[name] = c.GetValue()
			}
		}
	}
	return out
}
