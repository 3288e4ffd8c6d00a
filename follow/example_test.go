package follow_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"warmpath/follow"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/router"
	"warmpath/services/simengine"
	"warmpath/streams"
	"warmpath/streams/natsserver"
)

// A gateway that decides by itself, before two simulated engines: the second
// request of a conversation goes where the first one left its prefix.
func Example() {
	if err := example(); err != nil {
		fmt.Println("error:", err)
	}
	// Output:
	// the second turn goes where the first one went: true
	// predicted 368 of 410 prompt tokens from cache, the engine says 368
}

func example() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool, end, err := simulatedPool(ctx, "engine-0", "engine-1")
	if err != nil {
		return err
	}
	defer end()

	f, err := follow.New(follow.Config{Pool: "chat", Gateway: "edge-1", Publish: true, Tokenizer: "bytes"}, pool.nc, pool.js)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- f.Run(running) }()
	defer func() { <-ended }()
	defer stop()
	<-f.Ready()
	// A pool whose engines were there before is known at once; these begin now.
	if err := until(ctx, func() bool { return len(f.State().Replicas) == 2 }); err != nil {
		return err
	}

	gateway := &gateway{f}
	first, err := gateway.complete(ctx, "turn-1", strings.Repeat("You are a careful assistant. ", 13)+"Hello?")
	if err != nil {
		return err
	}
	position, err := pool.settled(ctx) // the engines' events are in the stream
	if err != nil {
		return err
	}
	if err := until(ctx, func() bool { return f.State().KV.Position >= position && idle(f.State()) }); err != nil {
		return err
	}
	second, err := gateway.complete(ctx, "turn-2", strings.Repeat("You are a careful assistant. ", 13)+"Hello? And a second question: why")
	if err != nil {
		return err
	}
	fmt.Println("the second turn goes where the first one went:", second.decision.Replica == first.decision.Replica)
	fmt.Printf("predicted %d of %d prompt tokens from cache, the engine says %d\n",
		second.decision.PredictedCachedTokens, second.decision.PromptTokens, second.cached)
	return nil
}

// until looks again and again until something holds.
func until(ctx context.Context, holds func() bool) error {
	for !holds() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

func idle(s router.State) bool {
	return !slices.ContainsFunc(s.Replicas, func(m router.Member) bool { return m.Running+m.Waiting > 0 || m.QueuedPrefillTokens > 0 })
}

// gateway is the part of an existing gateway that Warmpath is for.
type gateway struct{ follower *follow.Follower }

type completion struct {
	decision *follow.Decision
	cached   uint64
}

// complete sends a prompt to the replica that the follower chooses, and says how
// it went. A real one would try again elsewhere when a replica does not answer.
func (g *gateway) complete(ctx context.Context, id, prompt string) (completion, error) {
	d, err := g.follower.Decide(ctx, follow.Request{ID: id, Text: prompt})
	if err != nil {
		return completion{}, err // or send it anywhere: ErrNotReady
	}
	if err := g.follower.Sent(ctx, d); err != nil {
		return completion{}, err
	}
	began := time.Now()
	outcome := &pb.Finished{Status: pb.Status_STATUS_UPSTREAM_ERROR, ErrorKind: "dial"}
	defer func() {
		outcome.E2EUs = uint64(time.Since(began).Microseconds())
		if err := g.follower.Finished(ctx, d, outcome); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	body, err := json.Marshal(map[string]any{"prompt": prompt, "max_tokens": 4})
	if err != nil {
		return completion{}, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, d.Address+"/v1/completions", strings.NewReader(string(body)))
	if err != nil {
		return completion{}, err
	}
	request.Header.Set("Content-Type", "application/json")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return completion{}, err
	}
	defer response.Body.Close()
	var answer struct {
		Usage struct {
			Prompt  uint64 `json:"prompt_tokens"`
			Output  uint64 `json:"completion_tokens"`
			Details struct {
				Cached uint64 `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	outcome.HttpStatus = uint32(response.StatusCode)
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return completion{}, err
	}
	outcome.Status, outcome.ErrorKind = pb.Status_STATUS_OK, ""
	outcome.PromptTokens, outcome.CompletionTokens = proto.Uint64(answer.Usage.Prompt), proto.Uint64(answer.Usage.Output)
	outcome.CachedTokens = proto.Uint64(answer.Usage.Details.Cached)
	return completion{d, answer.Usage.Details.Cached}, nil
}

// simulated is what a deployment has already: NATS, the streams, and engines with
// bridges.
type simulated struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	engines []*simengine.Server
}

func simulatedPool(ctx context.Context, replicas ...string) (_ *simulated, end func(), err error) {
	var ends []func()
	end = func() {
		for i := len(ends) - 1; i >= 0; i-- {
			ends[i]()
		}
	}
	defer func() {
		if err != nil {
			end()
		}
	}()
	folder, err := os.MkdirTemp("", "follow-example-")
	if err != nil {
		return nil, nil, err
	}
	ends = append(ends, func() { os.RemoveAll(folder) })
	server, err := natsserver.Start(natsserver.Config{StoreDir: folder})
	if err != nil {
		return nil, end, err
	}
	ends = append(ends, server.Shutdown)
	s := &simulated{}
	if s.nc, s.js, err = (streams.Connection{NATS: server.URL("")}).Connect("example"); err != nil {
		return nil, end, err
	}
	ends = append(ends, s.nc.Close)
	if _, err = (streams.Topology{Pools: []string{"chat"}}).Apply(ctx, s.js); err != nil {
		return nil, end, err
	}
	for _, name := range replicas {
		e, err := simengine.New(simengine.Config{Pool: "chat", Replica: name, Listen: "127.0.0.1:0", Clock: simengine.NewWallClock(100)}, s.nc, s.js, nil)
		if err != nil {
			return nil, end, err
		}
		s.engines = append(s.engines, e)
		running, stop := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- e.Run(running) }()
		ends = append(ends, func() { stop(); <-ended })
	}
	return s, end, nil
}

// settled waits until all that the engines did is in the stream, and returns where
// that ends.
func (s *simulated) settled(ctx context.Context) (uint64, error) {
	for _, e := range s.engines {
		if err := e.Settle(ctx); err != nil {
			return 0, err
		}
	}
	return streams.LastSeq(ctx, s.js, streams.KVStream("chat"))
}
