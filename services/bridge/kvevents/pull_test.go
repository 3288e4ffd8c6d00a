package kvevents_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"warmpath/routing/blockkey"
	"warmpath/services/bridge/kvevents"

	pb "warmpath/schemas/warmpathv1"
)

const (
	pullCreated = `{"event_id":0,"data":{"type":"created","num_blocks_per_cache_level":[101230,0]},"window_size":1024}`
	pullStored  = `{"event_id":1,"data":{"type":"stored","parent_hash":null,"blocks":[{"type":"stored_block","block_hash":4203099703668305365,
		"tokens":[{"type":"unique_token","token_id":1,"token_extra_id":0}],"cache_level":0,"priority":35}]},"window_size":1024,"attention_dp_rank":0}`
	pullRemoved = `{"event_id":2,"data":{"type":"removed","block_hashes":[4203099703668305365]},"window_size":1024}`
	pullUpdated = `{"event_id":3,"data":{"type":"updated","block_hash":420,"cache_level":{"type":"event_diff","old_value":0,"new_value":1},
		"priority":{"type":"event_diff","old_value":35,"new_value":40}},"window_size":1024}`
)

func pullSeeds() []string {
	return []string{
		"[" + pullCreated + "," + pullStored + "," + pullRemoved + "," + pullUpdated + "]", "null", "[]", "[{},null]", pullStored,
		`[{"event_id":4,"data":{"type":"stored","parent_hash":"` + strings.Repeat("ab", 32) + `","blocks":[{"block_hash":"` + strings.Repeat("cd", 32) +
			`","tokens":[{"token_id":"beef","token_extra_id":7},{"token_id":2}],"mm_keys":[{"type":"mm_key","hash":"beef","start_offset":0}],"cache_salt":"s","lora_id":3}]}}]`,
	}
}

// pulled decodes a list of one element.
func pulled(t *testing.T, element string) kvevents.PullEvent {
	t.Helper()
	events, err := kvevents.DecodePull([]byte("[" + element + "]"))
	if err != nil {
		t.Fatal(err)
	}
	if len(events) != 1 {
		t.Fatalf("got %+v, want one element", events)
	}
	return events[0]
}

func TestPull(t *testing.T) {
	got, err := kvevents.DecodePull([]byte("[" + pullCreated + "," + pullStored + "," + pullRemoved + "," + pullUpdated + "]"))
	if err != nil {
		t.Fatal(err)
	}
	const hash = 4203099703668305365
	gone := func(tier pb.Tier) kvevents.Event {
		return kvevents.Event{Kind: kvevents.Removed, Hashes: []uint64{hash}, Tier: tier, Window: 1024, EveryTier: true}
	}
	want := []kvevents.PullEvent{
		{ID: 0, HasID: true, Rank: -1, Created: []int64{101230, 0}},
		{ID: 1, HasID: true, Rank: 0, Events: []kvevents.Event{with(stored([]uint64{hash}, 1), func(e *kvevents.Event) { e.Window = 1024 })}},
		{ID: 2, HasID: true, Rank: -1, Events: []kvevents.Event{gone(gpu), gone(cpu), gone(pb.Tier_TIER_DISK)}},
		{ID: 3, HasID: true, Rank: -1, Events: []kvevents.Event{{Kind: kvevents.Moved, Hashes: []uint64{420}, FromTier: gpu, Tier: cpu, Window: 1024}}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\n got %+v\nwant %+v", got, want)
	}
}

// stored1 is an element that stores blocks.
func stored1(parent, blocks string) string {
	return fmt.Sprintf(`{"event_id":7,"data":{"type":"stored","parent_hash":%s,"blocks":[%s]}}`, parent, blocks)
}

func block(hash, tokens, more string) string {
	return fmt.Sprintf(`{"block_hash":%s,"tokens":[%s]%s}`, hash, tokens, more)
}

func TestPullStored(t *testing.T) {
	two := `{"token_id":1},{"token_id":2,"token_extra_id":0}`
	run := stored([]uint64{10}, 1, 2)
	digest := `"` + strings.Repeat("00", 24) + `0102030405060708"`
	cases := map[string]struct {
		element string
		want    []kvevents.Event
	}{
		"a run with a partial end": {stored1("9", block("10", two, "")+","+block("11", two, "")+","+block("12", `{"token_id":3}`, "")), []kvevents.Event{
			{Hashes: []uint64{10, 11}, Tokens: []uint32{1, 2, 1, 2}, BlockSize: 2, Tier: gpu, Parent: 9, HasParent: true},
			{Hashes: []uint64{12}, Tokens: []uint32{3}, BlockSize: 1, Tier: gpu, Parent: 11, HasParent: true}}},
		"levels": {stored1("null", block("10", two, "")+","+block("11", two, `,"cache_level":1`)+","+block("12", two, `,"cache_level":9`)), []kvevents.Event{
			run, {Hashes: []uint64{11}, Tokens: []uint32{1, 2}, BlockSize: 2, Tier: cpu, Parent: 10, HasParent: true},
			{Hashes: []uint64{12}, Tokens: []uint32{1, 2}, BlockSize: 2, Parent: 11, HasParent: true}}},
		"parent 0":         {stored1("0", block("10", two, "")), []kvevents.Event{run}},
		"parent of zeros":  {stored1(`"`+strings.Repeat("00", 32)+`"`, block("10", two, "")), []kvevents.Event{run}},
		"digests":          {stored1(digest, block(digest, two, "")), []kvevents.Event{{Hashes: []uint64{hashA}, Tokens: []uint32{1, 2}, BlockSize: 2, Tier: gpu, Parent: hashA, HasParent: true}}},
		"a 16-digit hash":  {stored1("null", block("1234567890123456", two, "")), []kvevents.Event{with(run, func(e *kvevents.Event) { e.Hashes = []uint64{1234567890123456} })}},
		"above 2^63":       {stored1("null", block("9622824665191806685", two, "")), []kvevents.Event{with(run, func(e *kvevents.Event) { e.Hashes = []uint64{9622824665191806685} })}},
		"negative":         {stored1("null", block("-5", two, "")), []kvevents.Event{with(run, func(e *kvevents.Event) { e.Hashes = []uint64{signed(-5)} })}},
		"salt and adapter": {stored1("null", block("10", two, `,"cache_salt":"tenant","lora_id":3,"lora_name":"ad"`)), []kvevents.Event{with(run, func(e *kvevents.Event) { e.Salt, e.LoRA, e.LoRAID, e.HasLoRAID = "tenant", "ad", 3, true })}},
		"image": {stored1("null", block("9", two, "")+","+block("10", `{"token_id":1},{"token_id":"beef"}`, `,"mm_keys":[{"hash":"beef","start_offset":0},{"hash":"cafe","start_offset":3}]`)), []kvevents.Event{
			{Hashes: []uint64{9, 10}, Tokens: []uint32{1, 2, 1, 0}, BlockSize: 2, Tier: gpu, Extras: [][]blockkey.Extra{nil, {{ID: "cafe"}, {ID: "beef", Offset: 1}}}}}},
		"extra ids": {stored1("null", block("10", `{"token_id":1,"token_extra_id":5},{"token_id":2,"token_extra_id":5}`, "")+","+block("11", two, "")), []kvevents.Event{
			{Hashes: []uint64{10, 11}, Tokens: []uint32{1, 2, 1, 2}, BlockSize: 2, Tier: gpu, Extras: [][]blockkey.Extra{{{ID: "extra:5"}}, nil}}}},
		"unknown fields": {stored1("null", block("10", two, `,"new":{"deep":[1,{"x":2}]}`)), []kvevents.Event{run}},
		"no blocks":      {stored1("null", ""), nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := pulled(t, c.element)
			if got.Bad != "" || !reflect.DeepEqual(got.Events, c.want) {
				t.Errorf("bad %q\n got %+v\nwant %+v", got.Bad, got.Events, c.want)
			}
		})
	}
}

func TestPullTellsNothing(t *testing.T) {
	for name, element := range map[string]string{
		"priority only":      `{"event_id":1,"data":{"type":"updated","block_hash":4,"cache_level":null,"priority":null}}`,
		"level without move": `{"event_id":1,"data":{"type":"updated","block_hash":4,"cache_level":{"old_value":1,"new_value":1}}}`,
		"removal of nothing": `{"event_id":1,"data":{"type":"removed","block_hashes":[]}}`,
	} {
		if p := pulled(t, element); p.Bad != "" || len(p.Events) > 0 || p.ID != 1 || !p.HasID {
			t.Errorf("%s: got %+v", name, p)
		}
	}
	if p := pulled(t, `{"event_id":1,"data":{"type":"swapped"}}`); p.Unknown != "swapped" || p.Bad != "" {
		t.Errorf("unknown type: got %+v", p)
	}
	for name, body := range map[string]string{"null": "null", "empty": "[]", "taken meanwhile": "[{},null]"} {
		if events, err := kvevents.DecodePull([]byte(body)); err != nil || len(events) > 0 {
			t.Errorf("%s: got %+v, %v", name, events, err)
		}
	}
}

func TestPullForms(t *testing.T) {
	for name, body := range map[string]string{
		"one event":        pullRemoved,
		"events as texts":  `["{\"event_id\":2,\"data\":{\"type\":\"removed\",\"block_hashes\":[4203099703668305365]},\"window_size\":1024}"]`,
		"data before type": `[{"window_size":1024,"data":{"block_hashes":[4203099703668305365],"type":"removed"},"event_id":2,"hash_algo":"v1"}]`,
	} {
		events, err := kvevents.DecodePull([]byte(body))
		if err != nil || len(events) != 1 || len(events[0].Events) != 3 || events[0].Events[0].Window != 1024 || events[0].ID != 2 {
			t.Errorf("%s: got %+v, %v", name, events, err)
		}
	}
	p := pulled(t, `{"event_id":1,"layer_group_id":2,"attention_dp_rank":3,"data":{"type":"removed","block_hashes":[5]}}`)
	if p.Rank != 3 || !p.Events[0].HasGroup || p.Events[0].Group != 2 {
		t.Errorf("got %+v", p)
	}
}

func TestPullBadEventKeepsTheRest(t *testing.T) {
	for name, bad := range map[string]string{
		"a number": "7", "a list": "[]", "no data": `{"event_id":5}`, "data null": `{"event_id":5,"data":null}`, "no type": `{"event_id":5,"data":{}}`,
		"hash a word":   `{"event_id":5,"data":{"type":"removed","block_hashes":["x"]}}`,
		"hash a float":  `{"event_id":5,"data":{"type":"removed","block_hashes":[1.5]}}`,
		"hash missing":  stored1("null", `{"tokens":[]}`),
		"token missing": stored1("null", block("1", `{}`, "")),
		"token large":   stored1("null", block("1", `{"token_id":4294967296}`, "")),
		"token empty":   stored1("null", block("1", `{"token_id":""}`, "")),
		"key no hash":   stored1("null", block("1", `{"token_id":1}`, `,"mm_keys":[{}]`)),
		"adapter":       stored1("null", block("1", `{"token_id":1}`, `,"lora_name":"a\u0000b"`)),
		"no block hash": `{"event_id":5,"data":{"type":"updated","cache_level":{"old_value":0,"new_value":1}}}`,
		"bad text":      `"{\"event_id\""`,
	} {
		t.Run(name, func(t *testing.T) {
			events, err := kvevents.DecodePull([]byte("[" + pullRemoved + "," + bad + "," + pullStored + "]"))
			if err != nil {
				t.Fatal(err)
			}
			if len(events) != 3 || events[1].Bad == "" || len(events[1].Events) > 0 || len(events[0].Events) != 3 || len(events[2].Events) != 1 {
				t.Errorf("got %+v", events)
			}
		})
	}
	for name, body := range map[string]string{"nothing": "", "a word": "oops", "a text": `"x"`, "cut": "[" + pullRemoved, "no JSON inside": "[{]"} {
		if events, err := kvevents.DecodePull([]byte(body)); err == nil {
			t.Errorf("%s: accepted as %+v", name, events)
		}
	}
}

// TestPullBomb has more runs than memory should be spent on.
func TestPullBomb(t *testing.T) {
	two := `{"block_hash":1},{"block_hash":2,"cache_level":1},`
	stores := stored1("null", strings.TrimSuffix(strings.Repeat(two, 16_000), ","))
	events, err := kvevents.DecodePull([]byte("[" + strings.Repeat(stores+",", 3) + pullRemoved + "]"))
	if err != nil {
		t.Fatal(err)
	}
	for k, want := range []bool{true, true, false, true} {
		if good := events[k].Bad == ""; good != want {
			t.Errorf("element %d: bad %q", k, events[k].Bad)
		}
	}
	if _, err := kvevents.DecodePull([]byte("[" + strings.Repeat("7,", 65_536) + "7]")); err == nil {
		t.Error("65,537 elements were accepted")
	}
	if p := pulled(t, stored1("null", strings.Repeat(`{"block_hash":1},`, 65_536)+`{"block_hash":1}`)); p.Bad == "" {
		t.Error("65,537 blocks were accepted")
	}
}

func TestPullTruncation(t *testing.T) {
	for _, body := range pullSeeds() {
		for end := range len(body) {
			if events, err := kvevents.DecodePull([]byte(body[:end])); err == nil {
				t.Errorf("%d of %d bytes were accepted as %+v", end, len(body), events)
			}
		}
	}
}

func TestAppendPullRefuses(t *testing.T) {
	for name, p := range map[string]kvevents.PullEvent{
		"nothing":          {},
		"a clear":          {Events: []kvevents.Event{{Kind: kvevents.Cleared}}},
		"a remote tier":    {Events: []kvevents.Event{with(stored([]uint64{1}, 1), func(e *kvevents.Event) { e.Tier = pb.Tier_TIER_REMOTE })}},
		"mixed kinds":      {Events: []kvevents.Event{stored([]uint64{1}, 1), removed(gpu, 1)}},
		"missing tokens":   {Events: []kvevents.Event{{Kind: kvevents.Stored, Hashes: []uint64{1}, BlockSize: 2, Tier: gpu}}},
		"a move of two":    {Events: []kvevents.Event{{Kind: kvevents.Moved, Hashes: []uint64{1, 2}, Tier: gpu, FromTier: cpu}}},
		"a move from afar": {Events: []kvevents.Event{{Kind: kvevents.Moved, Hashes: []uint64{1}, Tier: gpu}}},
	} {
		if out, err := kvevents.AppendPull([]byte("x"), []kvevents.PullEvent{p}); err == nil || string(out) != "x" {
			t.Errorf("%s: got %q, %v", name, out, err)
		}
	}
}

func TestPullRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var want []kvevents.PullEvent
		for k := range rapid.IntRange(0, 5).Draw(rt, "elements") {
			p := kvevents.PullEvent{ID: uint64(k), HasID: true, Rank: rapid.IntRange(-1, 3).Draw(rt, "rank")}
			window, group := rapid.SampledFrom([]int{0, 4096}).Draw(rt, "window"), rapid.IntRange(-1, 2).Draw(rt, "group")
			drawPull(rt, &p)
			for i := range p.Events {
				p.Events[i].Window = window
				if group >= 0 {
					p.Events[i].Group, p.Events[i].HasGroup = group, true
				}
			}
			want = append(want, p)
		}
		body, err := kvevents.AppendPull(nil, want)
		if err != nil {
			rt.Fatal(err)
		}
		got, err := kvevents.DecodePull(body)
		if err != nil {
			rt.Fatalf("%s: %v", body, err)
		}
		if !reflect.DeepEqual(got, want) {
			rt.Fatalf("%s\n got %+v\nwant %+v", body, got, want)
		}
	})
}

func drawPull(t *rapid.T, p *kvevents.PullEvent) {
	hash := func() uint64 { return rapid.Uint64Range(1, 1<<64-1).Draw(t, "hash") }
	switch rapid.IntRange(0, 3).Draw(t, "what") {
	case 0:
		p.Created = rapid.SliceOfN(rapid.Int64Range(0, 1<<40), 1, 3).Draw(t, "levels")
	case 1:
		hashes := []uint64{hash(), hash()}
		for _, tier := range []pb.Tier{gpu, cpu, pb.Tier_TIER_DISK} {
			p.Events = append(p.Events, kvevents.Event{Kind: kvevents.Removed, Hashes: hashes, Tier: tier, EveryTier: true})
		}
	case 2:
		p.Events = []kvevents.Event{{Kind: kvevents.Moved, Hashes: []uint64{hash()}, FromTier: gpu, Tier: cpu}}
	default:
		// Each run differs from the one before by its tier, as it must to be one.
		parent, has := uint64(0), false
		for k := range rapid.IntRange(1, 3).Draw(t, "runs") {
			ev := kvevents.Event{Kind: kvevents.Stored, Tier: []pb.Tier{gpu, cpu}[k%2], Parent: parent, HasParent: has,
				BlockSize: rapid.IntRange(1, 4).Draw(t, "size"), Salt: rapid.SampledFrom(salts).Draw(t, "salt"), LoRA: rapid.SampledFrom(loras).Draw(t, "lora")}
			for range rapid.IntRange(1, 3).Draw(t, "blocks") {
				parent, has = hash(), true
				ev.Hashes = append(ev.Hashes, parent)
			}
			n := ev.BlockSize * len(ev.Hashes)
			ev.Tokens = rapid.SliceOfN(rapid.Uint32Range(1, 1<<32-1), n, n).Draw(t, "tokens")
			if rapid.Bool().Draw(t, "image") {
				ev.Extras = make([][]blockkey.Extra, len(ev.Hashes))
				last := len(ev.Hashes) - 1
				ev.Tokens[n-1] = 0
				ev.Extras[last] = []blockkey.Extra{{ID: "digest \"1\"", Offset: uint32(ev.BlockSize - 1)}}
			}
			p.Events = append(p.Events, ev)
		}
	}
}
