package replica

import (
	"testing"
	"time"

	pb "warmpath/schemas/warmpathv1"
)

func names(entries []*pb.FleetEntry) string {
	s := ""
	for _, e := range entries {
		s += e.Replica + " "
	}
	return s
}

func TestFleet(t *testing.T) {
	f := NewFleet(10 * time.Second)
	for _, e := range []*pb.FleetEntry{
		{Replica: "c", HeartbeatUs: 100e6},
		{Replica: "a", HeartbeatUs: 95e6, Draining: true},
		{Replica: "b", HeartbeatUs: 80e6},
		{HeartbeatUs: 100e6},
		nil,
	} {
		f.Put(e)
	}
	if got := names(f.Live(104e6)); got != "a c " {
		t.Errorf("live at 104 s: %q, want a and c: b's heartbeat is 24 s old", got)
	}
	if got := names(f.Live(105e6)); got != "a c " {
		t.Errorf("live at 105 s: %q: a heartbeat of exactly the maximum age still counts", got)
	}
	if got := names(f.Live(105e6 + 1)); got != "c " {
		t.Errorf("live just after 105 s: %q, want c", got)
	}
	if got := names(f.All()); got != "a b c " {
		t.Errorf("all: %q", got)
	}
	if e := f.Get("b"); e == nil || e.HeartbeatUs != 80e6 {
		t.Errorf("get b: %v, want its last entry although it is not live", e)
	}

	f.Put(&pb.FleetEntry{Replica: "b", HeartbeatUs: 104e6, Address: "new"})
	if got := names(f.Live(104e6)); got != "a b c " {
		t.Errorf("live after b's heartbeat: %q", got)
	}
	f.Put(&pb.FleetEntry{Replica: "b", HeartbeatUs: 103e6, Address: "newest"})
	if e := f.Get("b"); e.Address != "newest" {
		t.Errorf("get b: %v, want the entry put last although its clock is behind", e)
	}
	f.Delete("c")
	if got := names(f.Live(104e6)); got != "a b " || f.Get("c") != nil {
		t.Errorf("after delete of c: %q, %v", got, f.Get("c"))
	}
	f.Delete("unknown")
}
