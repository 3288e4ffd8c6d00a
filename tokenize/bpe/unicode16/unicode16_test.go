package unicode16

import (
	"testing"
	"unicode"
)

// The differences in this package are against one version of Go's tables.
func TestGoTablesAreThoseMeasured(t *testing.T) {
	if unicode.Version != GoVersion {
		t.Fatalf("Go's tables are of Unicode %s, the differences to 16.0 were measured against %s: measure again and change later, glottal and GoVersion",
			unicode.Version, GoVersion)
	}
}

// Counts of members, as the tokenizers crate (0.23.3) counts them.
func TestCountsAreTheCrates(t *testing.T) {
	for name, want := range map[string]int{
		"Lu": 1858, "Ll": 2258, "Lt": 31, "Lm": 404, "Lo": 136477, "L": 141028,
		"Nd": 760, "Nl": 236, "No": 915, "N": 1911, "P": 855, "S": 8514, "M": 2501,
		"Han": 99030, "Latin": 1487, "Cyrillic": 508, "Letter": 141028, "currency_symbol": 63,
		"white space": 25, "Z": 19, "Cf": 170,
	} {
		s, ok := Property(name)
		if !ok {
			t.Errorf("Property(%q) is not known", name)
			continue
		}
		if got := count(s); got != want {
			t.Errorf("Property(%q) has %d members, want %d", name, got, want)
		}
	}
	for _, c := range []struct {
		name string
		set  *Set
		want int
	}{{"\\s", Space(), 25}, {"\\d", Digit(), 760}, {"Oniguruma's \\w", OnigWord(), 144671}, {"Oniguruma's [\\w]", OnigClassWord(), 144665}, {"regex's \\w", RegexWord(), 144667}} {
		if got := count(c.set); got != c.want {
			t.Errorf("%s has %d members, want %d", c.name, got, c.want)
		}
	}
}

func TestPropertyRefusesWhatWasNotCompared(t *testing.T) {
	for _, name := range []string{"Cn", "C", "Assigned", "Thai", "", "nonsense"} {
		if _, ok := Property(name); ok {
			t.Errorf("Property(%q) is known", name)
		}
	}
}

func TestClassesAgreeWithTheSets(t *testing.T) {
	sets := map[Class][]string{
		Letter: {"L"}, Number: {"N"}, Mark: {"M"}, Punct: {"P", "S"}, White: {"space"},
		Upper: {"Lu", "Lt", "Lm", "Lo", "M"}, Lower: {"Ll", "Lm", "Lo", "M"},
	}
	table := Classes()
	for c, names := range sets {
		var union []*Set
		for _, name := range names {
			s, _ := Property(name)
			union = append(union, s)
		}
		for r := rune(0); r <= unicode.MaxRune; r++ {
			want := false
			for _, s := range union {
				want = want || s.Contains(r)
			}
			if got := table.Of(r)&c != 0; got != want {
				t.Fatalf("class %d of %U is %v, want %v", c, r, got, want)
			}
		}
	}
}

func TestAt(t *testing.T) {
	table := Classes()
	for _, c := range []struct {
		text  string
		at    int
		class Class
		size  int
	}{
		{"", 0, 0, 0},
		{"a", 1, 0, 0},
		{"a", 0, Letter | Lower, 1},
		{"x\n", 1, White | Newline, 1},
		{"é", 0, Letter | Lower, 2},
		{"中", 0, Letter | Upper | Lower, 3},
		{"\u0295", 0, Letter | Lower, 2},
		{"\U000e0100", 0, Mark | Upper | Lower, 4},
		{"\U0010ffff", 0, 0, 4},
		{"\U000323b0", 0, 0, 4}, // assigned in 17.0
	} {
		if class, size := table.At(c.text, c.at); class != c.class || size != c.size {
			t.Errorf("At(%q, %d) = %b, %d, want %b, %d", c.text, c.at, class, size, c.class, c.size)
		}
	}
}

func count(s *Set) int {
	n := 0
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if s.Contains(r) {
			n++
		}
	}
	return n
}
