package gateway

import (
	"bytes"
	"encoding/json"
	"time"
)

// maxHeldEvent bounds how much of an event is kept to be looked at, and in a
// stream with a usage event to strip, held back. A usage event is far smaller,
// and content beyond this goes to the client as it comes.
const maxHeldEvent = 256 << 10

var (
	usageName  = []byte(`"usage"`)
	finishName = []byte(`"finish_reason"`)
	timingName = []byte(`"warmpath_timing"`)
	dataField  = []byte("data:")
	doneData   = []byte("[DONE]")
)

// eventStream passes server-sent events through and looks at them on the way.
// Bytes are never changed; without strip they go on as they come, with strip
// event by event, all but the usage event. Lines may end in \n or \r\n.
type eventStream struct {
	answer *answer
	// strip leaves the event with usage and no choices out.
	strip bool
	// onDone is called once, before the bytes that end the stream are passed on.
	onDone func()
	// emit passes bytes on; they are only valid during the call.
	emit func([]byte) error

	held    []byte // the event that is not complete
	scanned int    // how much of held is known to have no end of an event
	passing bool   // the current event was too large to hold
	tail    []byte // its last bytes, in which its end may begin
	done    bool
}

// feed takes the next bytes of the stream, which came at now.
func (s *eventStream) feed(chunk []byte, now time.Time) error {
	rest := chunk
	if s.passing {
		var err error
		if rest, err = s.pass(chunk); err != nil || s.passing {
			return err
		}
	}
	data := rest
	if len(s.held) > 0 {
		s.held = append(s.held, rest...)
		data = s.held
	}
	start, emitted := 0, 0 // start of the current event; end of what was passed on or left out
	from := s.scanned
	for {
		end := eventEnd(data, from)
		if end < 0 {
			break
		}
		if drop := s.event(data[start:end], now); drop {
			if err := s.send(data[emitted:start]); err != nil {
				return err
			}
			emitted = end
		}
		start, from = end, end
	}
	return s.remain(rest, data, start, emitted, now)
}

// remain passes on what feed has seen, and keeps the event that is not complete.
func (s *eventStream) remain(rest, data []byte, start, emitted int, now time.Time) error {
	incomplete := data[start:] // at most one chunk longer than maxHeldEvent
	var err error
	switch {
	case !s.strip:
		if bytes.Equal(eventData(incomplete), doneData) {
			s.finish() // a client may stop at this line, before the blank one
		}
		err = s.send(rest)
	case len(incomplete) > maxHeldEvent:
		err = s.send(data[emitted:])
	default:
		err = s.send(data[emitted:start])
	}
	if len(incomplete) > maxHeldEvent {
		s.passing = true
		s.tail = append(s.tail[:0], incomplete[len(incomplete)-3:]...)
		s.mark(now) // nothing but content is that long
		incomplete = nil
	}
	s.held = append(s.held[:0], incomplete...) // memmove: incomplete may lie in held
	s.scanned = max(0, len(s.held)-3)
	return err
}

// pass lets an oversized event through up to its end, and returns what follows.
func (s *eventStream) pass(chunk []byte) ([]byte, error) {
	window := append(s.tail, chunk...)
	end := eventEnd(window, 0)
	if end < 0 {
		s.tail = append([]byte(nil), window[max(0, len(window)-3):]...)
		return nil, s.emit(chunk)
	}
	n := end - len(s.tail)
	s.passing, s.tail = false, nil
	return chunk[n:], s.emit(chunk[:n])
}

// close passes on an event that the end of the stream cut short.
func (s *eventStream) close() error {
	if !s.strip || len(s.held) == 0 {
		return nil
	}
	return s.send(s.held)
}

func (s *eventStream) send(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	return s.emit(b)
}

// eventEnd returns the offset after the blank line that ends an event, looking
// from an offset on, or -1.
func eventEnd(data []byte, from int) int {
	for from < len(data) {
		i := bytes.IndexByte(data[from:], '\n')
		if i < 0 {
			return -1
		}
		next := from + i + 1
		if next < len(data) && data[next] == '\n' {
			return next + 1
		}
		if next+1 < len(data) && data[next] == '\r' && data[next+1] == '\n' {
			return next + 2
		}
		from = next
	}
	return -1
}

// event looks at one complete event and says whether to leave it out.
func (s *eventStream) event(event []byte, now time.Time) (drop bool) {
	data := eventData(event)
	if len(data) == 0 {
		return false // a comment, or a keep-alive
	}
	if bytes.Equal(data, doneData) {
		s.finish()
		return false
	}
	if !s.interesting(data) {
		s.answer.lastAt = now
		return false
	}
	var p part
	if json.Unmarshal(data, &p) != nil {
		return false
	}
	s.answer.take(&p)
	if p.Usage != nil && len(p.Choices) == 0 {
		return s.strip
	}
	if p.content() {
		s.mark(now)
	}
	return false
}

// interesting says whether an event must be decoded. After the first content,
// only those with usage, a reason to finish or an error are: a stream has
// hundreds of events that say nothing else of use.
func (s *eventStream) interesting(data []byte) bool {
	return s.answer.firstAt.IsZero() ||
		hasMember(data, finishName, '"') ||
		hasMember(data, usageName, '{') ||
		hasMember(data, timingName, '{') ||
		bytes.HasPrefix(bytes.TrimLeft(data[1:], " \t\r\n"), []byte(`"error"`))
}

// mark notes that content came.
func (s *eventStream) mark(now time.Time) {
	if s.answer.firstAt.IsZero() {
		s.answer.firstAt = now
	}
	s.answer.lastAt = now
}

func (s *eventStream) finish() {
	if !s.done {
		s.done = true
		s.onDone()
	}
}

// eventData returns the payload of an event's data lines. It allocates only for
// an event that has several.
func eventData(event []byte) []byte {
	var data []byte
	lines := 0
	for len(event) > 0 {
		line := event
		if i := bytes.IndexByte(event, '\n'); i >= 0 {
			line, event = event[:i], event[i+1:]
		} else {
			event = nil
		}
		line = bytes.TrimSuffix(line, []byte("\r"))
		value, ok := bytes.CutPrefix(line, dataField)
		if !ok {
			continue
		}
		value = bytes.TrimPrefix(value, []byte(" "))
		switch lines++; lines {
		case 1:
			data = value
		case 2:
			data = append(append(append([]byte(nil), data...), '\n'), value...)
		default:
			data = append(append(data, '\n'), value...)
		}
	}
	return bytes.TrimSpace(data)
}
