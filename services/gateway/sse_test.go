package gateway

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// collector feeds an eventStream and keeps what it passes on.
type collector struct {
	eventStream
	out    bytes.Buffer
	atDone int // bytes passed on when the end was announced; -1 before
	clock  time.Time
}

func newCollector(strip bool) *collector {
	c := &collector{atDone: -1, clock: time.Unix(1000, 0)}
	c.eventStream = eventStream{
		answer: &answer{}, strip: strip,
		emit:   func(b []byte) error { c.out.Write(b); return nil },
		onDone: func() { c.atDone = c.out.Len() },
	}
	return c
}

// step feeds text one second after the step before.
func (c *collector) step(t *testing.T, text string) {
	t.Helper()
	c.clock = c.clock.Add(time.Second)
	if err := c.feed([]byte(text), c.clock); err != nil {
		t.Fatal(err)
	}
}

func (c *collector) seconds(at time.Time) int {
	if at.IsZero() {
		return -1
	}
	return int(at.Sub(time.Unix(1000, 0)) / time.Second)
}

const (
	eventRole    = `data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
	eventEmpty   = `data: {"choices":[{"delta":{"content":"","tool_calls":[],"reasoning_content":null}}]}` + "\n\n"
	eventHello   = `data: {"choices":[{"delta":{"content":"hel\"usage\":{lo"},"finish_reason":null}],"usage":null}` + "\n\n"
	eventWorld   = `data: {"choices":[{"delta":{"content":" world"},"finish_reason":null}]}` + "\n\n"
	eventStop    = `data: {"choices":[{"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	eventUsage   = `data: {"choices":[],"usage":{"prompt_tokens":40,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":32}},"warmpath_timing":{"clock":"model","ttft_us":7}}` + "\n\n"
	eventDone    = "data: [DONE]\n\n"
	eventComment = ": keep-alive\n\n"
)

func TestEventsFirstContentIsTTFT(t *testing.T) {
	for name, first := range map[string]string{
		"content":   `{"choices":[{"delta":{"content":"a"}}]}`,
		"reasoning": `{"choices":[{"delta":{"reasoning_content":"a"}}]}`,
		"tool call": `{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}`,
		"text":      `{"choices":[{"text":"a"}]}`,
		"second":    `{"choices":[{"delta":{"content":""}},{"delta":{"content":"b"}}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			c := newCollector(false)
			c.step(t, eventRole)
			c.step(t, eventEmpty)
			c.step(t, eventComment)
			if !c.answer.firstAt.IsZero() {
				t.Fatal("an event without content counts as the first token")
			}
			c.step(t, "data: "+first+"\n\n")
			c.step(t, eventWorld)
			c.step(t, eventStop)
			c.step(t, eventUsage)
			if a := c.answer; c.seconds(a.firstAt) != 4 || c.seconds(a.lastAt) != 5 {
				t.Errorf("first content at %d, last at %d; want 4 and 5", c.seconds(a.firstAt), c.seconds(a.lastAt))
			}
		})
	}
}

func TestEventsTakeOutcome(t *testing.T) {
	c := newCollector(true)
	c.step(t, eventRole+eventHello+eventWorld+eventStop+eventUsage+eventDone)
	a := c.answer
	if a.finishReason != "stop" || *a.promptTokens != 40 || *a.completionTokens != 3 || *a.cachedTokens != 32 || *a.timing.TTFTUS != 7 || a.failed {
		t.Errorf("got %+v", a)
	}
	if got, want := c.out.String(), eventRole+eventHello+eventWorld+eventStop+eventDone; got != want {
		t.Errorf("passed on %q, want %q", got, want)
	}
	if c.atDone < 0 || strings.Contains(c.out.String()[:c.atDone], "[DONE]") {
		t.Error("the end was passed on before it was announced")
	}
}

func TestEventsCachedTokensTriState(t *testing.T) {
	for details, want := range map[string]string{
		``:                              "absent",
		`,"prompt_tokens_details":null`: "absent",
		`,"prompt_tokens_details":{"cached_tokens":null}`: "absent",
		`,"prompt_tokens_details":{"cached_tokens":0}`:    "0",
		`,"prompt_tokens_details":{"cached_tokens":16}`:   "16",
	} {
		c := newCollector(true)
		c.step(t, `data: {"choices":[],"usage":{"prompt_tokens":40`+details+"}}\n\n")
		got := "absent"
		if n := c.answer.cachedTokens; n != nil {
			got = fmt.Sprint(*n)
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", details, got, want)
		}
	}
}

func TestEventsUsageWithChoicesStays(t *testing.T) {
	event := `data: {"choices":[{"delta":{"content":"x"}}],"usage":{"prompt_tokens":4,"completion_tokens":1}}` + "\n\n"
	c := newCollector(true)
	c.step(t, event)
	if c.out.String() != event || *c.answer.completionTokens != 1 {
		t.Errorf("got %q", c.out.String())
	}
}

func TestEventsError(t *testing.T) {
	c := newCollector(false)
	c.step(t, eventHello)
	c.step(t, `data: { "error": {"message":"out of memory"}}`+"\n\n")
	if !c.answer.failed {
		t.Error("the error was not seen")
	}
}

func TestEventsWithoutStripAreNotHeld(t *testing.T) {
	c := newCollector(false)
	half := eventHello[:20]
	c.step(t, half)
	if c.out.String() != half {
		t.Errorf("passed on %q of %q", c.out.String(), half)
	}
}

func TestEventsDoneLineIsAnnouncedFirst(t *testing.T) {
	for _, strip := range []bool{false, true} {
		c := newCollector(strip)
		c.step(t, "data: [DO")
		c.step(t, "NE]\n")
		if !strip && c.atDone != len("data: [DO") {
			t.Errorf("announced at %d", c.atDone)
		}
		c.step(t, "\n")
		if c.out.String() != eventDone || c.atDone < 0 {
			t.Errorf("strip %v: got %q, announced at %d", strip, c.out.String(), c.atDone)
		}
	}
}

func TestEventsOversized(t *testing.T) {
	big := `data: {"choices":[{"delta":{"content":"` + strings.Repeat("x", 3*maxHeldEvent) + `"}}]}` + "\n\n"
	for _, strip := range []bool{false, true} {
		c := newCollector(strip)
		all := eventRole + big + eventStop + eventUsage + eventDone
		for part := range slices.Chunk([]byte(all), readBuffer) {
			c.step(t, string(part))
		}
		want := all
		if strip {
			want = eventRole + big + eventStop + eventDone
		}
		if c.out.String() != want {
			t.Errorf("strip %v: the stream was changed: %d bytes, want %d", strip, c.out.Len(), len(want))
		}
		if c.answer.finishReason != "stop" || c.answer.cachedTokens == nil || c.answer.firstAt.IsZero() {
			t.Errorf("strip %v: got %+v", strip, c.answer)
		}
		if cap(c.held) > 2*maxHeldEvent {
			t.Errorf("%d bytes were held", cap(c.held))
		}
	}
}

func TestEventsCutShort(t *testing.T) {
	c := newCollector(true)
	c.step(t, eventHello+"data: {\"choi")
	if err := c.close(); err != nil || c.out.String() != eventHello+"data: {\"choi" {
		t.Errorf("got %q, %v", c.out.String(), err)
	}
}

// However a stream is cut into reads, the same bytes go on and the same is learnt.
func FuzzEvents(f *testing.F) {
	f.Add(uint64(1), eventRole+eventHello+eventStop+eventUsage+eventDone, true)
	f.Add(uint64(2), strings.ReplaceAll(eventRole+eventUsage+eventDone, "\n", "\r\n"), true)
	f.Add(uint64(3), "\n\n\r\n:x\ndata:a\ndata: b\n\n"+eventUsage+"tail", false)
	f.Fuzz(func(t *testing.T, seed uint64, text string, strip bool) {
		whole := newCollector(strip)
		whole.step(t, text)
		_ = whole.close()
		if !strip && whole.out.String() != text {
			t.Fatalf("%q became %q", text, whole.out.String())
		}
		parts := newCollector(strip)
		random := rand.New(rand.NewPCG(seed, 1))
		for rest := text; rest != ""; {
			n := 1 + random.IntN(min(len(rest), 40))
			parts.step(t, rest[:n])
			rest = rest[n:]
		}
		_ = parts.close()
		if parts.out.String() != whole.out.String() {
			t.Fatalf("in parts %q, whole %q", parts.out.String(), whole.out.String())
		}
		if a, b := parts.answer, whole.answer; a.finishReason != b.finishReason || a.failed != b.failed ||
			(a.cachedTokens == nil) != (b.cachedTokens == nil) || a.firstAt.IsZero() != b.firstAt.IsZero() {
			t.Fatalf("in parts %+v, whole %+v", a, b)
		}
	})
}

func BenchmarkEvents(b *testing.B) {
	var stream bytes.Buffer
	stream.WriteString(eventRole)
	for range 343 {
		stream.WriteString(`data: {"id":"cmpl-0192f","object":"text_completion","created":1790000000,"model":"llama-3-70b","choices":[{"index":0,"text":" the","logprobs":null,"finish_reason":null,"stop_reason":null}],"usage":null}` + "\n\n")
	}
	stream.WriteString(eventStop + eventUsage + eventDone)
	for _, strip := range []bool{false, true} {
		b.Run(fmt.Sprintf("strip=%v", strip), func(b *testing.B) {
			b.SetBytes(int64(stream.Len()))
			b.ReportAllocs()
			for b.Loop() {
				c := eventStream{answer: &answer{}, strip: strip, emit: func([]byte) error { return nil }, onDone: func() {}}
				for part := range bytes.SplitAfterSeq(stream.Bytes(), []byte("\n\n")) {
					if len(part) == 0 {
						continue
					}
					if err := c.feed(part, time.Time{}.Add(time.Second)); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
