package clickhouse_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"warmpath/services/clickhouse"
)

// fakeNPM puts a script in npm's place; the real one would fetch 150 MB.
func fakeNPM(t *testing.T, script string) {
	t.Helper()
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skip("the package's name is that of linux/amd64")
	}
	home, bin := t.TempDir(), t.TempDir()
	t.Setenv("XDG_CACHE_HOME", home)
	t.Setenv(clickhouse.EnvLibrary, "")
	if script != "" {
		if err := os.WriteFile(filepath.Join(bin, "npm"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
		bin += ":/usr/bin:/bin"
	}
	t.Setenv("PATH", bin)
}

const packageDir = "node_modules/@chdb/lib-linux-x64-gnu"

func install() error { return clickhouse.Install(context.Background(), slog.New(slog.DiscardHandler)) }

func TestInstallPutsTheLibraryInPlace(t *testing.T) {
	fakeNPM(t, `test -f package-lock.json && grep -q sha512- package-lock.json || exit 9
echo "$*" >>"$XDG_CACHE_HOME/calls"
mkdir -p `+packageDir+` && echo engine >`+packageDir+`/libchdb.so`)
	var group errgroup.Group
	for range 4 {
		group.Go(install)
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	path, err := clickhouse.Locate()
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "engine\n" {
		t.Errorf("the library: %q, %v", text, err)
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(path)), ".install-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	calls := filepath.Join(os.Getenv("XDG_CACHE_HOME"), "calls")
	before, _ := os.ReadFile(calls)
	if err := install(); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.ReadFile(calls); len(after) != len(before) || !strings.Contains(string(after), "--ignore-scripts") {
		t.Errorf("npm was called: %s", after)
	}
}

func TestInstallSaysWhatIsWrong(t *testing.T) {
	for name, test := range map[string]struct{ script, want string }{
		"no npm":             {"", "npm is not on PATH; install Node.js"},
		"no such package":    {"echo 'npm error code E404'; exit 1", "npm error code E404; check npm's network"},
		"an empty package":   {"mkdir -p " + packageDir, "holds no libchdb.so"},
		"npm did nothing":    {"true", "holds no libchdb.so"},
		"npm does not start": {"exec /nonexistent", "check npm's network"},
	} {
		t.Run(name, func(t *testing.T) {
			fakeNPM(t, test.script)
			if err := install(); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
			if _, err := clickhouse.Locate(); !errors.Is(err, clickhouse.ErrNotInstalled) || !strings.Contains(err.Error(), "warmpath clickhouse --install") {
				t.Errorf("locate afterwards: %v", err)
			}
		})
	}
}

func TestLocateByEnvironment(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libchdb.so")
	t.Setenv(clickhouse.EnvLibrary, path)
	if _, err := clickhouse.Locate(); err == nil || !strings.Contains(err.Error(), clickhouse.EnvLibrary) {
		t.Errorf("a path without a file: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := clickhouse.Locate(); err != nil || got != path {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := clickhouse.OpenEngine(clickhouse.EngineConfig{Library: path, DataDir: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "load "+path) {
		t.Errorf("an empty library: %v", err)
	}
}
