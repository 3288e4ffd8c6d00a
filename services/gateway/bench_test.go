package gateway

import (
	"io"
	"net/http"
	"testing"
)

// BenchmarkRequest is a request through everything: client, gateway, router over
// NATS, engine over HTTP, two events into JetStream. All of them share the
// machine, so the gateway's own cost is below this.
func BenchmarkRequest(b *testing.B) {
	for _, c := range []struct {
		name   string
		tokens int
		rest   string
	}{
		{"whole_1k_ids", 1000, ""},
		{"stream_1k_ids", 1000, `,"stream":true`},
		{"stream_100k_ids", 100_000, `,"stream":true`},
		{"stream_900k_ids", 900_000, `,"stream":true`},
	} {
		b.Run(c.name, func(b *testing.B) {
			e := newEnv(b)
			n := e.engine("engine-0", nil)
			e.router(choose(n))
			g := e.gateway(1, Config{})
			body := prompt(c.tokens, c.rest)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				response := g.post(completionsPath, body)
				if _, err := io.Copy(io.Discard, response.Body); err != nil || response.StatusCode != http.StatusOK {
					b.Fatal(response.Status, err)
				}
				_ = response.Body.Close()
			}
		})
	}
}
