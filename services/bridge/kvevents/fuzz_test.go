package kvevents_test

import (
	"reflect"
	"testing"

	"warmpath/services/bridge/kvevents"
)

// FuzzDecode holds that no bytes break a decoder, and that what it says is
// consistent: decoding again says the same, and its parts fit each other.
func FuzzDecode(f *testing.F) {
	for _, v := range vectors() {
		b := unhex(f, v.hex)
		f.Add(b)
		f.Add(kvevents.Encoder{Generation: v.encoder.Generation, Wrap: true}.AppendBatch(nil, v.want))
		for _, g := range kvevents.Generations() {
			f.Add(kvevents.AppendBatch(nil, g, v.want))
		}
	}
	f.Add([]byte{0x93, 0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0, 0xdd, 0x80, 0, 0, 0})
	f.Add(kvevents.AppendLoad(nil, kvevents.LoadStat{Running: 1, Rank: -1, QueuedTokens: -1}))
	d := kvevents.NewDecoder(kvevents.Limits{})
	f.Fuzz(func(t *testing.T, payload []byte) {
		if s, err := kvevents.DecodeLoad(payload); err == nil {
			again, err := kvevents.DecodeLoad(kvevents.AppendLoad(nil, s))
			if err != nil || again != s {
				t.Fatalf("load %+v came back as %+v, %v", s, again, err)
			}
		}
		before := d.Counts()
		used, err := d.Decode(payload)
		fresh, err2 := kvevents.NewDecoder(kvevents.Limits{}).Decode(payload)
		if (err == nil) != (err2 == nil) {
			t.Fatalf("a used decoder says %v, a fresh one %v", err, err2)
		}
		if err != nil {
			return
		}
		if len(used.Events)+len(fresh.Events) == 0 {
			used.Events, fresh.Events = nil, nil
		}
		if !reflect.DeepEqual(*used, *fresh) {
			t.Fatalf("a used decoder says\n%+v\na fresh one\n%+v", *used, *fresh)
		}
		after := d.Counts()
		if after.BadEvents-before.BadEvents != uint64(used.Skipped) || after.UnknownTags-before.UnknownTags != uint64(used.Unknown) {
			t.Fatalf("counts %+v do not fit %+v", after, used)
		}
		if sum := after.BadShapes + after.BadHashes + after.BadTokens + after.OverLimit + after.Truncated; sum != after.BadEvents {
			t.Fatalf("the reasons add up to %d of %d bad events", sum, after.BadEvents)
		}
		for _, ev := range used.Events {
			consistent(t, ev)
		}
	})
}

func consistent(t *testing.T, ev kvevents.Event) {
	t.Helper()
	switch {
	case ev.Kind != kvevents.Cleared && len(ev.Hashes) == 0,
		ev.Kind == kvevents.Cleared && len(ev.Hashes)+len(ev.Tokens) > 0,
		ev.Kind == kvevents.Removed && len(ev.Tokens) > 0,
		ev.CopiesLeft != nil && len(ev.CopiesLeft) != len(ev.Hashes),
		ev.Extras != nil && len(ev.Extras) != len(ev.Hashes),
		!ev.HasParent && ev.Parent != 0,
		ev.BlockSize < 0, ev.Window < 0, ev.Group < 0:
		t.Fatalf("inconsistent event %+v", ev)
	}
}

// FuzzPull holds the same of TensorRT-LLM's JSON, and that what can be written
// again reads the same.
func FuzzPull(f *testing.F) {
	for _, body := range pullSeeds() {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		events, err := kvevents.DecodePull(body)
		if err != nil {
			return
		}
		for _, p := range events {
			if p.Bad != "" && (len(p.Events) > 0 || p.Created != nil) {
				t.Fatalf("a bad event tells something: %+v", p)
			}
			for _, ev := range p.Events {
				consistent(t, ev)
			}
			if p.Bad != "" || p.Unknown != "" || !p.HasID {
				continue
			}
			again, err := kvevents.AppendPull(nil, []kvevents.PullEvent{p})
			if err != nil {
				continue // a tier or shape that TensorRT-LLM does not write
			}
			if _, err := kvevents.DecodePull(again); err != nil {
				t.Fatalf("%s: %v", again, err)
			}
		}
	})
}
