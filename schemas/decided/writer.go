package decided

import (
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// writer appends fields as deterministic proto.Marshal does: in the order of their
// numbers, zero values left out.
type writer struct {
	buf []byte
	// invalid is a string that is not UTF-8, which readers would refuse; empty for none.
	invalid string
}

// tag writes numbers below 2048, which all are.
func (w *writer) tag(n protowire.Number, kind protowire.Type) {
	if n < 16 {
		w.buf = append(w.buf, byte(n)<<3|byte(kind))
		return
	}
	w.buf = append(w.buf, byte(n)<<3|byte(kind)|0x80, byte(n>>4))
}

func (w *writer) number(v uint64) {
	for ; v >= 0x80; v >>= 7 {
		w.buf = append(w.buf, byte(v)|0x80)
	}
	w.buf = append(w.buf, byte(v))
}

func (w *writer) text(n protowire.Number, v string) {
	if v == "" {
		return
	}
	if !utf8.ValidString(v) {
		w.invalid = v
	}
	w.tag(n, protowire.BytesType)
	w.number(uint64(len(v)))
	w.buf = append(w.buf, v...)
}

func (w *writer) bytes(n protowire.Number, v []byte) {
	if len(v) > 0 {
		w.tag(n, protowire.BytesType)
		w.number(uint64(len(v)))
		w.buf = append(w.buf, v...)
	}
}

func (w *writer) varint(n protowire.Number, v uint64) {
	if v != 0 {
		w.present(n, v)
	}
}

// present writes a field that may be absent and is not.
func (w *writer) present(n protowire.Number, v uint64) {
	w.tag(n, protowire.VarintType)
	w.number(v)
}

func (w *writer) boolean(n protowire.Number, v bool) {
	w.varint(n, protowire.EncodeBool(v))
}

func (w *writer) fixed(n protowire.Number, v uint64) {
	if v != 0 {
		w.tag(n, protowire.Fixed64Type)
		w.buf = protowire.AppendFixed64(w.buf, v)
	}
}

// double writes all but +0: what its bits say counts, as for proto.Marshal.
func (w *writer) double(n protowire.Number, v float64) { w.fixed(n, math.Float64bits(v)) }

func (w *writer) packed(n protowire.Number, values []uint64) {
	if len(values) == 0 {
		return
	}
	w.tag(n, protowire.BytesType)
	w.number(uint64(len(values)) * 8)
	for _, v := range values {
		w.buf = protowire.AppendFixed64(w.buf, v)
	}
}

// open begins a message within the message; close ends it. Its length comes before
// it and is known after it, so it is moved by the bytes that the length takes.
func (w *writer) open(n protowire.Number) (start int) {
	w.tag(n, protowire.BytesType)
	return len(w.buf)
}

func (w *writer) close(start int) {
	size := len(w.buf) - start
	if size < 0x80 {
		w.buf = append(w.buf, 0)
		copy(w.buf[start+1:], w.buf[start:start+size])
		w.buf[start] = byte(size)
		return
	}
	var room [10]byte
	w.buf = append(w.buf, room[:protowire.SizeVarint(uint64(size))]...)
	copy(w.buf[len(w.buf)-size:], w.buf[start:start+size])
	protowire.AppendVarint(w.buf[:start], uint64(size))
}

// unknown writes fields of a newer schema, which stand last.
func (w *writer) unknown(m proto.Message) {
	w.buf = append(w.buf, m.ProtoReflect().GetUnknown()...)
}
