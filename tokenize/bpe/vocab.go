package bpe

import (
	"errors"
	"fmt"
	"hash/maphash"
)

// none stands for "no id".
const none = ^uint32(0)

// vocab maps tokens to ids and back. The tokens lie one after another in one
// string; a hash table holds their indices. It is immutable.
type vocab struct {
	seed  maphash.Seed
	text  string
	ends  []uint32 // entry i is text[ends[i-1]:ends[i]]
	ids   []uint32 // of entry i
	table []uint32 // entry+1, 0 is free
	byID  []uint32 // entry+1 by id, 0 for an id that is not there
	// oddIDs is set when two tokens share an id: the order of merges then
	// depends on details that only the heap reproduces.
	oddIDs bool
}

type vocabBuilder struct {
	text []byte
	ends []uint32
	ids  []uint32
}

func (b *vocabBuilder) add(token string, id uint32) {
	b.text = append(b.text, token...)
	b.ends = append(b.ends, uint32(len(b.text)))
	b.ids = append(b.ids, id)
}

// maxID bounds the table from ids to tokens.
const maxID = 1 << 24

func (b *vocabBuilder) build() (*vocab, error) {
	v := &vocab{seed: maphash.MakeSeed(), text: string(b.text), ends: b.ends, ids: b.ids}
	size := 1 << 8
	for size < 2*len(b.ids) {
		size <<= 1
	}
	v.table = make([]uint32, size)
	top := uint32(0)
	for i, id := range v.ids {
		if id >= maxID {
			return nil, fmt.Errorf("model.vocab[%q]: id %d is too large, the limit is %d", v.entry(i), id, maxID)
		}
		top = max(top, id+1)
		slot := v.slot(v.entry(i))
		v.table[slot] = uint32(i) + 1 // the last of equal names stays
	}
	v.byID = make([]uint32, top)
	for _, e := range v.table {
		if e == 0 {
			continue
		}
		id := v.ids[e-1]
		if v.byID[id] != 0 {
			v.oddIDs = true
		}
		v.byID[id] = max(v.byID[id], e)
	}
	if len(v.ids) == 0 {
		return nil, errors.New("model.vocab: is empty")
	}
	return v, nil
}

func (v *vocab) entry(i int) string {
	start := uint32(0)
	if i > 0 {
		start = v.ends[i-1]
	}
	return v.text[start:v.ends[i]]
}

// slot returns where token is in the table, or the free place for it.
func (v *vocab) slot(token string) int {
	mask := len(v.table) - 1
	i := int(maphash.String(v.seed, token)) & mask
	for v.table[i] != 0 && v.entry(int(v.table[i]-1)) != token {
		i = (i + 1) & mask
	}
	return i
}

// id returns a token's id, or none.
func (v *vocab) id(token string) uint32 {
	if e := v.table[v.slot(token)]; e != 0 {
		return v.ids[e-1]
	}
	return none
}

// token returns the token with an id.
func (v *vocab) token(id uint32) (string, bool) {
	if int(id) >= len(v.byID) || v.byID[id] == 0 {
		return "", false
	}
	return v.entry(int(v.byID[id] - 1)), true
}

// size is the number of tokens.
func (v *vocab) size() int {
	n := 0
	for _, e := range v.table {
		if e != 0 {
			n++
		}
	}
	return n
}
