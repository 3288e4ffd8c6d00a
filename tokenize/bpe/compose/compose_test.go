package compose

import (
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// The wanted texts are the crate's (0.23.3) answers.
func TestFormsAreTheCrates(t *testing.T) {
	for _, c := range []struct{ in, nfc, nfd, nfkc, nfkd string }{
		{"", "", "", "", ""},
		{"plain", "plain", "plain", "plain", "plain"},
		{"e\u0301\u00e9", "\u00e9\u00e9", "e\u0301e\u0301", "\u00e9\u00e9", "e\u0301e\u0301"},
		{"\u1100\u1161\u11a8\uac01", "\uac01\uac01", "\u1100\u1161\u11a8\u1100\u1161\u11a8", "\uac01\uac01", "\u1100\u1161\u11a8\u1100\u1161\u11a8"},
		{"\ufb01\u00b2\uff21", "\ufb01\u00b2\uff21", "\ufb01\u00b2\uff21", "fi2A", "fi2A"},
		{"\u1e9b\u0323", "\u1e9b\u0323", "\u017f\u0323\u0307", "\u1e69", "s\u0323\u0307"},
		{"a\u0301\u0316", "\u00e1\u0316", "a\u0316\u0301", "\u00e1\u0316", "a\u0316\u0301"},
		// A nukta of Unicode 14 keeps the mark after it from the letter.
		{"a\u0c3c\u0301", "a\u0c3c\u0301", "a\u0c3c\u0301", "a\u0c3c\u0301", "a\u0c3c\u0301"},
		// A composition of Unicode 13.
		{"\U00011935\U00011930\U00011938", "\U00011935\U00011930\U00011938", "\U00011935\U00011930\U00011938", "\U00011935\U00011930\U00011938", "\U00011935\U00011930\U00011938"},
		// A compatibility character of Unicode 12.1.
		{"\u32ff", "\u32ff", "\u32ff", "\u32ff", "\u32ff"},
		// Compatibility letters that become a syllable.
		{"\u314e\u314f\u3134", "\u314e\u314f\u3134", "\u314e\u314f\u3134", "\ud558\u1102", "\u1112\u1161\u1102"},
		{"\u0958\u2126\u212b\u0344", "\u0915\u093c\u03a9\u00c5\u0308\u0301", "\u0915\u093c\u03a9A\u030a\u0308\u0301", "\u0915\u093c\u03a9\u00c5\u0308\u0301", "\u0915\u093c\u03a9A\u030a\u0308\u0301"},
	} {
		for _, f := range []struct {
			form Form
			want string
		}{{NFC, c.nfc}, {NFD, c.nfd}, {NFKC, c.nfkc}, {NFKD, c.nfkd}} {
			if got := f.form.String(c.in); got != f.want {
				t.Errorf("form %d of %+q is %+q, want %+q", f.form, c.in, got, f.want)
			}
		}
	}
}

// Apart from the characters in the tables, x/text is right.
func TestAgreesWithTheLibraryElsewhere(t *testing.T) {
	for r := rune(1); r < 0x30000; r++ {
		if r == 0x3400 || r == 0xac80 || r == 0x17000 || r == 0x20000 {
			r += 0x1900 // the inside of blocks that are all alike
		}
		if !utf8.ValidRune(r) || inert(r) || undecomposed(r) {
			continue
		}
		for _, c := range []struct {
			form Form
			text string
		}{
			{NFC, "a\u0323" + string(r) + "\u0301"},
			{NFD, "a\u0301" + string(r) + "\u0323"},
			{NFKC, "x" + string(r) + "y"},
		} {
			if got, want := c.form.String(c.text), c.form.library().String(c.text); got != want {
				t.Fatalf("form %d of %+q (%U) is %+q, want %+q", c.form, c.text, r, got, want)
			}
		}
	}
}

func TestLongRunsOfMarksGetNoJoiner(t *testing.T) {
	in := "a" + strings.Repeat("\u0301\u0316", 1000)
	want := "\u00e1" + strings.Repeat("\u0316", 1000) + strings.Repeat("\u0301", 999)
	if got := NFC.String(in); got != want {
		t.Errorf("a run of 2000 marks becomes %+.40q… of %d bytes, want %+.40q… of %d", got, len(got), want, len(want))
	}
	if norm.NFC.String(in) == want {
		t.Error("x/text inserts no joiner any more: the comment of the package is out of date")
	}
}

func TestIsMark(t *testing.T) {
	for r, want := range map[rune]bool{'a': false, 0x301: true, 0x0c3c: false, 0x093e: true, 0x20dd: true, 0x7fd: false, 0x1cf2: true} {
		if IsMark(r) != want {
			t.Errorf("IsMark(%U) = %v", r, !want)
		}
	}
}

func BenchmarkNFC(b *testing.B) {
	text := strings.Repeat("Ele\u0301gant \u1112\u1161\u11ab\u1100\u1173\u11af 中文 text. ", 100)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		NFC.String(text)
	}
}
