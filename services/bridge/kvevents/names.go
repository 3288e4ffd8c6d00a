package kvevents

import (
	"cmp"
	"slices"
	"strings"
)

// Class is what an unknown name stands for.
type Class string

// The classes of unknown names.
const (
	// ClassTag is an event's kind.
	ClassTag Class = "tag"
	// ClassField is a field of an event.
	ClassField Class = "field"
	// ClassBatchField is a field of a batch.
	ClassBatchField Class = "batch field"
	// ClassMedium is a tier.
	ClassMedium Class = "medium"
)

// Name is an unknown name and how often it was met. Text is as the engine sent
// it, cut to 64 bytes, and must be quoted before it is shown.
type Name struct {
	Class Class
	Text  string
	Count uint64
}

const (
	maxNames     = 64
	maxNameBytes = 64
	// maxInterned bounds the strings that are remembered, of at most
	// maxInternedBytes each. When they are many (salts can be one a tenant), all
	// are forgotten and those in use return.
	maxInterned      = 4096
	maxInternedBytes = 256
)

// names remembers unknown names and the strings that events repeat.
type names struct {
	unknown  map[Class]map[string]uint64
	size     int
	interned map[string]string
}

// unknown counts a name.
func (d *Decoder) unknown(class Class, text []byte) {
	n := &d.names
	text = text[:min(len(text), maxNameBytes)]
	if _, known := n.unknown[class][string(text)]; !known {
		if n.size >= maxNames {
			return
		}
		n.size++
		if n.unknown == nil {
			n.unknown = make(map[Class]map[string]uint64)
		}
		if n.unknown[class] == nil {
			n.unknown[class] = make(map[string]uint64)
		}
	}
	n.unknown[class][string(text)]++
}

func (n *names) list() []Name {
	out := make([]Name, 0, n.size)
	for class, texts := range n.unknown {
		for text, count := range texts {
			out = append(out, Name{Class: class, Text: text, Count: count})
		}
	}
	slices.SortFunc(out, func(a, b Name) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count),
			strings.Compare(string(a.Class), string(b.Class)), strings.Compare(a.Text, b.Text))
	})
	return out
}

// intern is b as a string, without allocating if it was met lately.
func (d *Decoder) intern(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	if len(b) > maxInternedBytes {
		return string(b)
	}
	n := &d.names
	if s, ok := n.interned[string(b)]; ok {
		return s
	}
	if n.interned == nil || len(n.interned) >= maxInterned {
		n.interned = make(map[string]string)
	}
	s := string(b)
	n.interned[s] = s
	return s
}
