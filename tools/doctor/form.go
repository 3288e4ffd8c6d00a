package doctor

import (
	"bytes"
	"fmt"
)

const (
	storedTag = "BlockStored"
	hashesKey = "block_hashes"
)

// formOf says in words how a payload with a stored event is encoded, empty when
// it has none: which generation of engines writes so, and what its hashes are. It
// is a description for people; package kvevents does the decoding.
func formOf(payload []byte) string {
	at := bytes.Index(payload, []byte(storedTag))
	if at < 2 {
		return ""
	}
	end := at + len(storedTag)
	if key := bytes.Index(payload, []byte(hashesKey)); key >= 0 {
		return "events are maps (vLLM 0.24 and newer, SGLang of late 2026, TensorRT-LLM's push), block hashes are " + hashForm(payload[key+len(hashesKey):])
	}
	return fmt.Sprintf("events are %s, block hashes are %s", arrayForm(payload[at-2]), hashForm(payload[end:]))
}

// arrayForm names the generation by the length of the array, which is in the byte
// before the tag's own header.
func arrayForm(header byte) string {
	fields := int(header & 0x0f)
	switch {
	case header&0xf0 != 0x90:
		return "arrays"
	case fields == 6:
		return "arrays of 6 fields (vLLM 0.9, SGLang of 2025)"
	case fields == 7:
		return "arrays of 7 fields (vLLM 0.10, SGLang of early 2026)"
	case fields == 8:
		return "arrays of 8 fields (vLLM with LoRA names, or SGLang 0.5.18 with a cache salt)"
	case fields == 9:
		return "arrays of 9 fields (llm-d's simulator)"
	case fields == 12:
		return "arrays of 12 fields (vLLM before 0.24)"
	}
	return fmt.Sprintf("arrays of %d fields", fields)
}

// hashForm names the type of the first element of an encoded array.
func hashForm(list []byte) string {
	lead, ok := firstElement(list)
	switch {
	case !ok:
		return "not there"
	case lead >= 0xc4 && lead <= 0xc6:
		return "bytes"
	case lead >= 0xd0 && lead <= 0xd3, lead >= 0xe0:
		return "signed integers"
	case lead <= 0x7f, lead >= 0xcc && lead <= 0xcf:
		return "unsigned integers"
	}
	return "of an unexpected type"
}

func firstElement(list []byte) (byte, bool) {
	if len(list) == 0 {
		return 0, false
	}
	header := 1
	switch {
	case list[0] > 0x90 && list[0] <= 0x9f:
	case list[0] == 0xdc:
		header = 3
	case list[0] == 0xdd:
		header = 5
	default:
		return 0, false
	}
	if len(list) <= header {
		return 0, false
	}
	return list[header], true
}
