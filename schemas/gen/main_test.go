package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
)

// The committed code is what the generator writes, byte for byte.
func TestGeneratedFilesAreCurrent(t *testing.T) {
	const schemas = ".."
	dir := t.TempDir()
	for _, name := range []string{source, released} {
		copyFile(t, filepath.Join(schemas, name), filepath.Join(dir, name))
	}
	if err := run(context.Background(), dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"warmpathv1/events.pb.go", released} {
		if !bytes.Equal(read(t, filepath.Join(schemas, name)), read(t, filepath.Join(dir, name))) {
			t.Errorf("schemas/%s is not current: run make generate", name)
		}
	}
}

func TestGeneratorRefusesABreakingChange(t *testing.T) {
	dir := t.TempDir()
	copyFile(t, filepath.Join("..", released), filepath.Join(dir, released))
	text := bytes.Replace(read(t, filepath.Join("..", source)), []byte("uint64 seq = 4;"), []byte("uint32 seq = 4;"), 1)
	write(t, filepath.Join(dir, source), text)
	if err := run(context.Background(), dir); err == nil {
		t.Fatal("a retyped field was generated without complaint")
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	write(t, to, read(t, from))
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func write(t *testing.T, path string, raw []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, raw, 0o644); err != nil {
		t.Fatal(err)
	}
}
