package blockkey_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/zeebo/xxh3"

	"warmpath/routing/blockkey"
)

// update rewrites the vectors: go test ./routing/blockkey -run Vectors -update.
// Vectors that were published must come out as they were, for other
// implementations rely on them: add to the list, never change it.
var update = flag.Bool("update", false, "rewrite schemas/testdata/blockkey_vectors.json")

const vectorsPath = "../../schemas/testdata/blockkey_vectors.json"

// vectorFile is the published file. Its About lines say how to read it.
type vectorFile struct {
	About   []string `json:"about"`
	Vectors []vector `json:"vectors"`
}

type vector struct {
	Name        string       `json:"name"`
	Model       string       `json:"model"`
	Lora        string       `json:"lora"`
	Salt        string       `json:"salt"`
	Root        string       `json:"root"`
	BlockTokens int          `json:"block_tokens"`
	Tokens      []uint32     `json:"tokens,omitempty"`
	TokenRule   *tokenRule   `json:"token_rule,omitempty"`
	Extras      []blockExtra `json:"extras,omitempty"`
	KeyCount    int          `json:"key_count"`
	Keys        []string     `json:"keys,omitempty"`
	FirstKey    string       `json:"first_key,omitempty"`
	LastKey     string       `json:"last_key,omitempty"`
	KeysHash    string       `json:"keys_hash,omitempty"`
}

type tokenRule struct {
	Count      uint64 `json:"count"`
	Multiplier uint64 `json:"multiplier"`
	Increment  uint64 `json:"increment"`
	Modulus    uint64 `json:"modulus"`
}

type blockExtra struct {
	Block int         `json:"block"`
	Items []extraItem `json:"items"`
}

type extraItem struct {
	ID     string `json:"id"`
	Offset uint32 `json:"offset"`
}

var about = []string{
	"Test vectors for the block keys of warmpath.v1: tokens in, keys out.",
	"root = XXH3_64(UTF-8 of: 'warmpath.v1' 00 model 00 lora 00 salt), where 00 is one zero byte; XXH3_64 is XXH3's 64-bit variant with seed 0.",
	"A prompt is cut from its start into blocks of block_tokens tokens. A last block with fewer tokens has no key.",
	"key[i] = XXH3_64(key[i-1] as 8 bytes little-endian, then each token of block i as 4 bytes little-endian, then the block's extras); key[-1] is root.",
	"extras lists, for blocks with multimodal content only, the items in order. Each item is its id's length in bytes as 4 bytes little-endian, the id's UTF-8 bytes, then offset as 4 bytes little-endian.",
	"tokens are given, or follow token_rule: token[i] = (i * multiplier + increment) mod modulus, for i from 0 to count-1.",
	"Keys are written as 16 hexadecimal digits of the 64-bit number, most significant first. key_count says how many there are.",
	"keys lists them all, or, for long prompts, first_key and last_key are given with keys_hash = XXH3_64 of all keys in order, each as 8 bytes little-endian.",
}

// hexKey writes a key as the vectors do.
func hexKey(k uint64) string { return fmt.Sprintf("%016x", k) }

// upTo returns the tokens from, from+1, ... of which there are n.
func upTo(from, n uint32) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = from + uint32(i)
	}
	return tokens
}

const (
	model8B = "meta-llama/Llama-3.1-8B-Instruct"
	qwen    = "Qwen/Qwen3-32B"
	// listLimit is the most keys that a vector lists in full.
	listLimit = 700
)

// vectors are the inputs; expectations are computed by an independent reading
// of the definition (reference) and compared with the package.
func vectors() []vector {
	long := func(count uint64) *tokenRule {
		return &tokenRule{Count: count, Multiplier: 7919, Increment: 13, Modulus: 151936}
	}
	image := func(id string, offset uint32) extraItem { return extraItem{ID: id, Offset: offset} }
	return []vector{
		{Name: "empty prompt", Model: model8B, BlockTokens: 16},
		{Name: "everything empty", BlockTokens: 16},
		{Name: "less than one block", Model: model8B, BlockTokens: 16, Tokens: upTo(1, 15)},
		{Name: "one block", Model: model8B, BlockTokens: 16, Tokens: upTo(1, 16)},
		{Name: "one block, no model name", BlockTokens: 16, Tokens: upTo(1, 16)},
		{Name: "partial last block", Model: model8B, BlockTokens: 16, Tokens: upTo(1, 40)},
		{Name: "exact multiple", Model: model8B, BlockTokens: 16, Tokens: upTo(1, 48)},
		{Name: "same block twice: keys differ", Model: model8B, BlockTokens: 4, Tokens: []uint32{7, 7, 7, 7, 7, 7, 7, 7}},
		{Name: "token zero", Model: model8B, BlockTokens: 4, Tokens: []uint32{0, 0, 0, 0}},
		{Name: "largest token", Model: model8B, BlockTokens: 2, Tokens: []uint32{4294967295, 4294967294}},
		{Name: "lora", Model: model8B, Lora: "sql-adapter", BlockTokens: 16, Tokens: upTo(1, 32)},
		{Name: "salt", Model: model8B, Salt: "tenant-a", BlockTokens: 16, Tokens: upTo(1, 32)},
		{Name: "another salt", Model: model8B, Salt: "tenant-b", BlockTokens: 16, Tokens: upTo(1, 32)},
		{Name: "lora and salt", Model: model8B, Lora: "sql-adapter", Salt: "tenant-a", BlockTokens: 16, Tokens: upTo(1, 32)},
		{Name: "lora and salt swapped", Model: model8B, Lora: "tenant-a", Salt: "sql-adapter", BlockTokens: 16, Tokens: upTo(1, 32)},
		{Name: "names in UTF-8", Model: "模型/Größe", Lora: "φ", Salt: "клиент", BlockTokens: 8, Tokens: upTo(100, 8)},
		{Name: "block size 1", Model: qwen, BlockTokens: 1, Tokens: []uint32{9707, 11, 1879, 0}},
		{Name: "block size 64", Model: qwen, BlockTokens: 64, Tokens: upTo(1000, 130)},
		{Name: "block size 512", Model: qwen, BlockTokens: 512, TokenRule: long(1100)},
		{Name: "block size 2048", Model: qwen, BlockTokens: 2048, TokenRule: long(4096)},
		{
			Name: "one image in the first block", Model: qwen, BlockTokens: 8, Tokens: upTo(1, 16),
			Extras: []blockExtra{{Block: 0, Items: []extraItem{image("9f86d081884c7d65", 0)}}},
		},
		{
			Name: "same image at an offset", Model: qwen, BlockTokens: 8, Tokens: upTo(1, 16),
			Extras: []blockExtra{{Block: 0, Items: []extraItem{image("9f86d081884c7d65", 3)}}},
		},
		{
			Name: "two images in one block, one in the next", Model: qwen, BlockTokens: 8, Tokens: upTo(1, 24),
			Extras: []blockExtra{
				{Block: 1, Items: []extraItem{image("9f86d081884c7d65", 2), image("60303ae22b998861", 6)}},
				{Block: 2, Items: []extraItem{image("60303ae22b998861", 0)}},
			},
		},
		{
			Name: "item with an empty id", Model: qwen, BlockTokens: 4, Tokens: upTo(1, 4),
			Extras: []blockExtra{{Block: 0, Items: []extraItem{image("", 1)}}},
		},
		{
			Name: "image with lora and salt", Model: qwen, Lora: "vision", Salt: "tenant-a", BlockTokens: 4, Tokens: upTo(50, 12),
			Extras: []blockExtra{{Block: 2, Items: []extraItem{image("bild-ä", 1)}}},
		},
		{
			Name: "extras of a partial last block are not used", Model: qwen, BlockTokens: 8, Tokens: upTo(1, 12),
			Extras: []blockExtra{{Block: 1, Items: []extraItem{image("9f86d081884c7d65", 0)}}},
		},
		{Name: "10,000 tokens in blocks of 16", Model: model8B, BlockTokens: 16, TokenRule: long(10_000)},
		{Name: "10,000 tokens in blocks of 1", Model: model8B, BlockTokens: 1, TokenRule: long(10_000)},
		{Name: "10,000 tokens in blocks of 512", Model: model8B, BlockTokens: 512, TokenRule: long(10_000)},
		{Name: "100,000 tokens in blocks of 64, lora", Model: model8B, Lora: "sql-adapter", BlockTokens: 64, TokenRule: long(100_000)},
	}
}

func (v vector) tokens() []uint32 {
	if v.TokenRule == nil {
		return v.Tokens
	}
	r := v.TokenRule
	tokens := make([]uint32, r.Count)
	for i := range tokens {
		tokens[i] = uint32((uint64(i)*r.Multiplier + r.Increment) % r.Modulus)
	}
	return tokens
}

func (v vector) items(block int) []extraItem {
	for _, e := range v.Extras {
		if e.Block == block {
			return e.Items
		}
	}
	return nil
}

// reference computes root and keys by the letter of the definition, with none
// of the package's code.
func (v vector) reference() (root uint64, keys []uint64) {
	root = xxh3.HashString(strings.Join([]string{"warmpath.v1", v.Model, v.Lora, v.Salt}, "\x00"))
	tokens := v.tokens()
	parent := root
	for i := range len(tokens) / v.BlockTokens {
		var b bytes.Buffer
		write := func(x any) { _ = binary.Write(&b, binary.LittleEndian, x) } // a Buffer takes everything
		write(parent)
		write(tokens[i*v.BlockTokens : (i+1)*v.BlockTokens])
		for _, item := range v.items(i) {
			write(uint32(len(item.ID)))
			b.WriteString(item.ID)
			write(item.Offset)
		}
		parent = xxh3.Hash(b.Bytes())
		keys = append(keys, parent)
	}
	return root, keys
}

// expect fills in what must come out.
func (v vector) expect() vector {
	root, keys := v.reference()
	v.Root, v.KeyCount = hexKey(root), len(keys)
	if len(keys) <= listLimit {
		for _, k := range keys {
			v.Keys = append(v.Keys, hexKey(k))
		}
		return v
	}
	v.FirstKey, v.LastKey = hexKey(keys[0]), hexKey(keys[len(keys)-1])
	var all []byte
	for _, k := range keys {
		all = binary.LittleEndian.AppendUint64(all, k)
	}
	v.KeysHash = hexKey(xxh3.Hash(all))
	return v
}

// got is what the package makes of the vector's input.
func (v vector) got() vector {
	root := blockkey.Root(v.Model, v.Lora, v.Salt)
	keys := blockkey.ChainExtras(nil, root, v.tokens(), v.BlockTokens, func(block int) []blockkey.Extra {
		var out []blockkey.Extra
		for _, item := range v.items(block) {
			out = append(out, blockkey.Extra{ID: item.ID, Offset: item.Offset})
		}
		return out
	})
	v.Root, v.KeyCount = hexKey(root), len(keys)
	v.Keys, v.FirstKey, v.LastKey, v.KeysHash = nil, "", "", ""
	if len(keys) <= listLimit {
		for _, k := range keys {
			v.Keys = append(v.Keys, hexKey(k))
		}
		return v
	}
	v.FirstKey, v.LastKey = hexKey(keys[0]), hexKey(keys[len(keys)-1])
	var all []byte
	for _, k := range keys {
		all = binary.LittleEndian.AppendUint64(all, k)
	}
	v.KeysHash = hexKey(xxh3.Hash(all))
	return v
}

// encode writes the file with one vector a line, so that a difference shows
// which one changed.
func encode(t *testing.T, vs []vector) []byte {
	t.Helper()
	line := func(x any) string {
		b, err := json.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	var b strings.Builder
	b.WriteString("{\n \"about\": [\n")
	for i, s := range about {
		b.WriteString("  " + line(s) + comma(i, len(about)) + "\n")
	}
	b.WriteString(" ],\n \"vectors\": [\n")
	for i, v := range vs {
		b.WriteString("  " + line(v) + comma(i, len(vs)) + "\n")
	}
	b.WriteString(" ]\n}\n")
	return []byte(b.String())
}

func comma(i, n int) string {
	if i == n-1 {
		return ""
	}
	return ","
}

func TestVectorsAreAsGenerated(t *testing.T) {
	var vs []vector
	for _, v := range vectors() {
		vs = append(vs, v.expect())
	}
	want := encode(t, vs)
	if *update {
		if err := os.WriteFile(vectorsPath, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(vectorsPath)
	if err != nil {
		t.Fatalf("%v; write it with: go test ./routing/blockkey -run Vectors -update", err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what this test generates; a published vector must never change", vectorsPath)
	}
}

func TestVectors(t *testing.T) {
	raw, err := os.ReadFile(vectorsPath)
	if err != nil {
		t.Fatal(err)
	}
	var file vectorFile
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&file); err != nil {
		t.Fatal(err)
	}
	if len(file.Vectors) < 24 {
		t.Fatalf("%d vectors, want at least 24", len(file.Vectors))
	}
	for _, v := range file.Vectors {
		t.Run(v.Name, func(t *testing.T) {
			got, want := fmt.Sprintf("%+v", v.got()), fmt.Sprintf("%+v", v)
			// The token rule is a pointer; it is input, not a result.
			if v.TokenRule != nil {
				got = strings.ReplaceAll(got, fmt.Sprintf("%p", v.TokenRule), "")
				want = strings.ReplaceAll(want, fmt.Sprintf("%p", v.TokenRule), "")
			}
			if got != want {
				t.Errorf("got  %.2000s\nwant %.2000s", got, want)
			}
		})
	}
}
