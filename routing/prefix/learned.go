package prefix

import (
	"warmpath/routing/blockkey"
)

// maxLearnedKeys bounds what Predictions learns of all replicas together: some
// 900 MB. Beyond it a replica forgets its own oldest to learn more.
const maxLearnedKeys = 16 << 20

// learned is what one replica's cache probably holds: the last so many blocks
// that decisions sent there, in order of use.
type learned struct {
	at map[blockkey.Key]int32
	// uses is a list by index; 0 is its head: next the latest, prev the oldest.
	uses []use
	free []int32
}

type use struct {
	key        blockkey.Key
	prev, next int32
}

// Learn records that a replica that publishes no events was sent a prompt with
// these keys, so that its cache probably holds them now. It remembers the last
// capacityBlocks blocks, as an engine with room for so many would; what a prompt
// begins with outlives its end. Unlike Add, nothing expires: the capacity is the
// bound. Do not use it for a replica whose events are in the index.
func (p *Predictions) Learn(replica string, keys []blockkey.Key, capacityBlocks int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	keys = keys[:min(len(keys), max(capacityBlocks, 0))] // the end finds no room
	l := p.learned[replica]
	if l == nil {
		if len(keys) == 0 {
			return
		}
		l = &learned{at: map[blockkey.Key]int32{}, uses: make([]use, 1)}
		p.learned[replica] = l
	}
	before := len(l.at)
	for i := len(keys) - 1; i >= 0; i-- {
		l.touch(keys[i])
	}
	for len(l.at) > capacityBlocks || len(l.at) > len(keys) && p.learnedKeys+len(l.at)-before > maxLearnedKeys {
		l.forgetOldest()
	}
	p.learnedKeys += len(l.at) - before
	if len(l.at) == 0 {
		delete(p.learned, replica)
	}
}

// Learned is how many blocks a replica without events probably holds.
func (p *Predictions) Learned(replica string) int {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if l := p.learned[replica]; l != nil {
		return len(l.at)
	}
	return 0
}

// unlearn forgets a replica.
func (p *Predictions) unlearn(replica string) {
	if l := p.learned[replica]; l != nil {
		p.learnedKeys -= len(l.at)
		delete(p.learned, replica)
	}
}

func (l *learned) has(k blockkey.Key) bool {
	if l == nil {
		return false
	}
	_, ok := l.at[k]
	return ok
}

// touch makes k the latest.
func (l *learned) touch(k blockkey.Key) {
	i, ok := l.at[k]
	switch {
	case ok:
		l.unlink(i)
	case len(l.free) > 0:
		i, l.free = l.free[len(l.free)-1], l.free[:len(l.free)-1]
	default:
		i = int32(len(l.uses))
		l.uses = append(l.uses, use{})
	}
	l.at[k] = i
	next := l.uses[0].next
	l.uses[i] = use{key: k, prev: 0, next: next}
	l.uses[next].prev = i
	l.uses[0].next = i
}

func (l *learned) unlink(i int32) {
	u := l.uses[i]
	l.uses[u.prev].next = u.next
	l.uses[u.next].prev = u.prev
}

func (l *learned) forgetOldest() {
	i := l.uses[0].prev
	l.unlink(i)
	delete(l.at, l.uses[i].key)
	l.free = append(l.free, i)
}
