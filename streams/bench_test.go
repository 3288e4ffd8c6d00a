package streams_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"warmpath/streams"
	"warmpath/streams/streamstest"
)

// Client and server share the process in all of these. On a machine that does
// other work too, cpu-ns/msg (of both) says more than msg/s.

// cpu is the processor time that the process has used.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// The floor: the client library's own asynchronous publishing, which keeps no
// order when anything fails.
func BenchmarkPublishLibrary(b *testing.B) {
	_, js := streamstest.Connect(b, streamstest.Start(b).URL(""))
	streamstest.Apply(b, js, 1, "chat")
	js, err := jetstream.New(js.Conn(), jetstream.WithPublishAsyncMaxPending(streams.DefaultMaxInFlight))
	if err != nil {
		b.Fatal(err)
	}
	data := make([]byte, 256)
	b.ReportAllocs()
	before := cpu(b)
	n := 0
	for b.Loop() {
		m := &nats.Msg{Subject: streams.KVSubject("chat", "e0"), Data: data, Header: nats.Header{
			nats.MsgIdHdr: {fmt.Sprintf("e0/0190aaaa/%d", n)}, "Warmpath-Schema": {"warmpath.v1.KVBatch"}}}
		for {
			if _, err = js.PublishMsgAsync(m); !errors.Is(err, jetstream.ErrTooManyStalledMsgs) {
				break
			}
		}
		if err != nil {
			b.Fatal(err)
		}
		n++
	}
	<-js.PublishAsyncComplete()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	b.ReportMetric(float64(cpu(b)-before)/float64(b.N), "cpu-ns/msg")
}

func BenchmarkPublish(b *testing.B) {
	for _, stream := range []string{"KV", "ROUTE"} {
		for _, replicas := range []int{1, 3} {
			b.Run(fmt.Sprintf("%s/copies=%d", stream, replicas), func(b *testing.B) {
				var url string
				if replicas == 1 {
					url = streamstest.Start(b).URL("")
				} else {
					url = streamstest.Cluster(b, replicas)[0].URL("")
				}
				_, js := streamstest.Connect(b, url)
				streamstest.Apply(b, js, replicas, "chat")
				subject := streams.KVSubject("chat", "e0")
				if stream == "ROUTE" {
					subject = streams.RouteSubject("chat", "gw")
				}
				p := streams.NewPublisher(js, streams.PublisherConfig{})
				data := make([]byte, 256)
				ctx := context.Background()
				b.ReportAllocs()
				before := cpu(b)
				n := 0
				for b.Loop() {
					m := streams.Message{Subject: subject, ID: fmt.Sprintf("e0/0190aaaa/%d", n), Schema: "warmpath.v1.KVBatch", Data: data}
					if err := p.Publish(ctx, m); err != nil {
						b.Fatal(err)
					}
					n++
				}
				if err := p.Flush(ctx); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
				b.ReportMetric(float64(cpu(b)-before)/float64(b.N), "cpu-ns/msg")
				if s := p.Stats(); s.Recovered > 0 {
					b.Logf("%+v", s)
				}
				if err := p.Close(); err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}

func BenchmarkFollow(b *testing.B) {
	for _, size := range []int{256, 1024} {
		b.Run(fmt.Sprintf("bytes=%d", size), func(b *testing.B) {
			_, js := streamstest.Connect(b, streamstest.Start(b).URL(""))
			streamstest.Apply(b, js, 1, "chat")
			const n = 100_000
			p := streams.NewPublisher(js, streams.PublisherConfig{})
			ctx := context.Background()
			for i := range n {
				m := message(streams.KVSubject("chat", "e0"), i)
				m.Data = make([]byte, size)
				if err := p.Publish(ctx, m); err != nil {
					b.Fatal(err)
				}
			}
			if err := p.Flush(ctx); err != nil {
				b.Fatal(err)
			}
			if err := p.Close(); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			start, before := time.Now(), cpu(b)
			rounds := 0
			for b.Loop() {
				rounds++
				ctx, cancel := context.WithCancel(ctx)
				err := streams.Follow(ctx, js, streams.FollowConfig{Stream: "KV_chat"}, func(e streams.Event) error {
					if e.Seq == n {
						cancel()
					}
					return nil
				})
				cancel()
				if !errors.Is(err, context.Canceled) {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(rounds*n)/time.Since(start).Seconds(), "msg/s")
			b.ReportMetric(float64(cpu(b)-before)/float64(rounds*n), "cpu-ns/msg")
		})
	}
}
