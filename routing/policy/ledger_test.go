package policy

import (
	"fmt"
	"math"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	pb "warmpath/schemas/warmpathv1"
)

const second = int64(1e6)

func decided(id string, number uint32, replica string, prompt, cached uint64, atUS int64) *pb.Decided {
	return &pb.Decided{RequestId: id, Attempt: number, Chosen: replica, PromptTokens: prompt, PredictedCachedTokens: cached, DecidedAtUs: atUS}
}

func report(replica string, atUS int64, queued uint64) *pb.LoadReport {
	return &pb.LoadReport{Replica: replica, TimeUs: atUS, QueuedPrefillTokens: &queued, Running: proto.Uint32(3), Waiting: proto.Uint32(2), KvUsed: proto.Float64(0.4)}
}

func queued(l *Ledger, replica string, nowUS int64) uint64 {
	return l.Terms(replica, nowUS).QueuedPrefillTokens
}

func TestLedgerCountsDecisionsAtOnce(t *testing.T) {
	l := NewLedger(LedgerConfig{DispatchGrace: 50 * time.Millisecond})
	if got := l.Terms("a", 0); !proto.Equal(got, &pb.LoadTerms{}) {
		t.Errorf("unknown replica: %v", got)
	}
	for range 2 { // the second time changes nothing
		l.ApplyDecided(decided("1", 0, "a", 1000, 200, second), second)
		l.ApplyDecided(decided("2", 0, "a", 500, 0, second), second)
		l.ApplyDecided(decided("3", 0, "b", 500, 0, second), second)
	}
	if terms := l.Terms("a", second); terms.QueuedPrefillTokens != 1300 || terms.InFlight != 2 || terms.ReportAgeUs != nil {
		t.Errorf("without a report: %v", terms)
	}
	// A report that has seen both, then a decision it has not.
	l.ApplyReport(report("a", second+60_000, 700), second+60_000)
	l.ApplyDecided(decided("4", 0, "a", 100, 0, second+61_000), second+61_000)
	terms := l.Terms("a", second+160_000)
	want := &pb.LoadTerms{QueuedPrefillTokens: 800, InFlight: 3, Running: 3, Waiting: 2, KvUsed: 0.4, ReportAgeUs: proto.Int64(100_000)}
	if !proto.Equal(terms, want) {
		t.Errorf("with a report: %v, want %v", terms, want)
	}
	// Within the grace the engine may not have had the request.
	l.ApplyReport(report("a", second+111_000, 0), second+111_000)
	if got := queued(l, "a", second+120_000); got != 0 {
		t.Errorf("all seen: %d", got)
	}
	l.ApplyReport(report("a", second+110_999, 5000), second+111_000)
	if got := queued(l, "a", second+120_000); got != 0 {
		t.Errorf("an older report was taken: %d", got)
	}
	l.ApplyDecided(decided("5", 0, "a", 70, 0, second+100_000), second+100_000)
	if got := queued(l, "a", second+120_000); got != 70 {
		t.Errorf("decided within the grace of the report: %d", got)
	}
}

func TestLedgerStaleAndPartialReports(t *testing.T) {
	l := NewLedger(LedgerConfig{ReportMaxAge: time.Second})
	l.ApplyDecided(decided("1", 0, "a", 1000, 0, second), second)
	l.ApplyReport(report("a", 2*second, 5000), 2*second)
	if terms := l.Terms("a", 3*second); terms.QueuedPrefillTokens != 5000 || terms.Running != 3 {
		t.Errorf("as old as may be: %v", terms)
	}
	if terms := l.Terms("a", 4*second); terms.QueuedPrefillTokens != 1000 || terms.Running != 0 || terms.KvUsed != 0 || *terms.ReportAgeUs != 2*second {
		t.Errorf("stale: %v, want what is in flight and the age", terms)
	}
	l.ApplyReport(report("a", 5*second, 300), 5*second)
	if got := queued(l, "a", 60*second); got != 300 {
		t.Errorf("stale: %d; of what the report had seen 300 waited, and more cannot be left", got)
	}
	l.ApplyDecided(decided("2", 0, "a", 50, 0, 59*second), 59*second)
	if got := queued(l, "a", 60*second); got != 350 {
		t.Errorf("stale, and one since: %d", got)
	}
	l.ApplyReport(&pb.LoadReport{Replica: "a", TimeUs: 61 * second, Waiting: proto.Uint32(1)}, 61*second)
	if got := queued(l, "a", 61*second); got != 525 {
		t.Errorf("one of two waits: %d, want their mean", got)
	}
	l.ApplyReport(&pb.LoadReport{Replica: "a", TimeUs: 62 * second}, 62*second)
	if got := queued(l, "a", 62*second); got != 1050 {
		t.Errorf("a report that says nothing: %d", got)
	}
	// A clock that was far ahead does not silence the replica for ever.
	l.ApplyReport(report("a", 1e6*second, 9), 62*second)
	l.ApplyReport(report("a", 63*second, 7), 63*second)
	if got := queued(l, "a", 63*second); got != 7 {
		t.Errorf("after a report from the future: %d", got)
	}
}

func TestLedgerOutcomes(t *testing.T) {
	l := NewLedger(LedgerConfig{Lease: 10 * time.Second})
	l.ApplyDecided(decided("1", 0, "a", 100, 0, 0), 0)
	move := &pb.Moved{RequestId: "1", Attempt: 0, From: "a"}
	l.ApplyMoved(move)
	l.ApplyDecided(decided("1", 1, "b", 100, 0, 0), 0)
	l.ApplyMoved(move)
	if a, b := l.Terms("a", 0).InFlight, l.Terms("b", 0).InFlight; a != 0 || b != 1 {
		t.Errorf("moved: %d on a, %d on b", a, b)
	}
	end := &pb.Finished{RequestId: "1", Attempt: 1, Replica: "b", Status: pb.Status_STATUS_OK}
	l.ApplyFinished(end)
	l.ApplyFinished(end)
	l.ApplyDecided(decided("1", 1, "b", 100, 0, 0), 0) // comes late, by another way
	if b := l.Terms("b", 0).InFlight; b != 0 {
		t.Errorf("finished: %d on b", b)
	}
	l.ApplyFinished(&pb.Finished{RequestId: "2", Replica: "a"})
	l.ApplyDecided(decided("2", 0, "a", 100, 0, 0), 0)
	if a := l.Terms("a", 0).InFlight; a != 0 {
		t.Errorf("the outcome came before the decision: %d on a", a)
	}
	// An attempt whose move was never heard of ends with its request.
	l.ApplyDecided(decided("3", 0, "a", 100, 0, 0), 0)
	l.ApplyDecided(decided("3", 1, "b", 100, 0, 0), 0)
	l.ApplyFinished(&pb.Finished{RequestId: "3", Attempt: 1, Replica: "b"})
	if a, b := l.Terms("a", 0).InFlight, l.Terms("b", 0).InFlight; a != 0 || b != 0 {
		t.Errorf("finished after an unheard move: %d on a, %d on b", a, b)
	}
	// Leases end what never ends.
	l.ApplyDecided(decided("4", 0, "a", 100, 0, 0), 0)
	l.ApplyDecided(decided("5", 0, "a", 100, 0, 0), 5*second)
	if n := l.Expire(10*second - 1); n != 0 {
		t.Errorf("%d leases ended early", n)
	}
	if n := l.Expire(10 * second); n != 1 || l.Terms("a", 0).InFlight != 1 {
		t.Errorf("%d leases ended, %d left", n, l.Terms("a", 0).InFlight)
	}
	l.Forget("a")
	if n := l.Expire(100 * second); n != 0 || len(l.inFlight) != 0 || len(l.leases) != l.head {
		t.Errorf("after forget: %d leases ended, %d in flight, %d leases", n, len(l.inFlight), len(l.leases)-l.head)
	}
}

func TestLedgerRemembersABoundedPast(t *testing.T) {
	l := NewLedger(LedgerConfig{})
	for i := range maxFinished + 10 {
		l.ApplyFinished(&pb.Finished{RequestId: fmt.Sprint(i)})
	}
	if len(l.finished) != maxFinished || len(l.ring) != maxFinished {
		t.Errorf("%d and %d ended requests are remembered", len(l.finished), len(l.ring))
	}
}

// The ledger against a plain count, over any order of events and repeats.
func TestLedgerIsACount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := NewLedger(LedgerConfig{Lease: 20 * time.Second})
		type one struct {
			replica  string
			uncached uint64
			leaseUS  int64
		}
		plain, ended := map[attempt]one{}, map[string]bool{}
		for step := range rapid.IntRange(1, 80).Draw(t, "steps") {
			now := int64(step) * second
			id := attempt{fmt.Sprint(rapid.IntRange(0, 6).Draw(t, "request")), uint32(rapid.IntRange(0, 2).Draw(t, "attempt"))}
			replica := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "replica")
			switch rapid.IntRange(0, 5).Draw(t, "event") {
			case 0, 1, 2:
				tokens := rapid.Uint64Range(1, 1000).Draw(t, "tokens")
				l.ApplyDecided(decided(id.request, id.number, replica, tokens, 0, now), now)
				if _, exists := plain[id]; !exists && !ended[id.request] {
					plain[id] = one{replica, tokens, now + 20*second}
				}
			case 3:
				l.ApplyMoved(&pb.Moved{RequestId: id.request, Attempt: id.number})
				delete(plain, id)
			case 4:
				l.ApplyFinished(&pb.Finished{RequestId: id.request, Attempt: id.number, Replica: replica})
				if !ended[id.request] {
					for n := range id.number + 1 {
						delete(plain, attempt{id.request, n})
					}
				}
				ended[id.request] = true
			case 5:
				gone := 0
				for id, f := range plain {
					if f.leaseUS <= now {
						delete(plain, id)
						gone++
					}
				}
				if n := l.Expire(now); n != gone {
					t.Fatalf("step %d: %d leases ended, want %d", step, n, gone)
				}
			}
			for _, name := range []string{"a", "b"} {
				want := &pb.LoadTerms{}
				for _, f := range plain {
					if f.replica == name {
						want.InFlight++
						want.QueuedPrefillTokens += f.uncached
					}
				}
				if got := l.Terms(name, now); !proto.Equal(got, want) {
					t.Fatalf("step %d, %s: %v, want %v", step, name, got, want)
				}
			}
		}
	})
}

// answer lets a replica prefill a prompt at a rate.
func answer(l *Ledger, id, replica string, queued, prompt, cached uint64, rate float64) {
	d := decided(id, 0, replica, prompt, 0, 0)
	d.Candidates = []*pb.Candidate{{Replica: replica, Load: &pb.LoadTerms{QueuedPrefillTokens: queued}}}
	l.ApplyDecided(d, 0)
	ttft := uint64(1e6 * float64(queued+prompt-cached) / rate)
	l.ApplyFinished(&pb.Finished{RequestId: id, Replica: replica, Status: pb.Status_STATUS_OK, PromptTokens: &prompt, CachedTokens: &cached, TtftUs: &ttft})
}

func TestPrefillRates(t *testing.T) {
	near := func(got, want float64) bool { return math.Abs(got-want) < 0.05*want }
	l := NewLedger(LedgerConfig{DefaultPrefillRate: 5000})
	if got := l.PrefillRate("a"); got != 5000 {
		t.Errorf("nothing known: %v", got)
	}
	l.SetPrefillRateHint("b", 20_000)
	l.SetPrefillRateHint("b", math.NaN())
	l.SetPrefillRateHint("b", math.Inf(1))
	l.SetPrefillRateHint("b", -1)
	if got := l.PrefillRate("b"); got != 20_000 {
		t.Errorf("hinted: %v", got)
	}
	for i := range 400 {
		answer(l, fmt.Sprint("a", i), "a", 2000, 6000, 1000, 10_000)
		answer(l, fmt.Sprint("b", i), "b", 0, 20_000, 0, 40_000)
		answer(l, fmt.Sprint("s", i), "a", 0, 400, 0, 100) // too short to tell
	}
	if a, b := l.PrefillRate("a"), l.PrefillRate("b"); !near(a, 10_000) || !near(b, 40_000) {
		t.Errorf("learned %v and %v, want 10000 and 40000", a, b)
	}
	// A replica of which nothing is known is as much faster than hinted as its pool.
	l.SetPrefillRateHint("c", 8000)
	if got := l.PrefillRate("c"); !near(got, 16_000) {
		t.Errorf("of the same pool: %v", got)
	}
	// A few slow outcomes do not mark a replica.
	answer(l, "slow", "c", 0, 10_000, 0, 5000)
	if got := l.PrefillRate("c"); got < 12_000 {
		t.Errorf("after one slow outcome: %v", got)
	}
	// A replica that became slow is learned.
	for i := range 300 {
		answer(l, fmt.Sprint("c", i), "c", 0, 10_000, 0, 5000)
	}
	if got := l.PrefillRate("c"); got > 7000 {
		t.Errorf("after 300 slow outcomes: %v", got)
	}
}

func TestPrefillRateOfNoise(t *testing.T) {
	l := NewLedger(LedgerConfig{DefaultPrefillRate: 10_000})
	names := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	for i := range 2000 {
		noise := 1 + 0.3*(2*unit(draw(uint64(i), 1))-1)
		answer(l, fmt.Sprint(i), names[draw(uint64(i), 2)%8], 0, 8000, 0, 10_000*noise)
	}
	least, most := math.Inf(1), 0.0
	for _, name := range names {
		least, most = min(least, l.PrefillRate(name)), max(most, l.PrefillRate(name))
	}
	if most/least > 1.1 {
		t.Errorf("rates of equal replicas from %v to %v: ties at a tenth would not be ties", least, most)
	}
}

func BenchmarkLedger(b *testing.B) {
	l := NewLedger(LedgerConfig{})
	names := make([]string, 64)
	for i := range names {
		names[i] = fmt.Sprint("r", i)
		for k := range 30 {
			l.ApplyDecided(decided(fmt.Sprint(i, "/", k), 0, names[i], 4000, 0, 0), 0)
		}
		l.ApplyReport(report(names[i], 0, 100), 0)
	}
	b.ReportAllocs()
	for b.Loop() { // the load figures of one decision: 64 replicas
		for _, name := range names {
			l.Terms(name, second)
		}
	}
}
