package clickhouse

import (
	"slices"
	"strings"
	"testing"
)

func TestStatements(t *testing.T) {
	for _, test := range []struct {
		text   string
		insert bool
		head   string // of an insert
		format string
		data   string
	}{
		{text: "SELECT 1"},
		{text: "SELECT 1 FORMAT JSON", format: "JSON"},
		{text: "SELECT 1 format JSONEachRow ;\n", format: "JSONEachRow"},
		{text: "SELECT 1 FORMAT CSV SETTINGS max_threads = 1", format: "CSV"},
		{text: "SELECT 1 FORMAT CSV -- the end\n", format: "CSV"},
		{text: "SELECT 'FORMAT CSV'"},
		{text: "SELECT 1 /* FORMAT CSV */"},
		{text: "SELECT `format` FROM t"},
		{text: "SELECT format FROM t"},
		{text: "SELECT a.format x FROM t"},
		{text: "SELECT (SELECT 1 FORMAT CSV)"},
		{text: "SELECT $tag$ FORMAT CSV $tag$"},
		{text: "SELECT 'it''s' FORMAT XML", format: "XML"},
		{text: `SELECT 'it\'s FORMAT x' FORMAT XML`, format: "XML"},
		{text: "WITH 1 AS x SELECT x FORMAT Native", format: "Native"},
		{text: "SHOW CREATE TABLE t FORMAT TSVRaw", format: "TSVRaw"},
		{text: "-- note: INSERT\nSELECT 1"},

		{text: "INSERT INTO t VALUES (1)", insert: true, head: "INSERT INTO t ", format: "Values", data: " (1)"},
		{text: "INSERT INTO t (a, values) values (1)", insert: true, head: "INSERT INTO t (a, values) ", format: "Values", data: " (1)"},
		{text: "insert into t(`format`) format CSV\n1\n", insert: true, head: "insert into t(`format`) ", format: "CSV", data: "1\n"},
		{text: "INSERT INTO t FORMAT JSONEachRow {\"a\": \"FORMAT x\"}", insert: true, head: "INSERT INTO t ", format: "JSONEachRow", data: `{"a": "FORMAT x"}`},
		{text: "INSERT INTO t FORMAT TSV\n\nx", insert: true, head: "INSERT INTO t ", format: "TSV", data: "\nx"},
		{text: "INSERT INTO t SETTINGS a = 1 FORMAT Native", insert: true, head: "INSERT INTO t SETTINGS a = 1 ", format: "Native"},
		{text: "/* c */ INSERT INTO FUNCTION remote('h', 'd.t') FORMAT Native", insert: true, head: "/* c */ INSERT INTO FUNCTION remote('h', 'd.t') ", format: "Native"},
		{text: "INSERT INTO t (a)", insert: true, head: "INSERT INTO t (a)"},
		{text: "INSERT INTO t SELECT 1 FORMAT x"},
		{text: "INSERT INTO t WITH 1 AS x SELECT x"},
		{text: "INSERT INTO t (a) SELECT a FROM values('a Int8', 1)"},
	} {
		got := parseStatement(test.text)
		head := test.text
		if test.insert {
			head = test.head
		}
		if got.insert != test.insert || got.text != head || got.format != test.format || got.data != test.data {
			t.Errorf("%q: %+v", test.text, got)
		}
	}
	for text, want := range map[string]bool{
		"SELECT 1 INTO OUTFILE 'x'": true, "select 1 into outfile 'x' format CSV": true,
		"SELECT 'INTO OUTFILE'": false, "SELECT outfile FROM into": false,
	} {
		if got := parseStatement(text).outfile; got != want {
			t.Errorf("%q: outfile is %v", text, got)
		}
	}
}

// Whatever the text, an insert's parts are parts of it, in order.
func FuzzStatement(f *testing.F) {
	f.Add("INSERT INTO t FORMAT CSV\n1")
	f.Add("SELECT '$x$ -- ' FORMAT /* ")
	f.Fuzz(func(t *testing.T, text string) {
		s := parseStatement(text)
		if !strings.HasPrefix(text, s.text) || !strings.HasSuffix(text, s.data) || len(s.text)+len(s.data) > len(text) {
			t.Errorf("%q: %+v", text, s)
		}
	})
}

func TestNativeForARevision(t *testing.T) {
	// One block: a UInt8, b Nullable(String), two rows.
	block := []byte("\x02\x02\x01a\x05UInt8\x01\x02\x01b\x10Nullable(String)\x00\x01\x01x\x00")
	info := "\x01\x00\x02\xff\xff\xff\xff\x00"
	for revision, want := range map[uint64]string{
		0:     string(block),
		54400: info + string(block),
		54454: info + "\x02\x02\x01a\x05UInt8\x00\x01\x02\x01b\x10Nullable(String)\x00\x00\x01\x01x\x00",
	} {
		twice := want + want
		got, err := appendNative(nil, slices.Concat(block, block), revision)
		if err != nil || string(got) != twice {
			t.Errorf("revision %d: %q, %v", revision, got, err)
		}
	}
	for n := 1; n < len(block); n++ {
		if _, err := appendNative(nil, block[:n], 54460); err == nil {
			t.Errorf("the first %d bytes of a block passed", n)
		}
	}
}

func FuzzNative(f *testing.F) {
	f.Add([]byte("\x02\x02\x01a\x05UInt8\x01\x02\x01b\x10Nullable(String)\x00\x01\x01x\x00"))
	f.Add([]byte("\x01\x01\x01l\x16LowCardinality(String)\x01\x00\x00\x00\x00\x00\x00\x00\x00\x06\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00\x01x\x01\x00\x00\x00\x00\x00\x00\x00\x01"))
	for _, kind := range nativeKinds {
		f.Add(append([]byte{1, 1, 1, 'c', byte(len(kind))}, kind...))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		in := cursor{data: data}
		if columns := in.uvarint(); columns != 1 {
			return
		}
		rows := in.uvarint()
		in.text()
		kind := string(in.text())
		if in.err != nil || rows > maxRows || !known(kind) {
			return // clickhouse-go decodes the unknown kinds, and trusts the sizes in them
		}
		if size, err := columnSize(kind, int(rows), in.data); err == nil && size > len(in.data) {
			t.Errorf("%d bytes of %d", size, len(in.data))
		}
	})
}

var nativeKinds = []string{
	"String", "Nullable(UInt64)", "LowCardinality(Nullable(String))", "Array(LowCardinality(String))", "Array(Array(UInt64))",
	"Map(LowCardinality(String), Array(UInt64))", "SimpleAggregateFunction(sum, UInt64)", "FixedString(3)", "DateTime64(6, 'UTC')",
	"Enum8('a' = 1, 'b' = 2)", "Nullable(DateTime64(3, 'UTC'))", "SimpleAggregateFunction(groupArrayArray, Array(String))",
}

// Our own stepping agrees with how clickhouse-go decodes.
func TestKindsAreKnown(t *testing.T) {
	for _, kind := range nativeKinds {
		if !known(kind) {
			t.Errorf("%s is not known", kind)
		}
	}
	for _, kind := range []string{"AggregateFunction(sum, UInt64)", "Tuple(UInt8, String)", "Decimal(9, 2)", "Array(Tuple(a UInt8))", "Nothing"} {
		if known(kind) {
			t.Errorf("%s is known", kind)
		}
	}
}
