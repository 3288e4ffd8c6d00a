package gateway

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"warmpath/routing/policy"
	"warmpath/routing/prefix"
	"warmpath/routing/replica"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
)

const (
	// deadAfter is three heartbeats of five seconds, the time that FLEET itself
	// keeps an entry.
	deadAfter = 15 * time.Second
	// forgetAfter is how long a replica that left is tried when no other is live:
	// longer than an outage of JetStream should take.
	forgetAfter = 10 * time.Minute
	// predictionTTL is how long a decision counts as about to create its blocks
	// here. Only fallbacks read it, so it is short: memory is worth more.
	predictionTTL = 30 * time.Second
	// maxPredictedBlocks bounds what one decision adds to the predictions.
	maxPredictedBlocks = 512
)

// Why a candidate of a fallback cannot be chosen.
const (
	ineligibleExcluded = "excluded"
	ineligibleDraining = "draining"
	ineligibleModel    = "model"
	ineligibleAddress  = "address"
)

// view is what this gateway knows of its pool without the router: the fleet,
// and the load that it and the other gateways put on it. Safe for concurrent use.
type view struct {
	mu          sync.Mutex
	fleet       *replica.Fleet
	ledger      *policy.Ledger
	predictions *prefix.Predictions
	none        *prefix.Index // holds nothing: it only joins keys with predictions
	now         func() int64
	// gone is when a replica left FLEET. It is kept for a while as not live.
	gone map[string]int64
	// frozenUS is when NATS was lost, or 0: heartbeats cannot arrive without it,
	// and their absence says nothing.
	frozenUS int64
}

// shape is what the replicas of a pool have in common.
type shape struct {
	model       string
	blockTokens uint32
}

func newView(now func() int64) *view {
	return &view{
		fleet:       replica.NewFleet(deadAfter),
		gone:        map[string]int64{},
		ledger:      policy.NewLedger(policy.LedgerConfig{}),
		predictions: prefix.NewPredictions(predictionTTL),
		none:        prefix.New(),
		now:         now,
	}
}

// changed takes a fleet entry, or with a nil one that the replica is gone. A
// heartbeat counts from its arrival: the clocks of machines differ.
func (v *view) changed(entry *pb.FleetEntry, name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if entry == nil {
		v.left(name)
		return
	}
	if _, gone := v.gone[entry.Replica]; gone || v.fleet.Get(entry.Replica) == nil {
		slog.Info("a replica joined the fleet", "replica", entry.Replica, "model", entry.Model, "block_tokens", entry.BlockTokens)
	}
	entry = proto.Clone(entry).(*pb.FleetEntry)
	entry.HeartbeatUs = v.now()
	v.fleet.Put(entry)
	delete(v.gone, entry.Replica)
	if rate := entry.PrefillTokensPerSecond; rate > 0 {
		v.ledger.SetPrefillRateHint(entry.Replica, rate)
	}
}

// left takes a replica that was deleted or whose entry expired. While NATS is
// away entries expire because nothing renews them, which says nothing.
func (v *view) left(name string) {
	entry := v.fleet.Get(name)
	if entry == nil || v.frozenUS != 0 {
		return
	}
	entry = proto.Clone(entry).(*pb.FleetEntry)
	entry.HeartbeatUs = 0
	v.fleet.Put(entry)
	v.gone[name] = v.now()
	slog.Info("a replica left the fleet", "replica", name)
}

// setConnected says whether NATS is reachable. After a loss, heartbeats get time
// to arrive again before their absence counts.
func (v *view) setConnected(connected bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch now := v.now(); {
	case !connected && v.frozenUS == 0:
		v.frozenUS = now
	case connected && v.frozenUS != 0:
		for _, e := range v.fleet.Live(v.frozenUS) {
			fresh := proto.Clone(e).(*pb.FleetEntry)
			fresh.HeartbeatUs = now
			v.fleet.Put(fresh)
		}
		v.frozenUS = 0
	}
}

// live returns the replicas with a recent heartbeat, sorted by id.
func (v *view) live() []*pb.FleetEntry {
	now := v.now()
	if v.frozenUS != 0 {
		now = v.frozenUS
	}
	return v.fleet.Live(now)
}

// Live is live for callers that do not hold the lock.
func (v *view) Live() []*pb.FleetEntry {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.live()
}

// shape returns the model and block size that most live replicas have, and
// false when there is no live replica.
func (v *view) shape() (shape, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	counts := map[shape]int{}
	var best shape
	for _, e := range v.reachable() {
		s := shape{e.Model, e.BlockTokens}
		counts[s]++
		if counts[s] > counts[best] { // the first in replica order wins a draw
			best = s
		}
	}
	return best, len(counts) > 0
}

// reachable returns the live replicas or, when every heartbeat has stopped, all
// known ones: then the messenger is dead rather than the whole fleet, and a dead
// engine refuses the connection anyway.
func (v *view) reachable() []*pb.FleetEntry {
	if live := v.live(); len(live) > 0 {
		return live
	}
	return v.fleet.All()
}

// entry is what FLEET says of a replica, or nil. It must not be changed.
func (v *view) entry(name string) *pb.FleetEntry {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.fleet.Get(name)
}

// hasLoRA reports whether some replica lists an adapter.
func (v *view) hasLoRA(name string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.ContainsFunc(v.reachable(), func(e *pb.FleetEntry) bool { return slices.Contains(e.Loras, name) })
}

// unfit returns the replicas that are not to be tried for a request: those that
// others name, and those without its adapter where some replica lists it. When
// nothing would be left, nobody is unfit beyond what failed this very request.
func (v *view) unfit(lora string, failed, skipped []string) []string {
	if lora == "" && len(skipped) == 0 {
		return failed
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	fleet := v.reachable()
	listed := lora != "" && slices.ContainsFunc(fleet, func(e *pb.FleetEntry) bool { return slices.Contains(e.Loras, lora) })
	out := slices.Clone(failed)
	left := 0
	for _, e := range fleet {
		switch {
		case slices.Contains(failed, e.Replica):
		case slices.Contains(skipped, e.Replica), listed && !slices.Contains(e.Loras, lora):
			out = append(out, e.Replica)
		case !e.Draining && e.Address != "":
			left++
		}
	}
	if left == 0 {
		return failed
	}
	return out
}

// decided, moved and finished fold events of this gateway and of the others.
func (v *view) decided(d *pb.Decided, nowUS int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.ledger.ApplyDecided(d, nowUS)
	keys := d.Keys[:min(len(d.Keys), maxPredictedBlocks)]
	v.predictions.Add(streams.RouteID(d.RequestId, d.Attempt, ""), d.Chosen, keys, nowUS)
}

func (v *view) moved(m *pb.Moved) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.ledger.ApplyMoved(m)
	v.predictions.Drop(streams.RouteID(m.RequestId, m.Attempt, ""))
}

func (v *view) finished(f *pb.Finished) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.ledger.ApplyFinished(f)
	if f.Status != pb.Status_STATUS_OK && f.TtftUs == nil {
		// It ended before its prompt was computed, as far as anyone knows.
		v.predictions.Drop(streams.RouteID(f.RequestId, f.Attempt, ""))
	}
}

func (v *view) reported(r *pb.LoadReport) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.ledger.ApplyReport(r, v.now())
}

func (v *view) expire() {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := v.now()
	v.ledger.Expire(now)
	v.predictions.Expire(now)
	if v.frozenUS != 0 {
		return
	}
	for name, since := range v.gone {
		if now-since > forgetAfter.Microseconds() {
			v.fleet.Delete(name)
			v.ledger.Forget(name)
			delete(v.gone, name)
		}
	}
}

// candidates fills in d.Candidates for a decision of the gateway itself: what
// is live, its load, and what recent decisions are about to create there.
func (v *view) candidates(d *pb.Decided, exclude []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := v.now()
	matches, _ := v.none.Match(nil, d.Keys, v.predictions)
	for _, e := range v.reachable() {
		c := &pb.Candidate{
			Replica:                e.Replica,
			Epoch:                  e.Epoch,
			Load:                   v.ledger.Terms(e.Replica, now),
			PrefillTokensPerSecond: v.ledger.PrefillRate(e.Replica),
		}
		switch {
		case slices.Contains(exclude, e.Replica):
			c.Ineligible = ineligibleExcluded
		case e.Draining:
			c.Ineligible = ineligibleDraining
		case e.Model != d.Model:
			c.Ineligible = ineligibleModel
		case e.Address == "":
			c.Ineligible = ineligibleAddress
		}
		for _, m := range matches {
			if m.Replica == e.Replica {
				c.PredictedBlocks = uint32(m.Predicted)
			}
		}
		d.Candidates = append(d.Candidates, c)
	}
}

// inFlight is how many requests all gateways together have on a replica.
func (v *view) inFlight(name string) uint32 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.ledger.Terms(name, v.now()).GetInFlight()
}
