// Package streams is JetStream as code: the topology and its permissions, the
// ordered publisher, the ordered follower, the live view of ROUTE, load and
// fleet. Nothing else in Warmpath but services and follow needs to know NATS.
package streams

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// Names of the streams and buckets that are not one a pool.
const (
	// RouteStream keeps decisions and outcomes: the audit log.
	RouteStream = "ROUTE"
	// LoadStream keeps the last load report of each replica.
	LoadStream = "LOAD"
	// FleetBucket is the key-value bucket of what is known of each replica.
	FleetBucket = "FLEET"
	// IndexBucket is the object store of index snapshots.
	IndexBucket = "INDEX"
)

// maxNameLength keeps stream names, user names and file names of the server
// well under 255 bytes.
const maxNameLength = 100

// ValidName says whether s can name a pool, a gateway or an engine: one subject
// token of letters, digits, '_' and '-'. Replica ids are checked by ValidReplica.
func ValidName(s string) error {
	if err := validToken(s, false); err != nil {
		return err
	}
	if s == FleetBucket {
		return fmt.Errorf("name %q is taken by a bucket's stream; choose another", s)
	}
	return nil
}

// ValidReplica says whether s can name a replica: a name that may also have
// single dots inside, as in "engine-0.dp1". Dots are escaped in subjects and
// keys, so a replica is always one token.
func ValidReplica(s string) error { return validToken(s, true) }

func validToken(s string, dots bool) error {
	if s == "" {
		return fmt.Errorf("name is empty; give letters, digits, '_' or '-'")
	}
	if len(s) > maxNameLength {
		return fmt.Errorf("name %.20q… has %d bytes; the limit is %d", s, len(s), maxNameLength)
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
		case c == '.' && dots && i > 0 && i < len(s)-1 && s[i-1] != '.':
		case c == '.' && dots:
			return fmt.Errorf("name %q has an empty part; dots must stand single and inside", s)
		default:
			return fmt.Errorf("name %q has %q; only letters, digits, '_' and '-' are allowed", s, c)
		}
	}
	return nil
}

// escape makes a replica id one subject token and key token. '=' is legal in
// both and not in an id, so the mapping is one to one.
func escape(replica string) string { return strings.ReplaceAll(replica, ".", "=") }

// unescape is the inverse of escape.
func unescape(token string) string { return strings.ReplaceAll(token, "=", ".") }

// KVStream names the stream of a pool's KV batches.
func KVStream(pool string) string { return "KV_" + pool }

// KVSubject is where a replica's KV batches are published.
func KVSubject(pool, replica string) string { return "kv." + pool + "." + escape(replica) }

// RouteSubject is where a gateway's decisions and outcomes are published.
func RouteSubject(pool, gateway string) string { return "route." + pool + "." + escape(gateway) }

// LiveSubject is where the server republishes what RouteSubject received.
func LiveSubject(pool, gateway string) string { return "live." + RouteSubject(pool, gateway) }

// LoadSubject is where a replica's load reports are published.
func LoadSubject(pool, replica string) string { return "load." + pool + "." + escape(replica) }

// FleetKey is the key of a replica in FleetBucket.
func FleetKey(pool, replica string) string { return pool + "." + escape(replica) }

// ServiceSubject is where routers of a pool answer.
func ServiceSubject(pool string) string { return "svc.route." + pool }

// SubjectReplica returns the last token of a subject or fleet key, unescaped:
// the replica, or the gateway, that it belongs to.
func SubjectReplica(subject string) string {
	return unescape(subject[strings.LastIndexByte(subject, '.')+1:])
}

// KVID is the message id of a KV batch: <replica>/<epoch in hex>/<seq>.
func KVID(replica string, epoch []byte, seq uint64) string {
	return replica + "/" + hex.EncodeToString(epoch) + "/" + strconv.FormatUint(seq, 10)
}

// RouteID is the message id of a decision, move or outcome: request, attempt and
// kind ("decided", "moved", "finished").
func RouteID(requestID string, attempt uint32, kind string) string {
	return requestID + "/" + strconv.FormatUint(uint64(attempt), 10) + "/" + kind
}
