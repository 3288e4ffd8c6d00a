package streams

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"warmpath/schemas/decided"
	// Decode finds the message types of the contract in the registry.
	_ "warmpath/schemas/warmpathv1"
)

// schemaHeader names the message type of the payload, such as
// "warmpath.v1.Decided".
const schemaHeader = "Warmpath-Schema"

// digestHeader holds the SHA-256 of the payload in hex, so that an auditor sees
// a stored event that was changed, also where nothing could be recomputed.
const digestHeader = "Warmpath-Digest"

// Message is an event on its way into a stream.
type Message struct {
	Subject string
	// ID makes resending harmless: the stream stores an id once within its
	// duplicate window. Empty for a message that may be stored twice.
	ID string
	// Schema is the full protobuf name of what Data holds.
	Schema string
	Data   []byte
}

// NewMessage encodes m for subject. Same message, same bytes.
func NewMessage(subject, id string, m proto.Message) (Message, error) {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return Message{}, fmt.Errorf("encode message %s for %s: %w", id, subject, err)
	}
	return Message{Subject: subject, ID: id, Schema: string(m.ProtoReflect().Descriptor().FullName()), Data: data}, nil
}

// Event is a message as a stream holds it. Data must not be changed, and is
// valid for as long as it is referenced.
type Event struct {
	Stream string
	// Seq is the position in the stream, from 1.
	Seq uint64
	// Time is when the server stored it.
	Time    time.Time
	Subject string
	Schema  string
	ID      string
	// Digest is what the publisher said the payload's Digest is; empty if nothing.
	Digest string
	Data   []byte
}

// Digest is the SHA-256 of a payload in hex.
func Digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Empty returns an empty message of a schema. It returns an error for one that
// this build does not know.
func Empty(schema string) (proto.Message, error) {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(schema))
	if err != nil {
		return nil, fmt.Errorf("schema %q is not known to this build: %w", schema, err)
	}
	return kind.New().Interface(), nil
}

// Decode decodes the payload of an event by its schema name. It returns an
// error for an unknown schema and for a payload that is not of it.
func Decode(schema string, data []byte) (proto.Message, error) {
	m, err := Empty(schema)
	if err != nil {
		return nil, err
	}
	if err := proto.Unmarshal(data, m); err != nil {
		return nil, fmt.Errorf("decode %s: %w", schema, err)
	}
	return m, nil
}

// DecodeChoice is Decode for those who follow what is chosen: of a decision's
// candidates it decodes the chosen one alone, in a third of the time. data must
// not be changed any more.
func DecodeChoice(schema string, data []byte) (proto.Message, error) {
	if schema != decided.Schema {
		return Decode(schema, data)
	}
	d, err := decided.Read(data)
	if err != nil {
		return nil, fmt.Errorf("decode %s: %w", schema, err)
	}
	return d.Decided, nil
}
