package bench

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"warmpath/services/tokensource"
	"warmpath/tokenize/keycache"
	"warmpath/tokenize/model"
)

// maxFile bounds a file that is unpacked: tokenizer.json files have some 30 MB.
const maxFile = 1 << 30

// modelSource is a model to measure: a directory, or a tokenizer.json.
type modelSource struct {
	name, path string
}

// language is a loaded model.
type language struct {
	*model.Model
	name string
	cuts keycache.Cuts
	// json is its tokenizer.json, to load it anew.
	json []byte
}

// sources are the models that the flags name.
func (c *Tokenize) sources() ([]modelSource, error) {
	var all []modelSource
	for _, flag := range c.Model {
		name, path, named := strings.Cut(flag, "=")
		if !named {
			name, path = modelName(flag), flag
		}
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("--model %s: %w; give a model directory or a tokenizer.json", flag, err)
		}
		all = append(all, modelSource{name, path})
	}
	if len(all) == 0 && c.Data != "" {
		found, err := filepath.Glob(filepath.Join(c.Data, "tokenizers", "*.tokenizer*.json.gz"))
		if err != nil {
			return nil, fmt.Errorf("--data: %w", err)
		}
		for _, path := range found {
			all = append(all, modelSource{modelName(path), path})
		}
		if len(all) == 0 {
			return nil, fmt.Errorf("--data %s: %w", c.Data, errNoModel)
		}
	}
	if len(all) == 0 {
		return nil, errNoModel
	}
	return all, nil
}

// modelName is a file's name up to .tokenizer, or a directory's.
func modelName(path string) string {
	path, err := filepath.Abs(path)
	if err != nil {
		return path
	}
	base := filepath.Base(path)
	if base == "tokenizer.json" || base == "tokenizer.json.gz" {
		base = filepath.Base(filepath.Dir(path))
	}
	name, _, _ := strings.Cut(base, ".tokenizer")
	return name
}

// load reads the model. A tokenizer.json becomes a directory of its own first,
// with the configuration that is beside it.
func (s modelSource) load() (*language, error) {
	dir := s.path
	if info, err := os.Stat(s.path); err != nil {
		return nil, err
	} else if !info.IsDir() {
		if dir, err = os.MkdirTemp("", "warmpath-bench-"); err != nil {
			return nil, fmt.Errorf("make model directory: %w", err)
		}
		defer func() { _ = os.RemoveAll(dir) }() // in a temporary directory
		if err := s.unpack(dir); err != nil {
			return nil, err
		}
	}
	m, cuts, err := tokensource.Load(dir, model.Options{Name: s.name})
	if err != nil {
		return nil, err
	}
	json, err := os.ReadFile(filepath.Join(dir, "tokenizer.json"))
	if err != nil {
		return nil, err
	}
	return &language{Model: m, name: s.name, cuts: cuts, json: json}, nil
}

// unpack makes a model directory of a tokenizer.json and its configuration.
func (s modelSource) unpack(dir string) error {
	data, err := readFile(s.path)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), data, 0o600); err != nil {
		return err
	}
	base := filepath.Base(s.path)
	prefix, _, _ := strings.Cut(base, "tokenizer")
	config, err := os.ReadFile(filepath.Join(filepath.Dir(s.path), prefix+"tokenizer_config.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it is only a tokenizer then
	}
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), config, 0o600)
}

// readFile reads a file, unpacked if its name ends in .gz.
func readFile(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil || !strings.HasSuffix(path, ".gz") {
		return data, err
	}
	unzipped, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if data, err = io.ReadAll(io.LimitReader(unzipped, maxFile)); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return data, nil
}
