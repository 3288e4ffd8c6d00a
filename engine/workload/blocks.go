package workload

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// blockLine is one line of FormBlocks.
type blockLine struct {
	Timestamp    *float64 `json:"timestamp"`
	InputLength  *int     `json:"input_length"`
	OutputLength *int     `json:"output_length"`
	HashIDs      []uint64 `json:"hash_ids"`
	SessionID    string   `json:"session_id"`
	BlockSize    int      `json:"block_size"`
}

// blockLines reads FormBlocks.
type blockLines struct {
	trace   *Trace
	options Options
	sizes   []int // block sizes that all lines so far agree with; nil before the first line
	session map[string]int
}

// inferable are the block sizes tried when a file does not say: those that
// engines and traces use.
var inferable = []int{512, 16, 32, 64, 128, 256, 1024, 8, 2048, 4096}

func (b *blockLines) line(n int, line []byte) error {
	var l blockLine
	if err := decodeLine(n, line, &l); err != nil {
		return err
	}
	field := func(name, format string, args ...any) error {
		return &FieldError{Place: lineOf(n), Field: name, Err: fmt.Errorf(format, args...)}
	}
	switch {
	case l.Timestamp == nil:
		return field("timestamp", "is missing; give milliseconds since the trace's start")
	case math.IsNaN(*l.Timestamp) || *l.Timestamp < 0 || *l.Timestamp > math.MaxInt64/1e7:
		return field("timestamp", "is %v; give milliseconds since the trace's start", *l.Timestamp)
	case l.InputLength == nil:
		return field("input_length", "is missing")
	case *l.InputLength < 1 || *l.InputLength > maxLength:
		return field("input_length", "is %d; it must be between 1 and %d", *l.InputLength, maxLength)
	case l.OutputLength == nil:
		return field("output_length", "is missing")
	case *l.OutputLength < 0 || *l.OutputLength > maxLength:
		return field("output_length", "is %d; it must be between 0 and %d", *l.OutputLength, maxLength)
	case l.HashIDs == nil:
		return field("hash_ids", "is missing")
	}
	if err := b.agree(n, l); err != nil {
		return err
	}
	b.add(Request{
		At:           time.Duration(*l.Timestamp * float64(time.Millisecond)),
		PromptTokens: *l.InputLength,
		OutputTokens: max(*l.OutputLength, 1),
		Blocks:       runs(l.HashIDs),
	}, l.SessionID)
	return nil
}

// agree narrows the block sizes down to those that explain this line: the last
// block is partial and has an id, or is partial and has none.
func (b *blockLines) agree(n int, l blockLine) error {
	if b.sizes == nil {
		switch {
		case b.options.BlockTokens > 0:
			b.sizes = []int{b.options.BlockTokens}
		case l.BlockSize > 0:
			b.sizes = []int{l.BlockSize}
		default:
			b.sizes = slices.Clone(inferable)
		}
	}
	before := b.sizes[0]
	single := len(b.sizes) == 1
	length, ids := *l.InputLength, len(l.HashIDs)
	b.sizes = slices.DeleteFunc(b.sizes, func(size int) bool {
		return ids != length/size && ids != (length+size-1)/size
	})
	if len(b.sizes) > 0 {
		return nil
	}
	if single {
		return &FieldError{Place: lineOf(n), Field: "hash_ids", Err: fmt.Errorf("has %d ids for input_length %d, which does not fit blocks of %d tokens", ids, length, before)}
	}
	return &FieldError{Place: lineOf(n), Field: "hash_ids", Err: fmt.Errorf("has %d ids for input_length %d: no block size fits this and the lines before; say it with --block-tokens", ids, length)}
}

// add puts a request at the end of its session.
func (b *blockLines) add(r Request, id string) {
	t := b.trace
	if i, known := b.session[id]; known && id != "" {
		t.Sessions[i].Requests = append(t.Sessions[i].Requests, r)
		return
	}
	if b.options.Sessions > 0 && len(t.Sessions) >= b.options.Sessions {
		return
	}
	if b.session == nil {
		b.session = map[string]int{}
	}
	if id != "" {
		b.session[id] = len(t.Sessions)
	}
	t.Sessions = append(t.Sessions, Session{ID: id, Requests: []Request{r}})
}

func (b *blockLines) end() error {
	t := b.trace
	t.Form = FormBlocks
	if len(b.sizes) == 0 {
		return errors.New("no requests in it")
	}
	t.BlockTokens = b.sizes[0]
	for i := range t.Sessions {
		slices.SortStableFunc(t.Sessions[i].Requests, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	}
	slices.SortStableFunc(t.Sessions, func(a, b Session) int { return cmp.Compare(a.Requests[0].At, b.Requests[0].At) })
	// A slice of a longer recording starts late; its replay need not wait for it.
	start := t.Sessions[0].Requests[0].At
	for i := range t.Sessions {
		for j := range t.Sessions[i].Requests {
			t.Sessions[i].Requests[j].At -= start
		}
	}
	return nil
}

// runs codes ids by runs of consecutive ones.
func runs(ids []uint64) []Run {
	var coded []Run
	for _, id := range ids {
		if n := len(coded); n > 0 && coded[n-1].Start+coded[n-1].Count == id {
			coded[n-1].Count++
			continue
		}
		coded = append(coded, Run{Start: id, Count: 1})
	}
	return slices.Clip(coded)
}
