package kvevents_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"warmpath/services/bridge/kvevents"
)

// fields is a map whose order is that of the list.
type fields []struct {
	key   any
	value any
}

// raw is put into a payload as it is.
type raw []byte

// value encodes what a producer might send, however odd.
func value(v any) []byte { return appendValue(nil, v) }

func appendValue(dst []byte, v any) []byte {
	switch v := v.(type) {
	case raw:
		return append(dst, v...)
	case fields:
		dst = msgp.AppendMapHeader(dst, uint32(len(v)))
		for _, f := range v {
			dst = appendValue(appendValue(dst, f.key), f.value)
		}
		return dst
	case []any:
		dst = msgp.AppendArrayHeader(dst, uint32(len(v)))
		for _, e := range v {
			dst = appendValue(dst, e)
		}
		return dst
	}
	out, err := msgp.AppendIntf(dst, v)
	if err != nil {
		panic(err)
	}
	return out
}

// stores is a batch of one array store with the fields after the tag.
func stores(after ...any) []byte {
	return value([]any{1.5, []any{append([]any{"BlockStored"}, after...)}, 0})
}

func maps(event fields) []byte { return value([]any{1.5, []any{event}, 0}) }

func one(t *testing.T, payload []byte) kvevents.Event {
	t.Helper()
	b := decode(t, payload)
	if len(b.Events) != 1 || b.Skipped != 0 || b.Unknown != 0 {
		t.Fatalf("got %+v, want one event", b)
	}
	return b.Events[0]
}

func TestUnknownTagKeepsTheRest(t *testing.T) {
	first := []any{"BlockRemoved", []any{1}, "GPU"}
	last := fields{{"type", "BlockRemoved"}, {"block_hashes", []any{2}}, {"medium", "GPU"}}
	unknown := map[string]any{
		"array":        []any{"BlockInactive", []any{7, []any{8}}, fields{{"deep", []any{}}}},
		"map":          fields{{"type", "BlockSnapshot"}, {"items", []any{fields{{"block_hash", 1}}}}},
		"map tag last": fields{{"block_hashes", "odd"}, {"type", "BlockSnapshot"}},
	}
	for name, odd := range unknown {
		t.Run(name, func(t *testing.T) {
			d := kvevents.NewDecoder(kvevents.Limits{})
			b, err := d.Decode(value([]any{1.5, []any{first, odd, last}, 0}))
			if err != nil {
				t.Fatal(err)
			}
			want := batch(1_500_000, 0, removed(gpu, 1), removed(gpu, 2))
			want.Unknown = 1
			same(t, *b, want)
			if c := d.Counts(); c.UnknownTags != 1 || c.BadEvents != 0 {
				t.Errorf("counts %+v", c)
			}
			if names := d.Names(); len(names) != 1 || names[0].Class != kvevents.ClassTag || !strings.HasPrefix(names[0].Text, "Block") {
				t.Errorf("names %+v", names)
			}
		})
	}
}

func TestBadEventKeepsTheRest(t *testing.T) {
	cases := map[string]struct {
		event any
		count func(kvevents.Counts) uint64
	}{
		"no array":            {17, func(c kvevents.Counts) uint64 { return c.BadShapes }},
		"empty array":         {[]any{}, func(c kvevents.Counts) uint64 { return c.BadShapes }},
		"map without type":    {fields{{"block_hashes", []any{1}}}, func(c kvevents.Counts) uint64 { return c.BadShapes }},
		"tag is a number":     {[]any{1, []any{1}}, func(c kvevents.Counts) uint64 { return c.BadShapes }},
		"hashes are a text":   {[]any{"BlockRemoved", "abc", "GPU"}, func(c kvevents.Counts) uint64 { return c.BadShapes }},
		"no hashes":           {fields{{"type", "BlockRemoved"}}, func(c kvevents.Counts) uint64 { return c.BadShapes }},
		"hash without a byte": {[]any{"BlockRemoved", []any{1, []byte{}}}, func(c kvevents.Counts) uint64 { return c.BadHashes }},
		"hash is a float":     {[]any{"BlockRemoved", []any{1.5}}, func(c kvevents.Counts) uint64 { return c.BadHashes }},
		"hash is a word":      {[]any{"BlockRemoved", []any{"hash"}}, func(c kvevents.Counts) uint64 { return c.BadHashes }},
		"token above 32 bits": {[]any{"BlockStored", []any{1}, nil, []any{1 << 32}, 1}, func(c kvevents.Counts) uint64 { return c.BadTokens }},
		"token is a map":      {[]any{"BlockStored", []any{1}, nil, []any{fields{}}, 1}, func(c kvevents.Counts) uint64 { return c.BadTokens }},
		"negative block size": {[]any{"BlockStored", []any{1}, nil, []any{1}, -1}, func(c kvevents.Counts) uint64 { return c.BadShapes }},
		"LoRA name with a zero byte": {[]any{"BlockStored", []any{1}, nil, []any{1}, 1, nil, "GPU", "a\x00b"},
			func(c kvevents.Counts) uint64 { return c.BadShapes }},
		"extras for other blocks": {fields{{"type", "BlockStored"}, {"block_hashes", []any{1, 2}}, {"token_ids", []any{1, 2}}, {"block_size", 1},
			{"extra_keys", []any{[]any{"x"}}}}, func(c kvevents.Counts) uint64 { return c.BadShapes }},
		"copies of other blocks": {fields{{"type", "BlockRemoved"}, {"block_hashes", []any{1, 2}}, {"remaining_copy_counts", []any{1}}},
			func(c kvevents.Counts) uint64 { return c.BadShapes }},
		"too many hashes":       {[]any{"BlockRemoved", slices.Repeat([]any{1}, 65_537)}, func(c kvevents.Counts) uint64 { return c.OverLimit }},
		"name too long":         {[]any{"BlockRemoved", []any{1}, strings.Repeat("G", 65_537)}, func(c kvevents.Counts) uint64 { return c.OverLimit }},
		"wrapped, cut short":    {value([]any{"BlockRemoved", []any{1}})[:14], func(c kvevents.Counts) uint64 { return c.Truncated }},
		"wrapped bomb":          {[]byte("\x92\xacBlockRemoved\xdd\x7f\xff\xff\xff"), func(c kvevents.Counts) uint64 { return c.OverLimit }},
		"wrapped twice":         {value(value([]any{"BlockRemoved", []any{1}})), func(c kvevents.Counts) uint64 { return c.BadShapes }},
		"wrapped without bytes": {[]byte{}, func(c kvevents.Counts) uint64 { return c.Truncated }},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d := kvevents.NewDecoder(kvevents.Limits{})
			b, err := d.Decode(value([]any{1.5, []any{[]any{"BlockRemoved", []any{1}, "GPU"}, c.event, []any{"AllBlocksCleared"}}, 0}))
			if err != nil {
				t.Fatal(err)
			}
			want := batch(1_500_000, 0, removed(gpu, 1), kvevents.Event{Kind: kvevents.Cleared})
			want.Skipped = 1
			same(t, *b, want)
			if n := d.Counts(); n.BadEvents != 1 || c.count(n) != 1 || n.Events != 2 {
				t.Errorf("counts %+v", n)
			}
		})
	}
}

func TestUnknownFields(t *testing.T) {
	d := kvevents.NewDecoder(kvevents.Limits{})
	b, err := d.Decode(value([]any{1.5, []any{
		fields{{"type", "BlockRemoved"}, {"newest", []any{fields{{"a", 1}}}}, {"block_hashes", []any{1}}, {7, 8}, {"medium", "GPU"}},
		[]any{"BlockStored", []any{1}, nil, []any{1}, 1, nil, "GPU", nil, nil, nil, nil, nil, "twelfth", []any{}},
		[]any{"AllBlocksCleared", 1},
	}, 0, "new", nil}))
	if err != nil {
		t.Fatal(err)
	}
	same(t, *b, batch(1_500_000, 0, removed(gpu, 1), stored([]uint64{1}, 1), kvevents.Event{Kind: kvevents.Cleared}))
	if c := d.Counts(); c.UnknownFields != 7 || c.BadEvents != 0 {
		t.Errorf("counts %+v", c)
	}
	if names := d.Names(); !reflect.DeepEqual(names, []kvevents.Name{{Class: kvevents.ClassField, Text: "newest", Count: 1}}) {
		t.Errorf("names %+v", names)
	}
}

func TestNamesAreBounded(t *testing.T) {
	d := kvevents.NewDecoder(kvevents.Limits{})
	for k := range 500 {
		tag := fmt.Sprintf("%d%s", k, strings.Repeat("x", 100))
		if _, err := d.Decode(value([]any{1.5, []any{[]any{tag}}})); err != nil {
			t.Fatal(err)
		}
	}
	names := d.Names()
	if len(names) != 64 || d.Counts().UnknownTags != 500 {
		t.Errorf("%d names, %d unknown tags", len(names), d.Counts().UnknownTags)
	}
	for _, n := range names {
		if len(n.Text) > 64 {
			t.Errorf("a name of %d bytes", len(n.Text))
		}
	}
}
