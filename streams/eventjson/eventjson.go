// Package eventjson is the text form of a stream's events: one JSON object a
// line, lossless, for people and for files.
package eventjson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"warmpath/streams"
)

// Line is one event. Event is the protobuf message in its JSON form, so keys and
// other 64-bit numbers are strings.
type Line struct {
	Stream  string          `json:"stream"`
	Seq     uint64          `json:"seq"`
	Time    time.Time       `json:"time"`
	Subject string          `json:"subject"`
	ID      string          `json:"id,omitempty"`
	Schema  string          `json:"schema"`
	Digest  string          `json:"digest,omitempty"`
	Event   json.RawMessage `json:"event"`
}

// Encode returns the line of an event, without a newline. It returns an error
// when the payload is not of the schema it names.
func Encode(e streams.Event) ([]byte, error) {
	message, err := streams.Decode(e.Schema, e.Data)
	if err != nil {
		return nil, fmt.Errorf("%s %d: %w", e.Stream, e.Seq, err)
	}
	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("%s %d: %w", e.Stream, e.Seq, err)
	}
	// protojson puts spaces where it likes; a line must not depend on that.
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		return nil, fmt.Errorf("%s %d: %w", e.Stream, e.Seq, err)
	}
	return json.Marshal(Line{
		Stream: e.Stream, Seq: e.Seq, Time: e.Time.UTC(), Subject: e.Subject, ID: e.ID, Schema: e.Schema, Digest: e.Digest, Event: compact.Bytes(),
	})
}

// Decode reads a line that Encode wrote, or one that was edited since. Unknown
// fields of the event are an error: an edited name must not pass in silence.
func Decode(line []byte) (streams.Event, error) {
	var l Line
	if err := json.Unmarshal(line, &l); err != nil {
		return streams.Event{}, err
	}
	message, err := streams.Empty(l.Schema)
	if err != nil {
		return streams.Event{}, err
	}
	if err := protojson.Unmarshal(l.Event, message); err != nil {
		return streams.Event{}, fmt.Errorf("event: %w", err)
	}
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		return streams.Event{}, err
	}
	return streams.Event{
		Stream: l.Stream, Seq: l.Seq, Time: l.Time, Subject: l.Subject, Schema: l.Schema, ID: l.ID, Digest: l.Digest, Data: data,
	}, nil
}
