package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
)

const (
	// chunkSize is below every server's payload limit, and large enough that a
	// snapshot of gigabytes is thousands of messages, not hundreds of thousands.
	chunkSize = 256 << 10
	// chunksInFlight are sent before the first one is acknowledged.
	chunksInFlight = 32
	// expireTTL is how long what a removal leaves behind stays; a second is the
	// least that servers take.
	expireTTL = time.Second
)

// Codes of the server's errors.
const (
	codeWrongSequence          = 10071
	codeWrongSequenceClustered = 10164
	codeNoTTL                  = 10166
)

// Save writes a snapshot and reads it back. When it returns nil, the data is in
// the store as given. When it fails, what was written is removed as far as the
// server can be reached; without its description, which comes last, nobody takes
// it for a snapshot. An error of an answer that did not come may still leave one.
// Two that save the same sequence at once do no harm: one of them is found.
func (s *Store) Save(ctx context.Context, about About, data []byte) (Snapshot, error) {
	one := Snapshot{
		About: about, Pool: s.pool, Size: uint64(len(data)),
		nuid:   s.pool + "." + strconv.FormatUint(about.Seq, 10) + "." + nuid.Next(),
		chunks: uint32((len(data) + chunkSize - 1) / chunkSize),
		digest: digest(data),
	}
	err := s.fill(ctx, one, data)
	if err == nil {
		err = s.announce(ctx, one)
	}
	if err == nil {
		return s.confirm(ctx, one)
	}
	var unknown *unknownError
	if !errors.As(err, &unknown) {
		// The caller's time may be over. What cannot be removed now costs space only,
		// until the next writer's Prune.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readPatience)
		defer cancel()
		_ = s.expire(ctx, chunkPrefix+one.nuid)
	}
	return Snapshot{}, fmt.Errorf("save snapshot %s: %w", one.Name(), err)
}

// unknownError is a failure after which the snapshot may be there, and is whole
// then.
type unknownError struct{ err error }

func (e *unknownError) Error() string { return e.err.Error() }
func (e *unknownError) Unwrap() error { return e.err }

// fill writes the data and reads it back, before anybody can find it.
func (s *Store) fill(ctx context.Context, one Snapshot, data []byte) error {
	if err := s.chunks(ctx, chunkPrefix+one.nuid, data); err != nil {
		return err
	}
	if _, err := s.Read(ctx, one); err != nil {
		return fmt.Errorf("read back: %w", err)
	}
	return nil
}

// announce writes the description, by which others find the data.
func (s *Store) announce(ctx context.Context, one Snapshot) error {
	info, err := one.describe()
	if err != nil {
		return err
	}
	body, err := json.Marshal(info)
	if err != nil {
		return err
	}
	_, err = s.publish(ctx, metaSubject(one.Name()), body, nats.Header{jetstream.MsgRollup: {jetstream.MsgRollupSubject}})
	var refused *jetstream.APIError
	if err != nil && !errors.As(err, &refused) && !errors.Is(err, ErrFull) {
		return &unknownError{err}
	}
	return err
}

// confirm finds the snapshot as others do.
func (s *Store) confirm(ctx context.Context, one Snapshot) (Snapshot, error) {
	var err error
	for range lagTries {
		var found Snapshot
		if found, err = s.about(ctx, one.Seq); err == nil {
			return found, nil
		}
		select {
		case <-ctx.Done():
			return Snapshot{}, ctx.Err()
		case <-time.After(lagPause):
		}
	}
	return Snapshot{}, fmt.Errorf("find snapshot %s: %w", one.Name(), err)
}

// chunks publishes data in parts, in order.
func (s *Store) chunks(ctx context.Context, subject string, data []byte) error {
	var waiting []jetstream.PubAckFuture
	settle := func() error {
		select {
		case <-waiting[0].Ok():
		case err := <-waiting[0].Err():
			return cause(err)
		case <-ctx.Done():
			return ctx.Err()
		}
		waiting = waiting[1:]
		return nil
	}
	for len(data) > 0 {
		n := min(len(data), chunkSize)
		future, err := s.js.PublishMsgAsync(&nats.Msg{Subject: subject, Data: data[:n]})
		if err != nil {
			return cause(err)
		}
		data = data[n:]
		if waiting = append(waiting, future); len(waiting) >= chunksInFlight {
			if err := settle(); err != nil {
				return err
			}
		}
	}
	for len(waiting) > 0 {
		if err := settle(); err != nil {
			return err
		}
	}
	return nil
}

// publish stores one message and returns its sequence.
func (s *Store) publish(ctx context.Context, subject string, body []byte, header nats.Header) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, readPatience)
	defer cancel()
	ack, err := s.js.PublishMsg(ctx, &nats.Msg{Subject: subject, Header: header, Data: body}, jetstream.WithRetryAttempts(0))
	if err != nil {
		return 0, cause(err)
	}
	return ack.Sequence, nil
}

// cause names the errors that somebody can do something about.
func cause(err error) error {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		switch {
		case strings.Contains(api.Description, "maximum bytes exceeded"): // its code is that of any failure to store
			return fmt.Errorf("%w: %s", ErrFull, api.Description)
		case api.ErrorCode == codeNoTTL:
			return fmt.Errorf("%w: %s", ErrNoTTL, api.Description)
		}
	}
	return err
}

// expire replaces all messages on a subject by one that goes by itself.
func (s *Store) expire(ctx context.Context, subject string) error {
	_, err := s.publish(ctx, subject, nil, nats.Header{
		jetstream.MsgRollup:    {jetstream.MsgRollupSubject},
		jetstream.MsgTTLHeader: {expireTTL.String()},
	})
	return err
}

// Prune removes all but the newest keep snapshots, of those that are no newer than
// the one given, and what writers that died have left. The one given must have
// been saved without an error: it and what is newer stay, so that there is always
// one that was read back. Snapshots of an earlier stream go too. Only the holder
// of the lease should call it; it returns how many snapshots it removed.
func (s *Store) Prune(ctx context.Context, verified Snapshot, keep int) (removed int, err error) {
	seqs, err := s.seqs(ctx)
	if err != nil {
		return 0, err
	}
	left := max(keep, 1)
	used := map[string]bool{}
	for _, seq := range seqs {
		one, err := s.about(ctx, seq)
		var damage *DamageError
		switch {
		case errors.Is(err, errGone):
			continue
		case errors.As(err, &damage):
			// Nobody can use it; it goes when it would have gone.
			one = Snapshot{Pool: s.pool, About: About{Seq: seq, Created: verified.Created}}
		case err != nil:
			return removed, err
		}
		other := !one.Created.Equal(verified.Created)
		if !other && (seq > verified.Seq || left > 0) {
			if seq <= verified.Seq {
				left--
			}
			used[one.nuid] = true
			continue
		}
		if err := s.remove(ctx, one); err != nil {
			return removed, fmt.Errorf("remove snapshot %s: %w", one.Name(), err)
		}
		removed++
	}
	return removed, s.sweep(ctx, used)
}

// remove takes the description away first, so that nobody finds a description
// without data.
func (s *Store) remove(ctx context.Context, one Snapshot) error {
	body, err := json.Marshal(jetstream.ObjectInfo{
		ObjectMeta: jetstream.ObjectMeta{Name: one.Name()}, NUID: one.nuid, Deleted: true,
	})
	if err != nil {
		return err
	}
	_, err = s.publish(ctx, metaSubject(one.Name()), body, nats.Header{
		jetstream.MsgRollup:    {jetstream.MsgRollupSubject},
		jetstream.MsgTTLHeader: {expireTTL.String()},
	})
	if err != nil || one.nuid == "" {
		return err
	}
	return s.expire(ctx, chunkPrefix+one.nuid)
}

// sweep expires the pool's chunks that no snapshot uses.
func (s *Store) sweep(ctx context.Context, used map[string]bool) error {
	subjects, err := s.subjects(ctx, chunkPrefix+s.pool+".>")
	if err != nil {
		return err
	}
	for subject := range subjects {
		if used[strings.TrimPrefix(subject, chunkPrefix)] {
			continue
		}
		if err := s.expire(ctx, subject); err != nil {
			return fmt.Errorf("sweep chunks: %w", err)
		}
	}
	return nil
}
