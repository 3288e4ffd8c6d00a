package mismatch

import (
	"google.golang.org/protobuf/proto"

	pb "warmpath/schemas/warmpathv1"
)

const (
	// healthyHits good hits, or healthyLengths equal lengths where there are no
	// hits, end an alarm.
	healthyHits, healthyLengths = 10, 20
	// healthyReports reports end the alarm that there are none.
	healthyReports = 3
	// changeAfter is for how many records in a row another cause must look likelier
	// before an alarm changes its name.
	changeAfter = 16
)

// due reports whether a sample can change anything: a healthy one cannot raise an
// alarm, and only an alarm can end. Most requests of a healthy pool stop here.
func (w *watch) due(s *sample) bool {
	return w.keys != nil || w.usage != nil ||
		s.hit.bad() || differs(s) || otherBlock(s) || !s.reported || s.indexed == IndexEmpty
}

// judge looks at a scope after a new sample, and returns what changes.
func (d *Detector) judge(w *watch, replica string, atUS int64) []*pb.Mismatch {
	return append(d.judgeKeys(w, replica, atUS), d.judgeUsage(w, replica, atUS)...)
}

func (d *Detector) judgeUsage(w *watch, replica string, atUS int64) []*pb.Mismatch {
	if w.usage != nil {
		since := w.usage.event.TimeUs
		if count(w.window.where(func(s *sample) bool { return s.at > since }), isReported) < healthyReports {
			return nil
		}
		event := resolved(w.usage, atUS)
		w.usage = nil
		return []*pb.Mismatch{event}
	}
	f, ok := w.window.usage()
	if !ok {
		return nil
	}
	name, ok := d.scope(w, replica, f)
	if !ok {
		return nil
	}
	w.usage = &alarm{event: d.event(name, f, atUS)}
	return []*pb.Mismatch{copyOf(w.usage.event, atUS)}
}

func (d *Detector) judgeKeys(w *watch, replica string, atUS int64) []*pb.Mismatch {
	if w.keys != nil && w.window.healthy(w.keys.event.Cause) {
		event := resolved(w.keys, atUS)
		w.keys, w.other, w.times = nil, "", 0
		d.clear(w)
		d.forgetProbes(w, replica)
		return []*pb.Mismatch{event}
	}
	w.failing = failing(latest(w.window.where(isJudged), recentHits), isBad)
	f, ok := w.window.keys(d.probe(w, replica))
	if !ok || (w.keys != nil && f.cause == w.keys.event.Cause) {
		w.other, w.times = "", 0
		return nil
	}
	name, ok := d.scope(w, replica, f)
	if !ok {
		return nil
	}
	var events []*pb.Mismatch
	if w.keys != nil {
		if w.other != f.cause {
			w.other, w.times = f.cause, 0
		}
		if w.times++; w.times < changeAfter {
			return nil
		}
		events = append(events, resolved(w.keys, atUS))
	}
	w.keys = &alarm{event: d.event(name, f, atUS)}
	w.other, w.times = "", 0
	d.clear(w)
	return append(events, copyOf(w.keys.event, atUS))
}

// clear forgets what led to a scope's alarm or to its end: only what comes after
// counts. What the pool has judged is not the replicas' to judge again.
func (d *Detector) clear(w *watch) {
	w.window.clear()
	if w != d.pool {
		return
	}
	for _, own := range d.replicas {
		if own.keys == nil {
			own.window.clear()
		}
	}
}

// forgetProbes drops what engines said while an alarm was on: they may be changed.
func (d *Detector) forgetProbes(w *watch, replica string) {
	w.failing = false
	if w == d.pool {
		clear(d.probes)
		return
	}
	delete(d.probes, replica)
}

// healthy reports whether what came since an alarm shows no fault in the requests
// that its cause is about.
func (w *window) healthy(cause string) bool {
	about := map[string]func(*sample) bool{Salt: isSalted, LoRA: isAdapted, Template: isChat}[cause]
	if about == nil {
		about = anySample
	}
	judged := latest(w.where(func(s *sample) bool { return isJudged(s) && about(s) }), recentHits)
	compared := latest(w.where(func(s *sample) bool { return isComparable(s) && about(s) }), recentLengths)
	if len(judged) >= healthyHits {
		// Lengths that differ while hits agree are the harmless ends of prompts.
		return count(judged, isBad)*100 <= len(judged)*goodShare
	}
	switch cause {
	case CachingOff:
		return count(w.where(anySample), func(s *sample) bool { return s.cached > 0 }) >= healthyReports
	case Template, Tokenizer, BlockSize:
	default:
		return false // only hits can show that it is over
	}
	return count(judged, isBad) == 0 && len(compared) >= healthyLengths &&
		10*count(compared, differs) <= len(compared) && count(compared, otherBlock) == 0
}

// scope decides whom a finding is about, and whether it is this scope's to raise:
// the pool raises what all of its replicas have, each replica what is its own.
func (d *Detector) scope(w *watch, replica string, f finding) (string, bool) {
	if w != d.pool {
		about := d.pool.keys
		if f.cause == UsageOff {
			about = d.pool.usage
		}
		return replica, about == nil
	}
	shown := map[string]bool{}
	for _, s := range f.samples {
		shown[s.replica] = true
	}
	if len(shown) == 1 && ofEngine(f.cause) {
		return "", false // its own scope raises it
	}
	for name, own := range d.replicas {
		raised := own.keys
		if f.cause == UsageOff {
			raised = own.usage
		}
		if shown[name] && raised != nil || ofEngine(f.cause) && own.window.clean(f.cause) {
			return "", false
		}
	}
	return "", true
}

// clean reports whether a replica has evidence enough against a cause of engines.
func (w *window) clean(cause string) bool {
	if cause == UsageOff {
		return count(w.where(anySample), isReported) > 0
	}
	judged := latest(w.where(isJudged), recentHits)
	return len(judged) >= leastGood && count(judged, isBad)*100 <= len(judged)*goodShare
}

// event puts a finding into words and sums.
func (d *Detector) event(replica string, f finding, atUS int64) *pb.Mismatch {
	m := &pb.Mismatch{
		Pool: d.cfg.Pool, Gateway: d.cfg.Gateway, Replica: replica, TimeUs: atUS,
		Cause: f.cause, Detail: f.detail, Requests: uint64(len(f.samples)),
	}
	for _, s := range f.samples {
		m.PromptTokens += s.ours
		m.PredictedCachedTokens += s.matched
		if s.reported {
			m.CachedTokens = proto.Uint64(m.GetCachedTokens() + s.cached)
		}
	}
	return m
}

// resolved is the end of an alarm.
func resolved(a *alarm, atUS int64) *pb.Mismatch {
	event := copyOf(a.event, atUS)
	event.Resolved = true
	return event
}

func copyOf(event *pb.Mismatch, atUS int64) *pb.Mismatch {
	event = proto.Clone(event).(*pb.Mismatch)
	event.TimeUs = atUS
	return event
}
