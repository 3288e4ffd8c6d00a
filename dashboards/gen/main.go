// Command gen writes the Grafana dashboard and the Prometheus rules. It reads
// sql/*.sql and writes grafana/*.json and prometheus/*.rules.yml, all below
// the directory it is run in; go generate runs it in dashboards.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

func main() {
	if err := run("."); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

// run regenerates every file below dir.
func run(dir string) error {
	outputs, err := render(os.DirFS(dir))
	if err != nil {
		return err
	}
	for _, name := range sortedKeys(outputs) {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.WriteFile(path, outputs[name], 0o644); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return nil
}

// render returns every generated file by its name; the same input gives the
// same bytes.
func render(files fs.FS) (map[string][]byte, error) {
	d, err := overview(files)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(d); err != nil {
		return nil, fmt.Errorf("encode the dashboard: %w", err)
	}
	return map[string][]byte{
		"grafana/overview.json":         text.Bytes(),
		"prometheus/warmpath.rules.yml": []byte(rules()),
	}, nil
}

func sortedKeys[V any](m map[string]V) []string {
	return slices.Sorted(maps.Keys(m))
}
