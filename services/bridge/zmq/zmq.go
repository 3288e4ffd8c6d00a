// Package zmq carries engines' KV events: it subscribes to their PUB sockets by
// dialing or listening, asks their replay sockets, and records what came.
//
// The protocol (greeting, handshake, frames) is go-zeromq/zmq4's; its sockets are
// not used, only its connections, because the sockets (v0.17.0)
//   - allocate whatever length a peer names, and panic on some malformed
//     handshakes, in goroutines of their own: any peer can end the process;
//   - shake hands without a deadline, and one at a time when listening: a peer
//     that connects and stays silent keeps every other out;
//   - sleep through cancelled contexts when dialing, and leak the connection when
//     the handshake fails;
//   - leave a goroutine behind for ever when closed while their queue of 10 is
//     full (SUB), and always (PUB);
//   - drop silently at a PUB's high-water mark, for all subscribers at once, and
//     everything still queued at Close;
//   - may write a PONG into the middle of another frame, or not answer a PING.
//
// Here nothing is dropped between the socket and the handler: a slow handler
// fills a bounded queue, the queue stops the reader, and TCP stops the engine,
// whose own high-water mark then drops, which its sequence numbers show.
package zmq

import (
	"encoding/binary"
	"errors"
	"time"
)

const (
	// defaultMaxFrame holds a batch of three million token ids; an engine's step
	// stores thousands.
	defaultMaxFrame = 16 << 20
	// handshakeTimeout bounds connecting and shaking hands, each. Engines are on
	// the same host or network.
	handshakeTimeout = 5 * time.Second
	// endSequence marks the end of a replay: -1 as the engines write it.
	endSequence = ^uint64(0)
	seqBytes    = 8
)

var (
	// ErrTooLarge is what a connection ends with when its peer announces a message
	// over the limit, or of too many parts.
	ErrTooLarge = errors.New("message over the size limit")
	// ErrNotZeroMQ is what connecting ends with when the peer speaks something else.
	ErrNotZeroMQ = errors.New("the peer does not speak ZeroMQ: is this the port of the engine's events?")
)

// Frame is one message of an engine: a batch of events, or a load report. Its
// slices are the receiver's to keep.
type Frame struct {
	// Topic is the first part. It is nil when the message came by a replay that
	// does not tell topics.
	Topic []byte
	// Seq is the publisher's number of the message, counted per process.
	Seq uint64
	// Payload is msgpack, to be decoded by package kvevents.
	Payload []byte
	// AtUS is the wall clock at arrival, in microseconds since 1970.
	AtUS int64
	// Conn numbers the connection it came by, from 1 in each Subscribe; 0 when it
	// came by replay. Publishers that dial the same listener differ in it.
	Conn uint64
}

// Reason says why a message was ignored.
type Reason string

// The reasons for ignoring a message.
const (
	// ReasonParts is a message that has not the three parts topic, sequence, payload.
	ReasonParts Reason = "parts"
	// ReasonSequence is a sequence that is not of eight bytes.
	ReasonSequence Reason = "sequence"
	// ReasonTopic is a message of a topic that was not subscribed to.
	ReasonTopic Reason = "topic"
	// ReasonSize is a message over the limit. Its connection was closed.
	ReasonSize Reason = "size"
)

// parseFrame reads a message of three parts; reason is empty when it is one.
func parseFrame(parts [][]byte) (f Frame, reason Reason) {
	if len(parts) != 3 {
		return Frame{}, ReasonParts
	}
	if len(parts[1]) != seqBytes {
		return Frame{}, ReasonSequence
	}
	return Frame{Topic: parts[0], Seq: binary.BigEndian.Uint64(parts[1]), Payload: parts[2]}, ""
}
