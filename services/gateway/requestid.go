package gateway

import (
	"crypto/rand"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
)

// recentIDs remembers the request ids that clients chose, here and at the other
// gateways of the pool, for as long as two requests of one name could be taken
// for one: by those who count what is in flight, and by those who put the events
// of a request together.
type recentIDs struct {
	mu       sync.Mutex
	now      map[string]struct{}
	before   map[string]struct{}
	turnedAt time.Time
}

const (
	maxRequestID = 128
	// recentFor is above the time that most requests take.
	recentFor = 3 * time.Minute
	// maxRecent bounds one generation; 100,000 ids are about 15 MB.
	maxRecent = 100_000
)

// add reports whether an id is new.
func (s *recentIDs) add(id string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now == nil || now.Sub(s.turnedAt) > recentFor || len(s.now) >= maxRecent {
		if now.Sub(s.turnedAt) > 2*recentFor {
			s.now = nil // all of it is too old
		}
		s.before, s.now, s.turnedAt = s.now, map[string]struct{}{}, now
	}
	if _, seen := s.now[id]; seen {
		return false
	}
	if _, seen := s.before[id]; seen {
		return false
	}
	s.now[id] = struct{}{}
	return true
}

// identity is how a request is called.
type identity struct {
	// id is its name in events and at the engine. Unlike what clients send it is
	// used once.
	id string
	// echo is what the client called it, or id.
	echo  string
	given bool // by the client
	// message is what its message ids begin with. It differs between all requests
	// of all gateways, whatever their ids: JetStream drops what has the id of a
	// message of the last two minutes, and a client may send one id to two
	// gateways, or to a gateway that has started again.
	message string
}

// identify keeps the client's X-Request-Id when it can be used as a name.
func (g *Gateway) identify(header http.Header) identity {
	given := header.Get("X-Request-Id")
	if validRequestID(given) {
		return identity{id: given, echo: given, given: true}
	}
	if given != "" {
		g.metrics.idsChanged.WithLabelValues("invalid").Inc()
	}
	id := newRequestID()
	return identity{id: id, echo: id}
}

// single makes the names of a request that will have events its own: an id that
// was used shortly before gets an ending, so that the events of two requests do
// not look like those of one.
func (g *Gateway) single(who *identity, now time.Time) {
	if who.given && !g.recent.add(who.id, now) {
		g.metrics.idsChanged.WithLabelValues("duplicate").Inc()
		who.id += "~" + strings.ToLower(rand.Text()[:12])
	}
	who.message = who.id + "~" + g.life + strconv.FormatUint(g.serial.Add(1), 36)
}

// newRequestID makes a UUIDv7.
func newRequestID() string {
	id, err := uuid.NewV7()
	if err != nil { // only when the system has no randomness
		return uuid.NewString()
	}
	return id.String()
}

// isMade reports whether an id looks like one that a gateway made, of which
// there are many and none comes twice.
func isMade(id string) bool { return len(id) == 36 && id[8] == '-' && id[14] == '7' }

// validRequestID accepts what is safe in a message id, a header and a log line.
func validRequestID(id string) bool {
	if len(id) > maxRequestID {
		return false
	}
	for i := range len(id) {
		c := id[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("._:-", c) >= 0:
		default:
			return false
		}
	}
	return id != ""
}
