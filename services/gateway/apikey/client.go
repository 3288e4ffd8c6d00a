package apikey

import (
	"fmt"
	"sync"
	"time"
)

// Client is a key in use: its entry, and what of its limits is left. It is safe
// for concurrent use.
type Client struct {
	mu       sync.Mutex
	key      *Key
	inFlight int
	requests bucket
	tokens   bucket
}

// bucket refills steadily up to its size.
type bucket struct {
	left float64
	at   time.Time // when left was true; zero for a full bucket
}

// fill brings a bucket up to now.
func (b *bucket) fill(perSecond, size float64, now time.Time) {
	if b.at.IsZero() {
		b.left = size
	} else if passed := now.Sub(b.at).Seconds(); passed > 0 {
		b.left += passed * perSecond
	}
	b.left, b.at = min(b.left, size), now
}

// LimitError says which limit of a key is reached, and when to try again.
type LimitError struct {
	// Limit is the limit's name in the key file.
	Limit string
	// Value is the limit.
	Value float64
	// RetryAfter is when there may be room.
	RetryAfter time.Duration
}

// Error implements error.
func (e *LimitError) Error() string {
	return fmt.Sprintf("this API key is limited to %s %v", e.Limit, e.Value)
}

// set gives the client its entry, and keeps what it used.
func (c *Client) set(key *Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.key = key
}

// Key is the client's entry now. It must not be changed.
func (c *Client) Key() *Key {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.key
}

// Begin takes a request in, or returns a *LimitError. Each nil must be followed
// by one Done.
func (c *Client) Begin(now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.key
	if k.Concurrent > 0 && c.inFlight >= k.Concurrent {
		return &LimitError{Limit: "concurrent", Value: float64(k.Concurrent), RetryAfter: time.Second}
	}
	if rate := k.TokensPerMinute / 60; rate > 0 {
		c.tokens.fill(rate, k.TokensPerMinute, now)
		if c.tokens.left <= 0 {
			return &LimitError{Limit: "tokens_per_minute", Value: k.TokensPerMinute, RetryAfter: wait(-c.tokens.left, rate)}
		}
	}
	if rate := k.RequestsPerSecond; rate > 0 {
		c.requests.fill(rate, k.burst(), now)
		if c.requests.left < 1 {
			return &LimitError{Limit: "requests_per_second", Value: rate, RetryAfter: wait(1-c.requests.left, rate)}
		}
		c.requests.left--
	}
	c.inFlight++
	return nil
}

// wait is how long a bucket takes to gain what is missing.
func wait(missing, perSecond float64) time.Duration {
	return time.Duration(min(missing/perSecond, 3600) * float64(time.Second))
}

// Use takes tokens that a request cost.
func (c *Client) Use(tokens uint64, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if rate := c.key.TokensPerMinute / 60; rate > 0 {
		c.tokens.fill(rate, c.key.TokensPerMinute, now)
		c.tokens.left -= float64(tokens)
	}
}

// Done ends a request that Begin took in.
func (c *Client) Done() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inFlight--
}

// burst is how many requests may come at once.
func (k *Key) burst() float64 {
	if k.Burst > 0 {
		return float64(k.Burst)
	}
	return max(1, k.RequestsPerSecond)
}
