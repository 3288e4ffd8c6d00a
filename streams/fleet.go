package streams

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	pb "warmpath/schemas/warmpathv1"
)

// Operations on a key-value bucket, as NATS marks them.
const (
	kvOperation  = "KV-Operation"
	markerReason = "Nats-Marker-Reason"
)

// PutFleet writes what is known of a replica: the heartbeat. It expires after
// the bucket's TTL. The error is the server's, or names the field that is wrong.
func PutFleet(ctx context.Context, js jetstream.JetStream, entry *pb.FleetEntry) error {
	key, err := fleetKey(entry.GetPool(), entry.GetReplica())
	if err != nil {
		return fmt.Errorf("put fleet entry: %w", err)
	}
	m, err := NewMessage(fleetSubject+key, "", entry)
	if err != nil {
		return err
	}
	if _, err := js.PublishMsg(ctx, &nats.Msg{Subject: m.Subject, Header: headers(m), Data: m.Data}); err != nil {
		return fmt.Errorf("put fleet entry %s: %w", key, err)
	}
	return nil
}

// DeleteFleet says that a replica is gone. Deleting what is not there is fine.
func DeleteFleet(ctx context.Context, js jetstream.JetStream, pool, replica string) error {
	key, err := fleetKey(pool, replica)
	if err != nil {
		return fmt.Errorf("delete fleet entry: %w", err)
	}
	m := &nats.Msg{Subject: fleetSubject + key, Header: nats.Header{kvOperation: {"DEL"}}}
	if _, err := js.PublishMsg(ctx, m); err != nil {
		return fmt.Errorf("delete fleet entry %s: %w", key, err)
	}
	return nil
}

func fleetKey(pool, replica string) (string, error) {
	if err := ValidName(pool); err != nil {
		return "", fmt.Errorf("pool: %w", err)
	}
	if err := ValidReplica(replica); err != nil {
		return "", fmt.Errorf("replica: %w", err)
	}
	return FleetKey(pool, replica), nil
}

// WatchFleet calls handle with the entry of each replica of a pool that is
// there, then with every change: the new entry, or nil when the replica was
// deleted or its entry expired. It blocks until ctx ends and returns its error,
// or ErrNoStream when the bucket is not there at first.
//
// The server announces what expires. A watcher that cannot hear it, because it
// is cut off, lets entries expire by itself after the same time.
func WatchFleet(ctx context.Context, js jetstream.JetStream, pool string, handle func(entry *pb.FleetEntry, replica string)) error {
	if err := ValidName(pool); err != nil {
		return fmt.Errorf("watch fleet: pool: %w", err)
	}
	w := &fleetWatch{handle: handle, seen: map[string]time.Time{}}
	cfg := FollowConfig{
		Stream: fleetStream,
		filter: fleetSubject + pool + ".>",
		onInfo: func(info *jetstream.StreamInfo) { w.ttl = info.Config.MaxAge },
		onBeat: func() { w.expire(time.Now()) },
	}
	return followLast(ctx, js, cfg, w.take)
}

// fleetWatch keeps when each entry was last written. All its methods are called
// from the follower's goroutine.
type fleetWatch struct {
	handle func(*pb.FleetEntry, string)
	ttl    time.Duration
	seen   map[string]time.Time
}

// expireGrace is how much later than the server the watcher lets entries
// expire, so that the server's own word comes first where it can.
const expireGrace = 2 * time.Second

func (w *fleetWatch) take(e Event, h nats.Header) error {
	replica := SubjectReplica(e.Subject)
	if h.Get(kvOperation) != "" || h.Get(markerReason) != "" {
		w.gone(replica)
		return nil
	}
	entry := &pb.FleetEntry{}
	if err := proto.Unmarshal(e.Data, entry); err != nil || entry.GetReplica() != replica {
		slog.Warn("fleet entry is unreadable and was passed over", "subject", e.Subject, "seq", e.Seq, "error", err)
		return nil
	}
	w.seen[replica] = time.Now()
	w.handle(entry, replica)
	return nil
}

func (w *fleetWatch) gone(replica string) {
	if _, ok := w.seen[replica]; ok {
		delete(w.seen, replica)
		w.handle(nil, replica)
	}
}

func (w *fleetWatch) expire(now time.Time) {
	if w.ttl <= 0 {
		return
	}
	for replica, seen := range w.seen {
		if now.Sub(seen) > w.ttl+expireGrace {
			w.gone(replica)
		}
	}
}
