// Package decided reads decisions in part, and writes them fast. Most of an
// encoded decision is its candidates, one for every replica of the pool; who
// follows the choice needs one of them, and passes the others on as they are.
package decided

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	pb "warmpath/schemas/warmpathv1"
)

// Schema is the full name of a decision's message.
var Schema = string((&pb.Decided{}).ProtoReflect().Descriptor().FullName())

// Numbers of the fields that are looked for.
const (
	decisionField   protowire.Number = 1 // of RouteResponse
	replicaField    protowire.Number = 1 // of Candidate
	requestIDField  protowire.Number = 3
	attemptField    protowire.Number = 4
	keysField       protowire.Number = 11
	candidatesField protowire.Number = 13
	chosenField     protowire.Number = 14
)

// errWire is wrapped by errors about bytes that are no message.
var errWire = errors.New("the bytes are no protobuf message")

// cursor goes through the fields of an encoded message.
type cursor struct {
	rest []byte
	// The field that next found: all of it, and what follows its tag.
	number       protowire.Number
	kind         protowire.Type
	field, value []byte
	err          error
}

// next reports false at the end, or at what is no message: then err says so.
func (c *cursor) next() bool {
	if len(c.rest) == 0 {
		return false
	}
	n, kind, tag := protowire.ConsumeTag(c.rest)
	if tag < 0 {
		c.err = fmt.Errorf("%w: %w", errWire, protowire.ParseError(tag))
		return false
	}
	size := protowire.ConsumeFieldValue(n, kind, c.rest[tag:])
	if size < 0 {
		c.err = fmt.Errorf("%w: field %d: %w", errWire, n, protowire.ParseError(size))
		return false
	}
	c.number, c.kind = n, kind
	c.field, c.value, c.rest = c.rest[:tag+size], c.rest[tag:tag+size], c.rest[tag+size:]
	return true
}

// has says whether this is field n with content of its own length, which bytes
// then returns.
func (c *cursor) has(n protowire.Number) bool {
	return c.number == n && c.kind == protowire.BytesType
}

func (c *cursor) bytes() []byte {
	v, _ := protowire.ConsumeBytes(c.value) // its length was checked
	return v
}

// Attempt reads which attempt of which request an encoded decision is about, and
// the replica that it chose. Of the rest it checks the outline only. It returns an
// error for bytes that are no message.
func Attempt(data []byte) (requestID string, attempt uint32, chosen string, err error) {
	c := cursor{rest: data}
	for c.next() {
		switch {
		case c.has(requestIDField):
			requestID = string(c.bytes())
		case c.has(chosenField):
			chosen = string(c.bytes())
		case c.number == attemptField && c.kind == protowire.VarintType:
			v, _ := protowire.ConsumeVarint(c.value)
			attempt = uint32(v)
		}
	}
	return requestID, attempt, chosen, c.err
}
