package decided_test

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	"warmpath/schemas/decided"
	pb "warmpath/schemas/warmpathv1"
)

func marshal(t interface{ Fatal(...any) }, m proto.Message) []byte {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// filled gives every field of a message, and of those in it, a value with the
// chance given: a field that is added to the schema is among them. Some messages
// are of a newer schema, candidates only if newer is set.
func filled(r *rand.Rand, m protoreflect.Message, chance float64, newer bool) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case r.Float64() >= chance:
		case f.IsList():
			list := m.Mutable(f).List()
			for range 1 + r.IntN(4) {
				if f.Message() == nil {
					list.Append(scalar(r, f))
					continue
				}
				filled(r, list.AppendMutable().Message(), chance, newer)
			}
		case f.Message() != nil:
			filled(r, m.Mutable(f).Message(), chance, newer)
		default:
			m.Set(f, scalar(r, f))
		}
	}
	switch m.Interface().(type) {
	case *pb.Candidate, *pb.LoadTerms, *pb.TierBlocks:
	default:
		newer = true
	}
	if newer && r.Float64() < chance/4 {
		m.SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 1000, protowire.BytesType), "of a newer schema"))
	}
}

func scalar(r *rand.Rand, f protoreflect.FieldDescriptor) protoreflect.Value {
	number := r.Uint64() >> r.IntN(64)
	switch f.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(strings.Repeat("é", r.IntN(90)))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(bytes.Repeat([]byte{0xff}, r.IntN(20)))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(number&1 == 1)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(number))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(int64(number))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(number)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(r.IntN(6)))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64([]float64{0, math.Copysign(0, -1), 1.5, math.Inf(1)}[r.IntN(4)])
	}
	panic("the schema has a kind of field that is not known here: " + f.Kind().String())
}

// drawn is an answer with a decision that chooses one of its candidates, none, or
// one that is not there.
func drawn(t *rapid.T, newer bool) *pb.RouteResponse {
	r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
	a := &pb.RouteResponse{}
	filled(r, a.ProtoReflect(), rapid.SampledFrom([]float64{0, 0.5, 1}).Draw(t, "chance"), newer)
	if d := a.Decision; d != nil && len(d.Candidates) > 0 && r.IntN(4) > 0 {
		d.Chosen = d.Candidates[r.IntN(len(d.Candidates))].Replica
	}
	return a
}

// What is written by hand is what proto.Marshal writes, to the byte.
func TestAppendIsMarshal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := drawn(t, false)
		got, err := decided.AppendAnswer([]byte("before"), a)
		if want := append([]byte("before"), marshal(t, a)...); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("got %x (%v), want %x of %v", got, err, want, a)
		}
		if a.Decision == nil {
			return
		}
		got, err = decided.Append(nil, a.Decision)
		if want := marshal(t, a.Decision); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("got %x (%v), want %x of %v", got, err, want, a.Decision)
		}
	})
}

// A decision that was read in part has all but the candidates not chosen, and
// written again it is the whole one, with what was changed.
func TestReadInPart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawn(t, true)
		asked := slices.Clone(want.GetDecision().GetKeys())
		if rapid.Bool().Draw(t, "other keys") {
			asked = append(asked, 1)
		}
		answer, p, err := decided.ReadAnswer(marshal(t, want), asked)
		if err != nil {
			t.Fatal(err)
		}
		d := want.Decision
		want.Decision = nil
		if !proto.Equal(answer, want) {
			t.Fatalf("got %v, want %v", answer, want)
		}
		if d == nil {
			if p.Decided != nil {
				t.Fatalf("got %v of an answer without a decision", p)
			}
			return
		}
		d.Gateway, d.WaitUs = "me", 7
		all := marshal(t, d)
		p.Gateway, p.WaitUs = "me", 7
		if got, err := p.Append(nil); err != nil || !bytes.Equal(got, all) {
			t.Fatalf("got %x (%v), want %x", got, err, all)
		}
		one := &pb.Decided{}
		if err := proto.Unmarshal(all, one); err != nil {
			t.Fatal(err)
		}
		one.Candidates = slices.DeleteFunc(one.Candidates, func(c *pb.Candidate) bool { return c.Replica != one.Chosen })
		if !proto.Equal(p.Decided, one) {
			t.Fatalf("got %v, want %v", p.Decided, one)
		}
	})
}

func TestAttempt(t *testing.T) {
	d := &pb.Decided{
		Pool: "p", RequestId: "r/1", Attempt: 3, Chosen: "b", Keys: []uint64{1, 2}, KvSeq: 9,
		Candidates: []*pb.Candidate{{Replica: "a", Score: 1}, {Replica: "b"}},
	}
	for _, want := range []*pb.Decided{d, {}, {Chosen: "x"}} {
		id, attempt, chosen, err := decided.Attempt(marshal(t, want))
		if err != nil || id != want.RequestId || attempt != want.Attempt || chosen != want.Chosen {
			t.Errorf("got %q %d %q (%v) of %v", id, attempt, chosen, err, want)
		}
	}
}

func TestNotUTF8IsRefused(t *testing.T) {
	for _, d := range []*pb.Decided{{Model: "\xff"}, {Candidates: []*pb.Candidate{{Replica: "\xff"}}}} {
		if data, err := decided.Append(nil, d); err == nil {
			t.Errorf("%v was written as %x, which nobody can read", d, data)
		}
	}
}

// FuzzRead is that no bytes are read in part that are no message, and none are
// misread.
func FuzzRead(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, chance := range []float64{0, 0.3, 0.6, 1} {
		a := &pb.RouteResponse{}
		filled(r, a.ProtoReflect(), chance, true)
		f.Add(marshal(f, a))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		answer, p, err := decided.ReadAnswer(data, []uint64{1})
		want := &pb.RouteResponse{}
		refused := proto.Unmarshal(data, want)
		if err != nil || refused != nil {
			if refused == nil && !bytes.Contains([]byte(err.Error()), []byte("two decisions")) {
				t.Fatalf("%x was refused: %v", data, err)
			}
			return // inside candidates not chosen a part may be faulty
		}
		if answer.Address != want.Address || !slices.Equal(p.GetKeys(), want.Decision.GetKeys()) || p.GetChosen() != want.Decision.GetChosen() || p.GetRequestId() != want.Decision.GetRequestId() {
			t.Fatalf("got %v and %v, want %v", answer, p, want)
		}
	})
}

// pool is an answer as a router of 64 replicas gives it.
func pool() *pb.RouteResponse {
	d := &pb.Decided{Pool: "chat", RequestId: "0197-1", Chosen: "engine-07", Keys: make([]uint64, 387), Policy: &pb.PolicyRef{Name: "ttft", Version: 1}}
	age, indexed := int64(500_000), uint64(16_384)
	for i := range 64 {
		d.Candidates = append(d.Candidates, &pb.Candidate{
			Replica: "engine-" + string([]byte{'0' + byte(i/10), '0' + byte(i%10)}), Epoch: make([]byte, 16), GpuBlocks: 128, TotalBlocks: 128, PredictedBlocks: 128,
			Tiers: []*pb.TierBlocks{{Tier: pb.Tier_TIER_GPU, Blocks: 128}}, PrefillTokensPerSecond: 2e4, Score: 310.5, ExpectedCachedTokens: 2048, IndexedBlocks: &indexed,
			Load: &pb.LoadTerms{QueuedPrefillTokens: 300, InFlight: 2, Running: 2, KvUsed: 0.5, ReportAgeUs: &age},
		})
	}
	return &pb.RouteResponse{Decision: d, Address: "http://10.0.0.7:8000"}
}

func BenchmarkAppendAnswer(b *testing.B) {
	a := pool()
	b.Run("by hand", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := decided.AppendAnswer(nil, a); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("floor", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			marshal(b, a)
		}
	})
}

func BenchmarkReadAnswer(b *testing.B) {
	a := pool()
	data := marshal(b, a)
	b.Run("in part", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := decided.ReadAnswer(data, a.Decision.Keys); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("floor", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := proto.Unmarshal(data, &pb.RouteResponse{}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
