package clickhouse

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/ClickHouse/ch-go/proto"
	"github.com/ClickHouse/clickhouse-go/v2/lib/column"
	nativeproto "github.com/ClickHouse/clickhouse-go/v2/lib/proto"
)

// blockInfo precedes each block from protocol revision 1 on: not an overflow
// block, no bucket.
var blockInfo = []byte{1, 0, 2, 0xff, 0xff, 0xff, 0xff, 0}

var errShort = errors.New("a native block ends early")

// appendNative appends the blocks in data to dst as a client of the native
// protocol's revision decodes them. The engine writes them as revision 0 does,
// which lacks the block info, and from DBMS_MIN_REVISION_WITH_CUSTOM_SERIALIZATION
// on also a byte per column that says how it is serialized (0: as always).
func appendNative(dst, data []byte, revision uint64) ([]byte, error) {
	if revision == 0 {
		return append(dst, data...), nil
	}
	in := cursor{data: data}
	for len(in.data) > 0 && in.err == nil {
		columns, rows := in.uvarint(), in.uvarint()
		dst = append(dst, blockInfo...)
		dst = binary.AppendUvarint(dst, columns)
		dst = binary.AppendUvarint(dst, rows)
		for range columns {
			head := in.data
			in.text() // the name
			kind := in.text()
			dst = append(dst, head[:len(head)-len(in.data)]...)
			if revision >= nativeproto.DBMS_MIN_REVISION_WITH_CUSTOM_SERIALIZATION {
				dst = append(dst, 0)
			}
			size := in.column(string(kind), int(rows))
			dst = append(dst, in.take(size)...)
		}
	}
	return dst, in.err
}

// cursor reads the native format; the first error stops it.
type cursor struct {
	data []byte
	err  error
}

func (c *cursor) uvarint() uint64 {
	v, n := binary.Uvarint(c.data)
	if n <= 0 {
		c.fail(errShort)
		return 0
	}
	c.data = c.data[n:]
	return v
}

func (c *cursor) text() []byte { return c.take(int(c.uvarint())) }

func (c *cursor) take(n int) []byte {
	if n < 0 || n > len(c.data) {
		c.fail(errShort)
		return nil
	}
	part := c.data[:n]
	c.data = c.data[n:]
	return part
}

func (c *cursor) fail(err error) {
	if c.err == nil {
		c.err = err
	}
	c.data = nil
}

// column returns how many bytes the next column takes.
func (c *cursor) column(kind string, rows int) int {
	if c.err != nil {
		return 0
	}
	size, err := columnSize(kind, rows, c.data)
	if err != nil {
		c.fail(err)
		return 0
	}
	return size
}

// columnSize returns how many bytes of data a column of rows values takes.
func columnSize(kind string, rows int, data []byte) (int, error) {
	if rows == 0 {
		return 0, nil
	}
	if !known(kind) {
		return decodedSize(kind, rows, data)
	}
	in := cursor{data: data}
	in.prefix(kind)
	in.values(kind, rows)
	return len(data) - len(in.data), in.err
}

// widths of the types whose values all take the same space.
var widths = map[string]int{
	"UInt8": 1, "Int8": 1, "Bool": 1, "Enum8": 1,
	"UInt16": 2, "Int16": 2, "Date": 2, "Enum16": 2,
	"UInt32": 4, "Int32": 4, "Float32": 4, "Date32": 4, "DateTime": 4, "IPv4": 4,
	"UInt64": 8, "Int64": 8, "Float64": 8, "DateTime64": 8,
	"UInt128": 16, "Int128": 16, "UUID": 16, "IPv6": 16,
	"UInt256": 32, "Int256": 32,
}

// typeOf splits Name(arguments).
func typeOf(kind string) (name, args string) {
	name, args, _ = strings.Cut(kind, "(")
	return name, strings.TrimSuffix(args, ")")
}

// pair splits two arguments at the comma between them.
func pair(args string) (string, string) {
	depth := 0
	for i := range len(args) {
		switch args[i] {
		case '(':
			depth++
		case ')':
			depth--
		case ',':
			if depth == 0 {
				return args[:i], strings.TrimSpace(args[i+1:])
			}
		}
	}
	return args, ""
}

// known says whether the cursor can step over values of kind.
func known(kind string) bool {
	switch name, args := typeOf(kind); name {
	case "String":
		return true
	case "FixedString":
		return fixedWidth(kind) > 0
	case "Nullable", "LowCardinality", "Array":
		return known(args)
	case "SimpleAggregateFunction":
		_, inner := pair(args)
		return known(inner)
	case "Map":
		key, value := pair(args)
		return known(key) && known(value)
	default:
		return widths[name] > 0
	}
}

func fixedWidth(kind string) int {
	name, args := typeOf(kind)
	if name == "FixedString" {
		n, _ := strconv.Atoi(args) // not a number: no width
		return n
	}
	return widths[name]
}

// prefix steps over what precedes a column's values: the version of each
// LowCardinality in it.
func (c *cursor) prefix(kind string) {
	switch name, args := typeOf(kind); name {
	case "LowCardinality":
		c.take(8)
	case "Nullable", "Array":
		c.prefix(args)
	case "SimpleAggregateFunction":
		_, inner := pair(args)
		c.prefix(inner)
	case "Map":
		key, value := pair(args)
		c.prefix(key)
		c.prefix(value)
	}
}

// values steps over rows values of a known kind.
func (c *cursor) values(kind string, rows int) {
	switch name, args := typeOf(kind); name {
	case "String":
		for i := 0; i < rows && c.err == nil; i++ {
			c.text()
		}
	case "Nullable":
		c.take(rows)
		c.values(args, rows)
	case "LowCardinality":
		c.lowCardinality(args, rows)
	case "Array":
		c.values(args, c.offsets(rows))
	case "SimpleAggregateFunction":
		_, inner := pair(args)
		c.values(inner, rows)
	case "Map":
		key, value := pair(args)
		n := c.offsets(rows)
		c.values(key, n)
		c.values(value, n)
	default:
		c.times(fixedWidth(kind), rows)
	}
}

// times steps over n values of a width, careful of overflow.
func (c *cursor) times(width, n int) {
	if n < 0 || width > 0 && n > len(c.data)/width {
		c.fail(errShort)
		return
	}
	c.take(width * n)
}

// offsets steps over the ends of rows arrays and returns the last one: how
// many elements there are.
func (c *cursor) offsets(rows int) int {
	if rows == 0 {
		return 0
	}
	c.times(8, rows-1)
	return c.size()
}

func (c *cursor) size() int {
	b := c.take(8)
	if b == nil {
		return 0
	}
	n := binary.LittleEndian.Uint64(b)
	if n > uint64(maxRows) {
		c.fail(errShort)
		return 0
	}
	return int(n)
}

// maxRows is what clickhouse-go takes in a block at most; more is a decoding
// that went astray.
const maxRows = 1_000_000_000

// lowCardinality steps over a dictionary and the indices into it, whose width
// the low bits of the flags say.
func (c *cursor) lowCardinality(kind string, rows int) {
	if rows == 0 {
		return
	}
	flags := c.take(8)
	if flags == nil {
		return
	}
	if inner, nullable := strings.CutPrefix(kind, "Nullable("); nullable {
		kind = strings.TrimSuffix(inner, ")") // null is an entry of the dictionary
	}
	c.values(kind, c.size())
	c.times(1<<(flags[0]&3), c.size())
}

// decodedSize finds a column's end by decoding it as the client will.
func decodedSize(kind string, rows int, data []byte) (int, error) {
	col, err := column.Type(kind).Column("", &column.ServerContext{})
	if err != nil {
		return 0, newException(codeUnknownType, fmt.Sprintf("a column of type %s cannot be sent in the native format here: %v; convert it in the query, or ask for another format", kind, err))
	}
	source := bytes.NewReader(data)
	buffered := bufio.NewReaderSize(source, readerSize)
	reader := proto.NewReader(buffered)
	if custom, ok := col.(column.CustomSerialization); ok {
		if err := custom.ReadStatePrefix(reader); err != nil {
			return 0, fmt.Errorf("decode a column of type %s: %w", kind, err)
		}
	}
	if err := col.Decode(reader, rows); err != nil {
		return 0, fmt.Errorf("decode a column of type %s: %w", kind, err)
	}
	return len(data) - source.Len() - buffered.Buffered(), nil
}

// readerSize is not below the buffer of proto.Reader, which then reads through
// ours, so that what it has consumed is known.
const readerSize = 128 << 10
