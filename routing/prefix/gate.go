package prefix

import (
	"runtime"
	"sync/atomic"
	"time"
)

// gate lets any number of readers, or the one writer, at the index. It is a
// phase-fair ticket lock: a reader waits for at most one write, and a write for
// at most the readers that came before it, so neither starves the other.
//
// Both sides hold it for about a microsecond, less than it takes to park and
// wake a goroutine, so who waits spins, and yields its thread now and then: with
// sync.RWMutex in its place the slowest of a hundred matches beside a busy writer
// took six times as long as the median, and takes twice as long (DESIGN.md).
type gate struct {
	// in counts arrived readers in steps of readerStep; its lowest two bits say
	// that a write goes on, and which of two alternating phases it is.
	in atomic.Uint32
	_  [60]byte
	// out counts departed readers in steps of readerStep.
	out   atomic.Uint32
	_     [60]byte
	phase uint32 // the writer's
}

const (
	phaseBits  = 3
	writing    = 2
	readerStep = 4
	// spins is how often a waiter looks before it yields to another goroutine,
	// about half a microsecond; after yields of those it sleeps, because who holds
	// the gate may wait for this very processor.
	spins  = 512
	yields = 64
	nap    = 20 * time.Microsecond
)

func (g *gate) rlock() {
	w := g.in.Add(readerStep) & phaseBits
	if w == 0 {
		return
	}
	for n := 1; g.in.Load()&phaseBits == w; n++ {
		pause(n)
	}
}

func (g *gate) runlock() {
	g.out.Add(readerStep)
}

func (g *gate) lock() {
	w := writing | g.phase
	arrived := g.in.Add(w) - w
	for n := 1; g.out.Load() != arrived; n++ {
		pause(n)
	}
}

func (g *gate) unlock() {
	g.phase ^= 1
	g.in.And(^uint32(phaseBits))
}

// pause is what a waiter does after its nth look.
func pause(n int) {
	switch {
	case n%spins != 0:
	case n < spins*yields:
		runtime.Gosched()
	default:
		time.Sleep(nap)
	}
}
