package gateway

import (
	"crypto/tls"
	"fmt"
	"os"
	"sync"
	"time"
)

// certificate is the server's certificate from two files, read again when they
// change, as they do where certificates live for days. Safe for concurrent use.
type certificate struct {
	certFile, keyFile string

	mu       sync.Mutex
	pair     *tls.Certificate
	modified [2]time.Time
	looked   time.Time
}

// lookEvery bounds how often handshakes look at the files.
const lookEvery = time.Second

func loadCertificate(certFile, keyFile string) (*certificate, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile}
	if err := c.load(c.times()); err != nil {
		return nil, fmt.Errorf("certificate: %w; check --tls-cert and --tls-key", err)
	}
	return c, nil
}

// times are when the files changed.
func (c *certificate) times() (modified [2]time.Time) {
	for i, name := range []string{c.certFile, c.keyFile} {
		if info, err := os.Stat(name); err == nil {
			modified[i] = info.ModTime()
		}
	}
	return modified
}

func (c *certificate) load(modified [2]time.Time) error {
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return err
	}
	c.pair, c.modified = &pair, modified
	return nil
}

// get is tls.Config.GetCertificate. While new files cannot be used, because the
// second one is not written yet, the certificate from before stays.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.looked) >= lookEvery {
		c.looked = now
		if modified := c.times(); modified != c.modified {
			_ = c.load(modified) // looked at again in a second
		}
	}
	return c.pair, nil
}
