package clickhouse

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// LibraryVersion is the version of the engine's npm package that this program
// is built and tested for: ClickHouse 26.7.
const LibraryVersion = "26.7.3-stable.1"

// EnvLibrary names the environment variable that overrides where the engine's
// library is looked for.
const EnvLibrary = "WARMPATH_CHDB_LIB"

// ErrNotInstalled is returned by Locate when there is no engine on this
// machine yet.
var ErrNotInstalled = errors.New("the ClickHouse engine is not installed")

// ErrUnsupported is returned where no build of the engine exists.
var ErrUnsupported = errors.New("the ClickHouse engine has no build for this platform")

const libraryFile = "libchdb.so"

// platform is a build of the engine. Integrity is what npm checks the package
// against; empty where it has not been recorded, then npm trusts its registry.
type platform struct{ pkg, os, cpu, integrity string }

var platforms = map[string]platform{
	"linux/amd64": {
		pkg: "@chdb/lib-linux-x64-gnu", os: "linux", cpu: "x64",
		integrity: "sha512-XP97mMqnc5tZpKQywR8N7cLTsHNiTmHr30pC5mzo3jWmukjKn2IBa60c2B/gWUNcuFjOMjWoorQICCqBVj5wpw==",
	},
	"linux/arm64":  {pkg: "@chdb/lib-linux-arm64-gnu", os: "linux", cpu: "arm64"},
	"darwin/amd64": {pkg: "@chdb/lib-darwin-x64", os: "darwin", cpu: "x64"},
	"darwin/arm64": {pkg: "@chdb/lib-darwin-arm64", os: "darwin", cpu: "arm64"},
}

func thisPlatform() (platform, error) {
	name := runtime.GOOS + "/" + runtime.GOARCH
	p, ok := platforms[name]
	if !ok {
		return platform{}, fmt.Errorf("%w (%s); use a ClickHouse server and give its URL with --clickhouse", ErrUnsupported, name)
	}
	return p, nil
}

// cacheDir is where versions of the engine lie, one directory each.
func cacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache directory: %w; set HOME or XDG_CACHE_HOME, or %s to the path of %s", err, EnvLibrary, libraryFile)
	}
	return filepath.Join(dir, "warmpath", "chdb"), nil
}

// Locate returns the path of the engine's library: what WARMPATH_CHDB_LIB
// names, else what Install put into the user's cache. The error is
// ErrNotInstalled, with the remedy, when there is none.
func Locate() (string, error) {
	if path := os.Getenv(EnvLibrary); path != "" {
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("%s: %w; correct it, or unset it to use the installed engine", EnvLibrary, err)
		}
		return path, nil
	}
	dir, err := cacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, LibraryVersion, libraryFile)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%w (%s); run `warmpath clickhouse --install`, or set %s", ErrNotInstalled, path, EnvLibrary)
	}
	return path, nil
}

// Install puts the engine into the user's cache, unless it is there. It needs
// npm, and about 600 MB of disk. Any number of processes may do it at once.
func Install(ctx context.Context, log *slog.Logger) error {
	if path, err := Locate(); err == nil {
		log.Info("clickhouse engine is installed", "path", path)
		return nil
	} else if !errors.Is(err, ErrNotInstalled) {
		return err
	}
	p, err := thisPlatform()
	if err != nil {
		return err
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		return fmt.Errorf("install the ClickHouse engine: npm is not on PATH; install Node.js with npm, "+
			"or put %s of chdb %s anywhere and set %s to its path", libraryFile, LibraryVersion, EnvLibrary)
	}
	cache, err := cacheDir()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return fmt.Errorf("install the ClickHouse engine: %w", err)
	}
	sweep(cache)
	work, err := os.MkdirTemp(cache, workPrefix)
	if err != nil {
		return fmt.Errorf("install the ClickHouse engine: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }() // what is left, the next installation sweeps

	log.Info("installing the clickhouse engine", "package", p.pkg, "version", LibraryVersion)
	start := time.Now()
	if err := npmInstall(ctx, npm, work, p); err != nil {
		return err
	}
	if err := publish(filepath.Join(work, "node_modules", filepath.FromSlash(p.pkg)), filepath.Join(cache, LibraryVersion)); err != nil {
		return err
	}
	log.Info("installed the clickhouse engine", "path", filepath.Join(cache, LibraryVersion, libraryFile), "seconds", time.Since(start).Seconds())
	return nil
}

const workPrefix = ".install-"

// sweep removes what installations left that were killed. No installation
// takes an hour.
func sweep(cache string) {
	entries, _ := os.ReadDir(cache) // nothing readable, nothing to sweep
	for _, entry := range entries {
		info, err := entry.Info()
		if err == nil && strings.HasPrefix(entry.Name(), workPrefix) && time.Since(info.ModTime()) > time.Hour {
			_ = os.RemoveAll(filepath.Join(cache, entry.Name())) // the next one tries again
		}
	}
}

// npmInstall has npm lay the package under dir, checked against the recorded
// integrity through a lock file.
func npmInstall(ctx context.Context, npm, dir string, p platform) error {
	dependencies := map[string]string{p.pkg: LibraryVersion}
	manifest := map[string]any{"name": "warmpath-engine", "version": "1.0.0", "private": true, "dependencies": dependencies}
	command := "install"
	if err := writeJSON(filepath.Join(dir, "package.json"), manifest); err != nil {
		return err
	}
	if p.integrity != "" {
		command = "ci"
		lock := map[string]any{
			"name": "warmpath-engine", "version": "1.0.0", "lockfileVersion": 3, "requires": true,
			"packages": map[string]any{
				"": manifest,
				"node_modules/" + p.pkg: map[string]any{
					"version": LibraryVersion, "integrity": p.integrity, "os": []string{p.os}, "cpu": []string{p.cpu},
				},
			},
		}
		if err := writeJSON(filepath.Join(dir, "package-lock.json"), lock); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, npm, command, "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	cmd.Dir = dir
	cmd.WaitDelay = 5 * time.Second
	output, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return fmt.Errorf("install the ClickHouse engine: %w", context.Cause(ctx))
	}
	if err != nil {
		return fmt.Errorf("install the ClickHouse engine: npm cannot have %s@%s: %w: %s; check npm's network and registry settings, "+
			"or put %s of that package anywhere and set %s to its path", p.pkg, LibraryVersion, err, lastLines(string(output), 4), libraryFile, EnvLibrary)
	}
	return nil
}

func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return os.WriteFile(path, data, 0o644)
}

// publish moves the unpacked package to its final directory in one step. When
// another installation was first, its result stands.
func publish(pkg, target string) error {
	if _, err := os.Stat(filepath.Join(pkg, libraryFile)); err != nil {
		return fmt.Errorf("install the ClickHouse engine: the package holds no %s: %w", libraryFile, err)
	}
	err := os.Rename(pkg, target)
	if err == nil {
		return nil
	}
	if _, there := os.Stat(filepath.Join(target, libraryFile)); there == nil {
		return nil
	}
	if !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("install the ClickHouse engine: %w", err)
	}
	// A directory without the library is in the way: broken by hand.
	if err := os.RemoveAll(target); err != nil {
		return fmt.Errorf("install the ClickHouse engine: %w", err)
	}
	if err := os.Rename(pkg, target); err != nil {
		return fmt.Errorf("install the ClickHouse engine: %w", err)
	}
	return nil
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "; ")
}
