package onig

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
)

// The file holds what Oniguruma 6.9.10, asked through the tokenizers crate
// 0.23.3, finds for each pattern: the matches that are not empty, in order.
func TestMatchesAreOnigurumas(t *testing.T) {
	data, err := os.ReadFile("testdata/oniguruma.json")
	if err != nil {
		t.Fatal(err)
	}
	var patterns []struct {
		Pattern string
		Cases   [][2]json.RawMessage
	}
	if err := json.Unmarshal(data, &patterns); err != nil {
		t.Fatal(err)
	}
	if len(patterns) < 25 {
		t.Fatalf("%d patterns in the file", len(patterns))
	}
	for _, p := range patterns {
		re, err := Compile(p.Pattern)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, c := range p.Cases {
			var text string
			var want []string
			if json.Unmarshal(c[0], &text) != nil || json.Unmarshal(c[1], &want) != nil {
				t.Fatalf("%s: bad case %s", p.Pattern, c)
			}
			var got []string
			re.FindAll(text, func(start, end int) bool {
				if start < end {
					got = append(got, text[start:end])
				}
				return true
			})
			if !slices.Equal(got, want) {
				t.Errorf("%s in %q finds %q, want %q", p.Pattern, text, got, want)
			}
		}
	}
}

func TestFindAllStopsAndStepsOverEmptyMatches(t *testing.T) {
	re := mustCompile(t, "x*")
	var got [][2]int
	re.FindAll("axé", func(start, end int) bool {
		got = append(got, [2]int{start, end})
		return true
	})
	if want := [][2]int{{0, 0}, {1, 2}, {4, 4}}; !slices.Equal(got, want) {
		t.Errorf("matches %v, want %v", got, want)
	}
	n := 0
	re.FindAll("xaxax", func(int, int) bool { n++; return n < 2 })
	if n != 2 {
		t.Errorf("yield was called %d times after it said stop at 2", n)
	}
}

func TestFindSeesTextBeforeFrom(t *testing.T) {
	re := mustCompile(t, "(?<=ab)c")
	if start, end, ok := re.Find("abc", 2); !ok || start != 2 || end != 3 {
		t.Errorf("Find = %d, %d, %v, want 2, 3, true", start, end, ok)
	}
	if _, _, ok := re.Find("abc", 3); ok {
		t.Error("found a match after the last")
	}
}

func TestCanBeEmpty(t *testing.T) {
	for pattern, want := range map[string]bool{"a": false, "a*": true, "a|b?": true, "(?=a)": true, "a{2}|(?:b|c)+": false, "": true} {
		if got := mustCompile(t, pattern).CanBeEmpty(); got != want {
			t.Errorf("CanBeEmpty of %q is %v", pattern, got)
		}
	}
}

func TestCompileRefusesByName(t *testing.T) {
	for pattern, want := range map[string]string{
		`(a`:                     "missing )",
		`a)`:                     "unmatched )",
		`*a`:                     "nothing to repeat",
		`a**`:                    "repeat of a repeat",
		`a{2}?`:                  "after {}",
		`a{2,}+`:                 "exponentially",
		`a{5000}`:                "more than 1000",
		`a{3,2}`:                 "backwards",
		`(?:(?:ab){1000}){1000}`: "too long",
		`(a+)+`:                  "exponentially",
		`(a*)*`:                  "may be empty",
		`(?=a)+`:                 "repeat of an assertion",
		`(?<=a+)b`:               "varying length",
		`(?<=\Aa)b`:              "assertion in a look-behind",
		`\bword`:                 `\b`,
		`\1`:                     `\1`,
		`\R`:                     `\R`,
		`\p{Thai}`:               `"Thai"`,
		`\p{Cn}`:                 `"Cn"`,
		`\pL`:                    "without {name}",
		`[]`:                     "empty class",
		`[^]a]`:                  "empty class",
		`[a&&]`:                  "empty part",
		`[[:alpha:]]`:            "POSIX",
		`[\w-z]`:                 "escape it",
		`[z-a]`:                  "has no end",
		`[a`:                     "missing ]",
		`(?x: a)`:                "(?x:  is not supported",
		`(?i:straße)`:            `"st"`,
		`(?i:é)`:                 `'é'`,
		`(?i:[à-ü])`:             "beyond ASCII",
		`\x{110000}`:             "not a character",
		`\xff`:                   "part of a character",
		`\u12`:                   "hexadecimal",
		`a\`:                     "backslash ends",
		"\xff":                   "UTF-8",
	} {
		_, err := Compile(pattern)
		if err == nil {
			t.Errorf("Compile(%q) is accepted", pattern)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("Compile(%q): %v, want it to say %q", pattern, err, want)
		}
	}
}

func TestLongRunsTakeLinearTime(t *testing.T) {
	re := mustCompile(t, `(?i:'s)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`)
	for _, unit := range []string{"a", " ", "\n", "!", "é"} {
		text := strings.Repeat(unit, 1<<20)
		end := 0
		re.FindAll(text, func(_, e int) bool { end = e; return true })
		if end != len(text) {
			t.Errorf("a run of %q ends at %d, want %d", unit, end, len(text))
		}
	}
}

func FuzzCompile(f *testing.F) {
	for _, s := range []string{`(?i:'s)|\p{L}+(?!\S)`, `[a-z&&[^b]]{1,3}+`, `(?<=a|b)c*?`, `\x{41}[\s\d-]`} {
		f.Add(s, "some text 'S 中文")
	}
	f.Fuzz(func(t *testing.T, pattern, text string) {
		re, err := Compile(pattern)
		if err != nil || len(pattern) > 40 || len(text) > 40 {
			return
		}
		last := 0
		re.FindAll(strings.ToValidUTF8(text, "?"), func(start, end int) bool {
			if start < last || end < start {
				t.Fatalf("match [%d,%d) after one that ended at %d", start, end, last)
			}
			last = end
			return true
		})
	})
}

func mustCompile(t *testing.T, pattern string) *Pattern {
	t.Helper()
	re, err := Compile(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return re
}
