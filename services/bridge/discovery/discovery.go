// Package discovery asks an engine over HTTP what it is and how busy it is: its
// kind, version and model, its block size, capacity and ranks, where it publishes
// KV events, and its load figures under the names of every generation. What an
// engine does not say stays unknown, and is named.
package discovery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// maxAnswer bounds what is read of an answer; metrics pages of large engines
	// are some hundred kilobytes.
	maxAnswer = 16 << 20
	// defaultTimeout bounds each question when the caller's client does not; the
	// engine is on the same host or near it.
	defaultTimeout = 2 * time.Second
	// absentFor is how long a page that an engine does not have is not asked for
	// again: an engine behind the same address may be upgraded.
	absentFor = 30 * time.Second
	// maxRedirects bounds how often one answer may point to another page.
	maxRedirects = 3
)

var (
	// ErrModel says that the engine answers, but that its model cannot be told.
	ErrModel = errors.New("the model cannot be told")
	// ErrKey says that the engine wants an API key, or another one.
	ErrKey = errors.New("the engine asks for an API key")
)

// Client asks one engine. It is safe for concurrent use.
type Client struct {
	// Key is sent as a bearer token when it is not empty. Set it before use.
	Key string

	base string
	http http.Client

	mu      sync.Mutex
	ranks   int                  // as Discover found them; 0 before
	kind    Kind                 // as the pages showed it; empty before
	missing []Missing            // of the last Load
	absent  map[string]time.Time // pages that are not there, and until when that is believed
}

// New returns a client of the engine at base, its URL without a path. Requests
// go through client's transport; a timeout of 2 s is used when it has none.
// Redirects to another host are not followed.
func New(base string, client *http.Client) *Client {
	c := &Client{base: strings.TrimRight(base, "/"), absent: map[string]time.Time{}}
	if client != nil {
		c.http = *client
	}
	if c.http.Timeout == 0 {
		c.http.Timeout = defaultTimeout
	}
	c.http.CheckRedirect = func(request *http.Request, via []*http.Request) error {
		first := via[0].URL
		if len(via) > maxRedirects || request.URL.Host != first.Host || request.URL.Scheme != first.Scheme {
			return http.ErrUseLastResponse
		}
		return nil
	}
	return c
}

// statusError is an answer that is not the page.
type statusError struct {
	path string
	code int
}

func (e *statusError) Error() string {
	return fmt.Sprintf("%s answers %d %s", e.path, e.code, http.StatusText(e.code))
}

// Is lets errors.Is find the answers that mean a missing or wrong key.
func (e *statusError) Is(target error) bool {
	return target == ErrKey && (e.code == http.StatusUnauthorized || e.code == http.StatusForbidden)
}

// notThere reports whether err says that the engine answers, but has no such page.
func notThere(err error) bool {
	var status *statusError
	return errors.As(err, &status) && slices.Contains([]int{http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented}, status.code)
}

// refused reports whether err is an answer of the engine at all.
func refused(err error) bool {
	var status *statusError
	return errors.As(err, &status)
}

// get reads one page.
func (c *Client) get(ctx context.Context, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return nil, fmt.Errorf("engine URL %q: %w", c.base, err)
	}
	if c.Key != "" {
		request.Header.Set("Authorization", "Bearer "+c.Key)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, &statusError{path: path, code: response.StatusCode}
	}
	if len(body) > maxAnswer {
		return nil, fmt.Errorf("%s: the answer is longer than %d MiB", path, maxAnswer>>20)
	}
	return body, nil
}

// getIfThere reads one page, unless it was not there a moment ago.
func (c *Client) getIfThere(ctx context.Context, path string) ([]byte, error) {
	c.mu.Lock()
	until, absent := c.absent[path]
	c.mu.Unlock()
	if absent && time.Now().Before(until) {
		return nil, &statusError{path: path, code: http.StatusNotFound}
	}
	body, err := c.get(ctx, path)
	c.mu.Lock()
	defer c.mu.Unlock()
	if notThere(err) {
		c.absent[path] = time.Now().Add(absentFor)
	} else {
		delete(c.absent, path)
	}
	return body, err
}
