// Package apikey knows who may use a gateway: keys that are stored as hashes in
// a file, what each of them may do, and how much of it is left.
//
// A key is 256 random bits. Its SHA-256 is what the file holds: there is nothing
// to guess, so that a slow, salted hash as for passwords would protect nothing
// and cost every request milliseconds. That holds only for keys made by New.
package apikey

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"warmpath/streams"
)

const (
	// prefix marks keys, so that scanners for leaked secrets can find them.
	prefix = "wp-"
	// hashPrefix names the hash in a file, should there be another one day.
	hashPrefix = "sha256:"
	// maxPresented bounds what is hashed of a header.
	maxPresented = 512
)

// Salts of a key, beside a name that several keys share.
const (
	// SaltOwn keeps the blocks of a key's requests to that key. The default.
	SaltOwn = "own"
	// SaltShared lets a key use the blocks of all others that are shared.
	SaltShared = "shared"
)

// Key is one entry of a key file. Zero limits mean no limit.
type Key struct {
	// Name says whose key it is, in metrics and logs.
	Name string `yaml:"name" json:"name"`
	// Hash is sha256: and the SHA-256 of the key in hexadecimal.
	Hash string `yaml:"hash" json:"hash"`
	// Salt is SaltOwn, SaltShared, or a name: keys with the same name share blocks.
	Salt string `yaml:"salt,omitempty" json:"salt,omitempty"`
	// Models are the models and adapters that the key may use; none for all.
	Models []string `yaml:"models,omitempty" json:"models,omitempty"`
	// Disabled keys are recognized and refused.
	Disabled bool `yaml:"disabled,omitempty" json:"disabled,omitempty"`
	// RequestsPerSecond is the sustained rate, Burst how many may come at once;
	// Burst is one second's requests, at least one, when it is 0.
	RequestsPerSecond float64 `yaml:"requests_per_second,omitempty" json:"requests_per_second,omitempty"`
	Burst             int     `yaml:"burst,omitempty" json:"burst,omitempty"`
	// Concurrent bounds the requests in flight, those that wait included.
	Concurrent int `yaml:"concurrent,omitempty" json:"concurrent,omitempty"`
	// TokensPerMinute bounds prompt and completion tokens. A request may take more
	// than is left, and the next ones wait until that is made up for.
	TokensPerMinute float64 `yaml:"tokens_per_minute,omitempty" json:"tokens_per_minute,omitempty"`

	sum [sha256.Size]byte
}

// New makes a key: the secret, which exists nowhere else, and its entry.
func New(name string) (secret string, entry Key, err error) {
	if err := streams.ValidName(name); err != nil {
		return "", Key{}, fmt.Errorf("name: %w", err)
	}
	random := make([]byte, 32)
	if _, err := rand.Read(random); err != nil {
		return "", Key{}, fmt.Errorf("read random bytes: %w", err)
	}
	secret = prefix + base64.RawURLEncoding.EncodeToString(random)
	sum := sha256.Sum256([]byte(secret))
	return secret, Key{Name: name, Hash: hashPrefix + hex.EncodeToString(sum[:]), sum: sum}, nil
}

// Line is the entry as one line of a key file.
func (k Key) Line() string {
	return fmt.Sprintf("- {name: %s, hash: %q}", k.Name, k.Hash)
}

// Allows reports whether the key may use a model or adapter.
func (k *Key) Allows(model string) bool {
	if len(k.Models) == 0 {
		return true
	}
	for _, m := range k.Models {
		if m == model {
			return true
		}
	}
	return false
}

// check refuses an entry that cannot be meant, and fills in its sum.
func (k *Key) check() error {
	if err := streams.ValidName(k.Name); err != nil {
		return fmt.Errorf("name: %w", err)
	}
	text, ok := strings.CutPrefix(k.Hash, hashPrefix)
	sum, err := hex.DecodeString(text)
	if !ok || err != nil || len(sum) != sha256.Size {
		return fmt.Errorf("hash of key %s is not %s and 64 hexadecimal digits; make one with warmpath gateway keys new %s", k.Name, hashPrefix, k.Name)
	}
	copy(k.sum[:], sum)
	if k.Salt == "" {
		k.Salt = SaltOwn
	}
	if err := streams.ValidName(k.Salt); err != nil {
		return fmt.Errorf("salt of key %s: %w; give own, shared, or a name that several keys share", k.Name, err)
	}
	for _, limit := range []struct {
		name  string
		value float64
	}{
		{"requests_per_second", k.RequestsPerSecond}, {"burst", float64(k.Burst)},
		{"concurrent", float64(k.Concurrent)}, {"tokens_per_minute", k.TokensPerMinute},
	} {
		if !(limit.value >= 0) { // refuses what is no number, too
			return fmt.Errorf("%s of key %s is %v; give a positive number, or leave it out for no limit", limit.name, k.Name, limit.value)
		}
	}
	if k.Burst > 0 && k.RequestsPerSecond == 0 {
		return fmt.Errorf("burst of key %s has no requests_per_second; give both", k.Name)
	}
	return nil
}

// Errors of Authenticate.
var (
	// ErrMissing: the request carries no key.
	ErrMissing = errors.New("no API key")
	// ErrUnknown: the key is none of the file.
	ErrUnknown = errors.New("unknown API key")
	// ErrDisabled: the key is known, and may not be used.
	ErrDisabled = errors.New("disabled API key")
)
