package bench

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"warmpath/tokenize/model"
)

const (
	tinyModel  = "../../tokenize/model/testdata/tiny"
	sharedData = "../../../shared/data"
)

// figures are what a run with --json printed, by name.
func figures(t *testing.T, printed string) map[string]Figure {
	t.Helper()
	all := map[string]Figure{}
	for line := range strings.Lines(printed) {
		if strings.HasPrefix(line, `{"machine"`) {
			continue
		}
		var f Figure
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if _, twice := all[f.Name]; twice {
			t.Errorf("figure %s twice", f.Name)
		}
		if f.OK != nil {
			t.Errorf("a quick run judges %s", line)
		}
		all[f.Name] = f
	}
	return all
}

// goldenFile writes golden texts with ids of a model named tiny_byte.
func goldenFile(t *testing.T, change func([]goldenText)) string {
	t.Helper()
	m, err := model.Load(tinyModel, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var texts []goldenText
	for i, text := range []string{"Hello, world!", "func main() {}", "a  b\n\n"} {
		texts = append(texts, goldenText{Cat: []string{"mtbench", "code", "nasty"}[i], Text: text, IDs: map[string][]uint32{"tiny_byte": m.Append(nil, text), "other": {1}}})
	}
	change(texts)
	dir := t.TempDir()
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	for _, g := range texts {
		if err := encoder.Encode(g); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "tokenizer_golden_tiny.jsonl"), out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestTokenizeQuick(t *testing.T) {
	var out bytes.Buffer
	golden := goldenFile(t, func([]goldenText) {})
	if err := (&Tokenize{JSON: true, Quick: true, Rounds: 1, Model: []string{tinyModel}, Golden: golden}).run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	got := figures(t, out.String())
	if f := got["tiny: golden texts with the same ids, all that there are"]; f.Value != 3 {
		t.Errorf("compared: %+v", f)
	}
	for _, name := range []string{"tiny: English chat, one core", "tiny: code, one core"} {
		if f := got[name]; f.Value <= 0 || f.Floor == nil || f.Bound != "value >= 8e+06" {
			t.Errorf("%s: %+v", name, f)
		}
	}
	warm, cold := got["tiny: chat of 6 200 tokens, 5 900 seen, text to keys"], got["tiny: chat of 6 200 tokens, none seen, text to keys"]
	if warm.Value <= 0 || warm.Bound != "value <= 200" || warm.Floor == nil || cold.Value <= 0 || cold.Bound != "value <= 2000" {
		t.Errorf("warm %+v, cold %+v", warm, cold)
	}
	// An eighth of the chat, and what a cut cannot keep of the turn before.
	if f := got["tiny: chat of 6 200 tokens, 5 900 seen, tokens known"]; f.Value < 5900/8-400 || f.Value > 5900/8+chatSlack {
		t.Errorf("known: %+v", f)
	}
	if f := got["tiny: chat of 6 200 tokens, rendering the template"]; f.Value <= 0 || f.Floor == nil {
		t.Errorf("rendering: %+v", f)
	}
}

// Texts of its own are measured when there are no golden ones.
func TestTokenizeWithoutGolden(t *testing.T) {
	var out bytes.Buffer
	if err := (&Tokenize{JSON: true, Quick: true, Rounds: 1, Model: []string{"mine=" + filepath.Join(tinyModel, "tokenizer.json")}}).run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	got := figures(t, out.String())
	if got["mine: English chat, one core"].Value <= 0 || got["mine: chat of 6 200 tokens, 5 900 seen, text to keys"].Value <= 0 {
		t.Errorf("printed %s", out.String())
	}
	if strings.Contains(out.String(), "golden") {
		t.Errorf("something was compared: %s", out.String())
	}
}

// A token that differs is an error, and no figure.
func TestTokenizeDiffers(t *testing.T) {
	golden := goldenFile(t, func(texts []goldenText) { texts[1].IDs["tiny_byte"][3]++ })
	var out bytes.Buffer
	err := (&Tokenize{Quick: true, Rounds: 1, Model: []string{tinyModel}, Golden: golden}).run(t.Context(), &out)
	if err == nil || !strings.Contains(err.Error(), "1 of 3 golden texts have other tokens than tiny_byte: numbers 2 (code)") {
		t.Errorf("error is %v", err)
	}
}

func TestTokenizeRefuses(t *testing.T) {
	golden := goldenFile(t, func([]goldenText) {})
	for _, c := range []struct {
		command Tokenize
		says    string
	}{
		{Tokenize{Rounds: 1}, "give --model DIR, a model directory with tokenizer.json as Hugging Face has it, or --data DIR"},
		{Tokenize{Rounds: 0}, "--rounds is 0; give at least 1"},
		{Tokenize{Rounds: 1, Data: golden}, "no tokenizer to measure"},
		{Tokenize{Rounds: 1, Model: []string{"nowhere"}}, "--model nowhere: "},
		{Tokenize{Rounds: 1, Model: []string{tinyModel}, Golden: tinyModel}, "no tokenizer_golden*.jsonl is there"},
		{Tokenize{Rounds: 1, Model: []string{"strange=" + tinyModel}, Golden: golden}, "no ids of strange, only of other, tiny_byte; give --model NAME=PATH"},
	} {
		c.command.Quick = true
		if err := c.command.run(t.Context(), &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("error is %v, not one that says %q", err, c.says)
		}
	}
}

// The chat has the sizes that its figures name, and its turn before is how it begins.
func TestConversation(t *testing.T) {
	l, err := modelSource{"tiny", tinyModel}.load()
	if err != nil {
		t.Fatal(err)
	}
	texts, err := ownCorpus()
	if err != nil {
		t.Fatal(err)
	}
	v, err := (&bench{}).conversation(l, texts.chat)
	if err != nil {
		t.Fatal(err)
	}
	seen := l.Append(nil, v.before)
	if off := len(v.ids) - chatTokens; off < -chatSlack || off > chatSlack {
		t.Errorf("%d tokens", len(v.ids))
	}
	if off := len(seen) - chatSeen; off < -chatSlack || off > chatSlack {
		t.Errorf("%d tokens seen", len(seen))
	}
	same := 0
	for same < len(seen) && seen[same] == v.ids[same] {
		same++
	}
	if same < len(seen)-16 { // the answer's header
		t.Errorf("%d of %d tokens seen are the chat's", same, len(seen))
	}
	if len(v.want) != len(v.ids)/chatBlock || !slices.Equal(v.ids, l.Append(nil, v.text)) {
		t.Errorf("%d keys, %d tokens", len(v.want), len(v.ids))
	}
}

// The real tokenizers, where they are.
func TestTokenizeSharedData(t *testing.T) {
	file := filepath.Join(sharedData, "tokenizers", "qwen3.tokenizer.min.json.gz")
	if _, err := os.Stat(file); err != nil {
		t.Skipf("the tokenizers are not here: %v", err)
	}
	const texts = "tokenizer_golden_authored.jsonl" // the small one of two
	golden, err := filepath.Abs(filepath.Join(sharedData, "golden", texts))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(golden, filepath.Join(dir, texts)); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	command := Tokenize{JSON: true, Quick: true, Rounds: 1, Model: []string{file}, Golden: dir}
	if err := command.run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	got := figures(t, out.String())
	if f := got["qwen3: golden texts with the same ids, all that there are"]; f.Value < 80 {
		t.Errorf("compared: %+v", f)
	}
	if f := got["qwen3: chat of 6 200 tokens, rendering the template"]; f.Value <= 0 {
		t.Errorf("the template beside the file was not found: %s", out.String())
	}
}
