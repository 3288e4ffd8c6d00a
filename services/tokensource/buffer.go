package tokensource

import "sync"

// idBuffers are reused between prompts: the ids of a long one take megabytes, and
// are needed only until its keys are known.
var idBuffers = sync.Pool{New: func() any { return new([]uint32) }}

// maxPooledIDs keeps one huge prompt from staying in memory for good.
const maxPooledIDs = 1 << 20

// BorrowIDs returns a slice for token ids, whose length and content mean nothing.
// Give it back by ReturnIDs, grown or not, once nothing refers to it.
func BorrowIDs() *[]uint32 { return idBuffers.Get().(*[]uint32) }

// ReturnIDs takes back what BorrowIDs gave, unless it has grown huge.
func ReturnIDs(buffer *[]uint32) {
	if cap(*buffer) <= maxPooledIDs {
		idBuffers.Put(buffer)
	}
}
