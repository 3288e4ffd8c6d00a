package tokenize_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"warmpath/tokenize"
)

func TestAppendIDs(t *testing.T) {
	cases := []struct {
		in   string
		want []uint32
		n    int
	}{
		{`[]`, nil, 2},
		{` [ ] x`, nil, 4},
		{`[0]`, []uint32{0}, 3},
		{`[1,23,456,7890,12345,678901,2345678,12345678,123456789,4294967295]`,
			[]uint32{1, 23, 456, 7890, 12345, 678901, 2345678, 12345678, 123456789, 4294967295}, 66},
		{"[1, 2 ,\n3\t,\r4]", []uint32{1, 2, 3, 4}, 14},
		{`[10,20],"model":"m"`, []uint32{10, 20}, 7},
	}
	for _, c := range cases {
		got, n, err := tokenize.AppendIDs([]uint32{7}, []byte(c.in))
		if err != nil || n != c.n || !slices.Equal(got, append([]uint32{7}, c.want...)) {
			t.Errorf("%q: got %v, %d, %v", c.in, got, n, err)
		}
	}
}

func TestAppendIDsRefuses(t *testing.T) {
	cases := []struct {
		in     string
		offset int
		words  string
	}{
		{``, 0, "found the end, expected '['"},
		{`{"a":1}`, 0, `found '{', expected '['`},
		{`[`, 1, "found the end, expected a token id"},
		{`[1`, 2, "found the end, expected ','"},
		{`[1,`, 3, "expected a token id"},
		{`[1,]`, 3, "expected a token id"},
		{`[,1]`, 1, "expected a token id"},
		{`[-1]`, 1, "found '-', expected a token id"},
		{`[+1]`, 1, "expected a token id"},
		{`[1.5]`, 2, "without sign, point or exponent"},
		{`[12,1.0,3,4,5,6]`, 5, "without sign, point or exponent"},
		{`[1e3]`, 2, "without sign, point or exponent"},
		{`[01]`, 1, "expected a token id"},
		{`[1,00,2,3,4,5,6,7]`, 3, "expected a token id"},
		{`[4294967296]`, 1, "expected a token id"},
		{`[99999999999999999999999]`, 1, "expected a token id"},
		{`[1 2]`, 3, "expected ',' or ']'"},
		{`[1,null]`, 3, "found 'n', expected a token id"},
		{`["1"]`, 1, "expected a token id"},
		{`[1,[2]]`, 3, "expected a token id"},
		{`[1,é]`, 3, "found 'é'"},
	}
	for _, c := range cases {
		_, n, err := tokenize.AppendIDs(nil, []byte(c.in))
		var syntax *tokenize.SyntaxError
		if !errors.As(err, &syntax) || syntax.Offset != c.offset || n != c.offset || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%q: got n %d, error %v; want offset %d, %q", c.in, n, err, c.offset, c.words)
		}
	}
}

// reference reads ids the slow way, and says whether they are valid.
func reference(in []byte) ([]uint32, int, bool) {
	decoder := json.NewDecoder(bytes.NewReader(in))
	var raw []json.RawMessage
	if err := decoder.Decode(&raw); err != nil || raw == nil {
		return nil, 0, false
	}
	var ids []uint32
	for _, r := range raw {
		id, err := strconv.ParseUint(string(r), 10, 32)
		if err != nil {
			return nil, 0, false
		}
		ids = append(ids, uint32(id))
	}
	return ids, int(decoder.InputOffset()), true
}

func FuzzAppendIDs(f *testing.F) {
	for _, seed := range []string{`[]`, `[1,2,3]`, ` [ 12 , 999999999, 4294967295 ] `, `[1.0]`, `[-0]`, `[1,2`, `[00]`,
		`[12345678,1]`, `[1,2,3,4,5,6,7,8,9,10,11,12]x`, `null`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		got, n, err := tokenize.AppendIDs(nil, in)
		want, wantN, valid := reference(in)
		if valid != (err == nil) {
			// A stream decoder may want to see what follows; it only ever refuses more.
			t.Fatalf("%q: error %v, reference valid %v", in, err, valid)
		}
		if valid && (n != wantN || !slices.Equal(got, want)) {
			t.Fatalf("%q: got %v, %d; want %v, %d", in, got, n, want, wantN)
		}
	})
}

func idsJSON(count int, limit uint32) []byte {
	random := rand.New(rand.NewPCG(1, 2))
	out := []byte{'['}
	for i := range count {
		if i > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendUint(out, uint64(random.Uint32N(limit)), 10)
	}
	return append(out, ']')
}

func BenchmarkAppendIDs(b *testing.B) {
	for _, limit := range []uint32{1000, 128256} {
		in := idsJSON(900_000, limit)
		b.Run("below_"+strconv.Itoa(int(limit)), func(b *testing.B) {
			dst := make([]uint32, 0, 900_000)
			b.SetBytes(int64(len(in)))
			b.ReportAllocs()
			for b.Loop() {
				var err error
				if dst, _, err = tokenize.AppendIDs(dst[:0], in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
