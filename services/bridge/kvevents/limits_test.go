package kvevents_test

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"warmpath/routing/blockkey"
	"warmpath/services/bridge/kvevents"
)

// TestBombs has small payloads that announce huge contents.
func TestBombs(t *testing.T) {
	huge := [][]byte{
		{0xdd, 0x80, 0, 0, 0}, {0xdd, 0xff, 0xff, 0xff, 0xff}, {0xdf, 0x80, 0, 0, 0}, {0xdf, 0xff, 0xff, 0xff, 0xff},
		{0xdb, 0xff, 0xff, 0xff, 0xff}, {0xc6, 0xff, 0xff, 0xff, 0xff}, {0xc9, 0xff, 0xff, 0xff, 0xff, 1}, {0xdc, 0xff, 0xff},
		{0xdd, 0, 0x3f, 0xff, 0xff}, // as many tokens as an event may have
	}
	places := map[string]func(bomb raw) any{
		"batch":       func(b raw) any { return b },
		"time":        func(b raw) any { return raw(append([]byte{0x93}, b...)) },
		"events":      func(b raw) any { return []any{1.5, b, 0} },
		"event":       func(b raw) any { return []any{1.5, []any{b}, 0} },
		"hashes":      func(b raw) any { return []any{1.5, []any{[]any{"BlockStored", b, nil, []any{1}, 1, nil}}, 0} },
		"hash":        func(b raw) any { return []any{1.5, []any{[]any{"BlockRemoved", []any{b}}}, 0} },
		"tokens":      func(b raw) any { return []any{1.5, []any{[]any{"BlockStored", []any{1}, nil, b, 1, nil}}, 0} },
		"extra keys":  func(b raw) any { return []any{1.5, []any{fields{{"type", "BlockStored"}, {"extra_keys", b}}}, 0} },
		"medium":      func(b raw) any { return []any{1.5, []any{[]any{"BlockRemoved", []any{1}, b}}, 0} },
		"unknown tag": func(b raw) any { return []any{1.5, []any{[]any{"New", b}}, 0} },
		"map key":     func(b raw) any { return []any{1.5, []any{fields{{b, 1}}}, 0} },
	}
	for place, build := range places {
		t.Run(place, func(t *testing.T) {
			for _, bomb := range huge {
				payload := value(build(bomb))
				d := kvevents.NewDecoder(kvevents.Limits{})
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				b, err := d.Decode(payload)
				runtime.ReadMemStats(&after)
				// Decoding may allocate for an error and a few events, never for
				// what is announced.
				if n := after.TotalAlloc - before.TotalAlloc; n > 128<<10 {
					t.Errorf("%x: %d bytes allocated", payload, n)
				}
				if err == nil && len(b.Events) > 0 {
					t.Errorf("%x was accepted as %+v", payload, b)
				}
			}
		})
	}
}

func TestLimitsOfBatches(t *testing.T) {
	limits := kvevents.Limits{MaxPayload: 200, MaxEvents: 4, MaxHashes: 3, MaxTokens: 5, MaxString: 16}
	remove := func(n int) any { return []any{"BlockRemoved", slices.Repeat([]any{1}, n)} }
	store := func(tokens int) any {
		return []any{"BlockStored", []any{1}, nil, slices.Repeat([]any{1}, tokens), 1, nil}
	}
	cases := map[string]struct {
		batch   any
		refused bool
		events  int
		over    uint64
	}{
		"at the limits":   {batch: []any{1.5, []any{remove(3), store(5), remove(1), remove(1)}}, events: 4},
		"many hashes":     {batch: []any{1.5, []any{remove(4), remove(1)}}, events: 1, over: 1},
		"many tokens":     {batch: []any{1.5, []any{store(6), remove(1)}}, events: 1, over: 1},
		"long name":       {batch: []any{1.5, []any{[]any{"BlockRemoved", []any{1}, "GPUGPUGPUGPUGPUGP"}, remove(1)}}, events: 1, over: 1},
		"long field name": {batch: []any{1.5, []any{fields{{"type", "BlockRemoved"}, {"block_hashes", []any{1}}, {"a_name_that_is_too_long", 1}}}}, events: 1},
		"many events":     {batch: []any{1.5, slices.Repeat([]any{remove(1)}, 5)}, refused: true},
		"large payload":   {batch: []any{1.5, []any{}, nil, bytes.Repeat([]byte{1}, 200)}, refused: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d := kvevents.NewDecoder(limits)
			b, err := d.Decode(value(c.batch))
			if (err != nil) != c.refused {
				t.Fatalf("error %v", err)
			}
			if err == nil && len(b.Events) != c.events || d.Counts().OverLimit != c.over {
				t.Errorf("got %+v, counts %+v", b, d.Counts())
			}
		})
	}
}

// TestManyHashes has more hashes in all than a batch may, none of its events
// too many.
func TestManyHashes(t *testing.T) {
	event := value([]any{"BlockRemoved", slices.Repeat([]any{1}, 1<<16)})
	d := kvevents.NewDecoder(kvevents.Limits{})
	b, err := d.Decode(value([]any{1.5, slices.Repeat([]any{raw(event)}, 65)}))
	if err != nil || len(b.Events) != 64 || b.Skipped != 1 || d.Counts().OverLimit != 1 {
		t.Errorf("%v, counts %+v", err, d.Counts())
	}
}

// TestManyNames has more salts than are remembered.
func TestManyNames(t *testing.T) {
	d := kvevents.NewDecoder(kvevents.Limits{})
	for k := range 10_000 {
		salt := fmt.Sprintf("tenant-%d", k%5_000)
		b, err := d.Decode(stores([]any{1}, nil, []any{1}, 1, nil, "GPU", fields{{"cache_salt", salt}}))
		if err != nil || b.Events[0].Salt != salt {
			t.Fatalf("got %+v, %v; want salt %s", b, err, salt)
		}
	}
	long := strings.Repeat("x", 1000)
	if ev := one(t, stores([]any{1}, nil, []any{1}, 1, nil, "GPU", fields{{"cache_salt", long}})); ev.Salt != long {
		t.Error("a long salt was changed")
	}
}

// TestSkipsEveryType has a value of each type where it means nothing.
func TestSkipsEveryType(t *testing.T) {
	types := []any{raw{0xc0}, raw{0xc2}, raw{0xc3}, raw{0x7f}, raw{0xff}, raw{0x80}, raw{0x90}, raw{0xa0},
		raw{0xca, 1, 2, 3, 4}, raw{0xcb, 1, 2, 3, 4, 5, 6, 7, 8}, raw{0xcc, 1}, raw{0xcd, 1, 2}, raw{0xce, 1, 2, 3, 4}, raw{0xcf, 1, 2, 3, 4, 5, 6, 7, 8},
		raw{0xd0, 1}, raw{0xd1, 1, 2}, raw{0xd2, 1, 2, 3, 4}, raw{0xd3, 1, 2, 3, 4, 5, 6, 7, 8}, raw{0xc4, 1, 9}, raw{0xc5, 0, 1, 9}, raw{0xc6, 0, 0, 0, 1, 9},
		raw{0xd9, 1, 'a'}, raw{0xda, 0, 1, 'a'}, raw{0xdb, 0, 0, 0, 1, 'a'}, raw{0xdc, 0, 1, 7}, raw{0xdd, 0, 0, 0, 1, 7}, raw{0xde, 0, 1, 7, 8}, raw{0xdf, 0, 0, 0, 1, 7, 8},
		raw{0xc7, 2, 5, 1, 2}, raw{0xc8, 0, 2, 5, 1, 2}, raw{0xc9, 0, 0, 0, 2, 5, 1, 2}, raw{0xd4, 5, 1}, raw{0xd5, 5, 1, 2}, raw{0xd6, 5, 1, 2, 3, 4},
		raw{0xd7, 5, 1, 2, 3, 4, 5, 6, 7, 8}, raw(append([]byte{0xd8, 5}, make([]byte, 16)...))}
	for _, odd := range types {
		b := decode(t, value([]any{odd, []any{[]any{"New", odd, odd}, []any{"BlockRemoved", []any{1}}}, odd, odd}))
		if b.Unknown != 1 || len(b.Events) != 1 || b.Skipped != 0 {
			t.Errorf("%x: got %+v", odd, b)
		}
		payload := value([]any{1.5, []any{[]any{"New", odd}}})
		if len(odd.(raw)) > 1 {
			d := kvevents.NewDecoder(kvevents.Limits{})
			if _, err := d.Decode(payload[:len(payload)-1]); err == nil {
				t.Errorf("%x, cut short, was accepted", odd)
			}
		}
	}
}

// TestDeepNesting has more levels than any stack should follow.
func TestDeepNesting(t *testing.T) {
	deep := bytes.Repeat([]byte{0x91}, 8<<20)
	deep = append(deep, 0xc0)
	b := decode(t, value([]any{1.5, []any{[]any{"New", raw(deep)}, []any{"AllBlocksCleared"}}, 0}))
	if b.Unknown != 1 || len(b.Events) != 1 {
		t.Errorf("got %d events, %d unknown", len(b.Events), b.Unknown)
	}
}

// TestTruncation cuts every vector at every byte: it must be refused, not read
// past its end, and a decoder must be none the worse for it.
func TestTruncation(t *testing.T) {
	d := kvevents.NewDecoder(kvevents.Limits{})
	for _, v := range vectors() {
		whole := unhex(t, v.hex)
		for end := range whole {
			if b, err := d.Decode(slices.Clip(slices.Clone(whole[:end]))); err == nil {
				t.Errorf("%s: %d of %d bytes were accepted as %+v", v.name, end, len(whole), b)
			}
		}
		got, err := d.Decode(whole)
		if err != nil {
			t.Fatal(err)
		}
		same(t, *got, v.want)
	}
}

// TestMemoryIsReused decodes batches of the same size again and again.
func TestMemoryIsReused(t *testing.T) {
	for _, g := range kvevents.Generations() {
		ev := with(stored([]uint64{1, 2, 3, 4}, 1, 2, 300, 70_000, 5, 6, 7, 8), func(e *kvevents.Event) { e.LoRA, e.Salt = "adapter", "tenant" })
		payload := kvevents.AppendBatch(nil, g, batch(1, 0, ev, removed(gpu, 1, 2)))
		d := kvevents.NewDecoder(kvevents.Limits{})
		if n := testing.AllocsPerRun(20, func() {
			if _, err := d.Decode(payload); err != nil {
				t.Fatal(err)
			}
		}); n > 0 {
			t.Errorf("%v: %v allocations a batch", g, n)
		}
	}
}

// TestSlicesAreSeparate appends to what one event has: the next must not see it.
func TestSlicesAreSeparate(t *testing.T) {
	d := kvevents.NewDecoder(kvevents.Limits{})
	item := func(e *kvevents.Event) { e.Extras = [][]blockkey.Extra{{{ID: "image"}}} }
	payload := kvevents.AppendBatch(nil, kvevents.VLLMMap, batch(1, 0, with(stored([]uint64{1}, 1, 2), item), with(stored([]uint64{2}, 3, 4), item)))
	for range 3 { // from the second on, the events share memory
		b, err := d.Decode(payload)
		if err != nil {
			t.Fatal(err)
		}
		first, second := &b.Events[0], &b.Events[1]
		_ = append(first.Hashes, 99)
		_ = append(first.Tokens, 99)
		_ = append(first.Extras, nil)
		_ = append(first.Extras[0], blockkey.Extra{ID: "other"})
		if second.Hashes[0] != 2 || second.Tokens[0] != 3 || second.Extras[0][0].ID != "image" {
			t.Fatalf("got %+v", second)
		}
	}
}
