package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "warmpath/"

// mayImport is the import direction: a package under the folder on the left may
// import, of this module, only packages under the folders on the right (and of
// its own folder).
var mayImport = map[string][]string{
	"schemas":    {},
	"routing":    {"schemas"},
	"engine":     {"routing", "schemas"},
	"tokenize":   {"routing", "schemas"},
	"streams":    {"routing", "schemas"},
	"services":   {"streams", "engine", "tokenize", "routing", "schemas"},
	"tools":      {"streams", "engine", "tokenize", "routing", "schemas"},
	"dashboards": {"schemas", "services/clickhouse"}, // tests run the panels on the engine
	// A gateway of others decides with the router's own code, in process.
	"follow": {"services/router", "streams", "tokenize", "routing", "schemas"},
}

// sharedWithTools are how engines are spoken to, and where tokens come from: tools
// that look at an engine, play one, or show what a service makes of a request may
// import them.
var sharedWithTools = []string{
	"services/bridge/kvevents", "services/bridge/zmq", "services/bridge/discovery", "services/bridge/wireengine", "services/tokensource",
}

// sharedServices are what services have in common; any service may import them.
var sharedServices = []string{"services/httpserver", "services/tokensource", "services/clickhouse/tables", "services/clickhouse/clickhousetest"}

// mayUse limits who touches a dependency to the folders named.
var mayUse = map[string][]string{
	"github.com/nats-io/":                  {"streams", "services", "follow"},
	"github.com/ClickHouse/":               {"services/analytics", "services/console", "services/clickhouse", "tools/audit", "tools/analyze", "dashboards"},
	"github.com/ebitengine/purego":         {"services/clickhouse"},
	"github.com/alecthomas/kong":           {""},
	"github.com/bufbuild/":                 {"schemas/gen"},
	"github.com/prometheus/client_golang":  {"services", "streams", "follow"},
	"google.golang.org/protobuf/cmd/":      {"schemas/gen"},
	"google.golang.org/protobuf/compiler/": {"schemas/gen"},
	"github.com/zeebo/xxh3":                {"routing", "services", "engine", "tokenize"},
	"github.com/go-zeromq/zmq4":            {"services/bridge/zmq"},
	"github.com/tinylib/msgp":              {"services/bridge/kvevents"},
	"github.com/ardanlabs/jinja":           {"tokenize/chat"},
	"go.opentelemetry.io/":                 {"services/gateway"},
	"golang.org/x/sync/errgroup":           {"services", "tools", "streams", "follow"},
	"github.com/google/uuid":               {"services", "streams", "tools", "follow"},
}

// source is one parsed file of the module.
type source struct {
	path, folder string
	test         bool
	file         *ast.File
	lines        int
}

func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	fset := token.NewFileSet()
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && name != "." {
			return filepath.SkipDir
		}
		if entry.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		file, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		all = append(all, source{
			path: name, folder: path.Dir(filepath.ToSlash(name)), test: strings.HasSuffix(name, "_test.go"),
			file: file, lines: fset.File(file.Pos()).LineCount(),
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatal("no Go files found")
	}
	return all
}

func under(folder string, parents ...string) bool {
	for _, p := range parents {
		if p == "" || folder == p || strings.HasPrefix(folder, p+"/") {
			return true
		}
	}
	return false
}

func imports(s source) []string {
	var out []string
	for _, spec := range s.file.Imports {
		name, _ := strconv.Unquote(spec.Path.Value)
		out = append(out, name)
	}
	return out
}

func TestImportsPointDown(t *testing.T) {
	for _, s := range sources(t) {
		top, _, _ := strings.Cut(s.folder, "/")
		if s.folder == "." {
			continue // the binary composes everything
		}
		allowed, known := mayImport[top]
		if !known {
			t.Errorf("%s: folder %s has no place in the house plan", s.path, top)
			continue
		}
		for _, name := range imports(s) {
			local, ours := strings.CutPrefix(name, module)
			if !ours || under(local, top) && top != "services" && top != "tools" {
				continue
			}
			if s.test && under(s.folder, "services", "tools", "follow") {
				continue // end-to-end tests put services together
			}
			switch {
			case under(local, allowed...):
			case top == "services" && serviceMayImport(s.folder, local):
			case top == "tools" && (under(local, s.folder) || under(local, sharedWithTools...)):
			default:
				t.Errorf("%s imports %s: %s may import only %v", s.path, name, top, allowed)
			}
		}
	}
}

// serviceMayImport: a service imports its own folder and what services share;
// dev puts them all together.
func serviceMayImport(folder, imported string) bool {
	own := strings.Join(strings.Split(folder, "/")[:min(2, strings.Count(folder, "/")+1)], "/")
	return under(imported, own) || under(imported, sharedServices...) || under(folder, "services/dev")
}

func TestDependenciesStayInTheirPlace(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || s.folder == "." {
			continue
		}
		for _, name := range imports(s) {
			for prefix, folders := range mayUse {
				if strings.HasPrefix(name, prefix) && !under(s.folder, folders...) {
					t.Errorf("%s imports %s, which belongs to %v", s.path, name, folders)
				}
			}
		}
	}
}

// routing is pure: the same events give the same answers, today and in an audit.
func TestRoutingIsPure(t *testing.T) {
	forbidden := []string{"os", "net", "net/http", "io/fs", "math/rand", "math/rand/v2", "log", "log/slog", "context"}
	for _, s := range sources(t) {
		if s.test || !under(s.folder, "routing") {
			continue
		}
		for _, name := range imports(s) {
			if slices.Contains(forbidden, name) {
				t.Errorf("%s imports %s", s.path, name)
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s starts a goroutine", s.path)
			case *ast.SelectorExpr:
				if pkg, ok := n.X.(*ast.Ident); ok && pkg.Name == "time" && (n.Sel.Name == "Now" || n.Sel.Name == "Since") {
					t.Errorf("%s reads the clock", s.path)
				}
			}
			return true
		})
	}
}

func TestPackagesAreNouns(t *testing.T) {
	for _, s := range sources(t) {
		if slices.Contains([]string{"util", "utils", "common", "helpers", "types", "models", "misc"}, s.file.Name.Name) {
			t.Errorf("%s: package %s owns nothing in particular", s.path, s.file.Name.Name)
		}
		if s.lines > 600 && !ast.IsGenerated(s.file) {
			t.Errorf("%s has %d lines; split it by what it owns", s.path, s.lines)
		}
	}
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	documented := map[string]bool{}
	for _, s := range sources(t) {
		if !s.test {
			documented[s.folder] = documented[s.folder] || s.file.Doc != nil
		}
	}
	for folder, ok := range documented {
		if !ok {
			t.Errorf("package in %s has no package comment", folder)
		}
	}
}

// A go.mod that is not tidy, or a tree without its README, is not shippable.
func TestHouseHasItsFiles(t *testing.T) {
	for _, name := range []string{"README.md", "Makefile", ".ci/run", ".golangci.yml", "compose.yaml", "Dockerfile"} {
		if _, err := os.Stat(name); err != nil {
			t.Error(err)
		}
	}
}
