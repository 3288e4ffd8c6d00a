package chat

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/ardanlabs/jinja"
)

// goldenCase is one rendering by Python's jinja2 with transformers' settings.
type goldenCase struct {
	ID, Template string
	Data         json.RawMessage
	Expected     struct {
		OK  *string `json:"ok"`
		Err string  `json:"err"`
	}
}

const goldenDir = "../../../shared/data/golden"

func goldenCases(tb testing.TB) []goldenCase {
	tb.Helper()
	f, err := os.Open(filepath.Join(goldenDir, "chat_template_golden.jsonl.gz"))
	if errors.Is(err, fs.ErrNotExist) {
		tb.Skip("no golden renderings beside the repository")
	}
	must(tb, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	must(tb, err)
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 1<<26)
	var cases []goldenCase
	for lines.Scan() {
		var c goldenCase
		must(tb, json.Unmarshal(lines.Bytes(), &c))
		cases = append(cases, c)
	}
	must(tb, lines.Err())
	return cases
}

func goldenTemplates(tb testing.TB) map[string]string {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join(goldenDir, "chat_templates.json"))
	if errors.Is(err, fs.ErrNotExist) {
		tb.Skip("no golden templates beside the repository")
	}
	must(tb, err)
	var templates map[string]string
	must(tb, json.Unmarshal(text, &templates))
	return templates
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// knownDifferences are the golden cases that are not rendered as Python renders
// them, with the reason. A case that starts to differ fails the test, and so
// does one that no longer does.
var knownDifferences = map[string]string{}

// goldenDay is when the renderings were made: some templates print the date.
func goldenDay(tb testing.TB, cases []goldenCase) time.Time {
	tb.Helper()
	printed := regexp.MustCompile(`Current date: (\d{4}-\d{2}-\d{2})`)
	for _, c := range cases {
		if c.Expected.OK == nil {
			continue
		}
		if found := printed.FindStringSubmatch(*c.Expected.OK); found != nil {
			day, err := time.Parse(time.DateOnly, found[1])
			must(tb, err)
			return day
		}
	}
	tb.Fatal("no golden rendering prints the date")
	return time.Time{}
}

func TestGolden(t *testing.T) {
	cases := goldenCases(t)
	day := goldenDay(t, cases)
	compiled := map[string]*Template{}
	for name, source := range goldenTemplates(t) {
		tmpl, err := Compile(source, Specials{}, Options{Now: func() time.Time { return day }})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		compiled[name] = tmpl
	}
	different := map[string]string{}
	equal, refused := 0, 0
	for _, c := range cases {
		tmpl := compiled[c.Template]
		if tmpl == nil {
			continue
		}
		v, err := parseJSON(c.Data)
		must(t, err)
		vars := map[string]jinja.Value{}
		maps.Copy(vars, v.AsDict().Data)
		out, err := tmpl.execute(vars)
		switch {
		case c.Expected.OK != nil && err == nil && out == *c.Expected.OK:
			equal++
		case c.Expected.OK == nil && err != nil:
			refused++
		case err != nil:
			different[c.ID] = err.Error()
		case c.Expected.OK == nil:
			different[c.ID] = "rendered, but Python raises " + c.Expected.Err
		default:
			different[c.ID] = firstDifference(out, *c.Expected.OK)
		}
	}
	t.Logf("%d equal, %d refused by both, %d different", equal, refused, len(different))
	for _, id := range slices.Sorted(maps.Keys(different)) {
		if _, known := knownDifferences[id]; !known {
			t.Errorf("%s: %s", id, different[id])
		}
	}
	for id := range knownDifferences {
		if _, ok := different[id]; !ok {
			t.Errorf("%s is no longer different: take it off the list", id)
		}
	}
}

func firstDifference(got, want string) string {
	at := 0
	for at < len(got) && at < len(want) && got[at] == want[at] {
		at++
	}
	from := max(0, at-40)
	return fmt.Sprintf("from byte %d: got %q, want %q", at, got[from:min(len(got), at+60)], want[from:min(len(want), at+60)])
}
