package bpe

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// model turns a piece of text into ids.
type model struct {
	vocab        *vocab
	pairs        *pairTable
	ignoreMerges bool
	prefix       string // of every symbol but a piece's first
	suffix       string // of a piece's last symbol
	unk          uint32 // none: characters without a token are dropped
	fuseUnk      bool
	fallback     *[256]uint32 // ids of <0x00> to <0xFF>, nil without byte_fallback

	// byteID is set when pieces are raw bytes that stand for the characters of
	// the byte-level alphabet, and the vocabulary has all of that.
	byteID *[256]uint32
	// mark, when not empty, is a character before which a piece can be cut,
	// unless one of joins precedes it.
	mark  string
	joins string

	cache *wordCache
}

// spaceMark is the character that stands for a space in SentencePiece's
// vocabularies.
const spaceMark = "▁"

// maxJoins is how many bytes of joins are worth a search at each mark.
const maxJoins = 64

// newModel builds the model. byteLevel says that pieces will come as raw bytes.
func newModel(f *modelFile, byteLevel bool) (*model, error) {
	m := &model{vocab: f.vocab, ignoreMerges: f.IgnoreMerges, fuseUnk: f.FuseUnk, unk: none, cache: newWordCache(shortBits)}
	if f.Dropout != nil && *f.Dropout != 0 {
		return nil, fmt.Errorf("model.dropout: %v makes encoding random, want 0 or null", *f.Dropout)
	}
	if f.Prefix != nil {
		m.prefix = *f.Prefix
	}
	if f.Suffix != nil {
		m.suffix = *f.Suffix
	}
	var err error
	if m.pairs, err = newPairTable(f.vocab, f.merges, m.prefix); err != nil {
		return nil, err
	}
	plain := m.prefix == "" && m.suffix == ""
	if byteLevel && plain {
		m.byteID = byteAlphabet(f.vocab)
	}
	if f.ByteFallback {
		if m.fallback, err = fallbackIDs(f.vocab); err != nil {
			return nil, err
		}
	}
	if f.UnkToken != nil {
		if m.unk = f.vocab.id(*f.UnkToken); m.unk == none && m.byteID == nil {
			return nil, fmt.Errorf("model.unk_token: %q is not in model.vocab", *f.UnkToken)
		}
	}
	if plain && !byteLevel && !m.ignoreMerges && f.vocab.id(spaceMark) != none {
		if joins := joinedBefore(f.merges, spaceMark); len(joins) <= maxJoins {
			m.mark, m.joins = spaceMark, joins
		}
	}
	return m, nil
}

// byteAlphabet returns the ids of the 256 characters that stand for bytes, nil
// if any is missing.
func byteAlphabet(v *vocab) *[256]uint32 {
	var ids [256]uint32
	for b := range ids {
		id := v.id(string(byteRune[b]))
		if id == none {
			return nil
		}
		ids[b] = id
	}
	return &ids
}

// fallbackIDs returns the ids of the byte tokens. The crate tolerates missing
// ones and then gives the tokens of a character in another order than the
// text's; no known file needs that.
func fallbackIDs(v *vocab) (*[256]uint32, error) {
	var ids [256]uint32
	for b := range ids {
		token := fmt.Sprintf("<0x%02X>", b)
		if ids[b] = v.id(token); ids[b] == none {
			return nil, fmt.Errorf("model.byte_fallback: %q is not in model.vocab", token)
		}
	}
	return &ids, nil
}

// encode appends the ids of one piece.
func (m *model) encode(g *merger, dst []uint32, p string) []uint32 {
	if m.byteID != nil && len(p) == 1 {
		return append(dst, m.byteID[p[0]])
	}
	if m.mark == "" || len(p) <= len(m.mark) {
		return m.encodeCached(g, dst, p)
	}
	for len(p) > 0 {
		end := m.cut(p)
		dst = m.encodeCached(g, dst, p[:end])
		p = p[end:]
	}
	return dst
}

// cut returns how much of p merges by itself: some marks, then text up to the
// next mark.
func (m *model) cut(p string) int {
	i := 0
	for strings.HasPrefix(p[i:], m.mark) {
		i += len(m.mark)
	}
	for i < len(p) {
		n := strings.Index(p[i:], m.mark)
		if n < 0 {
			break
		}
		i += n
		if r, _ := utf8.DecodeLastRuneInString(p[:i]); m.joins == "" || !strings.ContainsRune(m.joins, r) {
			return i
		}
		for strings.HasPrefix(p[i:], m.mark) {
			i += len(m.mark)
		}
	}
	return len(p)
}

func (m *model) encodeCached(g *merger, dst []uint32, p string) []uint32 {
	before := len(dst)
	switch {
	case len(p) < 2 || len(p) > longMax:
		return m.encodeNew(g, dst, p)
	case len(p) <= shortMax:
		lo, hi := shortKey(p)
		dst, ok := m.cache.appendShort(dst, p, lo, hi)
		if !ok {
			dst = m.encodeNew(g, dst, p)
			m.cache.putShort(p, lo, hi, dst[before:])
		}
		return dst
	}
	dst, ok := m.cache.appendLong(dst, p)
	if !ok {
		dst = m.encodeNew(g, dst, p)
		m.cache.putLong(p, dst[before:])
	}
	return dst
}

// encodeNew computes the ids of a piece.
func (m *model) encodeNew(g *merger, dst []uint32, p string) []uint32 {
	if m.ignoreMerges {
		if id := m.whole(p); id != none {
			return append(dst, id)
		}
	}
	g.symbols = g.symbols[:0]
	if m.byteID != nil {
		for i := range len(p) {
			g.symbols = append(g.symbols, m.byteID[p[i]])
		}
	} else {
		m.symbols(g, p)
	}
	g.merge(m.pairs, m.vocab.oddIDs)
	dst = append(dst, g.symbols...)
	if cap(g.symbols) > keepSymbols {
		g.symbols = nil
	}
	return dst
}

// whole returns the id of the token that is the piece.
func (m *model) whole(p string) uint32 {
	if m.byteID == nil {
		return m.vocab.id(p)
	}
	var buf [2 * longMax]byte
	return m.vocab.id(string(appendMapped(buf[:0], p)))
}

// symbols splits a piece into the tokens of its characters.
func (m *model) symbols(g *merger, p string) {
	pendingUnk := false
	for i, r := range p {
		size := utf8.RuneLen(r)
		text := p[i : i+size]
		if i > 0 && m.prefix != "" {
			text = m.prefix + text
		}
		if i+size == len(p) && m.suffix != "" {
			text += m.suffix
		}
		if id := m.vocab.id(text); id != none {
			if pendingUnk {
				g.symbols = append(g.symbols, m.unk)
				pendingUnk = false
			}
			g.symbols = append(g.symbols, id)
			continue
		}
		if m.fallback != nil {
			for j := range len(text) {
				g.symbols = append(g.symbols, m.fallback[text[j]])
			}
			continue
		}
		if m.unk == none {
			continue
		}
		if pendingUnk && !m.fuseUnk {
			g.symbols = append(g.symbols, m.unk)
		}
		pendingUnk = true
	}
	if pendingUnk {
		g.symbols = append(g.symbols, m.unk)
	}
}
