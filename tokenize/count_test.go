package tokenize

import "testing"

func TestCountElements(t *testing.T) {
	for array, want := range map[string]int{
		"": 0, "null": 0, "{}": 0, "[]": 0, " [ ] ": 0, "[1]": 1, `[ {"a":[1,2]} , "x,]" , [[],[]] ]`: 3, "[1,": 0,
	} {
		if n := CountElements([]byte(array)); n != want {
			t.Errorf("%s: %d, want %d", array, n, want)
		}
	}
}
