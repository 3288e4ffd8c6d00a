package kvevents_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"reflect"
	"strconv"
	"testing"

	"warmpath/routing/blockkey"
	"warmpath/services/bridge/kvevents"

	pb "warmpath/schemas/warmpathv1"
)

const gpu, cpu = pb.Tier_TIER_GPU, pb.Tier_TIER_CPU

// vector is a payload, the batch that it means, and the encoder that writes it.
type vector struct {
	name    string
	hex     string
	want    kvevents.Batch
	encoder kvevents.Encoder
	// unwritten vectors hold what a Batch does not keep.
	unwritten bool
	// zeroParents are counted, as an engine has none.
	zeroParents uint64
}

func stored(hashes []uint64, tokens ...uint32) kvevents.Event {
	return kvevents.Event{Kind: kvevents.Stored, Hashes: hashes, Tokens: tokens, BlockSize: len(tokens) / len(hashes), Tier: gpu}
}

func removed(tier pb.Tier, hashes ...uint64) kvevents.Event {
	return kvevents.Event{Kind: kvevents.Removed, Hashes: hashes, Tier: tier}
}

func with(ev kvevents.Event, change func(*kvevents.Event)) kvevents.Event {
	change(&ev)
	return ev
}

func batch(us int64, rank int, events ...kvevents.Event) kvevents.Batch {
	return kvevents.Batch{TimeUS: us, Rank: rank, Events: events}
}

func signed(v int64) uint64 { return uint64(v) }

const (
	hashA = 0x0102030405060708
	hashB = 0xdab8af8a0c6d4a00 // above 2^63
)

// vectors are the known payloads of each generation.
func vectors() []vector {
	child := with(stored([]uint64{hashB}, 5, 6), func(e *kvevents.Event) { e.Parent, e.HasParent = hashA, true })
	adapted := with(stored([]uint64{1}, 1, 2), func(e *kvevents.Event) { e.LoRA, e.LoRAID, e.HasLoRAID = "ad", 300, true })
	cleared := kvevents.Event{Kind: kvevents.Cleared}
	return []vector{
		{name: "vLLM 0.9.0", encoder: kvevents.Encoder{Generation: kvevents.VLLMv090},
			hex:  "92cb3ff80000000000009196ab426c6f636b53746f72656492cf0102030405060708cfdab8af8a0c6d4a00c0940102030402c0",
			want: batch(1_500_000, -1, stored([]uint64{hashA, hashB}, 1, 2, 3, 4))},
		{name: "vLLM with rank", encoder: kvevents.Encoder{Generation: kvevents.VLLMRank},
			hex:  "93cb3ff80000000000009396ab426c6f636b53746f72656491cfdab8af8a0c6d4a00cf010203040506070892050602c092ac426c6f636b52656d6f76656491cf010203040506070891b0416c6c426c6f636b73436c656172656401",
			want: batch(1_500_000, 1, child, removed(gpu, hashA), cleared)},
		{name: "vLLM with medium", encoder: kvevents.Encoder{Generation: kvevents.VLLMMedium},
			hex:  "93cb3ff80000000000009297ab426c6f636b53746f72656491cfdab8af8a0c6d4a00cf010203040506070892050602c0a347505593ac426c6f636b52656d6f76656491cf0102030405060708a347505500",
			want: batch(1_500_000, 0, child, removed(gpu, hashA))},
		{name: "vLLM bytes hashes and LoRA name", encoder: kvevents.Encoder{Generation: kvevents.VLLMLoRAName, HashBytes: 32},
			hex: "93cb3ff80000000000009298ab426c6f636b53746f72656491c420000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fc092010202c0a3475055a76d792d6c6f726193ac426c6f636b52656d6f76656491c420000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fa347505500",
			want: batch(1_500_000, 0, with(stored([]uint64{0x18191a1b1c1d1e1f}, 1, 2), func(e *kvevents.Event) { e.LoRA = "my-lora" }),
				removed(gpu, 0x18191a1b1c1d1e1f)),
			unwritten: true}, // only the last 8 bytes of a digest are kept
		{name: "vLLM full array", encoder: kvevents.Encoder{Generation: kvevents.VLLMFull},
			hex: "93cb3ff8000000000000929cab426c6f636b53746f72656491cfdab8af8a0c6d4a00cf010203040506070892050602c0a3475055c09191a673616c742d6100ae66756c6c5f617474656e74696f6ec094ac426c6f636b52656d6f76656491cf0102030405060708a34750550000",
			want: batch(1_500_000, 0,
				with(child, func(e *kvevents.Event) { e.Salt, e.HasGroup, e.Spec = "salt-a", true, "full_attention" }),
				with(removed(gpu, hashA), func(e *kvevents.Event) { e.HasGroup = true }))},
		{name: "vLLM map", encoder: kvevents.Encoder{Generation: kvevents.VLLMMap},
			hex: "93cb3ff8000000000000938ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cfdab89baa7b5857c0b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f69647394ce0002505ccd0368ccc6cd2368aa626c6f636b5f73697a6504a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b65797391c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e84a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391cfdab89baa7b5857c0a66d656469756da3475055a967726f75705f6964780081a474797065b0416c6c426c6f636b73436c656172656400",
			want: batch(1_500_000, 0,
				with(stored([]uint64{15760518052499183552}, 151644, 872, 198, 9064), func(e *kvevents.Event) { e.HasGroup, e.Spec = true, "full_attention" }),
				with(removed(gpu, 15760518052499183552), func(e *kvevents.Event) { e.HasGroup = true }), cleared)},
		{name: "vLLM map, all keys", encoder: kvevents.Encoder{Generation: kvevents.VLLMMap, Session: "s1", Locality: "LOCAL", Ownership: "fs"},
			hex: "93cb3ff8000000000000918fa474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739107b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473920102aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da3435055a96c6f72615f6e616d65a3616431aa65787472615f6b6579739193a361643192a66d6d6861736800a473616c74a967726f75705f69647801b26b765f63616368655f737065635f6b696e64ae736c6964696e675f77696e646f77bc6b765f63616368655f737065635f736c6964696e675f77696e646f77cd0400a86c6f63616c697479a54c4f43414ca96f776e657273686970a26673aa73657373696f6e5f6964a2733103",
			want: batch(1_500_000, 3, with(stored([]uint64{7}, 1, 2), func(e *kvevents.Event) {
				e.Tier, e.LoRA, e.Salt, e.Group, e.HasGroup = cpu, "ad1", "salt", 1, true
				e.Spec, e.Window, e.Extras = "sliding_window", 1024, [][]blockkey.Extra{{{ID: "mmhash"}}}
			}))},
		{name: "SGLang legacy", encoder: kvevents.Encoder{Generation: kvevents.SGLangLegacy},
			hex:  "92cb3ff80000000000009396ab426c6f636b53746f72656491d3eeddef0b82167eebc0920a0b02c092ac426c6f636b52656d6f76656491d3eeddef0b82167eeb91b0416c6c426c6f636b73436c6561726564",
			want: batch(1_500_000, -1, stored([]uint64{signed(-1234567890123456789)}, 10, 11), removed(gpu, signed(-1234567890123456789)), cleared)},
		{name: "SGLang with medium", encoder: kvevents.Encoder{Generation: kvevents.SGLangMedium},
			hex: "93cb3ff80000000000009297ab426c6f636b53746f72656491fbf9920a0b02c0a347505593ac426c6f636b52656d6f76656491fbaa4350555f50494e4e454401",
			want: batch(1_500_000, 1, with(stored([]uint64{signed(-5)}, 10, 11), func(e *kvevents.Event) { e.Parent, e.HasParent = signed(-7), true }),
				removed(cpu, signed(-5)))},
		{name: "SGLang with metadata", encoder: kvevents.Encoder{Generation: kvevents.SGLangMetadata},
			hex:  "93cb3ff00000000000009198ab426c6f636b53746f726564917bc092010202c0a347505581aa63616368655f73616c74a874656e616e742d61c0",
			want: batch(1_000_000, -1, with(stored([]uint64{123}, 1, 2), func(e *kvevents.Event) { e.Salt = "tenant-a" }))},
		{name: "SGLang map", encoder: kvevents.Encoder{Generation: kvevents.SGLangMap, Session: "s1"},
			hex:  "93cb3ff00000000000009389a474797065ab426c6f636b53746f726564ac626c6f636b5f686173686573917bb1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473920102aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da3475055aa63616368655f73616c74a874656e616e742d61aa73657373696f6e5f6964a2733183a474797065ac426c6f636b52656d6f766564ac626c6f636b5f686173686573917ba66d656469756da347505581a474797065b0416c6c426c6f636b73436c656172656400",
			want: batch(1_000_000, 0, with(stored([]uint64{123}, 1, 2), func(e *kvevents.Event) { e.Salt = "tenant-a" }), removed(gpu, 123), cleared)},
		{name: "SGLang snapshot barrier", encoder: kvevents.Encoder{Generation: kvevents.SGLangMedium},
			hex: "93cb3ff80000000000009000", want: batch(1_500_000, 0)},
		{name: "TensorRT-LLM map", encoder: kvevents.Encoder{Generation: kvevents.TRTLLMMap},
			hex: "93cb3ff80000000000009188a474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739163b1706172656e745f626c6f636b5f6861736862a9746f6b656e5f696473930102a26d6daa626c6f636b5f73697a6503a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c000",
			want: batch(1_500_000, 0, with(stored([]uint64{99}, 1, 2, 0), func(e *kvevents.Event) {
				e.Parent, e.HasParent, e.Extras = 98, true, [][]blockkey.Extra{{{ID: "mm", Offset: 2}}}
			}))},
		// As vmihailenco/msgpack encodes the simulator's structs.
		{name: "simulator array", encoder: kvevents.Encoder{Generation: kvevents.SimulatorArray},
			hex: "93cb3ff80000000000009399ab426c6f636b53746f72656492cf0000000000000001cf8000000000000000cf000000000000000092ce00000001ce0001117001c0a3475055c0c099ab426c6f636b53746f72656491cf0000000000000001cf000000000000000592ce00000001ce00000002ccc8cd012ca3475055a26164c093ac426c6f636b52656d6f76656491cf0000000000000003a347505502",
			want: batch(1_500_000, 2, stored([]uint64{1, 1 << 63}, 1, 70_000),
				with(adapted, func(e *kvevents.Event) { e.Parent, e.HasParent, e.BlockSize = 5, true, 200 }), removed(gpu, 3)),
			zeroParents: 1},
		{name: "simulator map", encoder: kvevents.Encoder{Generation: kvevents.SimulatorMap},
			hex: "93cb3ff80000000000009286a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cf0000000000000001b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f69647392ce00000001ce00000002aa626c6f636b5f73697a6502a66d656469756da347505588a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cf0000000000000001b1706172656e745f626c6f636b5f68617368cf0000000000000009a9746f6b656e5f69647392ce00000001ce00000002aa626c6f636b5f73697a6502a76c6f72615f6964cd012ca66d656469756da3475055a96c6f72615f6e616d65a2616402",
			want: batch(1_500_000, 2, stored([]uint64{1}, 1, 2),
				with(adapted, func(e *kvevents.Event) { e.Parent, e.HasParent = 9, true }))},
	}
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// decode decodes with a fresh decoder.
func decode(t testing.TB, payload []byte) kvevents.Batch {
	t.Helper()
	b, err := kvevents.NewDecoder(kvevents.Limits{}).Decode(payload)
	if err != nil {
		t.Fatalf("decode %x: %v", payload, err)
	}
	return *b
}

// failer is a test, of testing or of rapid.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// same compares batches; an empty list equals none.
func same(t failer, got, want kvevents.Batch) {
	t.Helper()
	if len(got.Events) != len(want.Events) {
		t.Fatalf("got %d events, want %d: %+v", len(got.Events), len(want.Events), got.Events)
	}
	for k := range got.Events {
		g, w := got.Events[k], want.Events[k]
		for _, e := range []*kvevents.Event{&g, &w} {
			if len(e.Tokens) == 0 {
				e.Tokens = nil
			}
		}
		for _, extras := range g.Extras {
			if extras != nil && len(extras) == 0 {
				t.Fatalf("event %d: extras that are empty but not nil", k)
			}
		}
		if !reflect.DeepEqual(g, w) {
			t.Fatalf("event %d:\n got %+v\nwant %+v", k, g, w)
		}
	}
	got.Events, want.Events = nil, nil
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v, want %+v", got, want)
	}
}

func TestVectorsDecode(t *testing.T) {
	d := kvevents.NewDecoder(kvevents.Limits{}) // one for all, as its memory is reused
	for _, v := range vectors() {
		t.Run(v.name, func(t *testing.T) {
			before := d.Counts()
			got, err := d.Decode(unhex(t, v.hex))
			if err != nil {
				t.Fatal(err)
			}
			same(t, *got, v.want)
			before.Batches++
			before.Events += uint64(len(v.want.Events))
			before.ZeroParents += v.zeroParents
			if d.Counts() != before {
				t.Errorf("counted something odd: %+v", d.Counts())
			}
		})
	}
}

func TestVectorsEncode(t *testing.T) {
	for _, v := range vectors() {
		t.Run(v.name, func(t *testing.T) {
			want := v.hex
			got := hex.EncodeToString(v.encoder.AppendBatch(nil, v.want))
			if v.unwritten {
				want = string(bytes.ReplaceAll([]byte(want),
					[]byte("000102030405060708090a0b0c0d0e0f1011121314151617"), bytes.Repeat([]byte("00"), 24)))
			}
			if got != want {
				t.Errorf("\n got %s\nwant %s", got, want)
			}
		})
	}
}

// TestSharedVectors holds the committed vectors against the published file.
func TestSharedVectors(t *testing.T) {
	const path = "../../../../shared/data/engine_events/vectors.json"
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Skipf("no published vectors: %v", err)
	}
	var published map[string]struct {
		Hex  string
		JSON json.RawMessage
	}
	if err := json.Unmarshal(raw, &published); err != nil {
		t.Fatal(err)
	}
	known := make(map[string]kvevents.Batch)
	for _, v := range vectors() {
		known[v.hex] = v.want
	}
	checked := 0
	for name, p := range published {
		switch {
		case p.Hex == "":
			continue
		case name == "sglang_load_stat":
			got, err := kvevents.DecodeLoad(unhex(t, p.Hex))
			if want := (kvevents.LoadStat{Running: 12, Waiting: 3, Tokens: 45678, MaxTokens: 131072, QueuedTokens: -1}); err != nil || got != want {
				t.Errorf("%s: got %+v, %v", name, got, err)
			}
		default:
			want, ok := known[p.Hex]
			if !ok {
				t.Errorf("%s is not among the committed vectors", name)
				continue
			}
			got := decode(t, unhex(t, p.Hex))
			same(t, got, want)
			meaning(t, name, p.JSON, got)
		}
		checked++
	}
	if checked < 14 {
		t.Errorf("only %d vectors were checked", checked)
	}
}

// meaning checks a batch against the statement of it in Python's terms: the
// tags, hashes and tokens, read without knowledge of the generation.
func meaning(t *testing.T, name string, statement json.RawMessage, got kvevents.Batch) {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(statement))
	dec.UseNumber()
	var stated []any
	if err := dec.Decode(&stated); err != nil {
		t.Fatal(err)
	}
	events := stated[1].([]any)
	if len(events) != len(got.Events) {
		t.Fatalf("%s: %d events, want %d", name, len(got.Events), len(events))
	}
	for k, e := range events {
		var tag string
		var hashes, tokens []any
		switch e := e.(type) {
		case []any:
			tag = e[0].(string)
			if len(e) > 1 {
				hashes = e[1].([]any)
			}
			if tag == "BlockStored" {
				tokens = e[3].([]any)
			}
		case map[string]any:
			tag = e["type"].(string)
			hashes, _ = e["block_hashes"].([]any)
			tokens, _ = e["token_ids"].([]any)
		}
		ev := got.Events[k]
		kinds := map[string]kvevents.Kind{"BlockStored": kvevents.Stored, "BlockRemoved": kvevents.Removed, "AllBlocksCleared": kvevents.Cleared}
		if ev.Kind != kinds[tag] || len(ev.Hashes) != len(hashes) || len(ev.Tokens) != len(tokens) {
			t.Errorf("%s: event %d is %+v, stated %v", name, k, ev, e)
			continue
		}
		for i, h := range hashes {
			if number, ok := h.(json.Number); ok && !sameNumber(number, ev.Hashes[i]) {
				t.Errorf("%s: hash %d of event %d is %d, stated %s", name, i, k, ev.Hashes[i], number)
			}
		}
		for i, v := range tokens {
			if number, ok := v.(json.Number); ok && !sameNumber(number, uint64(ev.Tokens[i])) {
				t.Errorf("%s: token %d of event %d is %d, stated %s", name, i, k, ev.Tokens[i], number)
			}
		}
	}
}

func sameNumber(stated json.Number, got uint64) bool {
	if v, err := strconv.ParseInt(stated.String(), 10, 64); err == nil {
		return uint64(v) == got
	}
	return stated.String() == strconv.FormatUint(got, 10)
}

func TestGenerationNames(t *testing.T) {
	for _, g := range kvevents.Generations() {
		if again, err := kvevents.ParseGeneration(g.String()); err != nil || again != g {
			t.Errorf("%v came back as %v, %v", g, again, err)
		}
	}
	if g, err := kvevents.ParseGeneration("vllm"); err == nil {
		t.Errorf("an unknown name is %v", g)
	}
}

// TestEncoderWritesLargeMaps has all fields at once, which are more than the
// short form of a map holds.
func TestEncoderWritesLargeMaps(t *testing.T) {
	ev := with(stored([]uint64{1}, 1, 2), func(e *kvevents.Event) {
		e.HasGroup, e.Spec, e.Window, e.Origin = true, "full_attention", 8, "NEW"
	})
	e := kvevents.Encoder{Generation: kvevents.VLLMMap, Session: "s", Locality: "LOCAL", Ownership: "o"}
	want := batch(1, 0, ev, removed(gpu, 1))
	same(t, decode(t, e.AppendBatch(nil, want)), want)
}
