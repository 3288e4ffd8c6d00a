package apikey

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"
)

// maxFile bounds a key file; a key takes some 150 bytes.
const maxFile = 16 << 20

// Store holds the keys of a file and what each has used. It is safe for
// concurrent use.
type Store struct {
	path string

	mu      sync.RWMutex
	bySum   map[[sha256.Size]byte]*Client
	clients map[string]*Client // by name; their usage outlives a change of the file
	seen    fileState
}

// fileState tells whether a file changed.
type fileState struct {
	modified time.Time
	size     int64
}

// Open reads a key file.
func Open(path string) (*Store, error) {
	s := &Store{path: path, clients: map[string]*Client{}}
	if _, err := s.Reload(); err != nil {
		return nil, err
	}
	return s, nil
}

// Len is how many keys there are.
func (s *Store) Len() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.bySum)
}

// Reload reads the file again if it changed, and reports whether it did. After
// an error the keys are those from before.
func (s *Store) Reload() (changed bool, err error) {
	file, err := os.Open(s.path)
	if err != nil {
		return false, fmt.Errorf("key file: %w; check --keys", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return false, fmt.Errorf("key file: %w", err)
	}
	state := fileState{info.ModTime(), info.Size()}
	s.mu.RLock()
	same := s.seen == state
	s.mu.RUnlock()
	if same {
		return false, nil
	}
	text, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return false, fmt.Errorf("key file: %w", err)
	}
	keys, err := Parse(text)
	if err != nil {
		return false, fmt.Errorf("key file %s: %w", s.path, err)
	}
	s.replace(keys, state)
	return true, nil
}

// Watch reloads the file when it changes, looking every period until ctx ends.
// Each change, and each failure once, is told to report.
func (s *Store) Watch(ctx context.Context, period time.Duration, report func(keys int, err error)) error {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	told := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		changed, err := s.Reload()
		switch {
		case err != nil && err.Error() != told:
			told = err.Error()
			report(s.Len(), err)
		case changed:
			told = ""
			report(s.Len(), nil)
		}
	}
}

// replace puts new keys in. A client whose key stays keeps its usage.
func (s *Store) replace(keys []Key, state fileState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clients := make(map[string]*Client, len(keys))
	bySum := make(map[[sha256.Size]byte]*Client, len(keys))
	for i := range keys {
		c := s.clients[keys[i].Name]
		if c == nil {
			c = &Client{}
		}
		c.set(&keys[i])
		clients[keys[i].Name] = c
		bySum[keys[i].sum] = c
	}
	s.clients, s.bySum, s.seen = clients, bySum, state
}

// Authenticate returns the client whose key a request presents. What is looked
// up and compared are hashes, and the last comparison takes the same time
// whatever differs, so that time tells nothing of a key.
func (s *Store) Authenticate(presented string) (*Client, error) {
	if presented == "" {
		return nil, ErrMissing
	}
	if len(presented) > maxPresented {
		return nil, ErrUnknown
	}
	sum := sha256.Sum256([]byte(presented))
	s.mu.RLock()
	c := s.bySum[sum]
	s.mu.RUnlock()
	if c == nil {
		return nil, ErrUnknown
	}
	key := c.Key()
	if subtle.ConstantTimeCompare(key.sum[:], sum[:]) != 1 {
		return nil, ErrUnknown // replaced a moment ago
	}
	if key.Disabled {
		return nil, ErrDisabled
	}
	return c, nil
}

// Parse reads a key file: a list of keys in YAML, or in JSON, which is YAML too.
// Unknown fields, names and hashes given twice, and limits that are no limits
// are refused.
func Parse(text []byte) ([]Key, error) {
	if len(text) > maxFile {
		return nil, fmt.Errorf("larger than %d bytes", maxFile)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	var keys []Key
	switch err := decoder.Decode(&keys); {
	case errors.Is(err, io.EOF): // it may be about to be written
		return nil, errors.New("empty; write [] when nobody shall have a key")
	case err != nil:
		return nil, fmt.Errorf("%w; write a list of keys, each {name, hash} and its limits", err)
	}
	names, sums := map[string]bool{}, map[[sha256.Size]byte]string{}
	for i := range keys {
		k := &keys[i]
		if err := k.check(); err != nil {
			return nil, fmt.Errorf("key %d: %w", i+1, err)
		}
		if names[k.Name] {
			return nil, fmt.Errorf("key %d: name %s is given twice; name each key", i+1, k.Name)
		}
		if other, twice := sums[k.sum]; twice {
			return nil, fmt.Errorf("key %d: %s has the hash of %s; make a key of its own", i+1, k.Name, other)
		}
		names[k.Name], sums[k.sum] = true, k.Name
	}
	return keys, nil
}

// Append adds an entry to a key file, which only its owner may read when it is
// made here. It refuses a name that the file has already.
func Append(path string, entry Key) error {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("key file: %w", err)
	}
	if len(text) > 0 && text[len(text)-1] != '\n' {
		text = append(text, '\n')
	}
	text = append(text, entry.Line()+"\n"...)
	if _, err := Parse(text); err != nil {
		return fmt.Errorf("key file %s: %w", path, err)
	}
	temporary := path + ".new"
	if err := os.WriteFile(temporary, text, 0o600); err != nil {
		return fmt.Errorf("key file: %w", err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return fmt.Errorf("key file: %w", err)
	}
	return nil
}
