// Package npmtest gives tests packages of the npm registry, for programs that run
// in Node.
package npmtest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// installTimeout bounds one installation, which downloads.
const installTimeout = time.Minute

// Install returns node and the node_modules folder of a package in one version,
// which is kept in the user's cache for later tests. A test without node, or that
// cannot install the package, is skipped.
func Install(t testing.TB, name, version string) (node, modules string) {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is not installed")
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		t.Skip("npm is not installed")
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Skip("there is no cache folder: ", err)
	}
	folder := filepath.Join(cache, "warmpath", name+"-"+version)
	modules = filepath.Join(folder, "node_modules")
	there := func() bool {
		_, err := os.Stat(filepath.Join(modules, name, "package.json"))
		return err == nil
	}
	if there() {
		return node, modules
	}
	if err := os.MkdirAll(filepath.Dir(folder), 0o755); err != nil {
		t.Skip("the cache folder cannot be written: ", err)
	}
	fresh, err := os.MkdirTemp(filepath.Dir(folder), name+"-new-")
	if err != nil {
		t.Skip("the cache folder cannot be written: ", err)
	}
	defer func() { _ = os.RemoveAll(fresh) }() // in the cache folder, which may be cleared
	ctx, cancel := context.WithTimeout(t.Context(), installTimeout)
	defer cancel()
	install := exec.CommandContext(ctx, npm, "install", "--prefix", fresh, "--no-audit", "--no-fund", "--ignore-scripts", name+"@"+version)
	if out, err := install.CombinedOutput(); err != nil {
		t.Skipf("npm cannot install %s: %v\n%s", name, err, out)
	}
	if err := os.Rename(fresh, folder); err != nil && !there() { // another test may have been first
		t.Skip("the package cannot be put in place: ", err)
	}
	return node, modules
}
