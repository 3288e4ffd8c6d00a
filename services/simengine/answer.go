package simengine

import (
	"encoding/json"
	"strconv"
	"time"

	"warmpath/engine"
)

// usage counts a request's tokens. cached_tokens is always there.
type usage struct {
	PromptTokens        int           `json:"prompt_tokens"`
	TotalTokens         int           `json:"total_tokens"`
	CompletionTokens    int           `json:"completion_tokens"`
	PromptTokensDetails promptDetails `json:"prompt_tokens_details"`
}

type promptDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

// timing is the request's time on the model clock, in microseconds. With it a
// gateway can report times that are true to the modelled hardware.
type timing struct {
	Clock   string `json:"clock"`
	QueueUS int64  `json:"queue_us"`
	TTFTUS  int64  `json:"ttft_us"`
	E2EUS   int64  `json:"e2e_us"`
	TPOTUS  *int64 `json:"tpot_us,omitempty"` // absent below two tokens
}

func timingOf(out engine.Output) *timing {
	t := &timing{
		Clock:   "model",
		QueueUS: (out.Started - out.Submitted).Microseconds(),
		TTFTUS:  (out.FirstAt - out.Submitted).Microseconds(),
		E2EUS:   (out.At - out.Submitted).Microseconds(),
	}
	if out.Tokens > 1 {
		tpot := (out.At - out.FirstAt).Microseconds() / int64(out.Tokens-1)
		t.TPOTUS = &tpot
	}
	return t
}

// answer writes the parts of one answer.
type answer struct {
	call    *call
	id      string
	model   string
	created int64
	// modelTime adds the timing to the parts that carry usage.
	modelTime bool
	// before and after surround the choices of a streamed part.
	before, after []byte
}

func newAnswer(c *call, model string, modelTime bool) *answer {
	a := &answer{call: c, model: model, created: time.Now().Unix(), modelTime: modelTime}
	object := "text_completion"
	a.id = "cmpl-" + c.requestID
	if c.chat {
		object, a.id = "chat.completion.chunk", "chatcmpl-"+c.requestID
	}
	head, _ := json.Marshal(struct { // strings and numbers always encode
		ID      string `json:"id"`
		Object  string `json:"object"`
		Created int64  `json:"created"`
		Model   string `json:"model"`
	}{a.id, object, a.created, a.model})
	a.before = append([]byte("data: "), head[:len(head)-1]...)
	a.before = append(a.before, `,"choices":[`...)
	a.after = []byte("]}\n\n")
	if c.includeUsage {
		a.after = []byte("],\"usage\":null}\n\n")
	}
	return a
}

// appendRole appends the first part of a streamed chat answer.
func (a *answer) appendRole(dst []byte) []byte {
	dst = append(dst, a.before...)
	dst = append(dst, `{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}`...)
	return append(dst, a.after...)
}

// appendDelta appends a part with the text of tokens from to to, the last one if
// finished. The text is plain words and needs no escaping.
func (a *answer) appendDelta(dst []byte, from, to int, finished bool) []byte {
	c := a.call
	text := c.text[min(from, c.visible):min(to, c.visible)]
	dst = append(dst, a.before...)
	dst = append(dst, `{"index":0,`...)
	if c.chat {
		dst = append(dst, `"delta":{"content":"`...)
		dst = append(dst, text...)
		dst = append(dst, `"},"logprobs":null,"finish_reason":`...)
	} else {
		dst = append(dst, `"text":"`...)
		dst = append(dst, text...)
		dst = append(dst, `","logprobs":null,"finish_reason":`...)
	}
	if finished {
		dst = strconv.AppendQuote(dst, c.finishReason)
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, '}')
	return append(dst, a.after...)
}

// appendEnd appends what ends a stream: the usage if it was asked for, and the
// end mark.
func (a *answer) appendEnd(dst []byte, out engine.Output) []byte {
	if a.call.includeUsage {
		dst = append(dst, a.before...)
		dst = append(dst, `],"usage":`...)
		count, _ := json.Marshal(a.usage(out)) // numbers always encode
		dst = append(dst, count...)
		if a.modelTime {
			times, _ := json.Marshal(timingOf(out))
			dst = append(dst, `,"warmpath_timing":`...)
			dst = append(dst, times...)
		}
		dst = append(dst, "}\n\n"...)
	}
	return append(dst, "data: [DONE]\n\n"...)
}

func (a *answer) usage(out engine.Output) usage {
	prompt := a.call.request.Prompt.Tokens
	return usage{
		PromptTokens: prompt, CompletionTokens: out.Tokens, TotalTokens: prompt + out.Tokens,
		PromptTokensDetails: promptDetails{CachedTokens: out.CachedTokens},
	}
}

// body is the whole answer of a request that is not streamed.
func (a *answer) body(out engine.Output) []byte {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	type choice struct {
		Index        int      `json:"index"`
		Text         *string  `json:"text,omitempty"`
		Message      *message `json:"message,omitempty"`
		Logprobs     *string  `json:"logprobs"`
		FinishReason string   `json:"finish_reason"`
	}
	text := string(a.call.text[:a.call.visible])
	one := choice{FinishReason: a.call.finishReason}
	object := "text_completion"
	if a.call.chat {
		object, one.Message = "chat.completion", &message{Role: "assistant", Content: text}
	} else {
		one.Text = &text
	}
	var times *timing
	if a.modelTime {
		times = timingOf(out)
	}
	body, _ := json.Marshal(struct { // strings and numbers always encode
		ID      string   `json:"id"`
		Object  string   `json:"object"`
		Created int64    `json:"created"`
		Model   string   `json:"model"`
		Choices []choice `json:"choices"`
		Usage   usage    `json:"usage"`
		Timing  *timing  `json:"warmpath_timing,omitempty"`
	}{a.id, object, a.created, a.model, []choice{one}, a.usage(out), times})
	return body
}
