package policy

import (
	"time"

	pb "warmpath/schemas/warmpathv1"
)

const (
	// defaultLease is longer than nearly any answer takes: a decision whose
	// outcome never comes weighs on its replica no longer than this.
	defaultLease = 10 * time.Minute
	// defaultReportMaxAge is a few of the intervals at which an idle engine's load
	// is still reported.
	defaultReportMaxAge = 10 * time.Second
	// defaultPrefillRate is the estimate's default_prefill_rate.
	defaultPrefillRate = 8000
	// maxFinished bounds the memory of what ended: enough that a decision which
	// comes after its outcome, by another way, is recognised.
	maxFinished = 1 << 16
	// maxAttempts bounds how many earlier attempts an outcome ends.
	maxAttempts = 16
)

// LedgerConfig configures a Ledger. Its zero value works.
type LedgerConfig struct {
	// Lease is how long a decision without an outcome counts as in flight.
	// Default 10 minutes.
	Lease time.Duration
	// ReportMaxAge is how old a load report may be and still be believed as it
	// stands. Default 10 seconds.
	ReportMaxAge time.Duration
	// DispatchGrace is how long after a decision the replica may not have its
	// request yet, so that a report does not count it. 0 is none.
	DispatchGrace time.Duration
	// DefaultPrefillRate is the tokens a second to assume of a replica of which
	// nothing is known. Default 8000.
	DefaultPrefillRate float64
}

// Ledger counts what decisions have put on each replica, at once and not only
// when a report comes, and learns how fast each replica prefills. It is pure
// (the caller gives the time, wall-clock Unix microseconds) and not safe for
// concurrent use. Applying an event again changes nothing.
type Ledger struct {
	cfg      LedgerConfig
	replicas map[string]*account
	inFlight map[attempt]*flight
	// leases is every flight in the order of its lease, ended ones included; head
	// is the first that is still looked at.
	leases []*flight
	head   int
	// finished remembers requests that ended, oldest first in ring.
	finished map[string]struct{}
	ring     []string
	oldest   int
	rates    rates
}

// attempt is one try of a request.
type attempt struct {
	request string
	number  uint32
}

// flight is a decision whose outcome is not known.
type flight struct {
	id        attempt
	replica   *account
	place     int // in the replica's flights; -1 when ended
	decidedUS int64
	leaseUS   int64
	// queued is the prompt tokens that waited when it was decided, prompt the
	// request's own, and uncached those of them not expected in the cache.
	queued, prompt, uncached uint64
}

// account is one replica's load and speed. The last report is kept by its figures:
// every decision reads those of every replica.
type account struct {
	name    string
	flights []*flight
	report  figures
	speed   speed
}

// figures are those of a load report; the zero figures are none.
type figures struct {
	made                    bool
	saysQueued, saysWaiting bool
	running, waiting        uint32
	timeUS                  int64
	queuedPrefillTokens     uint64
	kvUsed                  float64
}

// NewLedger returns an empty ledger.
func NewLedger(cfg LedgerConfig) *Ledger {
	if cfg.Lease <= 0 {
		cfg.Lease = defaultLease
	}
	if cfg.ReportMaxAge <= 0 {
		cfg.ReportMaxAge = defaultReportMaxAge
	}
	if !(cfg.DefaultPrefillRate > 0) {
		cfg.DefaultPrefillRate = defaultPrefillRate
	}
	return &Ledger{
		cfg:      cfg,
		replicas: map[string]*account{},
		inFlight: map[attempt]*flight{},
		finished: map[string]struct{}{},
		rates:    rates{standard: cfg.DefaultPrefillRate},
	}
}

func (l *Ledger) account(replica string) *account {
	a := l.replicas[replica]
	if a == nil {
		a = &account{name: replica}
		l.replicas[replica] = a
	}
	return a
}

// look is a replica's account to read, an empty one where nothing is known.
func (l *Ledger) look(replica string) *account {
	if a := l.replicas[replica]; a != nil {
		return a
	}
	return &account{}
}

// ApplyDecided counts a decision as in flight, until its outcome, its move or
// the end of its lease, which starts at nowUS. One that is in flight already,
// or whose request has ended, changes nothing.
func (l *Ledger) ApplyDecided(d *pb.Decided, nowUS int64) {
	id := attempt{d.RequestId, d.Attempt}
	if _, ended := l.finished[d.RequestId]; ended || l.inFlight[id] != nil || d.Chosen == "" {
		return
	}
	f := &flight{
		id: id, replica: l.account(d.Chosen), decidedUS: d.DecidedAtUs, leaseUS: nowUS + l.cfg.Lease.Microseconds(),
		prompt: d.PromptTokens, uncached: d.PromptTokens - min(d.PromptTokens, d.PredictedCachedTokens),
	}
	for _, c := range d.Candidates {
		if c.Replica == d.Chosen {
			f.queued = c.GetLoad().GetQueuedPrefillTokens()
		}
	}
	f.place = len(f.replica.flights)
	f.replica.flights = append(f.replica.flights, f)
	l.inFlight[id] = f
	l.leases = append(l.leases, f)
}

// ApplyMoved ends an attempt that was given up.
func (l *Ledger) ApplyMoved(m *pb.Moved) {
	l.end(l.inFlight[attempt{m.RequestId, m.Attempt}])
}

// ApplyFinished ends a request with all its attempts, and learns from how long
// its first token took.
func (l *Ledger) ApplyFinished(f *pb.Finished) {
	if _, ended := l.finished[f.RequestId]; ended {
		return
	}
	l.remember(f.RequestId)
	if last := l.inFlight[attempt{f.RequestId, f.Attempt}]; last != nil && last.replica.name == f.Replica {
		l.learn(last, f)
	}
	for n := f.Attempt; ; n-- {
		l.end(l.inFlight[attempt{f.RequestId, n}])
		if n == 0 || f.Attempt-n == maxAttempts {
			return
		}
	}
}

// remember keeps the id of a request that ended, in place of the oldest.
func (l *Ledger) remember(request string) {
	l.finished[request] = struct{}{}
	if len(l.ring) < maxFinished {
		l.ring = append(l.ring, request)
		return
	}
	delete(l.finished, l.ring[l.oldest])
	l.ring[l.oldest] = request
	l.oldest = (l.oldest + 1) % maxFinished
}

// end takes a flight out of its replica's load.
func (l *Ledger) end(f *flight) {
	if f == nil {
		return
	}
	delete(l.inFlight, f.id)
	flights := f.replica.flights
	last := len(flights) - 1
	flights[f.place] = flights[last]
	flights[f.place].place = f.place
	flights[last] = nil
	f.replica.flights = flights[:last]
	f.place = -1
}

// ApplyReport takes a replica's load as it was at the report's time. A report
// older than the last one is ignored. nowUS bounds reports from a clock that is
// ahead: no report is newer than now.
func (l *Ledger) ApplyReport(r *pb.LoadReport, nowUS int64) {
	a := l.account(r.Replica)
	if a.report.made && r.TimeUs < a.report.timeUS && a.report.timeUS <= nowUS {
		return
	}
	a.report = figures{
		made: true, timeUS: r.TimeUs,
		saysQueued: r.QueuedPrefillTokens != nil, queuedPrefillTokens: r.GetQueuedPrefillTokens(),
		saysWaiting: r.Waiting != nil, waiting: r.GetWaiting(), running: r.GetRunning(), kvUsed: r.GetKvUsed(),
	}
}

// Expire ends the flights whose lease is over and returns how many.
func (l *Ledger) Expire(nowUS int64) int {
	n := 0
	for ; l.head < len(l.leases); l.head++ {
		f := l.leases[l.head]
		if f.place >= 0 {
			if f.leaseUS > nowUS {
				break
			}
			l.end(f)
			n++
		}
		l.leases[l.head] = nil
	}
	if l.head > len(l.leases)/2 {
		l.leases = append(l.leases[:0:0], l.leases[l.head:]...)
		l.head = 0
	}
	return n
}

// Forget drops what is known of a replica that left, its flights included.
func (l *Ledger) Forget(replica string) {
	if a := l.replicas[replica]; a != nil {
		for len(a.flights) > 0 {
			l.end(a.flights[0])
		}
		delete(l.replicas, replica)
	}
}

// Terms returns a replica's load figures as a decision at nowUS uses them.
//
// The prompt tokens that wait are those of the last report, and the uncached
// ones of every decision that the report cannot have seen. Without a report,
// they are those of every decision in flight. A report that is older than
// ReportMaxAge, or does not say what waits, still bounds what can be left of
// the decisions it has seen.
func (l *Ledger) Terms(replica string, nowUS int64) *pb.LoadTerms {
	terms := new(pb.LoadTerms)
	l.FillTerms(terms, new(int64), replica, nowUS)
	return terms
}

// FillTerms is Terms into an empty message and an age of the caller's, who makes
// many at once. It returns PrefillRate of the replica.
func (l *Ledger) FillTerms(terms *pb.LoadTerms, age *int64, replica string, nowUS int64) (prefillRate float64) {
	a := l.look(replica)
	a.fillTerms(terms, age, nowUS, &l.cfg)
	return l.rates.of(&a.speed)
}

func (a *account) fillTerms(terms *pb.LoadTerms, age *int64, nowUS int64, cfg *LedgerConfig) {
	terms.InFlight = uint32(len(a.flights))
	if !a.report.made {
		for _, f := range a.flights {
			terms.QueuedPrefillTokens += f.uncached
		}
		return
	}
	r := &a.report
	*age = max(nowUS-r.timeUS, 0)
	terms.ReportAgeUs = age
	var seen, seenTokens, unseen uint64
	for _, f := range a.flights {
		if f.decidedUS > r.timeUS-cfg.DispatchGrace.Microseconds() {
			unseen += f.uncached
			continue
		}
		seen++
		seenTokens += f.uncached
	}
	fresh := *age <= cfg.ReportMaxAge.Microseconds()
	switch {
	case r.saysQueued && fresh:
		terms.QueuedPrefillTokens = r.queuedPrefillTokens
	case r.saysQueued:
		terms.QueuedPrefillTokens = min(r.queuedPrefillTokens, seenTokens)
	case r.saysWaiting && seen > 0: // as much as that many of them have on average
		terms.QueuedPrefillTokens = seenTokens / seen * min(uint64(r.waiting), seen)
	default:
		terms.QueuedPrefillTokens = seenTokens
	}
	terms.QueuedPrefillTokens += unseen
	if fresh {
		terms.Running, terms.Waiting, terms.KvUsed = r.running, r.waiting, r.kvUsed
	}
}
