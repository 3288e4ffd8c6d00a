package streams_test

import (
	"errors"
	"testing"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
	"warmpath/streams/streamstest"
)

func TestReplicaReadsItsOwnHistory(t *testing.T) {
	server := streamstest.Start(t)
	_, js := streamstest.Connect(t, server.URL(""))
	ctx := testContext(t)
	if _, _, err := streams.LastKV(ctx, js, "chat", "e0"); !errors.Is(err, streams.ErrNoStream) {
		t.Errorf("without a stream: %v", err)
	}
	streamstest.Apply(t, js, 1, "chat")
	if b, seq, err := streams.LastKV(ctx, js, "chat", "e0"); b != nil || seq != 0 || err != nil {
		t.Errorf("without batches: %v %d %v", b, seq, err)
	}
	p := streams.NewPublisher(js, streams.PublisherConfig{})
	epoch := make([]byte, 16)
	for i := range uint64(30) {
		replica := []string{"e0", "e0.dp1", "e1"}[i%3]
		m, err := streams.NewMessage(streams.KVSubject("chat", replica), streams.KVID(replica, epoch, i), &pb.KVBatch{
			Pool: "chat", Replica: replica, Epoch: epoch, Seq: i/3 + 1,
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Publish(ctx, m); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	last, seq, err := streams.LastKV(ctx, js, "chat", "e0.dp1")
	if err != nil || last.GetReplica() != "e0.dp1" || last.GetSeq() != 10 || seq != 29 {
		t.Fatalf("last is %v at %d: %v", last, seq, err)
	}
	want := uint64(1)
	err = streams.ReadKV(ctx, js, "chat", "e0.dp1", seq, func(b *pb.KVBatch) error {
		if b.GetReplica() != "e0.dp1" || b.GetSeq() != want {
			t.Errorf("got %v, want seq %d", b, want)
		}
		want++
		return nil
	})
	if err != nil || want != 11 {
		t.Errorf("read up to %d: %v", want, err)
	}
	stop := errors.New("enough")
	if err := streams.ReadKV(ctx, js, "chat", "e0.dp1", seq, func(*pb.KVBatch) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
}
