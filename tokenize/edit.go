package tokenize

import (
	"encoding/json"
	"slices"
	"strings"
)

// Edit replaces body[From:To] by Insert.
type Edit struct {
	From, To int
	Insert   string
}

// places is what ScanRequest saw of the members that can be edited.
type places struct {
	options    span // value of stream_options
	value      span // value of include_usage inside it
	salt       span // value of cache_salt
	brace      int  // offset after the body's opening brace
	emptyBody  bool
	emptyInner bool
}

// span is a part of the body; empty when absent.
type span struct{ from, to int }

func (s span) present() bool { return s.to > s.from }

// AskUsage returns the edit of the scanned body that makes
// stream_options.include_usage true, and false when it is already.
func (r *Request) AskUsage() (Edit, bool) {
	const member = `"include_usage":true`
	switch p := &r.places; {
	case r.IncludeUsage:
		return Edit{}, false
	case p.value.present():
		return Edit{From: p.value.from, To: p.value.to, Insert: "true"}, true
	case p.options.present():
		// Null has nothing to keep; an object gets a first member more.
		if p.options.to-p.options.from == len("null") {
			return Edit{From: p.options.from, To: p.options.to, Insert: "{" + member + "}"}, true
		}
		insert := member
		if !p.emptyInner {
			insert += ","
		}
		return Edit{From: p.options.from + 1, To: p.options.from + 1, Insert: insert}, true
	default:
		return p.insert(`"stream_options":{` + member + `}`), true
	}
}

// SetSalt returns the edit of the scanned body that makes cache_salt the given
// text.
func (r *Request) SetSalt(salt string) Edit {
	value, _ := json.Marshal(salt) // strings always encode
	if s := r.places.salt; s.present() {
		return Edit{From: s.from, To: s.to, Insert: string(value)}
	}
	return r.places.insert(`"cache_salt":` + string(value))
}

// insert adds a first member to the body.
func (p *places) insert(member string) Edit {
	if !p.emptyBody {
		member += ","
	}
	return Edit{From: p.brace, To: p.brace, Insert: member}
}

// Cut returns the body with edits made, as the pieces that it then consists of;
// they alias body. The edits must be of the scan of that body, at most one of
// each kind; their order does not matter.
func Cut(body []byte, edits ...Edit) [][]byte {
	edits = slices.Clone(edits)
	slices.SortStableFunc(edits, func(a, b Edit) int { return a.From - b.From })
	pieces := make([][]byte, 0, 2*len(edits)+1)
	at := 0
	for i, e := range edits {
		if e.From > at {
			pieces = append(pieces, body[at:e.From])
		}
		if i > 0 && edits[i-1].From == e.From && !strings.HasSuffix(edits[i-1].Insert, ",") {
			pieces = append(pieces, []byte(",")) // two members for an empty body
		}
		pieces = append(pieces, []byte(e.Insert))
		at = e.To
	}
	return append(pieces, body[at:])
}
