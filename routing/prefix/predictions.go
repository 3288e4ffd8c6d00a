package prefix

import (
	"slices"
	"sync"
	"time"

	"warmpath/routing/blockkey"
)

// maxPredictedKeys bounds what Predictions remembers: 4 million keys are about
// 200 MB, and a fleet that predicts more than that within a time to live is
// better served by its oldest predictions going first.
const maxPredictedKeys = 4 << 20

// Predictions is the blocks that decisions are about to create: a request that
// was just sent to a replica fills its cache before any event says so. It is
// kept apart from the index, so that exact and predicted matches are told
// apart. Safe for concurrent use; the caller gives the time.
type Predictions struct {
	mu    sync.RWMutex
	ttlUS int64
	byID  map[string]*prediction
	// queue is every prediction in the order added, dropped ones included until
	// their time is over; head is the first that is still there.
	queue []*prediction
	head  int
	// replicas counts the predictions of a key, per replica.
	replicas map[string]map[blockkey.Key]int
	keys     int
	// learned is what replicas without events probably hold.
	learned     map[string]*learned
	learnedKeys int
}

// prediction is what one decision is about to create.
type prediction struct {
	id, replica string
	keys        []blockkey.Key
	deadlineUS  int64
}

// NewPredictions returns a layer in which a prediction lasts for ttl, unless it
// is dropped earlier: long enough for a request to be prefilled and for its
// events to arrive, or, for engines that publish no events, about as long as
// a block stays in their cache.
func NewPredictions(ttl time.Duration) *Predictions {
	return &Predictions{
		ttlUS:    ttl.Microseconds(),
		byID:     map[string]*prediction{},
		replicas: map[string]map[blockkey.Key]int{},
		learned:  map[string]*learned{},
	}
}

// Add records that the decision id is about to create keys on a replica, in
// place of what it was about to create before. keys is copied. nowUS is Unix
// microseconds.
func (p *Predictions) Add(id, replica string, keys []blockkey.Key, nowUS int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(p.byID[id])
	if len(keys) == 0 {
		return
	}
	next := &prediction{id: id, replica: replica, keys: slices.Clone(keys), deadlineUS: nowUS + p.ttlUS}
	p.byID[id] = next
	p.queue = append(p.queue, next)
	p.keys += len(keys)
	about := p.replicas[replica]
	if about == nil {
		about = map[blockkey.Key]int{}
		p.replicas[replica] = about
	}
	for _, k := range keys {
		about[k]++
	}
	for p.keys > maxPredictedKeys {
		p.forget(p.pop())
	}
}

// Drop forgets a decision's prediction: its events have come, or never will.
func (p *Predictions) Drop(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(p.byID[id])
}

// DropReplica forgets every prediction of a replica, and what was learned of it,
// as when its cache is lost.
func (p *Predictions) DropReplica(replica string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unlearn(replica)
	for _, one := range p.queue[p.head:] {
		if one.replica == replica {
			p.forget(one)
		}
	}
}

// Expire forgets the predictions whose time is over at nowUS and returns how
// many. Predictions are looked at in the order added.
func (p *Predictions) Expire(nowUS int64) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for p.head < len(p.queue) && p.queue[p.head].deadlineUS <= nowUS {
		if p.forget(p.pop()) {
			n++
		}
	}
	return n
}

// Len is how many decisions have a prediction.
func (p *Predictions) Len() int {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return len(p.byID)
}

// pop takes the oldest prediction off the queue, which has one.
func (p *Predictions) pop() *prediction {
	one := p.queue[p.head]
	p.queue[p.head] = nil
	p.head++
	if p.head > len(p.queue)/2 {
		p.queue = append(p.queue[:0:0], p.queue[p.head:]...)
		p.head = 0
	}
	return one
}

// forget takes a prediction out of the layer and reports whether it was there.
func (p *Predictions) forget(one *prediction) bool {
	if one == nil || p.byID[one.id] != one {
		return false
	}
	delete(p.byID, one.id)
	about := p.replicas[one.replica]
	for _, k := range one.keys {
		if about[k]--; about[k] <= 0 {
			delete(about, k)
		}
	}
	if len(about) == 0 {
		delete(p.replicas, one.replica)
	}
	p.keys -= len(one.keys)
	one.keys = nil
	return true
}

// about is what is predicted of one replica.
type about struct {
	coming map[blockkey.Key]int
	here   *learned
}

func (p *Predictions) about(replica string) about {
	return about{p.replicas[replica], p.learned[replica]}
}

func (a about) has(k blockkey.Key) bool { return a.coming[k] > 0 || a.here.has(k) }

func (a about) none() bool { return len(a.coming) == 0 && a.here == nil }
