package eventjson

import (
	"bytes"
	"strings"
	"testing"
	"time"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
)

func event(t *testing.T) streams.Event {
	t.Helper()
	m, err := streams.NewMessage("route.demo.gw", "r-1/0/decided", &pb.Decided{
		Pool: "demo", RequestId: "r-1", Keys: []uint64{1, 1<<64 - 1}, Seed: 1<<63 + 1,
		Candidates: []*pb.Candidate{{Replica: "engine-0", Score: 0.1 + 0.2}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return streams.Event{Stream: "ROUTE", Seq: 7, Time: time.Unix(1790000000, 123456789).UTC(),
		Subject: m.Subject, ID: m.ID, Schema: m.Schema, Digest: streams.Digest(m.Data), Data: m.Data}
}

func TestLinesAreLossless(t *testing.T) {
	want := event(t)
	line, err := Encode(want)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(line, []byte("\n")) {
		t.Error("a line holds a newline")
	}
	got, err := Decode(line)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Data, want.Data) || got.Digest != want.Digest || got.Seq != want.Seq ||
		!got.Time.Equal(want.Time) || got.ID != want.ID || got.Subject != want.Subject || got.Stream != want.Stream {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func TestDecodeRefusesWhatItCannotKeep(t *testing.T) {
	line, err := Encode(event(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string][2]string{
		"unknown field":  {`"request_id"`, `"request_ld"`},
		"unknown schema": {`warmpath.v1.Decided`, `warmpath.v9.Decided`},
		"not JSON":       {`{`, ``},
	} {
		edited := strings.Replace(string(line), change[0], change[1], 1)
		if _, err := Decode([]byte(edited)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestEncodeRefusesAnotherPayload(t *testing.T) {
	e := event(t)
	e.Schema = string((&pb.KVBatch{}).ProtoReflect().Descriptor().FullName())
	e.Data = []byte{0xff}
	if _, err := Encode(e); err == nil {
		t.Error("encoded a payload that is not of its schema")
	}
}

func TestEditedEventKeepsItsOldDigest(t *testing.T) {
	e := event(t)
	line, err := Encode(e)
	if err != nil {
		t.Fatal(err)
	}
	edited, err := Decode(bytes.Replace(line, []byte(`"r-1"`), []byte(`"r-2"`), 1))
	if err != nil {
		t.Fatal(err)
	}
	if edited.Digest == streams.Digest(edited.Data) {
		t.Error("the edit does not show")
	}
}
