package chdb

import (
	"errors"
	"runtime"
	"unsafe"
)

// Error is an exception of the engine: "Code: 60. DB::Exception: …".
type Error struct{ Text string }

// Error returns the engine's text.
func (e *Error) Error() string { return e.Text }

// Param is the value of a {name:Type} placeholder, in ClickHouse's escaped
// text form.
type Param struct{ Name, Value string }

// Conn is a session with the engine. Not safe for concurrent use: it runs one
// statement, stream or insert at a time.
type Conn struct {
	library *Library
	owner   handle // what chdb_close_conn takes
	conn    handle // what everything else takes
}

// Close ends the session. It must not be called twice, nor during a statement.
func (c *Conn) Close() { c.library.closeConn(c.owner) }

// params holds parameters in the shape that C wants them, pinned until free.
type params struct {
	pinner           runtime.Pinner
	names, values    []unsafe.Pointer
	nameLen, textLen []uintptr
}

func bind(list []Param) *params {
	p := &params{}
	for _, item := range list {
		p.names, p.nameLen = p.text(p.names, p.nameLen, item.Name)
		p.values, p.textLen = p.text(p.values, p.textLen, item.Value)
	}
	if len(list) > 0 {
		p.pinner.Pin(&p.names[0])
		p.pinner.Pin(&p.nameLen[0])
		p.pinner.Pin(&p.values[0])
		p.pinner.Pin(&p.textLen[0])
	}
	return p
}

func (p *params) text(pointers []unsafe.Pointer, lengths []uintptr, s string) ([]unsafe.Pointer, []uintptr) {
	b := append([]byte(s), 0)
	p.pinner.Pin(&b[0])
	return append(pointers, unsafe.Pointer(&b[0])), append(lengths, uintptr(len(s)))
}

func (p *params) free() { p.pinner.Unpin() }

func first[T any](s []T) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(s)) }

// Result is the whole answer of a statement. Close frees it.
type Result struct {
	library *Library
	result  handle
}

// Query runs one statement and waits for its whole answer, in format unless
// the statement names one.
func (c *Conn) Query(sql, format string, list ...Param) (*Result, error) {
	p := bind(list)
	defer p.free()
	l := c.library
	return l.take(l.query(c.conn, sql, uintptr(len(sql)), format, uintptr(len(format)),
		first(p.names), first(p.nameLen), first(p.values), first(p.textLen), uintptr(len(list))))
}

func (l *Library) take(result handle) (*Result, error) {
	if result == nil {
		return nil, errors.New("the engine gave no result")
	}
	if text := l.resultError(result); text != "" {
		l.destroy(result)
		return nil, &Error{Text: text}
	}
	return &Result{library: l, result: result}, nil
}

// Data returns the answer. It lies in the library's memory and must not be
// used after Close.
func (r *Result) Data() []byte {
	n := r.library.length(r.result)
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(r.library.buffer(r.result)), int(n))
}

// Stats says what a statement read from and wrote to tables; what it wrote
// includes the targets of materialized views.
type Stats struct {
	Seconds               float64
	ReadRows, ReadBytes   uint64
	WroteRows, WroteBytes uint64
}

// Stats returns what the statement did.
func (r *Result) Stats() Stats {
	l := r.library
	return Stats{
		Seconds: l.elapsed(r.result), ReadRows: l.rowsRead(r.result), ReadBytes: l.bytesRead(r.result),
		WroteRows: l.rowsWritten(r.result), WroteBytes: l.bytesWritten(r.result),
	}
}

// Close frees the answer.
func (r *Result) Close() { r.library.destroy(r.result) }

// Stream is a SELECT whose answer comes in chunks, each one block in the
// format asked for, with the format's own header and footer around it.
type Stream struct {
	conn   *Conn
	result handle
	chunk  *Result
	done   bool
}

// Stream starts a SELECT. Other statements cannot be streamed and fail with
// code 36. The caller must Close the stream.
func (c *Conn) Stream(sql, format string, list ...Param) (*Stream, error) {
	p := bind(list)
	defer p.free()
	l := c.library
	result, err := l.take(l.stream(c.conn, sql, uintptr(len(sql)), format, uintptr(len(format)),
		first(p.names), first(p.nameLen), first(p.values), first(p.textLen), uintptr(len(list))))
	if err != nil {
		return nil, err
	}
	return &Stream{conn: c, result: result.result}, nil
}

// Next returns the next chunk, nil at the end. A chunk is valid until the next
// call of Next or Close.
func (s *Stream) Next() ([]byte, error) {
	s.release()
	if s.done {
		return nil, nil
	}
	chunk, err := s.conn.library.take(s.conn.library.fetch(s.conn.conn, s.result))
	if err != nil {
		s.done = true
		return nil, err
	}
	s.chunk = chunk
	data := chunk.Data()
	s.done = data == nil
	return data, nil
}

func (s *Stream) release() {
	if s.chunk != nil {
		s.chunk.Close()
		s.chunk = nil
	}
}

// Close cancels what is left of the SELECT and frees it.
func (s *Stream) Close() {
	s.release()
	if !s.done {
		s.conn.library.cancelQuery(s.conn.conn, s.result)
	}
	s.conn.library.destroy(s.result)
}

// Insert is an INSERT whose data is being handed over.
type Insert struct {
	library *Library
	insert  handle
	done    bool
}

// Insert starts an INSERT statement, given without its FORMAT clause and data.
// The caller must Close it.
func (c *Conn) Insert(sql, format string, list ...Param) (*Insert, error) {
	p := bind(list)
	defer p.free()
	l := c.library
	in := &Insert{library: l, insert: l.insert(c.conn, sql, uintptr(len(sql)), format, uintptr(len(format)),
		first(p.names), first(p.nameLen), first(p.values), first(p.textLen), uintptr(len(list)))}
	if text := l.insertError(in.insert); text != "" {
		in.Close()
		return nil, &Error{Text: text}
	}
	return in, nil
}

// Write hands over data in the insert's format; the engine copies it, and
// makes the caller wait while it is behind. Cuts may be anywhere.
func (i *Insert) Write(data []byte) (int, error) {
	if len(data) == 0 {
		return 0, nil
	}
	if i.library.insertAppend(i.insert, unsafe.Pointer(unsafe.SliceData(data)), uintptr(len(data))) != 0 {
		return 0, &Error{Text: i.library.insertError(i.insert)}
	}
	return len(data), nil
}

// Done ends the data, commits, and returns what was written.
func (i *Insert) Done() (Stats, error) {
	i.done = true
	result, err := i.library.take(i.library.insertDone(i.insert))
	if err != nil {
		return Stats{}, err
	}
	defer result.Close()
	return result.Stats(), nil
}

// Close frees the insert. Without Done before, it is aborted: blocks that were
// not full yet are not written.
func (i *Insert) Close() {
	if !i.done {
		i.library.insertCancel(i.insert)
	}
	i.library.insertDestroy(i.insert)
}

// Class says what a statement does to what outlives it.
type Class uint32

// The classes of chdb.h.
const (
	ReadOnly Class = iota
	Mutating
	MutatingGlobal
	Control
	Unknown
)

// Classify says what the statements in sql would do, and how many they are;
// 0 and Unknown for text that does not parse. Nothing is run.
func (c *Conn) Classify(sql string) (Class, int) {
	out := struct{ size, statements, flags, class uint32 }{size: 16}
	if c.library.classify(c.conn, sql, uintptr(len(sql)), nil, 0, unsafe.Pointer(&out)) != 0 {
		return Unknown, 0
	}
	return Class(out.class), int(out.statements)
}
