package kvevents_test

import (
	"bytes"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"warmpath/routing/blockkey"
	"warmpath/services/bridge/kvevents"

	pb "warmpath/schemas/warmpathv1"
)

func TestBatchForms(t *testing.T) {
	event := []any{"BlockRemoved", []any{1}, "GPU"}
	want := batch(1_500_000, 3, removed(gpu, 1))
	norank := batch(1_500_000, -1, removed(gpu, 1))
	notime := batch(0, 3, removed(gpu, 1))
	cases := map[string]struct {
		batch any
		want  kvevents.Batch
	}{
		"array":                {[]any{1.5, []any{event}, 3}, want},
		"map":                  {fields{{"ts", 1.5}, {"events", []any{event}}, {"data_parallel_rank", 3}}, want},
		"map, another order":   {fields{{"attn_dp_rank", 3}, {"events", []any{event}}, {"ts", 1.5}, {"new", 1}}, want},
		"map, no rank":         {fields{{"ts", 1.5}, {"events", []any{event}}}, norank},
		"float32 time":         {[]any{float32(1.5), []any{event}, 3}, want},
		"integer time":         {[]any{2, []any{event}, 3}, batch(2_000_000, 3, removed(gpu, 1))},
		"nil time":             {[]any{nil, []any{event}, 3}, notime},
		"text time":            {[]any{"now", []any{event}, 3}, notime},
		"extension time":       {[]any{raw{0xd6, 0xff, 1, 2, 3, 4}, []any{event}, 3}, notime},
		"NaN time":             {[]any{math.NaN(), []any{event}, 3}, notime},
		"float rank":           {[]any{1.5, []any{event}, 3.0}, want},
		"negative rank":        {[]any{1.5, []any{event}, -1}, norank},
		"text rank":            {[]any{1.5, []any{event}, "3"}, norank},
		"nil events":           {[]any{1.5, nil, 3}, batch(1_500_000, 3)},
		"wrapped event":        {[]any{1.5, []any{value(event)}, 3}, want},
		"wrapped event as str": {[]any{1.5, []any{string(value(event))}, 3}, want},
		"trailing bytes":       {raw(append(value([]any{1.5, []any{event}, 3}), 1, 2, 3)), want},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { same(t, decode(t, value(c.batch)), c.want) })
	}
	for name, bad := range map[string]any{
		"nothing": raw{}, "number": 1, "text": "batch", "nil": nil, "one element": []any{1.5},
		"map without events": fields{{"ts", 1.5}}, "events a text": []any{1.5, "events"}, "no value": raw{0xc1},
		"events twice": fields{{"events", []any{}}, {"events", []any{}}},
	} {
		t.Run("bad/"+name, func(t *testing.T) {
			d := kvevents.NewDecoder(kvevents.Limits{})
			if b, err := d.Decode(value(bad)); err == nil {
				t.Errorf("accepted as %+v", b)
			}
			if d.Counts().BadBatches != 1 {
				t.Errorf("counts %+v", d.Counts())
			}
		})
	}
}

func TestHashForms(t *testing.T) {
	digest := bytes.Repeat([]byte{0xaa}, 24)
	digest = append(digest, 1, 2, 3, 4, 5, 6, 7, 8)
	cases := map[string]struct {
		hash any
		want uint64
	}{
		"0":             {0, 0},
		"above 2^63":    {uint64(math.MaxUint64 - 1), math.MaxUint64 - 1},
		"negative":      {-5, signed(-5)},
		"int16":         {raw{0xd1, 0x80, 0x00}, signed(-32768)},
		"int32":         {raw{0xd2, 0xff, 0xff, 0xff, 0xfe}, signed(-2)},
		"positive in64": {raw{0xd3, 0, 0, 0, 0, 0, 0, 0, 9}, 9},
		"1 byte":        {[]byte{9}, 9},
		"8 bytes":       {digest[24:], hashA},
		"16 bytes":      {digest[16:], hashA},
		"32 bytes":      {digest, hashA},
		"bin16":         {raw(append([]byte{0xc5, 0, 32}, digest...)), hashA},
		"hex":           {"0000000000000000000000000000000000000000000000000102030405060708", hashA},
		"decimal":       {"15760518052499183552", 15760518052499183552},
		"signed text":   {"-5", signed(-5)},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			ev := one(t, stores([]any{c.hash}, c.hash, []any{1, 2}, 2, nil))
			if ev.Hashes[0] != c.want || ev.Parent != c.want || ev.HasParent != (c.want != 0) {
				t.Errorf("got %+v, want hash %d", ev, c.want)
			}
		})
	}
}

func TestParentsThatMeanNone(t *testing.T) {
	for name, parent := range map[string]any{"nil": nil, "0": 0, "uint64 0": raw{0xcf, 0, 0, 0, 0, 0, 0, 0, 0}, "no bytes": []byte{}} {
		t.Run(name, func(t *testing.T) {
			for _, payload := range [][]byte{
				stores([]any{1}, parent, []any{1, 2}, 2, nil),
				maps(fields{{"type", "BlockStored"}, {"block_hashes", []any{1}}, {"parent_block_hash", parent}, {"token_ids", []any{1, 2}}, {"block_size", 2}}),
			} {
				if ev := one(t, payload); ev.HasParent || ev.Parent != 0 {
					t.Errorf("got %+v", ev)
				}
			}
		})
	}
}

func TestTokenForms(t *testing.T) {
	wide := raw{}
	for _, b := range [][]byte{{7}, {0xcc, 200}, {0xcd, 1, 0}, {0xce, 0, 1, 0, 0}, {0xcf, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff},
		{0xd0, 8}, {0xd1, 1, 1}, {0xd2, 0, 0, 0, 9}, {0xd3, 0, 0, 0, 0, 0, 0, 0, 10}, {0xcb, 0x40, 0x26, 0, 0, 0, 0, 0, 0}, {0xff}, {3}} {
		wide = append(wide, b...)
	}
	tokens := raw(append([]byte{0x9c}, wide...))
	ev := one(t, stores([]any{1}, nil, tokens, 12, nil))
	want := []uint32{7, 200, 256, 65536, math.MaxUint32, 8, 257, 9, 10, 11, math.MaxUint32, 3}
	if !slices.Equal(ev.Tokens, want) {
		t.Errorf("got %v, want %v", ev.Tokens, want)
	}

	d := kvevents.NewDecoder(kvevents.Limits{})
	b, err := d.Decode(stores([]any{1}, nil, []any{[]any{10, 20}, []any{20, 30}}, 2, nil))
	if err != nil || len(b.Events) != 1 || !slices.Equal(b.Events[0].Tokens, []uint32{10, 20}) || d.Counts().TokenPairs != 2 {
		t.Errorf("token pairs: %+v, %v, %+v", b, err, d.Counts())
	}
}

func TestTextTokens(t *testing.T) {
	// The digest of an image stands in the second block, the third has a key of
	// its own, and the first one is repeated as a key, without its place.
	event := fields{{"type", "BlockStored"}, {"block_hashes", []any{1, 2, 3}}, {"parent_block_hash", nil},
		{"mm_keys", []any{[]any{}, []any{fields{{"type", "mm_key"}, {"hash", "image"}, {"start_offset", 0}}},
			[]any{fields{{"type", "mm_key"}, {"hash", "other"}, {"start_offset", 4}, {"uuid", "u"}}}}},
		{"token_ids", []any{1, 2, 3, "image", 5, 6}}, {"block_size", 2}}
	ev := one(t, maps(event))
	want := [][]blockkey.Extra{nil, {{ID: "image", Offset: 1}}, {{ID: "other"}}}
	if !reflect.DeepEqual(ev.Extras, want) || !slices.Equal(ev.Tokens, []uint32{1, 2, 3, 0, 5, 6}) {
		t.Errorf("got %+v, want extras %+v", ev, want)
	}
}

func TestExtraKeys(t *testing.T) {
	cases := map[string]struct {
		keys     []any
		lora     any
		loraID   any
		wantSalt string
		want     [][]blockkey.Extra
		unknown  uint64
	}{
		"nil":                      {keys: []any{nil, nil}},
		"empty":                    {keys: []any{[]any{}, []any{}}},
		"LoRA only":                {keys: []any{[]any{"ad"}, []any{"ad"}}, lora: "ad"},
		"LoRA number":              {keys: []any{[]any{4}, []any{4}}, loraID: 4},
		"salt":                     {keys: []any{[]any{"tenant"}, nil}, wantSalt: "tenant"},
		"LoRA, item and salt":      {keys: []any{[]any{"ad", []any{"img", 1}, "tenant"}, []any{"ad"}}, lora: "ad", wantSalt: "tenant", want: [][]blockkey.Extra{{{ID: "img", Offset: 1}}, nil}},
		"earlier item":             {keys: []any{nil, []any{[]any{"img", -7}}}, want: [][]blockkey.Extra{nil, {{ID: "img"}}}},
		"items by offset":          {keys: []any{[]any{[]any{"b", 1}, []any{"a", 0}}, nil}, want: [][]blockkey.Extra{{{ID: "a"}, {ID: "b", Offset: 1}}, nil}},
		"items without offset":     {keys: []any{[]any{"img", "tenant"}, []any{"img"}}, wantSalt: "tenant", want: [][]blockkey.Extra{{{ID: "img"}}, {{ID: "img"}}}},
		"prompt embeddings":        {keys: []any{nil, []any{[]byte{0xab, 0xcd}}}, want: [][]blockkey.Extra{nil, {{ID: "embeds:abcd"}}}},
		"identifier as bytes":      {keys: []any{[]any{[]any{[]byte("img"), 1}}, nil}, want: [][]blockkey.Extra{{{ID: "img", Offset: 1}}, nil}},
		"unknown forms stand out":  {keys: []any{[]any{3}, []any{fields{{"new", 1}}}}, unknown: 2},
		"a pair of another making": {keys: []any{[]any{[]any{1, 2}}, nil}, unknown: 1},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d := kvevents.NewDecoder(kvevents.Limits{})
			for _, payload := range [][]byte{
				stores([]any{1, 2}, nil, []any{1, 2, 3, 4}, 2, c.loraID, "GPU", c.lora, c.keys, 0, "full_attention", nil),
				// The keys come before the name that some of them equal.
				maps(fields{{"type", "BlockStored"}, {"extra_keys", c.keys}, {"block_hashes", []any{1, 2}}, {"token_ids", []any{1, 2, 3, 4}},
					{"block_size", 2}, {"lora_id", c.loraID}, {"lora_name", c.lora}}),
			} {
				before := d.Counts().UnknownExtras
				b, err := d.Decode(payload)
				if err != nil || len(b.Events) != 1 {
					t.Fatalf("got %+v, %v", b, err)
				}
				ev := b.Events[0]
				if n := d.Counts().UnknownExtras - before; n != c.unknown {
					t.Errorf("%d unknown extras, want %d", n, c.unknown)
				}
				if c.unknown > 0 {
					for _, extras := range ev.Extras {
						if len(extras) > 0 && !strings.HasPrefix(extras[0].ID, "opaque:") {
							t.Errorf("got %+v", ev.Extras)
						}
					}
					if ev.Extras == nil {
						t.Error("what tells blocks apart was lost")
					}
				} else if !reflect.DeepEqual(ev.Extras, c.want) {
					t.Errorf("got %+v, want %+v", ev.Extras, c.want)
				}
				if ev.Salt != c.wantSalt {
					t.Errorf("salt %q, want %q", ev.Salt, c.wantSalt)
				}
			}
		})
	}
}

func TestSaltUnderItsNameWins(t *testing.T) {
	ev := one(t, maps(fields{{"type", "BlockStored"}, {"block_hashes", []any{1}}, {"token_ids", []any{1, 2}}, {"block_size", 2},
		{"extra_keys", []any{[]any{"img"}}}, {"cache_salt", "tenant"}}))
	if ev.Salt != "tenant" || !reflect.DeepEqual(ev.Extras, [][]blockkey.Extra{{{ID: "img"}}}) {
		t.Errorf("got %+v", ev)
	}
}

func TestTiers(t *testing.T) {
	remote := pb.Tier_TIER_REMOTE
	for medium, want := range map[any]pb.Tier{nil: gpu, "": gpu, "GPU": gpu, "gpu": gpu, "CPU": cpu, "cpu_pinned": cpu,
		"DISK": pb.Tier_TIER_DISK, "Storage": pb.Tier_TIER_DISK, "EXTERNAL": remote, "REMOTE": remote,
		"TAPE": pb.Tier_TIER_UNSPECIFIED, "A_VERY_LONG_MEDIUM_NAME": pb.Tier_TIER_UNSPECIFIED} {
		d := kvevents.NewDecoder(kvevents.Limits{})
		b, err := d.Decode(value([]any{1.5, []any{[]any{"BlockRemoved", []any{1}, medium},
			fields{{"type", "BlockRemoved"}, {"block_hashes", []any{1}}, {"medium", medium}}}, 0}))
		if err != nil || len(b.Events) != 2 || b.Events[0].Tier != want || b.Events[1].Tier != want {
			t.Errorf("%v: got %+v, %v; want %v", medium, b, err, want)
		}
		if unknown := d.Counts().UnknownTiers; (unknown == 2) != (want == pb.Tier_TIER_UNSPECIFIED) {
			t.Errorf("%v: %d unknown tiers", medium, unknown)
		}
	}
	for locality, want := range map[string]pb.Tier{"REMOTE": remote, "remote": remote, "LOCAL": cpu} {
		ev := one(t, maps(fields{{"type", "BlockRemoved"}, {"block_hashes", []any{1}}, {"medium", "CPU"}, {"locality", locality}}))
		if ev.Tier != want {
			t.Errorf("locality %s: got %v", locality, ev.Tier)
		}
	}
	if ev := one(t, value([]any{1, []any{[]any{"AllBlocksCleared", "CPU"}}})); ev.Tier != cpu {
		t.Errorf("a clear of one tier: %+v", ev)
	}
}

func TestComponentTypes(t *testing.T) {
	store := func(after ...any) []byte {
		return stores(append([]any{[]any{1}, nil, []any{1, 2}, 2, nil}, after...)...)
	}
	cases := map[string]struct {
		payload []byte
		want    kvevents.Event
	}{
		"map": {maps(fields{{"type", "BlockStored"}, {"block_hashes", []any{1}}, {"token_ids", []any{1, 2}}, {"block_size", 2}, {"component_type", "mamba"}}),
			kvevents.Event{Spec: "mamba", Tier: gpu}},
		"before the medium":  {store("swa", "CPU_PINNED"), kvevents.Event{Spec: "sliding_window", Tier: cpu}},
		"after the medium":   {store("CPU_PINNED", "full"), kvevents.Event{Spec: "full_attention", Tier: cpu}},
		"with metadata":      {store("GPU", "full", fields{{"cache_salt", "t"}}), kvevents.Event{Spec: "full_attention", Tier: gpu, Salt: "t"}},
		"with id and medium": {store("full", 2, 0, "CPU_PINNED"), kvevents.Event{Spec: "full_attention", Tier: cpu, Group: 2, HasGroup: true}},
		"a LoRA like one": {store("GPU", "full", nil, 0, "full_attention", nil),
			kvevents.Event{Spec: "full_attention", Tier: gpu, LoRA: "full", HasGroup: true}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			c.want.Hashes, c.want.Tokens, c.want.BlockSize = []uint64{1}, []uint32{1, 2}, 2
			same(t, kvevents.Batch{Events: []kvevents.Event{one(t, c.payload)}}, kvevents.Batch{Events: []kvevents.Event{c.want}})
		})
	}
	for name, after := range map[string][]any{"before": {"swa", "CPU_PINNED"}, "after": {"CPU_PINNED", "swa"}, "with id": {"swa", 1, 0, "CPU_PINNED"}} {
		ev := one(t, value([]any{1.5, []any{append([]any{"BlockRemoved", []any{1}}, after...)}, 0}))
		if ev.Spec != "sliding_window" || ev.Tier != cpu {
			t.Errorf("removal, type %s the medium: %+v", name, ev)
		}
	}
}

func TestOtherFields(t *testing.T) {
	ev := one(t, maps(fields{{"type", "BlockRemoved"}, {"block_hashes", []any{1, 2}}, {"remaining_copy_counts", []any{0, 3}}, {"group_idx", 2},
		{"token_ids", []any{1, 2}}}))
	if len(ev.Tokens) > 0 || !slices.Equal(ev.CopiesLeft, []int64{0, 3}) || ev.Group != 2 || !ev.HasGroup {
		t.Errorf("got %+v", ev)
	}
	ev = one(t, maps(fields{{"type", "BlockStored"}, {"block_hashes", []any{1}}, {"origin", "REUSED"}, {"block_size", 16}, {"window_size", 4096}, {"lora_id", 0}}))
	if ev.Origin != "REUSED" || ev.BlockSize != 16 || len(ev.Tokens) != 0 || ev.Window != 4096 || !ev.HasLoRAID {
		t.Errorf("got %+v", ev)
	}
}

func TestBlockSizeIsInferred(t *testing.T) {
	// A simulator is known that sent no size.
	if ev := one(t, stores([]any{1, 2}, nil, []any{1, 2, 3, 4, 5, 6}, 0, nil)); ev.BlockSize != 3 {
		t.Errorf("got %+v", ev)
	}
	if ev := one(t, stores([]any{1, 2}, nil, []any{1, 2, 3}, 0, nil)); ev.BlockSize != 0 {
		t.Errorf("got %+v", ev)
	}
}

func TestEventWithoutBlocksIsNone(t *testing.T) {
	d := kvevents.NewDecoder(kvevents.Limits{})
	b, err := d.Decode(value([]any{1.5, []any{[]any{"BlockRemoved", []any{}}}}))
	if err != nil || len(b.Events) != 0 || b.Skipped != 0 || d.Counts().EmptyEvents != 1 {
		t.Errorf("got %+v, %v, %+v", b, err, d.Counts())
	}
}
