package gateway

import (
	"bytes"
	"encoding/json"
	"time"
)

// answer is what outcomes take from an engine's answer.
type answer struct {
	promptTokens     *uint64
	completionTokens *uint64
	cachedTokens     *uint64 // nil when the engine did not say, which is not zero
	finishReason     string
	timing           *timing
	// failed is set by an error that the engine put into a stream.
	failed bool
	// firstAt and lastAt are when content first and last came; zero for none.
	firstAt, lastAt time.Time
}

// usage is the API's usage object.
type usage struct {
	PromptTokens        *uint64 `json:"prompt_tokens"`
	CompletionTokens    *uint64 `json:"completion_tokens"`
	PromptTokensDetails *struct {
		CachedTokens *uint64 `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// timing is what a simulated engine says of its model time.
type timing struct {
	Clock   string  `json:"clock"`
	QueueUS *uint64 `json:"queue_us"`
	TTFTUS  *uint64 `json:"ttft_us"`
	E2EUS   *uint64 `json:"e2e_us"`
	TPOTUS  *uint64 `json:"tpot_us"`
}

// part is an answer's body, or one event of a streamed one.
type part struct {
	Choices []struct {
		Text         string                     `json:"text"`
		Delta        map[string]json.RawMessage `json:"delta"`
		FinishReason *string                    `json:"finish_reason"`
	} `json:"choices"`
	Usage  *usage          `json:"usage"`
	Timing *timing         `json:"warmpath_timing"`
	Error  json.RawMessage `json:"error"`
}

// content reports whether a part carries anything that was generated: text, or
// any delta but the role, which vLLM sends before it has computed anything.
func (p *part) content() bool {
	for i := range p.Choices {
		if p.Choices[i].Text != "" {
			return true
		}
		for name, value := range p.Choices[i].Delta {
			if name != "role" && !empty(value) {
				return true
			}
		}
	}
	return false
}

func empty(value json.RawMessage) bool {
	switch string(value) {
	case "", "null", `""`, "[]", "{}":
		return true
	}
	return false
}

// take keeps what a part says.
func (a *answer) take(p *part) {
	if p.Usage != nil {
		if p.Usage.PromptTokens != nil {
			a.promptTokens = p.Usage.PromptTokens
		}
		if p.Usage.CompletionTokens != nil {
			a.completionTokens = p.Usage.CompletionTokens
		}
		if d := p.Usage.PromptTokensDetails; d != nil && d.CachedTokens != nil {
			a.cachedTokens = d.CachedTokens
		}
	}
	if p.Timing != nil {
		a.timing = p.Timing
	}
	for i := range p.Choices {
		if reason := p.Choices[i].FinishReason; reason != nil && *reason != "" {
			a.finishReason = *reason
		}
	}
	if !empty(p.Error) {
		a.failed = true
	}
}

// takeBody reads a whole answer that is not streamed. One that is not JSON says nothing.
func (a *answer) takeBody(body []byte) {
	var p part
	if json.Unmarshal(body, &p) == nil {
		a.take(&p)
	}
}

// hasMember reports whether some member of that quoted name has a value that
// starts with a byte. Inside a JSON string the name's quotes would be escaped,
// so text cannot look like a member.
func hasMember(data, name []byte, first byte) bool {
	for {
		i := bytes.Index(data, name)
		if i < 0 {
			return false
		}
		data = bytes.TrimLeft(data[i+len(name):], " \t\r\n")
		if len(data) == 0 || data[0] != ':' {
			continue // a string value, not a member's name
		}
		if data = bytes.TrimLeft(data[1:], " \t\r\n"); len(data) > 0 && data[0] == first {
			return true
		}
	}
}
