package workload

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

const (
	// maxLine bounds one JSON line: a session of a thousand requests of a thousand
	// runs each stays below.
	maxLine = 64 << 20
	// maxArray bounds a file that is one JSON array, which is read whole.
	maxArray = 1 << 30
	// maxLength bounds the token counts of one request, above any model's context.
	maxLength = 1 << 24
)

// Open reads a trace file. Its form is told by its content, gzip by its magic
// bytes, not by its name.
func Open(path string, options Options) (*Trace, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open trace: %w", err)
	}
	defer file.Close()
	t, err := Read(file, options)
	if err != nil {
		return nil, fmt.Errorf("read trace %s: %w", path, err)
	}
	t.Name = filepath.Base(path)
	return t, nil
}

// Read reads a trace as Open does. Errors of content are *FieldError or ErrForm.
func Read(r io.Reader, options Options) (*Trace, error) {
	input, err := unzipped(r)
	if err != nil {
		return nil, err
	}
	first, err := firstByte(input)
	if err != nil {
		return nil, err
	}
	t := &Trace{Name: "trace", Seed: options.Seed, BlockTokens: options.BlockTokens}
	switch first {
	case '[':
		err = t.readMessages(input, options)
	case '{':
		err = t.readLines(input, options)
	default:
		return nil, ErrForm
	}
	if err != nil {
		return nil, err
	}
	if len(t.Sessions) == 0 {
		return nil, errors.New("no requests in it")
	}
	t.Limit(options.Limit)
	return t, nil
}

// unzipped returns a buffered reader of what r holds, through gzip when it
// starts with gzip's magic bytes.
func unzipped(r io.Reader) (*bufio.Reader, error) {
	input := bufio.NewReaderSize(r, 1<<16)
	magic, err := input.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if !bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		return input, nil
	}
	plain, err := gzip.NewReader(input)
	if err != nil {
		return nil, fmt.Errorf("gzip: %w", err)
	}
	return bufio.NewReaderSize(plain, 1<<16), nil
}

// firstByte is the first byte that is not white space, left unread.
func firstByte(input *bufio.Reader) (byte, error) {
	for {
		b, err := input.ReadByte()
		if errors.Is(err, io.EOF) {
			return 0, errors.New("the file is empty")
		}
		if err != nil {
			return 0, err
		}
		switch b {
		case ' ', '\t', '\r', '\n':
			continue
		}
		return b, input.UnreadByte()
	}
}

// readLines reads a file of JSON lines; the first line tells the form.
func (t *Trace) readLines(input *bufio.Reader, options Options) error {
	var lines lineReader
	switch line, err := readLine(input, nil); {
	case err != nil && !errors.Is(err, io.EOF):
		return &FieldError{Place: lineOf(1), Err: err}
	default:
		var head struct {
			HashIDs  json.RawMessage `json:"hash_ids"`
			Requests json.RawMessage `json:"requests"`
		}
		if err := json.Unmarshal(line, &head); err != nil {
			return &FieldError{Place: lineOf(1), Err: jsonError(err)}
		}
		switch {
		case head.Requests != nil:
			lines = &sessionLines{trace: t, options: options}
		case head.HashIDs != nil:
			lines = &blockLines{trace: t, options: options}
		default:
			return ErrForm
		}
		if err := lines.line(1, line); err != nil {
			return err
		}
	}
	buffer := make([]byte, 0, 1<<16)
	for n := 2; ; n++ {
		line, err := readLine(input, buffer)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return &FieldError{Place: lineOf(n), Err: err}
		}
		buffer = line[:0]
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if err := lines.line(n, line); err != nil {
			return err
		}
	}
	return lines.end()
}

// lineReader takes the lines of one form.
type lineReader interface {
	line(n int, line []byte) error
	end() error
}

// readLine reads one line into buffer, which it may grow. io.EOF means that
// there is no more.
func readLine(input *bufio.Reader, buffer []byte) ([]byte, error) {
	buffer = buffer[:0]
	for {
		part, err := input.ReadSlice('\n')
		buffer = append(buffer, part...)
		if len(buffer) > maxLine {
			return nil, fmt.Errorf("longer than %d bytes", maxLine)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && len(buffer) > 0:
			return buffer, nil
		case err != nil:
			return nil, err
		}
		return buffer, nil
	}
}

// decodeLine decodes one JSON line; an error names the line and the field.
func decodeLine(n int, line []byte, into any) error {
	err := json.Unmarshal(line, into)
	if err == nil {
		return nil
	}
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return &FieldError{Place: lineOf(n), Field: wrong.Field, Err: fmt.Errorf("cannot be %s", wrong.Value)}
	}
	return &FieldError{Place: lineOf(n), Err: jsonError(err)}
}

// jsonError adds the byte at which JSON is broken.
func jsonError(err error) error {
	var broken *json.SyntaxError
	if errors.As(err, &broken) {
		return fmt.Errorf("not JSON at byte %d: %w", broken.Offset, err)
	}
	return fmt.Errorf("not a JSON object: %w", err)
}

// Limit keeps the first requests of every session so that at most n are left; a
// sub-agent whose branching point is cut off goes too. 0 keeps all. It must not
// run while the trace is read.
func (t *Trace) Limit(n int) {
	if n <= 0 || t.Count() <= n {
		return
	}
	keep := make([]int, len(t.Sessions))
	for depth, left := 0, n; left > 0; depth++ {
		taken := false
		for i := range t.Sessions {
			if left > 0 && depth < len(t.Sessions[i].Requests) && t.started(i, keep) {
				keep[i], left, taken = depth+1, left-1, true
			}
		}
		if !taken {
			break
		}
	}
	index := make([]int, len(t.Sessions))
	var kept []Session
	for i, s := range t.Sessions {
		index[i] = len(kept)
		if keep[i] == 0 {
			continue
		}
		s.Requests = s.Requests[:keep[i]]
		if s.Parent != nil {
			p := *s.Parent
			p.Session = index[p.Session]
			s.Parent = &p
		}
		kept = append(kept, s)
	}
	t.Sessions = kept
}

// started says whether a session starts when the others keep that many requests.
// A sub-agent stands after its parent in Sessions.
func (t *Trace) started(i int, keep []int) bool {
	p := t.Sessions[i].Parent
	return p == nil || keep[p.Session] > max(p.Request, 0)
}
