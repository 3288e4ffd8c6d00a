package bench

import (
	"bufio"
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// own is this package's text: measured when there is no other.
//
//go:embed *.go
var own embed.FS

// quickTexts is how many golden texts, and lines of a corpus, a quick run looks at.
const quickTexts = 100

// corpus is the texts to tokenize.
type corpus struct {
	// chat and code are what speed is measured on.
	chat, code []string
	// golden are texts of every kind with the ids that they must have.
	golden []goldenText
}

// goldenText is a line of a golden file.
type goldenText struct {
	Cat  string              `json:"cat"`
	Text string              `json:"text"`
	IDs  map[string][]uint32 `json:"ids"`
}

// The kinds of golden text that are English chat, and code.
var (
	chatKinds = []string{"tau_dialog", "oasst_en", "mtbench", "agent_web"}
	codeKinds = []string{"code", "agent_code"}
)

// corpus reads the golden texts, or makes texts of this package when there are none.
func (c *Tokenize) corpus() (*corpus, error) {
	dir := c.Golden
	if dir == "" && c.Data != "" {
		dir = filepath.Join(c.Data, "golden")
	}
	if dir == "" {
		return ownCorpus()
	}
	found, err := filepath.Glob(filepath.Join(dir, "tokenizer_golden*.jsonl*"))
	if err != nil {
		return nil, fmt.Errorf("--golden: %w", err)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s: no tokenizer_golden*.jsonl is there; give --golden the directory of golden texts", dir)
	}
	t := &corpus{}
	seen := map[string]bool{}
	for _, path := range found {
		if err := t.read(path, seen); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	if len(t.chat) > 0 && len(t.code) > 0 {
		return t, nil
	}
	mine, err := ownCorpus()
	if err != nil {
		return nil, err
	}
	if len(t.chat) == 0 {
		t.chat = mine.chat
	}
	if len(t.code) == 0 {
		t.code = mine.code
	}
	return t, nil
}

// read adds a golden file's texts but those seen.
func (t *corpus) read(path string, seen map[string]bool) error {
	data, err := readFile(path)
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<26)
	for n := 1; lines.Scan(); n++ {
		var g goldenText
		if err := json.Unmarshal(lines.Bytes(), &g); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		if seen[g.Text] {
			continue
		}
		seen[g.Text] = true
		t.golden = append(t.golden, g)
		switch {
		case slices.Contains(chatKinds, g.Cat):
			t.chat = append(t.chat, g.Text)
		case slices.Contains(codeKinds, g.Cat):
			t.code = append(t.code, g.Text)
		}
	}
	return lines.Err()
}

// series is the golden ids of a model: those of its name, or of a name that goes
// on after it and an underscore.
func (t *corpus) series(name string) (string, error) {
	names := map[string]bool{}
	for _, g := range t.golden {
		for of := range g.IDs {
			names[of] = true
		}
	}
	var fit []string
	for _, of := range slices.Sorted(maps.Keys(names)) {
		if of == name {
			return of, nil
		}
		if strings.HasPrefix(of, name+"_") {
			fit = append(fit, of)
		}
	}
	if len(fit) != 1 {
		return "", fmt.Errorf("the golden texts have no ids of %s, only of %s; give --model NAME=PATH with one of these names", name, strings.Join(slices.Sorted(maps.Keys(names)), ", "))
	}
	return fit[0], nil
}

// shorten leaves what a quick run looks at: the same share of every kind.
func (t *corpus) shorten() {
	some := func(texts []string) []string {
		var out []string
		for i := 0; i < len(texts); i += 1 + len(texts)/quickTexts {
			out = append(out, texts[i])
		}
		return out
	}
	t.chat, t.code = some(t.chat), some(t.code)
	var golden []goldenText
	for i := 0; i < len(t.golden); i += 1 + len(t.golden)/quickTexts {
		golden = append(golden, t.golden[i])
	}
	t.golden = golden
}

// ownCorpus is code and prose of this package: its files, and their comments.
func ownCorpus() (*corpus, error) {
	files, err := own.ReadDir(".")
	if err != nil {
		return nil, err
	}
	t := &corpus{}
	for _, f := range files {
		data, err := own.ReadFile(f.Name())
		if err != nil {
			return nil, err
		}
		t.code = append(t.code, string(data))
		var prose []string
		for line := range strings.Lines(string(data)) {
			if text, is := strings.CutPrefix(strings.TrimSpace(line), "// "); is {
				prose = append(prose, text)
				continue
			}
			if len(prose) > 0 {
				t.chat = append(t.chat, strings.Join(prose, " "))
				prose = nil
			}
		}
	}
	return t, nil
}
