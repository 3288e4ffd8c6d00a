package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"warmpath/streams"
)

const (
	leaseObject = "/writer"
	keyReleased = "released"
)

// Lease is the right to write a pool's snapshots, until it expires. The server's
// clock alone ends it: it is a message that expires, replaced only by who knows
// its sequence. A holder that stalls and goes on after the end does no damage,
// because what is written is named by its sequence and read back. It is not safe
// for concurrent use.
type Lease struct {
	store  *Store
	holder string
	id     string
	ttl    time.Duration
	seq    uint64
}

// Acquire takes the lease for ttl, at least a second. It returns ErrHeld, with
// the holder's name, when another has it. holder is for people to read: two
// holders of a name are still two.
func (s *Store) Acquire(ctx context.Context, holder string, ttl time.Duration) (*Lease, error) {
	l := &Lease{store: s, holder: holder, id: nuid.Next(), ttl: max(ttl, time.Second)}
	err := l.put(ctx, 0, "", l.ttl)
	if err == nil || !wrongSequence(err) {
		return l.orNil(err)
	}
	msg, err := s.last(ctx, l.subject())
	if errors.Is(err, errGone) { // it expired just now
		return l.orNil(l.put(ctx, 0, "", l.ttl))
	}
	if err != nil {
		return nil, err
	}
	var info jetstream.ObjectInfo
	if err := json.Unmarshal(msg.data, &info); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHeld, err)
	}
	if info.Metadata[keyReleased] == "" {
		return nil, fmt.Errorf("%w: %s", ErrHeld, info.Metadata[keyWriter])
	}
	return l.orNil(l.put(ctx, msg.seq, "", l.ttl))
}

func (l *Lease) orNil(err error) (*Lease, error) {
	if wrongSequence(err) {
		return nil, fmt.Errorf("%w: it was quicker", ErrHeld)
	}
	if err != nil {
		return nil, fmt.Errorf("acquire the lease of pool %s: %w", l.store.pool, err)
	}
	return l, nil
}

// Renew makes the lease last for its ttl from now on. It returns ErrLost when it
// is another's.
func (l *Lease) Renew(ctx context.Context) error {
	err := l.put(ctx, l.seq, "", l.ttl)
	if wrongSequence(err) {
		return ErrLost
	}
	return err
}

// Release gives the lease back, so that nobody waits for its end.
func (l *Lease) Release(ctx context.Context) error {
	err := l.put(ctx, l.seq, "true", time.Second)
	if wrongSequence(err) {
		return ErrLost
	}
	return err
}

// subject is that of an empty object, which tools list as <pool>/writer.
func (l *Lease) subject() string { return metaSubject(l.store.pool + leaseObject) }

func (l *Lease) put(ctx context.Context, expected uint64, released string, ttl time.Duration) error {
	body, err := json.Marshal(jetstream.ObjectInfo{
		ObjectMeta: jetstream.ObjectMeta{
			Name: l.store.pool + leaseObject, Description: "who writes the pool's snapshots now",
			Metadata: map[string]string{keyWriter: l.holder, keyReleased: released},
		},
		Bucket: streams.IndexBucket, NUID: l.id,
	})
	if err != nil {
		return err
	}
	seq, err := l.store.publish(ctx, l.subject(), body, nats.Header{
		jetstream.MsgRollup:                 {jetstream.MsgRollupSubject},
		jetstream.MsgTTLHeader:              {ttl.Round(time.Second).String()},
		jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(expected, 10)},
	})
	if err != nil {
		return err
	}
	l.seq = seq
	return nil
}

// wrongSequence says whether the server refused because another was there.
func wrongSequence(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.ErrorCode == codeWrongSequence || api.ErrorCode == codeWrongSequenceClustered)
}
