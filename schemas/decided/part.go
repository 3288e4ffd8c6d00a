package decided

import (
	"encoding/binary"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "warmpath/schemas/warmpathv1"
)

// Part is a decision of which, where it was read from its encoding, only the chosen
// candidate was decoded. The zero Part is none.
type Part struct {
	// Decided has all fields; of the candidates, those that were decoded.
	*pb.Decided
	// candidates are all of them, encoded, each with its tag; nil when all stand in
	// Decided.
	candidates []byte
}

// Whole is a decision with all its candidates.
func Whole(d *pb.Decided) Part { return Part{Decided: d} }

// Read decodes a decision but for the candidates that were not chosen. The part
// keeps data, which must not be changed any more. It returns an error for what
// proto.Unmarshal would refuse, but for faults inside those candidates.
func Read(data []byte) (Part, error) { return read(data, nil) }

// read is Read for who may know the keys already.
func read(data []byte, known []uint64) (Part, error) {
	p := Part{Decided: &pb.Decided{}}
	first, keyed := 0, false // where the candidates begin, and whether keys were seen
	err := unmarshal(data, p.Decided, func(c *cursor, at int) bool {
		end := at + len(c.field)
		switch {
		case c.has(keysField) && !keyed:
			keyed = true // another such field adds to them
			if !same(c.bytes(), known) {
				return false
			}
			p.Keys = known[:len(known):len(known)]
		case !c.has(candidatesField):
			return false
		case p.candidates == nil:
			first = at
			fallthrough
		case first+len(p.candidates) == at:
			p.candidates = data[first:end:end]
		default: // they do not stand together: this copies them
			first = len(data)
			p.candidates = append(p.candidates, c.field...)
		}
		return true
	})
	if err != nil {
		return Part{}, err
	}
	return p, p.choose()
}

// unmarshal decodes into m the fields that take, told where each begins, does not
// take.
func unmarshal(data []byte, m proto.Message, take func(c *cursor, at int) bool) error {
	merge := proto.UnmarshalOptions{Merge: true}
	begin := 0 // of fields that were not taken
	c := cursor{rest: data}
	for at := 0; c.next(); at += len(c.field) {
		if !take(&c, at) {
			continue
		}
		if err := merge.Unmarshal(data[begin:at], m); err != nil {
			return err
		}
		begin = at + len(c.field)
	}
	if c.err != nil {
		return c.err
	}
	return merge.Unmarshal(data[begin:], m)
}

// same says whether packed keys are the known ones.
func same(packed []byte, known []uint64) bool {
	if len(known) == 0 || len(packed) != 8*len(known) {
		return false
	}
	for i, k := range known {
		if binary.LittleEndian.Uint64(packed[8*i:]) != k {
			return false
		}
	}
	return true
}

// choose decodes the candidate that was chosen.
func (p *Part) choose() error {
	all := cursor{rest: p.candidates}
	for all.next() {
		value := all.bytes()
		c := cursor{rest: value}
		if c.next() && c.has(replicaField) && string(c.bytes()) != p.Chosen {
			continue // encoders write the name first, and once
		}
		candidate := &pb.Candidate{}
		if err := proto.Unmarshal(value, candidate); err != nil {
			return fmt.Errorf("candidate %q: %w", candidate.Replica, err)
		}
		if candidate.Replica == p.Chosen {
			p.Candidates = append(p.Candidates, candidate)
		}
	}
	return nil
}

// ReadAnswer decodes a router's answer: the decision, if there is one, apart and in
// part, and the rest. asked are the keys that the question had, or none: an answer
// repeats them, and the part has them then as they are.
func ReadAnswer(data []byte, asked []uint64) (*pb.RouteResponse, Part, error) {
	answer := &pb.RouteResponse{}
	var decision []byte
	decisions := 0
	err := unmarshal(data, answer, func(c *cursor, _ int) bool {
		if !c.has(decisionField) {
			return false
		}
		decision = c.bytes()
		decisions++
		return true
	})
	switch {
	case err != nil:
		return nil, Part{}, err
	case decisions > 1:
		return nil, Part{}, fmt.Errorf("%w of ours: it has two decisions", errWire)
	case decisions == 0:
		return answer, Part{}, nil
	}
	p, err := read(decision, asked)
	return answer, p, err
}

// Append appends the encoded decision to dst: its fields as they are now, and all
// candidates as they were read, whatever they are now. A decision that Append or
// proto.Marshal wrote and nobody changed gives the same bytes again. It returns an
// error for a string that is not UTF-8.
func (p Part) Append(dst []byte) ([]byte, error) {
	w := writer{buf: slices.Grow(dst, room(p.Decided, p.candidates))}
	w.decision(p.Decided, p.candidates)
	return w.done()
}
