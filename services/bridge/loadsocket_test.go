package bridge

import (
	"testing"

	"warmpath/services/bridge/discovery"
)

func TestLoadSocket(t *testing.T) {
	said := discovery.Engine{KVEvents: discovery.KVEvents{LoadEndpoint: "tcp://127.0.0.1:5559", LoadTopic: "stats"}}
	for given, want := range map[string][2]string{
		"":                     {"tcp://127.0.0.1:5559", "stats"},
		EventsAuto:             {"tcp://127.0.0.1:5559", "stats"},
		eventsOff:              {"", ""},
		"tcp://127.0.0.1:6000": {"tcp://127.0.0.1:6000", loadTopic},
	} {
		e := &engine{cfg: Engine{LoadSocket: given}, facts: said}
		if endpoint, topic := e.loadSocket(); endpoint != want[0] || topic != want[1] {
			t.Errorf("%q: %q under %q, want %q", given, endpoint, topic, want)
		}
	}
}
