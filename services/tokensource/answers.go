package tokensource

import (
	"container/list"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/zeebo/xxh3"
)

// answers remembers what engines said, by what they were asked, least recently
// used first out. Safe for concurrent use.
type answers struct {
	budget int64
	age    time.Duration
	seed   uint64

	mu     sync.Mutex
	byName map[xxh3.Uint128]*list.Element
	order  *list.List // of *answer, newest first
	bytes  int64
	hits   uint64
}

type answer struct {
	name xxh3.Uint128
	ids  []uint32
	at   time.Time
}

// answerOverhead is about what an answer takes beside its ids.
const answerOverhead = 256

func (a *answer) bytes() int64 { return answerOverhead + 4*int64(len(a.ids)) }

func newAnswers(budget int64, age time.Duration) *answers {
	return &answers{
		budget: budget, age: age, byName: map[xxh3.Uint128]*list.Element{}, order: list.New(),
		seed: rand.Uint64(),
	}
}

// name is what a question is remembered by: its hash, with a seed of its own.
func (a *answers) name(kind string, question []byte) xxh3.Uint128 {
	if kind == kindSGLang {
		return xxh3.Hash128Seed(question, a.seed^1)
	}
	return xxh3.Hash128Seed(question, a.seed)
}

// get returns the ids, which must not be changed.
func (a *answers) get(name xxh3.Uint128, now time.Time) ([]uint32, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.byName[name]
	if e == nil {
		return nil, false
	}
	found := e.Value.(*answer)
	if now.Sub(found.at) > a.age {
		a.drop(e)
		return nil, false
	}
	a.order.MoveToFront(e)
	a.hits++
	return found.ids, true
}

func (a *answers) put(name xxh3.Uint128, ids []uint32, now time.Time) {
	fresh := &answer{name: name, ids: slices.Clone(ids), at: now}
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.byName[name]; e != nil {
		a.drop(e)
	}
	if fresh.bytes() > a.budget {
		return
	}
	a.byName[name] = a.order.PushFront(fresh)
	a.bytes += fresh.bytes()
	for a.bytes > a.budget {
		a.drop(a.order.Back())
	}
}

func (a *answers) drop(e *list.Element) {
	old := a.order.Remove(e).(*answer)
	delete(a.byName, old.name)
	a.bytes -= old.bytes()
}

func (a *answers) totals() (bytes int64, hits uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.bytes, a.hits
}
