package router

import "time"

// maxUnconfirmed bounds the memory of own decisions whose copy has not come
// back: gateways that do not publish would fill it otherwise.
const maxUnconfirmed = 1 << 16

// unconfirmed are this router's decisions that have not come back on live.route
// yet. Not safe for concurrent use.
type unconfirmed struct {
	ttlUS  int64
	chosen map[string]choice
	order  []pending // oldest first, from head on
	head   int
}

type choice struct {
	replica string
	at      int64
}

type pending struct {
	id string
	at int64
}

func newUnconfirmed(ttl time.Duration) unconfirmed {
	return unconfirmed{ttlUS: ttl.Microseconds(), chosen: map[string]choice{}}
}

func (u *unconfirmed) add(id, replica string, now int64) {
	u.chosen[id] = choice{replica, now}
	u.order = append(u.order, pending{id, now})
	if len(u.order)-u.head > maxUnconfirmed {
		u.dropOldest()
	}
}

// take removes a decision and returns the replica it chose.
func (u *unconfirmed) take(id string) (replica string, ok bool) {
	c, ok := u.chosen[id]
	delete(u.chosen, id)
	return c.replica, ok
}

func (u *unconfirmed) expire(now int64) {
	for u.head < len(u.order) && now-u.order[u.head].at > u.ttlUS {
		u.dropOldest()
	}
}

func (u *unconfirmed) dropOldest() {
	p := u.order[u.head]
	if u.chosen[p.id].at == p.at { // not a later decision of the same attempt
		delete(u.chosen, p.id)
	}
	u.order[u.head] = pending{}
	if u.head++; u.head > len(u.order)/2 {
		u.order = append(u.order[:0], u.order[u.head:]...)
		u.head = 0
	}
}
