package snapshot

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// readBytes is what one question asks for: enough to keep the server busy,
	// little against what a client may have waiting.
	readBytes = 4 << 20
	// readPatience is how long the next message may take.
	readPatience = 5 * time.Second
	// lagTries and lagPause are for a server of a cluster that answers and has not
	// stored yet what its leader has.
	lagTries = 4
	lagPause = 200 * time.Millisecond
	// firstGrow bounds what is allocated on the word of a description.
	firstGrow = 64 << 20
)

// Read returns the data of a snapshot: exactly what was saved, or an error. It is
// a *DamageError when the data is not there or not what was saved; any other
// error says nothing of the snapshot.
func (s *Store) Read(ctx context.Context, one Snapshot) ([]byte, error) {
	if one.digest == "" {
		return nil, &DamageError{Name: one.Name(), Reason: ReasonDescription, Detail: "its description cannot be read"}
	}
	var damage *DamageError
	for try := 1; ; try++ {
		data, err := s.read(ctx, one)
		if !errors.As(err, &damage) || damage.Reason != ReasonMissing || try == lagTries {
			return data, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(lagPause):
		}
	}
}

func (s *Store) read(ctx context.Context, one Snapshot) ([]byte, error) {
	damaged := func(reason, format string, args ...any) error {
		return &DamageError{Name: one.Name(), Reason: reason, Detail: fmt.Sprintf(format, args...)}
	}
	data := make([]byte, 0, min(one.Size, firstGrow))
	chunks := uint32(0)
	next := uint64(1)
	for chunks < one.chunks {
		last, err := s.batch(ctx, chunkPrefix+one.nuid, next, func(chunk []byte) error {
			if chunks++; chunks > one.chunks || uint64(len(data)+len(chunk)) > one.Size {
				return damaged(ReasonDigest, "it has more data than its description says")
			}
			data = append(data, chunk...)
			return nil
		})
		if errors.Is(err, errGone) {
			return nil, damaged(ReasonMissing, "%d of %d parts are there", chunks, one.chunks)
		}
		if err != nil {
			return nil, err
		}
		next = last + 1
	}
	if uint64(len(data)) != one.Size {
		return nil, damaged(ReasonMissing, "%d of %d bytes are there", len(data), one.Size)
	}
	if got := digest(data); got != one.digest {
		return nil, damaged(ReasonDigest, "the digest is %s, not %s", got, one.digest)
	}
	return data, nil
}

// digest is an object's digest as object stores write it.
func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "SHA-256=" + base64.URLEncoding.EncodeToString(sum[:])
}

// stored is one message of the bucket.
type stored struct {
	data []byte
	seq  uint64
	time time.Time
}

// question is a direct get of the bucket's stream.
type question struct {
	Seq      uint64 `json:"seq,omitempty"`
	Last     string `json:"last_by_subj,omitempty"`
	Next     string `json:"next_by_subj,omitempty"`
	Batch    int    `json:"batch,omitempty"`
	MaxBytes int    `json:"max_bytes,omitempty"`
}

// getSubject takes questions in the form that names the subject in the payload,
// which is what roles may ask.
const getSubject = "$JS.API.DIRECT.GET." + bucketStream

// last returns the last message on a subject, or errGone.
func (s *Store) last(ctx context.Context, subject string) (stored, error) {
	body, err := json.Marshal(question{Last: subject})
	if err != nil {
		return stored{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, readPatience)
	defer cancel()
	msg, err := s.nc.RequestWithContext(ctx, getSubject, body)
	if err != nil {
		return stored{}, fmt.Errorf("read from %s: %w", bucketStream, err)
	}
	return parse(msg)
}

// batch hands over messages on a subject from a sequence on, and returns the
// sequence of the last one; errGone when there is none.
func (s *Store) batch(ctx context.Context, subject string, from uint64, handle func([]byte) error) (last uint64, err error) {
	body, err := json.Marshal(question{Seq: from, Next: subject, Batch: max(2, readBytes/chunkSize), MaxBytes: readBytes})
	if err != nil {
		return 0, err
	}
	inbox := s.nc.NewInbox()
	sub, err := s.nc.SubscribeSync(inbox)
	if err != nil {
		return 0, fmt.Errorf("read from %s: %w", bucketStream, err)
	}
	defer func() { _ = sub.Unsubscribe() }() // of a closed connection there is nothing to unsubscribe
	if err := s.nc.PublishRequest(getSubject, inbox, body); err != nil {
		return 0, fmt.Errorf("read from %s: %w", bucketStream, err)
	}
	for {
		msg, err := s.next(ctx, sub)
		if err != nil {
			return 0, fmt.Errorf("read from %s: %w", bucketStream, err)
		}
		if msg.Header.Get("Status") == "204" {
			return last, nil
		}
		one, err := parse(msg)
		if err != nil {
			return 0, err
		}
		last = one.seq
		if err := handle(one.data); err != nil {
			return 0, err
		}
	}
}

func (s *Store) next(ctx context.Context, sub *nats.Subscription) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, readPatience)
	defer cancel()
	return sub.NextMsgWithContext(ctx)
}

// parse reads an answer to a direct get.
func parse(msg *nats.Msg) (stored, error) {
	switch status := msg.Header.Get("Status"); {
	case status == "404":
		return stored{}, errGone
	case status != "" && msg.Header.Get("Nats-Sequence") == "":
		return stored{}, fmt.Errorf("read from %s: server answered %s %s", bucketStream, status, msg.Header.Get("Description"))
	}
	seq, err := strconv.ParseUint(msg.Header.Get("Nats-Sequence"), 10, 64)
	if err != nil {
		return stored{}, fmt.Errorf("read from %s: answer has no sequence: %w", bucketStream, err)
	}
	at, err := time.Parse(time.RFC3339Nano, msg.Header.Get("Nats-Time-Stamp"))
	if err != nil {
		return stored{}, fmt.Errorf("read from %s: answer has no time: %w", bucketStream, err)
	}
	return stored{msg.Data, seq, at}, nil
}
