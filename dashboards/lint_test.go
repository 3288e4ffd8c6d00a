package dashboards_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"warmpath/dashboards"
)

// What the tests read of a dashboard.
type board struct {
	UID, Title, Description string
	Editable                bool
	Templating              struct {
		List []struct {
			Name, Type, Query string
			Datasource        *source
		}
	}
	Panels []panel
}

type source struct{ Type, UID string }

type panel struct {
	ID                       int
	Type, Title, Description string
	Datasource               *source
	GridPos                  struct{ H, W, X, Y int }
	FieldConfig              struct{ Defaults struct{ Unit string } }
	Targets                  []struct {
		RefID, RawSQL, Expr, QueryType string
		Datasource                     *source
	}
}

func boards(t *testing.T) map[string]board {
	t.Helper()
	names, err := fs.Glob(dashboards.Grafana, "grafana/*.json")
	if err != nil || len(names) == 0 {
		t.Fatalf("no dashboards: %v", err)
	}
	all := map[string]board{}
	for _, name := range names {
		text, err := fs.ReadFile(dashboards.Grafana, name)
		if err != nil {
			t.Fatal(err)
		}
		var b board
		if err := json.Unmarshal(text, &b); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all[name] = b
	}
	return all
}

// queries returns the SQL files by name.
func queries(t *testing.T) map[string]string {
	t.Helper()
	names, err := fs.Glob(dashboards.SQL, "sql/*.sql")
	if err != nil || len(names) == 0 {
		t.Fatalf("no queries: %v", err)
	}
	all := map[string]string{}
	for _, name := range names {
		text, err := fs.ReadFile(dashboards.SQL, name)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimSuffix(path.Base(name), ".sql")] = strings.TrimSpace(string(text))
	}
	return all
}

func TestDashboardsKeepTheRules(t *testing.T) {
	variables := map[string]string{"grafana-clickhouse-datasource": "${datasource}", "prometheus": "${prometheus}"}
	for name, b := range boards(t) {
		if b.UID == "" || b.Title == "" || b.Description == "" {
			t.Errorf("%s lacks uid, title or description", name)
		}
		if b.Editable {
			t.Errorf("%s is editable: changes belong into dashboards/gen", name)
		}
		for kind, use := range variables {
			found := false
			for _, v := range b.Templating.List {
				found = found || v.Type == "datasource" && v.Query == kind && use == "${"+v.Name+"}"
			}
			if !found {
				t.Errorf("%s has no data source variable for %s", name, kind)
			}
		}
		ids, cells := map[int]bool{}, map[[2]int]string{}
		for _, p := range b.Panels {
			if p.Title == "" || ids[p.ID] {
				t.Errorf("%s: panel %d %q has no title or no id of its own", name, p.ID, p.Title)
			}
			ids[p.ID] = true
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
					if other := cells[[2]int{x, y}]; other != "" || x >= 24 {
						t.Errorf("%s: panel %q lies over %q or beyond the edge", name, p.Title, other)
					}
					cells[[2]int{x, y}] = p.Title
				}
			}
			if p.Type == "row" {
				continue
			}
			if p.Description == "" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
				t.Errorf("%s: panel %q lacks a description, a unit or a query", name, p.Title)
			}
			sources := []*source{p.Datasource}
			for _, target := range p.Targets {
				sources = append(sources, target.Datasource)
			}
			for _, s := range sources {
				if s == nil || variables[s.Type] == "" || s.UID != variables[s.Type] {
					t.Errorf("%s: panel %q does not take its data source from a variable", name, p.Title)
				}
			}
		}
	}
}

// Each panel's SQL is that of a file, each file is that of a panel or a
// variable, and every query keeps to the time range and the pools chosen.
func TestPanelsAndQueryFilesAgree(t *testing.T) {
	files, used := map[string]string{}, map[string]bool{}
	for name, text := range queries(t) {
		files[text] = name
		if !strings.HasPrefix(text, "-- ") {
			t.Errorf("%s.sql does not begin with what it shows", name)
		}
	}
	for name, b := range boards(t) {
		for _, v := range b.Templating.List {
			if v.Type == "query" {
				used[v.Query] = true
			}
		}
		for _, p := range b.Panels {
			for _, target := range p.Targets {
				if target.RawSQL == "" {
					continue
				}
				used[target.RawSQL] = true
				if files[target.RawSQL] == "" {
					t.Errorf("%s: the query of panel %q is in no file", name, p.Title)
				}
				if !strings.Contains(target.RawSQL, "$__timeFilter(") || !strings.Contains(target.RawSQL, "$__conditionalAll(pool IN") {
					t.Errorf("%s: the query of panel %q is not limited to the time and the pools", name, p.Title)
				}
				if p.Type == "timeseries" != strings.Contains(target.RawSQL, "$__timeInterval(") || p.Type == "timeseries" != (target.QueryType == "timeseries") {
					t.Errorf("%s: panel %q of type %s and its query do not fit", name, p.Title, p.Type)
				}
			}
		}
	}
	for text, name := range files {
		if !used[text] {
			t.Errorf("%s.sql is used by no panel", name)
		}
	}
}

// Every metric in a panel or a rule is one that some service has.
func TestMetricsExist(t *testing.T) {
	text, err := os.ReadFile("prometheus/warmpath.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	all := string(text)
	for _, b := range boards(t) {
		for _, p := range b.Panels {
			for _, target := range p.Targets {
				all += "\n" + target.Expr
			}
		}
	}
	code := map[string]string{}
	for _, name := range regexp.MustCompile(`warmpath_[a-z]+_[a-z0-9_]+`).FindAllString(all, -1) {
		service, metric, _ := strings.Cut(strings.TrimPrefix(name, "warmpath_"), "_")
		if _, err := os.Stat(filepath.Join("..", "services", service)); err != nil {
			continue // the name of a rule group
		}
		if code[service] == "" {
			code[service] = serviceCode(t, service)
		}
		for _, suffix := range []string{"_bucket", "_count", "_sum"} {
			metric = strings.TrimSuffix(metric, suffix)
		}
		if !strings.Contains(code[service], `"`+metric+`"`) && !strings.Contains(code[service], `"warmpath_`+service+"_"+metric+`"`) {
			t.Errorf("services/%s has no metric %s", service, name)
		}
	}
	if len(code) < 3 {
		t.Errorf("metrics of %d services only", len(code))
	}
}

func serviceCode(t *testing.T, service string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join("..", "services", service, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}

func TestPrometheusRules(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not on PATH; make tools fetches it")
	}
	for _, args := range [][]string{{"check", "rules", "warmpath.rules.yml"}, {"test", "rules", "warmpath.test.yml"}} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = "prometheus"
		if output, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, output)
		}
	}
}
