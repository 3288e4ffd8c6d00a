package router

import (
	"testing"

	"google.golang.org/protobuf/proto"

	pb "warmpath/schemas/warmpathv1"
)

func TestPeek(t *testing.T) {
	d := &pb.Decided{
		Pool: "p", RequestId: "r/1", Attempt: 3, Chosen: "b", Keys: []uint64{1, 2}, KvSeq: 9,
		Candidates: []*pb.Candidate{{Replica: "a", Score: 1}, {Replica: "b"}},
	}
	for _, want := range []*pb.Decided{d, {}, {Chosen: "x"}} {
		data, err := proto.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		id, chosen, ok := peek(data)
		if !ok || id != attemptID(want.RequestId, want.Attempt) || chosen != want.Chosen {
			t.Errorf("got %q %q %v of %v", id, chosen, ok, want)
		}
		for n := range data { // cut short: some prefixes are messages, none is misread
			if id, _, ok := peek(data[:n]); ok && id == attemptID(want.RequestId, want.Attempt) {
				again := &pb.Decided{}
				if err := proto.Unmarshal(data[:n], again); err != nil {
					t.Errorf("%d bytes of %v are no message and were read", n, want)
				}
			}
		}
	}
}
