package router

import (
	"google.golang.org/protobuf/encoding/protowire"

	pb "warmpath/schemas/warmpathv1"
)

// decidedSchema is the full name of a decision's message.
var decidedSchema = string((&pb.Decided{}).ProtoReflect().Descriptor().FullName())

// Fields of a decision that peek reads.
var (
	requestIDField = fieldNumber("request_id")
	attemptField   = fieldNumber("attempt")
	chosenField    = fieldNumber("chosen")
)

func fieldNumber(name string) protowire.Number {
	fields := (&pb.Decided{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if f := fields.Get(i); string(f.Name()) == name {
			return f.Number()
		}
	}
	return 0
}

// peek reads which attempt an encoded decision is about and what it chose, past
// its candidates and keys, which are most of it. ok is false for what is no message.
func peek(decided []byte) (id, chosen string, ok bool) {
	var request string
	var attempt uint64
	for len(decided) > 0 {
		field, kind, n := protowire.ConsumeTag(decided)
		if n < 0 {
			return "", "", false
		}
		decided = decided[n:]
		switch {
		case kind == protowire.BytesType && (field == requestIDField || field == chosenField):
			var v []byte
			if v, n = protowire.ConsumeBytes(decided); n < 0 {
				return "", "", false
			}
			if field == chosenField {
				chosen = string(v)
			} else {
				request = string(v)
			}
		case kind == protowire.VarintType && field == attemptField:
			attempt, n = protowire.ConsumeVarint(decided)
		default:
			n = protowire.ConsumeFieldValue(field, kind, decided)
		}
		if n < 0 {
			return "", "", false
		}
		decided = decided[n:]
	}
	return attemptID(request, uint32(attempt)), chosen, true
}
