package tokensource

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"warmpath/tokenize"
)

// Kinds of engines that differ from vLLM, as the fleet names them.
const (
	kindSGLang = "sglang"
	kindTRTLLM = "trtllm"
)

const (
	// maxAnswer bounds an answer: a million ids take eight bytes each.
	maxAnswer = 64 << 20
	// patience is how many questions in a row may fail before the next ones wait
	// no more, and pause for how long then: a request must not pay the timeout each
	// time while no engine answers.
	patience = 4
	pause    = time.Second
)

// engines asks the pool's engines for tokens. Safe for concurrent use.
type engines struct {
	list    func() []Replica
	key     string
	timeout time.Duration
	client  *http.Client
	answers *answers
	turn    atomic.Uint64

	failures   atomic.Int64
	pausedTill atomic.Int64 // Unix nanoseconds

	asked, retried atomic.Uint64
}

func newEngines(cfg Config) *engines {
	timeout := cmp.Or(cfg.Timeout, 500*time.Millisecond)
	return &engines{
		list: cfg.Engines, key: cfg.EngineKey, timeout: timeout,
		client: &http.Client{Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: timeout}).DialContext,
			MaxIdleConnsPerHost: 64, IdleConnTimeout: 90 * time.Second, ForceAttemptHTTP2: false,
		}},
		answers: newAnswers(cmp.Or(cfg.AnswerBytes, 64<<20), cmp.Or(cfg.AnswerAge, 10*time.Minute)),
	}
}

// ask appends a prompt's ids to dst, from memory or from an engine: one, and when
// it cannot say, one other.
func (e *engines) ask(ctx context.Context, p *Prompt, dst []uint32) ([]uint32, error) {
	replicas := e.able()
	if len(replicas) == 0 {
		return dst, unavailable("no_engine", "no live engine of the pool has /tokenize")
	}
	if e.paused(time.Now()) {
		return dst, unavailable("waiting", "engines did not answer /tokenize; they are asked again in a moment")
	}
	start := e.turn.Add(1)
	var last error
	for try := range min(2, len(replicas)) {
		to := replicas[(start+uint64(try))%uint64(len(replicas))]
		if try > 0 {
			e.retried.Add(1)
		}
		ids, err := e.askOne(ctx, to, p, dst)
		var refused *PromptError
		if err == nil || errors.As(err, &refused) {
			e.failures.Store(0)
			return ids, err
		}
		last = err
		if ctx.Err() != nil {
			return dst, &UnavailableError{Reason: "canceled", Err: err}
		}
	}
	var unsupported *UnavailableError
	if errors.As(last, &unsupported) {
		return dst, last // the engine answered: waiting helps nobody
	}
	if e.failures.Add(1) >= patience {
		e.pausedTill.Store(time.Now().Add(pause).UnixNano())
	}
	return dst, &UnavailableError{Reason: "engine", Err: last}
}

// able are the replicas that have /tokenize.
func (e *engines) able() []Replica {
	var out []Replica
	for _, r := range e.list() {
		if r.Address != "" && r.Kind != kindTRTLLM {
			out = append(out, r)
		}
	}
	return out
}

// paused reports whether engines are not to be asked now. One question gets
// through after each pause.
func (e *engines) paused(now time.Time) bool {
	till := e.pausedTill.Load()
	if till == 0 {
		return false
	}
	if e.failures.Load() == 0 {
		e.pausedTill.CompareAndSwap(till, 0)
		return false
	}
	return now.UnixNano() < till || !e.pausedTill.CompareAndSwap(till, now.Add(pause).UnixNano())
}

// askOne asks one engine, or the memory of what engines of its kind said.
func (e *engines) askOne(ctx context.Context, to Replica, p *Prompt, dst []uint32) ([]uint32, error) {
	body, err := question(to.Kind, p)
	if err != nil {
		return dst, err
	}
	name := e.answers.name(to.Kind, body)
	if ids, ok := e.answers.get(name, time.Now()); ok {
		return append(dst, ids...), nil
	}
	before := len(dst)
	ids, err := e.post(ctx, to, body, dst)
	if err != nil {
		return dst, err
	}
	e.answers.put(name, ids[before:], time.Now())
	return ids, nil
}

func (e *engines) post(ctx context.Context, to Replica, body []byte, dst []uint32) ([]uint32, error) {
	e.asked.Add(1)
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, to.Address+"/tokenize", bytes.NewReader(body))
	if err != nil {
		return dst, fmt.Errorf("replica %s: %w", to.Name, err)
	}
	request.Header.Set("Content-Type", "application/json")
	if e.key != "" {
		request.Header.Set("Authorization", "Bearer "+e.key)
	}
	response, err := e.client.Do(request)
	if err != nil {
		return dst, fmt.Errorf("replica %s: %w", to.Name, err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err != nil {
		return dst, fmt.Errorf("replica %s: %w", to.Name, err)
	}
	if len(answer) > maxAnswer {
		return dst, fmt.Errorf("replica %s: its answer has more than %d bytes", to.Name, maxAnswer)
	}
	if response.StatusCode != http.StatusOK {
		return dst, refusal(to, response.StatusCode, answer)
	}
	ids, err := idsOf(answer, dst)
	if err != nil {
		return dst, fmt.Errorf("replica %s: its answer: %w", to.Name, err)
	}
	return ids, nil
}

// idsOf reads an answer of /tokenize: {"tokens": […], "count": n, …}.
func idsOf(answer []byte, dst []uint32) ([]uint32, error) {
	var fields struct {
		Tokens json.RawMessage `json:"tokens"`
		Count  json.RawMessage `json:"count"`
	}
	if err := json.Unmarshal(answer, &fields); err != nil {
		return dst, err
	}
	before := len(dst)
	ids, _, err := tokenize.AppendIDs(dst, fields.Tokens)
	if err != nil {
		return dst, fmt.Errorf("tokens: %w", err)
	}
	var count int
	if len(fields.Count) > 0 && (json.Unmarshal(fields.Count, &count) != nil || count != len(ids)-before) {
		return dst, fmt.Errorf("count is %s and there are %d tokens", fields.Count, len(ids)-before)
	}
	return ids, nil
}
