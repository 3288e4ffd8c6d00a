// Package blockkey names blocks of prompt tokens.
//
// A prompt is cut from its start into blocks of a fixed number of tokens. The
// key of a block is a 64-bit hash of its tokens and of the key before it, so a
// key names a block and everything before it: equal keys mean equal prefixes.
//
//	root  = XXH3_64( "warmpath.v1" 00 model 00 lora 00 salt )
//	key_i = XXH3_64( LE64(key_{i-1}) LE32(token)... [extra_i] )   key_{-1} = root
//
// Only full blocks have keys. The functions here are pure and safe for
// concurrent use. schemas/testdata/blockkey_vectors.json holds test vectors for
// implementations in other languages.
package blockkey

import (
	"encoding/binary"
	"math"

	"github.com/zeebo/xxh3"
)

// Key names a block and everything before it.
type Key = uint64

// version separates these keys from those of any later definition.
const version = "warmpath.v1"

// stackTokens is the largest block that is hashed without an allocation. Engines
// use 16 to 512 tokens; a larger block costs one allocation for a whole chain.
const stackTokens = 1024

// Extra is an item of multimodal content in a block: two images may become the
// same placeholder tokens, and only ID tells them apart.
type Extra struct {
	// ID identifies the content, such as its hash as the engine prints it.
	ID string
	// Offset is the item's first token, counted from the block's start. It is 0
	// for an item that began in an earlier block.
	Offset uint32
}

// Root is the key before a prompt's first block. model, lora and salt are UTF-8
// and must not contain a zero byte; absent ones are empty. Prompts of two salts
// (tenants) never share a key.
func Root(model, lora, salt string) Key {
	b := make([]byte, 0, 128)
	b = append(b, version...)
	b = append(b, 0)
	b = append(b, model...)
	b = append(b, 0)
	b = append(b, lora...)
	b = append(b, 0)
	b = append(b, salt...)
	return xxh3.Hash(b)
}

// Next is the key of a block whose predecessor has key parent. extras are in
// the order in which they appear in the block; a block without multimodal
// content has none.
func Next(parent Key, tokens []uint32, extras []Extra) Key {
	var stack [8 + 4*stackTokens]byte
	return next(scratch(stack[:], len(tokens)), parent, tokens, extras)
}

// Chain appends to dst the keys of tokens' full blocks, first to last, and
// returns it. It does not allocate when dst has room and blockTokens is at most
// 1024. A blockTokens below 1 gives no keys: there is no such block.
func Chain(dst []Key, root Key, tokens []uint32, blockTokens int) []Key {
	if blockTokens < 1 {
		return dst
	}
	var stack [8 + 4*stackTokens]byte
	buf := scratch(stack[:], blockTokens)
	for len(tokens) >= blockTokens {
		root = next(buf, root, tokens[:blockTokens], nil)
		dst = append(dst, root)
		tokens = tokens[blockTokens:]
	}
	return dst
}

// ChainExtras is Chain for prompts with multimodal content: extras returns what
// lies in a block, counted from 0, and may be nil.
func ChainExtras(dst []Key, root Key, tokens []uint32, blockTokens int, extras func(block int) []Extra) []Key {
	if extras == nil {
		return Chain(dst, root, tokens, blockTokens)
	}
	if blockTokens < 1 {
		return dst
	}
	buf := make([]byte, 8+4*blockTokens)
	for block := 0; len(tokens) >= blockTokens; block++ {
		root = next(buf, root, tokens[:blockTokens], extras(block))
		dst = append(dst, root)
		tokens = tokens[blockTokens:]
	}
	return dst
}

// scratch returns room for one block: stack when it is large enough.
func scratch(stack []byte, blockTokens int) []byte {
	if n := 8 + 4*blockTokens; n > len(stack) {
		return make([]byte, n)
	}
	return stack
}

// next hashes one block by way of buf, which has room for it.
func next(buf []byte, parent Key, tokens []uint32, extras []Extra) Key {
	binary.LittleEndian.PutUint64(buf, parent)
	body := buf[8 : 8+4*len(tokens)]
	for _, t := range tokens {
		binary.LittleEndian.PutUint32(body, t)
		body = body[4:]
	}
	block := buf[:8+4*len(tokens)]
	if len(extras) == 0 {
		return xxh3.Hash(block)
	}
	return xxh3.Hash(appendExtras(append([]byte(nil), block...), extras))
}

// appendExtras appends each item as length, identifier and offset.
func appendExtras(b []byte, extras []Extra) []byte {
	for _, x := range extras {
		id := x.ID
		if len(id) > math.MaxUint32 { // not a length of any identifier
			id = id[:math.MaxUint32]
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(len(id)))
		b = append(b, id...)
		b = binary.LittleEndian.AppendUint32(b, x.Offset)
	}
	return b
}
