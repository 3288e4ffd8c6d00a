package outbox

import (
	"bytes"
	"os"
	"testing"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
	"warmpath/streams/streamstest"
)

func TestMain(m *testing.M) { streamstest.Main(m) }

const pool, replica = "chat", "vllm-0"

func store(keys ...uint64) []*pb.KVEvent {
	return []*pb.KVEvent{{Event: &pb.KVEvent_Store{Store: &pb.KVStore{Tier: pb.Tier_TIER_GPU, Keys: keys, Hashes: keys}}}}
}

func clearing() []*pb.KVEvent {
	return []*pb.KVEvent{{Event: &pb.KVEvent_Clear{Clear: &pb.KVClear{}}}}
}

// history reads what the stream holds of the replica.
func history(t *testing.T, js jetstream.JetStream) (all []*pb.KVBatch) {
	t.Helper()
	_, seq, err := streams.LastKV(t.Context(), js, pool, replica)
	if err != nil {
		t.Fatal(err)
	}
	if seq == 0 {
		return nil
	}
	err = streams.ReadKV(t.Context(), js, pool, replica, seq, func(b *pb.KVBatch) error { all = append(all, b); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// contiguous fails the test unless batches of each epoch are 1, 2, 3, … and
// epochs only grow; it returns how many epochs there are.
func contiguous(t *testing.T, all []*pb.KVBatch) (epochs int) {
	t.Helper()
	var epoch []byte
	seq := uint64(0)
	for i, b := range all {
		if !bytes.Equal(epoch, b.GetEpoch()) {
			if bytes.Compare(b.GetEpoch(), epoch) <= 0 {
				t.Fatalf("batch %d: epoch %x after %x", i, b.GetEpoch(), epoch)
			}
			epoch, seq = b.GetEpoch(), 0
			epochs++
		}
		if seq++; b.GetSeq() != seq {
			t.Fatalf("batch %d has seq %d, want %d", i, b.GetSeq(), seq)
		}
	}
	return epochs
}

func drained(o *Outbox) func() bool {
	return func() bool { s := o.Stats(); return s.Waiting == 0 && s.Broken == "" }
}

func TestBatchesComeInOrder(t *testing.T) {
	server := streamstest.Start(t)
	_, js := streamstest.Connect(t, server.URL(""))
	streamstest.Apply(t, js, 1, pool)
	o := New(Config{Pool: pool, Replica: replica, BlockTokens: 16}, js)
	streamstest.Run(t, o.Run)
	o.Begin("start", 1, clearing(), nil)
	for i := range uint64(3000) {
		o.Push(int64(i), store(i), &i)
	}
	big := make([]uint64, streams.MaxBatchWords)
	source := uint64(3000)
	o.Push(7, store(big...), &source)
	o.Push(8, nil, nil) // nothing happened, nothing is said
	streamstest.Until(t, drained(o))
	all := history(t, js)
	if n := contiguous(t, all); n != 1 || len(all) != 3003 {
		t.Fatalf("%d epochs, %d batches", n, len(all))
	}
	for i, b := range all[1:3001] {
		if b.GetSourceSeq() != uint64(i) || b.GetEvents()[0].GetStore().GetKeys()[0] != uint64(i) || b.GetEventTimeUs() != int64(i) || b.GetBlockTokens() != 16 {
			t.Fatalf("batch %d is %v", i, b)
		}
	}
	// Only the last part of a long batch completes the engine's.
	if all[3001].SourceSeq != nil || all[3002].GetSourceSeq() != 3000 {
		t.Errorf("parts are %v and %v", all[3001].SourceSeq, all[3002].SourceSeq)
	}
	if s := o.Stats(); s.Published != 3003 || s.Epochs["start"] != 1 || len(s.Dropped) != 0 {
		t.Errorf("stats %+v", s)
	}
}

// While the server is away batches wait in memory, then on disk, and nothing is lost.
func TestServerAway(t *testing.T) {
	process := streamstest.StartProcess(t)
	_, js := streamstest.Connect(t, process.URL())
	streamstest.Apply(t, js, 1, pool)
	dir := t.TempDir()
	o := New(Config{Pool: pool, Replica: replica, MemoryBytes: 4 << 10, SpoolDir: dir}, js)
	streamstest.Run(t, o.Run)
	o.Begin("start", 1, clearing(), nil)
	streamstest.Until(t, drained(o))
	process.Kill()
	for i := range uint64(5000) {
		o.Push(1, store(i), &i)
	}
	if s := o.Stats(); s.SpoolBytes == 0 || s.Waiting < 4000 {
		t.Errorf("nothing went to disk: %+v", s)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 0 {
		t.Errorf("the spool can be left behind: %v %v", files, err)
	}
	process.Start()
	for i := range uint64(100) {
		i += 5000
		o.Push(1, store(i), &i)
	}
	streamstest.Until(t, drained(o))
	all := history(t, js)
	if n := contiguous(t, all); n != 1 || len(all) != 5101 || all[5100].GetSourceSeq() != 5099 {
		t.Fatalf("%d epochs, %d batches", n, len(all))
	}
}

// Past its bounds the outbox gives up the epoch, and asks for the whole cache
// once the server is back: the stream never has a hole.
func TestOverflowBeginsAnEpoch(t *testing.T) {
	process := streamstest.StartProcess(t)
	_, js := streamstest.Connect(t, process.URL())
	streamstest.Apply(t, js, 1, pool)
	o := New(Config{Pool: pool, Replica: replica, MemoryBytes: 1 << 10, SpoolBytes: 1 << 10, SpoolDir: t.TempDir()}, js)
	streamstest.Run(t, o.Run)
	o.Begin("start", 1, clearing(), nil)
	streamstest.Until(t, drained(o))
	process.Kill()
	for i := range uint64(200) {
		o.Push(1, store(i), &i)
	}
	if s := o.Stats(); s.Broken != ReasonOverflow || s.Dropped[ReasonOverflow] != 200 {
		t.Errorf("stats %+v", s)
	}
	select {
	case <-o.Whole():
		t.Fatal("the whole cache was asked for while nobody can take it")
	default:
	}
	process.Start()
	reason := <-o.Whole()
	source := uint64(199)
	o.Begin(reason, 2, append(clearing(), store(1, 2, 3)...), &source)
	streamstest.Until(t, drained(o))
	all := history(t, js)
	last := all[len(all)-1]
	if n := contiguous(t, all); n != 2 || last.GetSourceSeq() != 199 || len(last.GetEvents()) != 2 {
		t.Errorf("%d epochs, last %v", n, last)
	}
}

// Two bridges of one replica are found out, and the stream stays in order.
func TestAnotherPublisher(t *testing.T) {
	process := streamstest.StartProcess(t)
	_, js := streamstest.Connect(t, process.URL())
	streamstest.Apply(t, js, 1, pool)
	o := New(Config{Pool: pool, Replica: replica}, js)
	o.Begin("start", 1, clearing(), nil)
	other := New(Config{Pool: pool, Replica: replica}, js)
	other.Follow(o.Stats().Epoch)
	other.Begin("start", 1, clearing(), nil)
	stop := streamstest.Run(t, other.Run)
	streamstest.Until(t, drained(other))
	stop()
	// This outbox is made to look: as after batches whose outcome is unknown.
	if _, err := o.settle(t.Context(), o.life, o.Stats().Epoch); err == nil {
		t.Fatal("the other publisher was not seen")
	}
	if s := o.Stats(); s.Broken != ReasonConflict {
		t.Errorf("stats %+v", s)
	}
	o.Begin(ReasonConflict, 1, clearing(), nil)
	streamstest.Run(t, o.Run)
	streamstest.Until(t, drained(o))
	if n := contiguous(t, history(t, js)); n != 2 {
		t.Errorf("%d epochs", n)
	}
}

func TestEpochsGrowThoughTheClockGoesBack(t *testing.T) {
	last := uuid.Must(uuid.NewV7())
	last[0]++ // a clock years ahead
	for range 5 {
		next := nextEpoch(last)
		if bytes.Compare(next[:], last[:]) <= 0 || next.Version() != 7 {
			t.Fatalf("%v after %v", next, last)
		}
		last = next
	}
	last[2], last[3], last[4], last[5] = 0xff, 0xff, 0xff, 0xff
	if next := nextEpoch(last); bytes.Compare(next[:], last[:]) <= 0 {
		t.Fatalf("%v after %v", next, last)
	}
}

func TestSpoolFindsDamage(t *testing.T) {
	s := spool{dir: t.TempDir(), limit: 1 << 20}
	defer s.close()
	for i := range uint64(3) {
		if err := s.put(i, bytes.Repeat([]byte{byte(i)}, 100)); err != nil {
			t.Fatal(err)
		}
	}
	if seq, data, ok, err := s.take(); seq != 0 || len(data) != 100 || !ok || err != nil {
		t.Fatal(seq, data, ok, err)
	}
	if _, err := s.file.WriteAt([]byte{9}, s.read+recordHeader+5); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := s.take(); err == nil {
		t.Error("a damaged record was taken")
	}
}
