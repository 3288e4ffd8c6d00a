package workload

import (
	"encoding/binary"
	"slices"
	"strconv"
)

// VocabularySize bounds the token ids: small ids keep prompts short as JSON, and
// a thousand of them still make every block different.
const VocabularySize = 1000

// golden is the increment of SplitMix64, 2^64 over the golden ratio.
const golden = 0x9e3779b97f4a7c15

// mix is the finalizer of SplitMix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// tokensPerMix is how many token ids one mixed word yields, 10 bits each.
const tokensPerMix = 6

// blockSeed is what the tokens of a block id are drawn from.
func blockSeed(seed, scope, id uint64) uint64 {
	return mix(mix(mix(seed+golden)^scope+golden) ^ id + golden)
}

// tailSeed is what the tokens after the last block id are drawn from.
func tailSeed(seed, scope, last uint64) uint64 {
	return mix(blockSeed(seed, scope, last) + golden)
}

// token is the k-th id, below VocabularySize, of a mixed word.
func token(word uint64, k int) uint32 {
	return uint32(word>>(10*k)&1023) * VocabularySize >> 10
}

// eachBlock calls yield with the seed of each block of a prompt and how many of
// its tokens the prompt has.
func (t *Trace) eachBlock(s *Session, r *Request, yield func(seed uint64, n int)) {
	left := r.PromptTokens
	last := uint64(0)
	for _, run := range r.Blocks {
		for i := uint64(0); i < run.Count && left > 0; i++ {
			last = run.Start + i
			n := min(left, t.BlockTokens)
			yield(blockSeed(t.Seed, s.Scope, last), n)
			left -= n
		}
	}
	if left > 0 {
		yield(tailSeed(t.Seed, s.Scope, last), left)
	}
}

// AppendTokens appends the token ids of a request's prompt: the same for the
// same trace seed, scope and block ids. r must be of s, and have no Messages.
func (t *Trace) AppendTokens(dst []uint32, s *Session, r *Request) []uint32 {
	dst = slices.Grow(dst, r.PromptTokens)
	t.eachBlock(s, r, func(seed uint64, n int) {
		for i := 0; i < n; i += tokensPerMix {
			seed += golden
			word := mix(seed)
			for k := range min(tokensPerMix, n-i) {
				dst = append(dst, token(word, k))
			}
		}
	})
	return dst
}

// digits is a token id and a comma, padded to four bytes, and its length.
type digits struct {
	text   uint32
	length uint8
}

// idDigits are the digits of every token id.
var idDigits = func() (table [VocabularySize]digits) {
	for i := range table {
		var text [4]byte
		n := copy(text[:], strconv.Itoa(i)+",")
		table[i] = digits{binary.LittleEndian.Uint32(text[:]), uint8(n)}
	}
	return table
}()

// AppendPrompt appends the token ids of a request's prompt as a JSON array, the
// same ids as AppendTokens.
func (t *Trace) AppendPrompt(dst []byte, s *Session, r *Request) []byte {
	dst = append(slices.Grow(dst, 4*r.PromptTokens+2), '[')
	t.eachBlock(s, r, func(seed uint64, n int) {
		at := len(dst)
		dst = dst[:at+4*n] // grown above
		for i := 0; i < n; i += tokensPerMix {
			seed += golden
			word := mix(seed)
			for k := range min(tokensPerMix, n-i) {
				d := idDigits[token(word, k)]
				binary.LittleEndian.PutUint32(dst[at:], d.text)
				at += int(d.length)
			}
		}
		dst = dst[:at]
	})
	if r.PromptTokens > 0 {
		dst = dst[:len(dst)-1] // the last comma
	}
	return append(dst, ']')
}
