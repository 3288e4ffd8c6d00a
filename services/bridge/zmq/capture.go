package zmq

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"sync"
)

// A capture is what a bridge received, in order, for a test or a report. It is
// the line below, and then records:
//
//	LE32 length of body, LE32 CRC-32C of body, body
//	body = kind(1) LE64 at_us LE64 seq LE16 len source LE16 len topic payload
//
// It holds the token ids of prompts: files are made readable to their owner only.
const captureHeader = "warmpath capture 1\n"

const (
	recordHeader = 8
	bodyHeader   = 1 + 8 + 8 + 2 + 2
	// maxRecord is above any payload that Subscribe lets in by default.
	maxRecord = 64 << 20
	// defaultCaptureLimit is some ten minutes of a busy engine.
	defaultCaptureLimit = 4 << 30
)

var (
	// ErrCaptureFull is what a Write returns once the capture has its full size.
	ErrCaptureFull = errors.New("capture is full")
	// ErrDamaged is what a reader returns for a file that is no capture, or holds a
	// record that is whole but not what was written.
	ErrDamaged = errors.New("capture is damaged")
)

// RecordKind says what a record of a capture is.
type RecordKind uint8

// The kinds of records.
const (
	// RecordFrame is a frame as it was published.
	RecordFrame RecordKind = iota + 1
	// RecordReplay is a frame that a replay brought.
	RecordReplay
	// RecordConnected, RecordDisconnected and RecordLost mark what happened to the
	// source; Payload says more, in words. RecordReplayed ends a replay's frames.
	RecordConnected
	RecordDisconnected
	RecordLost
	RecordReplayed
	// RecordPull is the body of an answer to polling (TensorRT-LLM), as JSON.
	RecordPull
	// RecordBegan marks where a recorder began, or began again.
	RecordBegan
)

// Record is one entry of a capture.
type Record struct {
	Kind RecordKind
	// Source names the engine and rank that it is of, as its bridge does.
	Source string
	// Frame has the arrival time of every kind, and of marks nothing else but
	// Payload. Conn is not kept.
	Frame Frame
}

// CaptureWriter appends to a capture. It is safe for concurrent use. Each record
// is one write to the file, so that a killed process loses none.
type CaptureWriter struct {
	mu      sync.Mutex
	file    *os.File
	size    int64
	limit   int64
	dropped uint64
	buf     []byte
}

// CreateCapture opens the capture at path, mode 0600, and appends to what is
// there, without a record that was cut short. limit bounds the file in bytes; 0
// means 4 GiB. A file that is no capture, or damaged, is an error and is left
// alone.
func CreateCapture(path string, limit int64) (*CaptureWriter, error) {
	if limit <= 0 {
		limit = defaultCaptureLimit
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	w := &CaptureWriter{file: file, limit: limit}
	if err := w.resume(); err != nil {
		file.Close()
		return nil, fmt.Errorf("capture %s: %w", path, err)
	}
	return w, nil
}

// resume finds the end of what is there, and goes to it.
func (w *CaptureWriter) resume() error {
	info, err := w.file.Stat()
	if err != nil {
		return err
	}
	if info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0 {
		if err := w.file.Chmod(0o600); err != nil {
			return err
		}
	}
	r, err := NewCaptureReader(w.file)
	for err == nil {
		_, err = r.Next()
	}
	if !errors.Is(err, io.EOF) {
		return fmt.Errorf("not appended to: %w; name another file", err)
	}
	w.size = r.offset
	if err := w.rewind(); err != nil || w.size > 0 {
		return err
	}
	w.size = int64(len(captureHeader))
	_, err = w.file.WriteString(captureHeader)
	return err
}

// Write appends a record. ErrCaptureFull, and a record too long for the format,
// leave the file as it is, and count as dropped.
func (w *CaptureWriter) Write(r Record) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(r.Source) > 0xffff || len(r.Frame.Topic) > 0xffff || len(r.Frame.Payload) > maxRecord-bodyHeader-2*0xffff {
		w.dropped++
		return fmt.Errorf("capture: record of %d bytes is too long", len(r.Source)+len(r.Frame.Topic)+len(r.Frame.Payload))
	}
	w.buf = appendRecord(w.buf[:0], r)
	if w.size+int64(len(w.buf)) > w.limit {
		w.dropped++
		return ErrCaptureFull
	}
	n, err := w.file.Write(w.buf)
	if err != nil {
		w.dropped++
		if n > 0 { // half a record would hide all after it
			err = errors.Join(err, w.rewind())
		}
		return fmt.Errorf("capture: %w", err)
	}
	w.size += int64(n)
	return nil
}

// rewind drops what follows the last whole record.
func (w *CaptureWriter) rewind() error {
	if err := w.file.Truncate(w.size); err != nil {
		return err
	}
	_, err := w.file.Seek(w.size, io.SeekStart)
	return err
}

// Dropped counts the records that are not in the capture.
func (w *CaptureWriter) Dropped() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dropped
}

// Close closes the file.
func (w *CaptureWriter) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.file.Close()
}

func appendRecord(dst []byte, r Record) []byte {
	dst = append(dst, make([]byte, recordHeader)...)
	dst = append(dst, byte(r.Kind))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(r.Frame.AtUS))
	dst = binary.LittleEndian.AppendUint64(dst, r.Frame.Seq)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(r.Source)))
	dst = append(dst, r.Source...)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(r.Frame.Topic)))
	dst = append(dst, r.Frame.Topic...)
	dst = append(dst, r.Frame.Payload...)
	body := dst[recordHeader:]
	binary.LittleEndian.PutUint32(dst, uint32(len(body)))
	binary.LittleEndian.PutUint32(dst[4:], checksum(body))
	return dst
}

func checksum(body []byte) uint32 { return crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)) }

// CaptureReader reads a capture. It is for one goroutine.
type CaptureReader struct {
	in     *bufio.Reader
	offset int64 // of the next record
	cut    int64
}

// NewCaptureReader reads the header; ErrDamaged means that this is no capture, or
// of a version not known here.
func NewCaptureReader(r io.Reader) (*CaptureReader, error) {
	c := &CaptureReader{in: bufio.NewReader(r)}
	header := make([]byte, len(captureHeader))
	n, err := io.ReadFull(c.in, header)
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		if !bytes.HasPrefix([]byte(captureHeader), header[:n]) {
			break
		}
		// Empty, or a recorder was killed before its first record.
		c.cut = int64(n)
		return c, nil
	case err != nil:
		return nil, err
	case string(header) == captureHeader:
		c.offset = int64(n)
		return c, nil
	}
	return nil, fmt.Errorf("%w: it does not begin with %q", ErrDamaged, captureHeader)
}

// Next returns the next record. io.EOF is the end: of the file, or of its whole
// records (see Cut). ErrDamaged tells where.
func (c *CaptureReader) Next() (Record, error) {
	if c.offset == 0 || c.cut > 0 {
		return Record{}, io.EOF
	}
	var header [recordHeader]byte
	n, err := io.ReadFull(c.in, header[:])
	if err != nil {
		return Record{}, c.end(n, err)
	}
	size := binary.LittleEndian.Uint32(header[:])
	if size < bodyHeader || size > maxRecord {
		return Record{}, fmt.Errorf("%w: record at byte %d has length %d", ErrDamaged, c.offset, size)
	}
	// Read as it comes: a length alone allocates nothing.
	var body bytes.Buffer
	got, err := io.CopyN(&body, c.in, int64(size))
	if err != nil {
		return Record{}, c.end(n+int(got), err)
	}
	if checksum(body.Bytes()) != binary.LittleEndian.Uint32(header[4:]) {
		return Record{}, fmt.Errorf("%w: record at byte %d has another checksum", ErrDamaged, c.offset)
	}
	r, ok := parseRecord(body.Bytes())
	if !ok {
		return Record{}, fmt.Errorf("%w: record at byte %d is malformed", ErrDamaged, c.offset)
	}
	c.offset += int64(n) + got
	return r, nil
}

// end tells a cut from the file's end: n bytes of a record were there.
func (c *CaptureReader) end(n int, err error) error {
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	c.cut = int64(n)
	return io.EOF
}

// Cut returns, after io.EOF, how many bytes of a record that was cut short follow
// the last whole one, and where they begin; 0 when the file ends with a record.
func (c *CaptureReader) Cut() (at, bytes int64) { return c.offset, c.cut }

func parseRecord(b []byte) (Record, bool) {
	r := Record{Kind: RecordKind(b[0])}
	r.Frame.AtUS = int64(binary.LittleEndian.Uint64(b[1:]))
	r.Frame.Seq = binary.LittleEndian.Uint64(b[9:])
	source, b, ok := short(b[17:])
	if !ok {
		return Record{}, false
	}
	topic, b, ok := short(b)
	if !ok {
		return Record{}, false
	}
	r.Source, r.Frame.Topic, r.Frame.Payload = string(source), topic, b
	return r, true
}

// short takes a string behind its 16-bit length.
func short(b []byte) (s, rest []byte, ok bool) {
	if len(b) < 2 {
		return nil, nil, false
	}
	n := int(binary.LittleEndian.Uint16(b))
	if b = b[2:]; n > len(b) {
		return nil, nil, false
	}
	return b[:n:n], b[n:], true
}
