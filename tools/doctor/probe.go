package doctor

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

const (
	// answerTimeout bounds a probe: a busy engine queues it.
	answerTimeout = 60 * time.Second
	maxAnswer     = 1 << 20
	// A probe's prompt is some blocks long, and at least and at most so many words,
	// each a token or two.
	probeBlocks, minProbeWords, maxProbeWords = 6, 96, 2048
)

// asking is what the probes brought.
type asking struct {
	// done is true when both answers came. err says why they did not; it is nil
	// when no probe was to be made.
	done bool
	err  error
	// promptTokens is as the engine counts. cached are the cached tokens of the two
	// answers: nil, zero and positive are three things.
	promptTokens int
	cached       [2]*int
}

// probe sends a new prompt twice.
func (x *examination) probe(ctx context.Context) asking {
	var a asking
	if !x.Probe || !x.answers || x.engine.Model == "" {
		return a
	}
	prompt := x.prompt()
	for i := range a.cached {
		said, err := x.ask(ctx, prompt)
		if err != nil {
			a.err = err
			return a
		}
		a.promptTokens, a.cached[i] = said.PromptTokens, said.Details.Cached
	}
	a.done = true
	return a
}

// await waits until the events of the probe came, or for as long as it is to
// listen. A subscription may have come into force only after the first prompts, so
// that another one is sent halfway.
func (x *examination) await(ctx context.Context, w *watching, a asking) {
	told := func() bool {
		t := w.total()
		return a.done && (t.stored > 0 || t.unreadable > 0 || len(t.ignored) > 0)
	}
	if !w.stands() || w.until(ctx, x.Wait/2, told) {
		return
	}
	if a.done {
		_, _ = x.ask(ctx, x.prompt()) // whether events come is what counts
	}
	w.until(ctx, x.Wait/2, told)
}

// prompt is a new prompt, so that nothing of it is cached, of some blocks.
func (x *examination) prompt() string {
	words := min(max(probeBlocks*max(x.engine.BlockTokens, x.BlockTokens), minProbeWords), maxProbeWords)
	if most := x.engine.MaxModelLen / 4; most > 0 {
		words = min(words, most)
	}
	var b strings.Builder
	b.WriteString(rand.Text())
	for i := range words {
		fmt.Fprintf(&b, " %d", i%10)
	}
	return b.String()
}

// usage is the part of an answer that tells tokens.
type usage struct {
	PromptTokens int `json:"prompt_tokens"`
	Details      struct {
		Cached *int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// errNoSuchAPI is the answer of an engine that does not serve an API.
var errNoSuchAPI = errors.New("the engine does not serve it")

// ask sends a prompt for one token, as a completion or else as a chat.
func (x *examination) ask(ctx context.Context, prompt string) (usage, error) {
	said, err := x.post(ctx, "/v1/completions", map[string]any{"prompt": prompt})
	if !errors.Is(err, errNoSuchAPI) {
		return said, err
	}
	return x.post(ctx, "/v1/chat/completions", map[string]any{"messages": []map[string]string{{"role": "user", "content": prompt}}})
}

func (x *examination) post(ctx context.Context, path string, body map[string]any) (usage, error) {
	body["model"], body["max_tokens"], body["temperature"], body["stream"] = x.engine.Model, 1, 0, false
	encoded, err := json.Marshal(body)
	if err != nil {
		return usage{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, x.URL+path, bytes.NewReader(encoded))
	if err != nil {
		return usage{}, err
	}
	request.Header.Set("Content-Type", "application/json")
	if x.engine.Ranks > 1 {
		request.Header.Set("X-data-parallel-rank", "0") // or the two go to two caches
	}
	answer, status, err := x.send(request)
	switch {
	case err != nil:
		return usage{}, fmt.Errorf("%s: %w", path, err)
	case status == http.StatusNotFound || status == http.StatusMethodNotAllowed:
		return usage{}, fmt.Errorf("%s: %w", path, errNoSuchAPI)
	case status != http.StatusOK:
		return usage{}, fmt.Errorf("%s answers %d %s", path, status, http.StatusText(status))
	}
	var said struct {
		Usage usage `json:"usage"`
	}
	if err := json.Unmarshal(answer, &said); err != nil {
		return usage{}, fmt.Errorf("%s: %w", path, err)
	}
	return said.Usage, nil
}

// send makes a request with the key, and returns a bounded answer.
func (x *examination) send(request *http.Request) (body []byte, status int, err error) {
	if x.EngineKey != "" {
		request.Header.Set("Authorization", "Bearer "+x.EngineKey)
	}
	response, err := x.http.RoundTrip(request)
	if err != nil {
		return nil, 0, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	return body, response.StatusCode, err
}

// polled reports whether the engine has TensorRT-LLM's page of events. It is asked
// in a way that takes none of them.
func (x *examination) polled(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, questionTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, x.URL+"/kv_cache_events", nil)
	if err != nil {
		return false
	}
	_, status, err := x.send(request)
	return err == nil && status == http.StatusMethodNotAllowed
}
