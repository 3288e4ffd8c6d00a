package kvevents

import (
	"fmt"
	"testing"
)

// TestInternedAreBounded is here as what is remembered shows nowhere else.
func TestInternedAreBounded(t *testing.T) {
	d := NewDecoder(Limits{})
	for k := range 3 * maxInterned {
		d.intern(fmt.Appendf(nil, "salt-%d", k))
		if n := len(d.names.interned); n > maxInterned {
			t.Fatalf("%d strings are remembered", n)
		}
	}
}
