package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// What is committed is what gen writes.
func TestGeneratedFilesAreCurrent(t *testing.T) {
	outputs, err := render(os.DirFS(".."))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range outputs {
		got, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(name)))
		if err != nil {
			t.Error(err)
		} else if !bytes.Equal(got, want) {
			t.Errorf("%s is not what dashboards/gen writes; run make generate", name)
		}
	}
}
