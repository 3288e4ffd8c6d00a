package gateway

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "warmpath/schemas/warmpathv1"
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

// BenchmarkOverhead is what the gateway adds to a stream at 200 requests a
// second: the same requests, direct to the engine and through the gateway by
// turns, of 6,200 token ids and 50 events. Run it with -benchtime 2000x.
func BenchmarkOverhead(b *testing.B) {
	e := newEnv(b)
	events := eventRole + strings.Repeat(eventWorld, 49)
	n := e.engine("engine-0", func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		w.Header().Set("Content-Type", "text/event-stream")
		for event := range strings.SplitAfterSeq(events, "\n\n") {
			_, _ = io.WriteString(w, event)
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = io.WriteString(w, eventStop+eventUsage+eventDone)
	}, func(entry *pb.FleetEntry) { entry.BlockTokens = 16 })
	e.router(choose(n))
	g := e.gateway(1, Config{})
	body := prompt(6200, `,"stream":true`)
	transport := &http.Transport{MaxIdleConnsPerHost: 256}
	b.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: transport}
	var mu sync.Mutex
	first, whole := map[bool][]time.Duration{}, map[bool][]time.Duration{}
	one := func(through bool) {
		address := n.server.URL
		if through {
			address = g.Address()
		}
		start := time.Now()
		response, err := client.Post(address+completionsPath, "application/json", strings.NewReader(body))
		if err != nil {
			b.Error(err)
			return
		}
		defer response.Body.Close()
		_, _ = io.ReadFull(response.Body, make([]byte, len(eventRole)))
		ttft := time.Since(start)
		if _, err := io.Copy(io.Discard, response.Body); err != nil || response.StatusCode != http.StatusOK {
			b.Errorf("got %s, %v", response.Status, err)
		}
		mu.Lock()
		defer mu.Unlock()
		first[through] = append(first[through], ttft)
		whole[through] = append(whole[through], time.Since(start))
	}
	var requests sync.WaitGroup
	ticker := time.NewTicker(time.Second / 400)
	defer ticker.Stop()
	for b.Loop() {
		for _, through := range []bool{false, true} {
			<-ticker.C
			requests.Go(func() { one(through) })
		}
	}
	requests.Wait()
	at := func(d []time.Duration, q float64) float64 {
		slices.Sort(d)
		return d[int(q*float64(len(d)-1))].Seconds() * 1e3
	}
	for name, d := range map[string]map[bool][]time.Duration{"ttft": first, "e2e": whole} {
		b.ReportMetric(at(d[true], .5)-at(d[false], .5), name+"-added-p50-ms")
		b.ReportMetric(at(d[true], .99)-at(d[false], .99), name+"-added-p99-ms")
		b.ReportMetric(at(d[true], .99), name+"-p99-ms")
	}
}
