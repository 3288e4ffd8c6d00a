// Package snapshot keeps snapshots of prefix indexes in the object store INDEX:
// each stands at a sequence of a pool's KV stream, so that a router starts from
// the newest one and the stream's tail instead of from the stream's beginning.
//
// What is stored are ordinary objects, named <pool>/<seq>, that any NATS tool can
// list and read. They are written and read here without the client's object
// store, for three reasons: removal needs no right to purge, a damaged object is
// found at once instead of after a timeout, and no push consumer is made. An old
// object goes by a rollup of its subjects to a message that expires by itself.
package snapshot

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"warmpath/streams"
)

const (
	bucketStream = "OBJ_" + streams.IndexBucket
	metaPrefix   = "$O." + streams.IndexBucket + ".M."
	chunkPrefix  = "$O." + streams.IndexBucket + ".C."
)

// Names of what an object's metadata says of a snapshot.
const (
	keyCreated = "stream-created"
	keyWriter  = "writer"
	keyWhole   = "whole"
	keyLost    = "lost"
)

// About is what a snapshot says of itself beside its data.
type About struct {
	// Seq is the sequence of the KV stream that the snapshot stands at.
	Seq uint64
	// Created is when that stream was made. A stream that was made anew has other
	// contents under the same sequences.
	Created time.Time
	// Writer is who wrote it.
	Writer string
	// Whole is true when the index has seen every message from the stream's first
	// up to Seq: then it is a function of the stream alone.
	Whole bool
	// Lost are the cache lives that the writer has forgotten, by replica: what the
	// stream says later of such a life is not the whole of it.
	Lost map[string][]byte
}

// Snapshot is one that the store has; its data may still turn out damaged.
type Snapshot struct {
	About
	Pool string
	// Size of the data in bytes, and when the server stored it.
	Size    uint64
	Written time.Time

	nuid   string
	chunks uint32
	digest string
}

// Name is the name of the object.
func (s Snapshot) Name() string { return name(s.Pool, s.Seq) }

func name(pool string, seq uint64) string { return pool + "/" + strconv.FormatUint(seq, 10) }

// Store is the snapshots of one pool. It is safe for concurrent use.
type Store struct {
	js   jetstream.JetStream
	nc   *nats.Conn
	pool string
}

// NewStore returns the store of a pool's snapshots. It asks the server nothing.
func NewStore(js jetstream.JetStream, pool string) (*Store, error) {
	if err := streams.ValidName(pool); err != nil {
		return nil, fmt.Errorf("snapshots: pool: %w", err)
	}
	return &Store{js: js, nc: js.Conn(), pool: pool}, nil
}

// List returns the pool's snapshots, newest first. One whose description cannot
// be read is listed by its sequence alone, and Read refuses it. It returns
// streams.ErrNoStream when the bucket does not exist.
func (s *Store) List(ctx context.Context) ([]Snapshot, error) {
	seqs, err := s.seqs(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]Snapshot, 0, len(seqs))
	for _, seq := range seqs {
		one, err := s.about(ctx, seq)
		var damage *DamageError
		switch {
		case errors.Is(err, errGone):
			continue
		case errors.As(err, &damage):
			one = Snapshot{Pool: s.pool, About: About{Seq: seq}}
		case err != nil:
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// seqs lists the sequences of the pool's snapshots, newest first, removed ones
// included until their marker has expired.
func (s *Store) seqs(ctx context.Context) ([]uint64, error) {
	subjects, err := s.subjects(ctx, metaPrefix+"*")
	if err != nil {
		return nil, err
	}
	var seqs []uint64
	for subject := range subjects {
		raw, err := base64.URLEncoding.DecodeString(strings.TrimPrefix(subject, metaPrefix))
		if err != nil {
			continue // not an object's
		}
		pool, number, _ := strings.Cut(string(raw), "/")
		seq, err := strconv.ParseUint(number, 10, 64)
		if pool == s.pool && err == nil && name(pool, seq) == string(raw) {
			seqs = append(seqs, seq)
		}
	}
	slices.SortFunc(seqs, func(a, b uint64) int {
		if a > b {
			return -1
		}
		return 1
	})
	return seqs, nil
}

// subjects counts the messages on each of the bucket's subjects under a filter.
func (s *Store) subjects(ctx context.Context, filter string) (map[string]uint64, error) {
	stream, err := s.js.Stream(ctx, bucketStream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, fmt.Errorf("bucket %s: %w", streams.IndexBucket, streams.ErrNoStream)
	}
	if err != nil {
		return nil, fmt.Errorf("list bucket %s: %w", streams.IndexBucket, err)
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(filter))
	if err != nil {
		return nil, fmt.Errorf("list bucket %s: %w", streams.IndexBucket, err)
	}
	return info.State.Subjects, nil
}

func metaSubject(name string) string {
	return metaPrefix + base64.URLEncoding.EncodeToString([]byte(name))
}

// about reads an object's description. It returns errGone when the object is not
// there any more, and a *DamageError for a description that is none.
func (s *Store) about(ctx context.Context, seq uint64) (Snapshot, error) {
	msg, err := s.last(ctx, metaSubject(name(s.pool, seq)))
	if err != nil {
		return Snapshot{}, err
	}
	damaged := func(format string, args ...any) (Snapshot, error) {
		return Snapshot{}, &DamageError{Name: name(s.pool, seq), Reason: ReasonDescription, Detail: fmt.Sprintf(format, args...)}
	}
	var info jetstream.ObjectInfo
	if err := json.Unmarshal(msg.data, &info); err != nil {
		return damaged("%v", err)
	}
	if info.Deleted {
		return Snapshot{}, errGone
	}
	created, err := time.Parse(time.RFC3339Nano, info.Metadata[keyCreated])
	if err != nil {
		return damaged("%s is %q", keyCreated, info.Metadata[keyCreated])
	}
	if info.Name != name(s.pool, seq) || info.NUID == "" || info.Digest == "" || strings.ContainsAny(info.NUID, "*> \t\r\n") {
		return damaged("it is of %q, with nuid %q", info.Name, info.NUID)
	}
	one := Snapshot{
		About: About{Seq: seq, Created: created, Writer: info.Metadata[keyWriter], Whole: info.Metadata[keyWhole] == "true"},
		Pool:  s.pool, Size: info.Size, Written: msg.time,
		nuid: info.NUID, chunks: info.Chunks, digest: info.Digest,
	}
	if lost := info.Metadata[keyLost]; lost != "" {
		if err := json.Unmarshal([]byte(lost), &one.Lost); err != nil {
			return damaged("%s: %v", keyLost, err)
		}
	}
	return one, nil
}

// describe is the object's description for a snapshot.
func (s Snapshot) describe() (jetstream.ObjectInfo, error) {
	info := jetstream.ObjectInfo{
		ObjectMeta: jetstream.ObjectMeta{
			Name:        s.Name(),
			Description: fmt.Sprintf("prefix index of pool %s at %s %d", s.Pool, streams.KVStream(s.Pool), s.Seq),
			Metadata: map[string]string{
				keyCreated: s.Created.UTC().Format(time.RFC3339Nano),
				keyWriter:  s.Writer,
				keyWhole:   strconv.FormatBool(s.Whole),
			},
			Opts: &jetstream.ObjectMetaOptions{ChunkSize: chunkSize},
		},
		Bucket: streams.IndexBucket,
		NUID:   s.nuid,
		Size:   s.Size,
		Chunks: s.chunks,
		Digest: s.digest,
	}
	if len(s.Lost) > 0 {
		lost, err := json.Marshal(s.Lost)
		if err != nil {
			return info, fmt.Errorf("describe %s: %w", s.Name(), err)
		}
		info.Metadata[keyLost] = string(lost)
	}
	return info, nil
}
