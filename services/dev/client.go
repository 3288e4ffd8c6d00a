package dev

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"

	"warmpath/engine/workload"
)

const (
	// refusedTries and refusedPause bound how long a request waits for a gateway
	// that is being started again: no byte of it was sent.
	refusedTries = 150
	refusedPause = 100 * time.Millisecond
	// maxLine bounds one line of an answer's event stream.
	maxLine = 4 << 20
)

// client sends a trace's requests to an OpenAI API. It is safe for concurrent use.
type client struct {
	base  string // URL
	model string
	http  *http.Client
	pool  sync.Pool // of *[]byte, request bodies
}

func newClient(base, model string) *client {
	return &client{
		base: base, model: model,
		// Every request of the trace may be in flight; its connection is used again.
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true, WriteBufferSize: 64 << 10}},
		pool: sync.Pool{New: func() any { return new([]byte) }},
	}
}

// usage is what an answer says about its tokens.
type usage struct {
	PromptTokens uint64 `json:"prompt_tokens"`
	Details      *struct {
		Cached uint64 `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

func (u usage) cached() uint64 {
	if u.Details == nil {
		return 0
	}
	return u.Details.Cached
}

// complete makes one streamed request and reads the answer to its end.
func (c *client) complete(ctx context.Context, t *workload.Trace, s *workload.Session, r *workload.Request, id string) (usage, error) {
	buffer := c.pool.Get().(*[]byte)
	defer c.pool.Put(buffer)
	body, path := c.body((*buffer)[:0], t, s, r)
	*buffer = body
	for try := 0; ; try++ {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, bytes.NewReader(body))
		if err != nil {
			return usage{}, err
		}
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Accept", "text/event-stream")
		request.Header.Set("X-Request-Id", id)
		if s.ID != "" {
			request.Header.Set("X-Session-Id", s.ID)
		}
		response, err := c.http.Do(request)
		if errors.Is(err, syscall.ECONNREFUSED) && try < refusedTries {
			select {
			case <-ctx.Done():
				return usage{}, ctx.Err()
			case <-time.After(refusedPause):
			}
			continue
		}
		if err != nil {
			// Without the URL, which is the same in each and not the reason.
			return usage{}, fmt.Errorf("send request: %w", errors.Unwrap(err))
		}
		return readAnswer(response)
	}
}

// body appends a request's body, and says which path it is for.
func (c *client) body(dst []byte, t *workload.Trace, s *workload.Session, r *workload.Request) ([]byte, string) {
	dst = append(dst, `{"model":`...)
	dst = strconv.AppendQuote(dst, c.model)
	dst = append(dst, `,"stream":true,"stream_options":{"include_usage":true},"ignore_eos":true,"max_tokens":`...)
	dst = strconv.AppendInt(dst, int64(r.OutputTokens), 10)
	if r.Messages != nil {
		dst = append(append(dst, `,"messages":`...), r.Messages...)
		return append(dst, '}'), "/v1/chat/completions"
	}
	dst = t.AppendPrompt(append(dst, `,"prompt":`...), s, r)
	return append(dst, '}'), "/v1/completions"
}

// readAnswer reads an event stream to its end. An answer that is an error, or
// ends before it says that it is complete, is an error.
func readAnswer(response *http.Response) (usage, error) {
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 300)) // the status says enough
		return usage{}, fmt.Errorf("answer is %s: %s", response.Status, bytes.TrimSpace(text))
	}
	var said usage
	complete := false
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(make([]byte, 0, 4<<10), maxLine)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
		if !ok {
			continue
		}
		if data = bytes.TrimSpace(data); string(data) == "[DONE]" {
			complete = true
			continue
		}
		if !bytes.Contains(data, []byte(`"usage"`)) && !bytes.Contains(data, []byte(`"error"`)) {
			continue
		}
		var chunk struct {
			Usage *usage          `json:"usage"`
			Error json.RawMessage `json:"error"`
		}
		if err := json.Unmarshal(data, &chunk); err != nil {
			return said, fmt.Errorf("answer holds an event that is not JSON: %w", err)
		}
		if chunk.Usage != nil {
			said = *chunk.Usage
		}
		if len(chunk.Error) > 0 && string(chunk.Error) != "null" {
			return said, fmt.Errorf("answer broke off: %.200s", chunk.Error)
		}
	}
	if err := lines.Err(); err != nil {
		return said, fmt.Errorf("read answer: %w", err)
	}
	if !complete {
		return said, errors.New("answer ended before it was complete")
	}
	return said, nil
}
