package snapshot_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"warmpath/routing/prefix"
	"warmpath/streams"
	"warmpath/streams/snapshot"
	"warmpath/streams/streamstest"
)

func TestMain(m *testing.M) { streamstest.Main(m) }

const pool = "chat"

// within bounds waits; a test that needs it has failed.
const within = 60 * time.Second

var born = time.Date(2026, 1, 2, 3, 4, 5, 678_901_234, time.UTC)

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	t.Cleanup(cancel)
	return ctx
}

func store(t testing.TB, js jetstream.JetStream, pool string) *snapshot.Store {
	t.Helper()
	s, err := snapshot.NewStore(js, pool)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newStore(t testing.TB) (*snapshot.Store, jetstream.JetStream) {
	t.Helper()
	_, js := streamstest.Connect(t, streamstest.Start(t).URL(""))
	streamstest.Apply(t, js, 1, pool, "code")
	return store(t, js, pool), js
}

// content is what a snapshot of a sequence and size holds.
func content(seq uint64, size int) []byte {
	rng := rand.New(rand.NewPCG(seq, 1))
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	return data
}

func about(seq uint64) snapshot.About {
	return snapshot.About{Seq: seq, Created: born, Writer: "r1", Whole: seq%2 == 0, Lost: map[string][]byte{"e0": {1, 2}}}
}

func save(t testing.TB, s *snapshot.Store, seq uint64, size int) snapshot.Snapshot {
	t.Helper()
	one, err := s.Save(testContext(t), about(seq), content(seq, size))
	if err != nil {
		t.Fatal(err)
	}
	return one
}

func list(t testing.TB, s *snapshot.Store) string {
	t.Helper()
	all, err := s.List(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	var seqs []uint64
	for _, one := range all {
		seqs = append(seqs, one.Seq)
	}
	return fmt.Sprint(seqs)
}

func bucketStream(t testing.TB, js jetstream.JetStream) jetstream.Stream {
	t.Helper()
	s, err := js.Stream(testContext(t), "OBJ_INDEX")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func objects(t testing.TB, js jetstream.JetStream) jetstream.ObjectStore {
	t.Helper()
	o, err := js.ObjectStore(testContext(t), streams.IndexBucket)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// messages counts what the bucket's stream has under a filter.
func messages(t testing.TB, js jetstream.JetStream, filter string) (n uint64) {
	t.Helper()
	info, err := bucketStream(t, js).Info(testContext(t), jetstream.WithSubjectFilter(filter))
	if err != nil {
		t.Fatal(err)
	}
	for _, count := range info.State.Subjects {
		n += count
	}
	return n
}

// metaSubject is where object stores keep an object's description.
func metaSubject(name string) string {
	return "$O.INDEX.M." + base64.URLEncoding.EncodeToString([]byte(name))
}

// everyDeployment runs a test on a single server and on a cluster of three.
func everyDeployment(t *testing.T, test func(t *testing.T, js jetstream.JetStream)) {
	t.Run("single", func(t *testing.T) {
		_, js := newStore(t)
		test(t, js)
	})
	t.Run("cluster", func(t *testing.T) {
		servers := streamstest.Cluster(t, 3)
		_, js := streamstest.Connect(t, servers[0].URL("")+","+servers[1].URL("")+","+servers[2].URL(""))
		streamstest.Apply(t, js, 3, pool, "code")
		test(t, js)
	})
}

func TestWhatWasSavedIsRead(t *testing.T) {
	everyDeployment(t, func(t *testing.T, js jetstream.JetStream) {
		s := store(t, js, pool)
		for i, size := range []int{0, 1, 256 << 10, 256<<10 + 1, 9 << 20} {
			seq := uint64(10 * (i + 1))
			one := save(t, s, seq, size)
			if one.Seq != seq || !one.Created.Equal(born) || one.Writer != "r1" || one.Size != uint64(size) || one.Whole != (seq%2 == 0) ||
				!bytes.Equal(one.Lost["e0"], []byte{1, 2}) || time.Since(one.Written) > within {
				t.Errorf("saved %+v", one)
			}
			data, err := s.Read(testContext(t), one)
			if err != nil || !bytes.Equal(data, content(seq, size)) {
				t.Errorf("size %d: read %d bytes, %v", size, len(data), err)
			}
		}
		if got := list(t, s); got != "[50 40 30 20 10]" {
			t.Errorf("listed %s", got)
		}
		if got := list(t, store(t, js, "code")); got != "[]" {
			t.Errorf("another pool has %s", got)
		}
	})
}

// Any NATS tool can read what is here, and what it puts is a snapshot.
func TestObjectsAreObjects(t *testing.T) {
	s, js := newStore(t)
	save(t, s, 7, 600_000)
	bucket := objects(t, js)
	data, err := bucket.GetBytes(testContext(t), "chat/7")
	if err != nil || !bytes.Equal(data, content(7, 600_000)) {
		t.Errorf("got %d bytes, %v", len(data), err)
	}
	_, err = bucket.Put(testContext(t), jetstream.ObjectMeta{Name: "chat/9", Metadata: map[string]string{"stream-created": born.Format(time.RFC3339Nano)}},
		bytes.NewReader(content(9, 300_000)))
	if err != nil {
		t.Fatal(err)
	}
	all, err := s.List(testContext(t))
	if err != nil || len(all) != 2 || all[0].Seq != 9 {
		t.Fatalf("listed %v, %v", all, err)
	}
	if data, err = s.Read(testContext(t), all[0]); err != nil || !bytes.Equal(data, content(9, 300_000)) {
		t.Errorf("got %d bytes, %v", len(data), err)
	}
	if err := bucket.Delete(testContext(t), "chat/9"); err != nil {
		t.Fatal(err)
	}
	if got := list(t, s); got != "[7]" {
		t.Errorf("listed %s", got)
	}
}

func TestPruneKeepsTheNewest(t *testing.T) {
	s, js := newStore(t)
	other := store(t, js, "code")
	save(t, other, 1, 100)
	for seq := uint64(10); seq <= 60; seq += 10 {
		save(t, s, seq, 300_000)
	}
	foreign := about(99)
	foreign.Created = born.Add(-time.Hour)
	if _, err := s.Save(testContext(t), foreign, content(99, 100)); err != nil {
		t.Fatal(err)
	}
	all, err := s.List(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	verified := all[2] // 50: another writer is at 60
	removed, err := s.Prune(testContext(t), verified, 2)
	if err != nil || removed != 4 {
		t.Errorf("removed %d, %v", removed, err)
	}
	if got := list(t, s); got != "[60 50 40]" {
		t.Errorf("left %s", got)
	}
	for _, one := range all {
		data, err := s.Read(testContext(t), one)
		if kept := one.Seq >= 40 && one.Seq < 99; kept != (err == nil && bytes.Equal(data, content(one.Seq, 300_000))) {
			t.Errorf("%s: %d bytes, %v", one.Name(), len(data), err)
		}
	}
	if got := list(t, other); got != "[1]" {
		t.Errorf("the other pool has %s", got)
	}
	// Nothing is left of the removed ones but what expires.
	streamstest.Until(t, func() bool {
		return messages(t, js, "$O.INDEX.C.>") == 3*2+1 && messages(t, js, "$O.INDEX.M.>") == 3+1
	})
}

// rewrite replaces the chunks of an object.
func rewrite(t *testing.T, js jetstream.JetStream, chunks string, parts ...[]byte) {
	t.Helper()
	for i, part := range parts {
		msg := &nats.Msg{Subject: chunks, Data: part, Header: nats.Header{}}
		if i == 0 {
			msg.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
		}
		if _, err := js.PublishMsg(testContext(t), msg); err != nil {
			t.Fatal(err)
		}
	}
}

// damage is what may happen to a stored snapshot.
var damage = map[string]struct {
	reason string
	do     func(t *testing.T, js jetstream.JetStream, chunks string)
}{
	"a part is gone": {snapshot.ReasonMissing, func(t *testing.T, js jetstream.JetStream, chunks string) {
		if err := bucketStream(t, js).Purge(testContext(t), jetstream.WithPurgeSubject(chunks), jetstream.WithPurgeKeep(1)); err != nil {
			t.Fatal(err)
		}
	}},
	"all is gone": {snapshot.ReasonMissing, func(t *testing.T, js jetstream.JetStream, chunks string) {
		if err := bucketStream(t, js).Purge(testContext(t), jetstream.WithPurgeSubject(chunks)); err != nil {
			t.Fatal(err)
		}
	}},
	"more than was written": {snapshot.ReasonDigest, func(t *testing.T, js jetstream.JetStream, chunks string) {
		rewrite(t, js, chunks, content(1, 1000), content(2, 400_000))
	}},
	"other bytes": {snapshot.ReasonDigest, func(t *testing.T, js jetstream.JetStream, chunks string) {
		data := content(20, 300_000)
		data[123] ^= 1
		rewrite(t, js, chunks, data[:256<<10], data[256<<10:])
	}},
	"no description": {snapshot.ReasonDescription, func(t *testing.T, js jetstream.JetStream, _ string) {
		msg := &nats.Msg{Subject: metaSubject("chat/20"), Data: []byte(`{"name":"chat/20","size":-1}`)}
		if _, err := js.PublishMsg(testContext(t), msg); err != nil {
			t.Fatal(err)
		}
	}},
	"another description": {snapshot.ReasonDescription, func(t *testing.T, js jetstream.JetStream, _ string) {
		if _, err := objects(t, js).PutBytes(testContext(t), "chat/20", []byte("hello")); err != nil {
			t.Fatal(err)
		}
	}},
}

func TestADamagedSnapshotIsRefused(t *testing.T) {
	for what, d := range damage {
		t.Run(what, func(t *testing.T) {
			s, js := newStore(t)
			save(t, s, 10, 300_000)
			save(t, s, 20, 300_000)
			info, err := objects(t, js).GetInfo(testContext(t), "chat/20")
			if err != nil {
				t.Fatal(err)
			}
			d.do(t, js, "$O.INDEX.C."+info.NUID)
			var refused []string
			found, ok, err := s.Find(testContext(t), snapshot.Wanted{Created: born, Refused: func(one snapshot.Snapshot, e *snapshot.DamageError) {
				refused = append(refused, one.Name()+" "+e.Reason)
			}}, func(one snapshot.Snapshot, data []byte) error {
				if !bytes.Equal(data, content(one.Seq, 300_000)) {
					t.Errorf("%s was handed over with other bytes", one.Name())
				}
				return nil
			})
			if err != nil || !ok || found.Seq != 10 {
				t.Errorf("found %+v, %t, %v", found, ok, err)
			}
			if want := "[chat/20 " + d.reason + "]"; fmt.Sprint(refused) != want {
				t.Errorf("refused %v, want %s", refused, want)
			}
		})
	}
}

func TestFindLooksAtWhatIsWanted(t *testing.T) {
	s, _ := newStore(t)
	for seq := uint64(10); seq <= 50; seq += 10 {
		save(t, s, seq, 100)
	}
	find := func(w snapshot.Wanted, bad ...uint64) string {
		var tried []uint64
		if w.Created.IsZero() {
			w.Created = born
		}
		found, ok, err := s.Find(testContext(t), w, func(one snapshot.Snapshot, _ []byte) error {
			tried = append(tried, one.Seq)
			for _, b := range bad {
				if b == one.Seq {
					return errors.New("bad")
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(found.Seq, ok, tried)
	}
	for _, test := range []struct {
		got, want string
	}{
		{find(snapshot.Wanted{}), "50 true [50]"},
		{find(snapshot.Wanted{}, 50, 40), "30 true [50 40 30]"},
		{find(snapshot.Wanted{Head: 45}), "40 true [40]"},
		{find(snapshot.Wanted{AtMost: 35}), "30 true [30]"},
		{find(snapshot.Wanted{AtMost: 35, AtLeast: 30}, 30), "0 false [30]"},
		{find(snapshot.Wanted{AtLeast: 15, Oldest: true}, 20), "30 true [20 30]"},
		{find(snapshot.Wanted{Created: born.Add(1)}), "0 false []"},
	} {
		if test.got != test.want {
			t.Errorf("got %s, want %s", test.got, test.want)
		}
	}
}

// What was saved but is no index, or stands elsewhere, is refused by its content.
func TestIndexWantsAnIndex(t *testing.T) {
	s, _ := newStore(t)
	save(t, s, 10, 100)
	reason := ""
	_, index, err := s.Index(testContext(t), snapshot.Wanted{Created: born, Refused: func(_ snapshot.Snapshot, e *snapshot.DamageError) { reason = e.Reason }}, prefix.Config{})
	if err != nil || index != nil || reason != snapshot.ReasonContent {
		t.Errorf("got %v, %v, %s", index, err, reason)
	}
}

func TestLeaseIsOneWriters(t *testing.T) {
	everyDeployment(t, func(t *testing.T, js jetstream.JetStream) {
		ctx := testContext(t)
		s := store(t, js, pool)
		first, err := s.Acquire(ctx, "r1", 30*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Acquire(ctx, "r1", 30*time.Second); !errors.Is(err, snapshot.ErrHeld) {
			t.Errorf("a second of the same name: %v", err)
		}
		if l, err := store(t, js, "code").Acquire(ctx, "r1", time.Second); err != nil || l.Release(ctx) != nil {
			t.Errorf("another pool: %v", err)
		}
		for range 3 {
			if err := first.Renew(ctx); err != nil {
				t.Error(err)
			}
		}
		if err := first.Release(ctx); err != nil {
			t.Error(err)
		}
		second, err := s.Acquire(ctx, "r2", time.Second)
		if err != nil {
			t.Fatalf("after a release: %v", err)
		}
		if err := first.Renew(ctx); !errors.Is(err, snapshot.ErrLost) {
			t.Errorf("the first renewed: %v", err)
		}
		// A holder that says nothing more loses it.
		var third *snapshot.Lease
		streamstest.Until(t, func() bool {
			third, err = s.Acquire(ctx, "r3", 30*time.Second)
			return err == nil
		})
		if err := second.Renew(ctx); !errors.Is(err, snapshot.ErrLost) {
			t.Errorf("the second renewed: %v", err)
		}
		if err := second.Release(ctx); !errors.Is(err, snapshot.ErrLost) {
			t.Errorf("the second released: %v", err)
		}
		if got := list(t, s); got != "[]" {
			t.Errorf("the lease is listed: %s", got)
		}
		if err := third.Release(ctx); err != nil {
			t.Error(err)
		}
	})
}

// Of many that want it at once, one gets it.
func TestLeaseHasOneWinner(t *testing.T) {
	s, _ := newStore(t)
	won := make(chan error, 8)
	for i := range cap(won) {
		go func() {
			_, err := s.Acquire(testContext(t), fmt.Sprint("r", i), 30*time.Second)
			won <- err
		}()
	}
	winners := 0
	for range cap(won) {
		if err := <-won; err == nil {
			winners++
		} else if !errors.Is(err, snapshot.ErrHeld) {
			t.Error(err)
		}
	}
	if winners != 1 {
		t.Errorf("%d writers have the lease", winners)
	}
}

// A writer that died leaves chunks without a description: nobody takes them for a
// snapshot, and the next one's pruning clears them away.
func TestADeadWritersChunksAreSwept(t *testing.T) {
	s, js := newStore(t)
	for range 5 {
		if _, err := js.Publish(testContext(t), "$O.INDEX.C.chat.5.DEAD", content(1, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	if got := list(t, s); got != "[]" {
		t.Errorf("listed %s", got)
	}
	one := save(t, s, 10, 1000)
	if n, err := s.Prune(testContext(t), one, 3); n != 0 || err != nil {
		t.Error(n, err)
	}
	streamstest.Until(t, func() bool { return messages(t, js, "$O.INDEX.C.chat.5.>") == 0 })
	if data, err := s.Read(testContext(t), one); err != nil || len(data) != 1000 {
		t.Error(len(data), err)
	}
}

func TestNoRoomIsAnErrorOfItsOwn(t *testing.T) {
	_, js := streamstest.Connect(t, streamstest.Start(t).URL(""))
	topology := streams.Topology{Pools: []string{pool}, IndexMaxBytes: 1 << 20}
	if _, err := topology.Apply(testContext(t), js); err != nil {
		t.Fatal(err)
	}
	s := store(t, js, pool)
	save(t, s, 1, 300_000)
	if _, err := s.Save(testContext(t), about(2), content(2, 2<<20)); !errors.Is(err, snapshot.ErrFull) {
		t.Errorf("got %v", err)
	}
	if got := list(t, s); got != "[1]" {
		t.Errorf("listed %s", got)
	}
	// What was written of it is gone, so that a smaller one has room.
	streamstest.Until(t, func() bool { return messages(t, js, "$O.INDEX.C.chat.2.>") == 0 })
	save(t, s, 3, 300_000)
}

func TestABucketOfAnEarlierVersion(t *testing.T) {
	_, js := streamstest.Connect(t, streamstest.Start(t).URL(""))
	s := store(t, js, pool)
	if _, err := s.List(testContext(t)); !errors.Is(err, streams.ErrNoStream) {
		t.Errorf("without a bucket: %v", err)
	}
	if _, err := js.CreateObjectStore(testContext(t), jetstream.ObjectStoreConfig{Bucket: streams.IndexBucket}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Acquire(testContext(t), "r1", time.Second); !errors.Is(err, snapshot.ErrNoTTL) {
		t.Errorf("without TTLs: %v", err)
	}
	streamstest.Apply(t, js, 1, pool)
	if _, err := s.Acquire(testContext(t), "r1", time.Second); err != nil {
		t.Errorf("after apply: %v", err)
	}
}

// The router's user may do all of it, the auditor's may read.
func TestRolesMayDoIt(t *testing.T) {
	server := streamstest.StartRoles(t, streams.Roles([]string{pool}))
	_, operator := streamstest.Connect(t, server.URL(streams.RoleOperator))
	streamstest.Apply(t, operator, 1, pool)
	_, js := streamstest.Connect(t, server.URL(streams.RoleRouter))
	s := store(t, js, pool)
	lease, err := s.Acquire(testContext(t), "r1", 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	for seq := uint64(1); seq <= 3; seq++ {
		one := save(t, s, seq, 600_000)
		if _, err := s.Prune(testContext(t), one, 2); err != nil {
			t.Fatal(err)
		}
	}
	if err := lease.Release(testContext(t)); err != nil {
		t.Error(err)
	}
	_, js = streamstest.Connect(t, server.URL(streams.RoleAuditor))
	s = store(t, js, pool)
	if got := list(t, s); got != "[3 2]" {
		t.Errorf("the auditor lists %s", got)
	}
	_, ok, err := s.Find(testContext(t), snapshot.Wanted{Created: born}, func(_ snapshot.Snapshot, data []byte) error {
		if !bytes.Equal(data, content(3, 600_000)) {
			return errors.New("other bytes")
		}
		return nil
	})
	if err != nil || !ok {
		t.Errorf("the auditor found %t, %v", ok, err)
	}
}
