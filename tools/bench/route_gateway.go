package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"warmpath/routing/blockkey"
	"warmpath/streams/natsserver"
)

const (
	// streamEvents is how many parts an answer has, each sent on its own.
	streamEvents = 50
	// conversations is how many prompts are known to the replicas.
	conversations = 16
	// Headers of a gateway's answers.
	headerReplica   = "X-Warmpath-Replica"
	headerPredicted = "X-Warmpath-Predicted-Cached-Tokens"
)

// overhead measures what a gateway adds to a streamed answer: the same requests to
// a stand-in for an engine, direct, which is the floor, and through a gateway and
// its router by turns. What is added is the difference of two that were due one
// after the other.
func (b *bench) overhead(ctx context.Context, server *natsserver.Server, rate float64, length time.Duration) error {
	engine, err := serveStandIn()
	if err != nil {
		return err
	}
	defer engine.Close()
	known := newTalks()
	p, err := b.openPool(ctx, server, rate, engine.address, known.planted)
	if err != nil {
		return err
	}
	defer p.close()
	listen, err := freeAddress()
	if err != nil {
		return err
	}
	gateway, err := startProcess(ctx, server.URL(""), "gateway", "--pool="+pool, "--name=bench-gateway", "--listen="+listen, "--tokenizer=client")
	if err != nil {
		return err
	}
	defer gateway.stop()
	starting, cancel := context.WithTimeout(ctx, coldWithin)
	defer cancel()
	if err := gateway.await(starting, listen); err != nil {
		return err
	}
	s := &streamer{askedPool: p, known: known, direct: engine.address, through: "http://" + listen, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}}
	defer s.client.CloseIdleConnections()
	if err := s.settle(starting); err != nil {
		return err
	}
	var first, whole addedTimes
	failed := 0
	for range b.rounds {
		got, err := s.load(ctx, rate, length)
		if err != nil {
			return err
		}
		failed += got.failed
		first.add(got.first)
		whole.add(got.whole)
	}
	name := fmt.Sprintf("gateway, added to %%s of a stream of %d at %s requests/s", streamEvents, short(rate))
	if err := first.report(b, fmt.Sprintf(name, "the first event")); err != nil {
		return err
	}
	if err := whole.report(b, fmt.Sprintf(name, "the last event")); err != nil {
		return err
	}
	if err := b.report(Figure{Name: "streams through the gateway that failed or went astray", Value: float64(failed), Unit: "requests"}, valueAtMost(0)); err != nil {
		return err
	}
	return p.vouch(ctx)
}

// standIn answers as an engine that has nothing to compute.
type standIn struct {
	http.Server
	address string
	ended   chan struct{}
}

func serveStandIn() (*standIn, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the stand-in of an engine: %w", err)
	}
	s := &standIn{address: "http://" + listener.Addr().String(), ended: make(chan struct{})}
	s.Handler = http.HandlerFunc(answerStream)
	s.ReadHeaderTimeout = patience
	go func() {
		defer close(s.ended)
		_ = s.Serve(listener) // until Close
	}()
	return s, nil
}

// Close ends it and its connections.
func (s *standIn) Close() {
	_ = s.Server.Close() // its clients are gone
	<-s.ended
}

func answerStream(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return // the client has gone
	}
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	for range streamEvents {
		_, _ = io.WriteString(w, `data: {"id":"1","object":"text_completion","choices":[{"index":0,"text":" world","finish_reason":null}]}`+"\n\n")
		_ = out.Flush()
	}
	_, _ = fmt.Fprintf(w, `data: {"id":"1","object":"text_completion","choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}}`+"\n\ndata: [DONE]\n\n",
		routeTokens, streamEvents, routeTokens+streamEvents, routeHeld*routeBlock)
}

// talks are prompts in token ids, whose beginnings replicas hold.
type talks struct {
	owners []int
	heads  []string // JSON up to what is new
	// planted is how the replicas came to hold them.
	planted []step
}

func newTalks() *talks {
	t := &talks{}
	root := blockkey.Root(routeModel, "", "")
	for i := range conversations {
		owner := i * (routed.replicas / conversations)
		ids := make([]uint32, routeHeld*routeBlock)
		var head strings.Builder
		head.WriteString(`{"model":"` + routeModel + `","max_tokens":` + strconv.Itoa(streamEvents) + `,"stream":true,"stream_options":{"include_usage":true},"prompt":[`)
		for n := range ids {
			ids[n] = uint32(mix(uint64(i)<<32|uint64(n)) % 150_000)
			fmt.Fprintf(&head, "%d,", ids[n])
		}
		keys := blockkey.Chain(nil, root, ids, routeBlock)
		for at := 0; at < len(keys); at += routed.event {
			s := step{replica: owner, offset: at, keys: keys[at:min(at+routed.event, len(keys))]}
			if at > 0 {
				s.parent = &keys[at-1]
			}
			t.planted = append(t.planted, s)
		}
		t.owners = append(t.owners, owner)
		t.heads = append(t.heads, head.String())
	}
	return t
}

// body is request n, whose last tokens nobody has seen.
func (t *talks) body(n int) (body []byte, owner int) {
	body = append(body, t.heads[n%len(t.heads)]...)
	for i := range routeTokens - routeHeld*routeBlock {
		if i > 0 {
			body = append(body, ',')
		}
		body = strconv.AppendUint(body, mix(1<<63|uint64(n)<<16|uint64(i))%150_000, 10)
	}
	return append(body, "]}"...), t.owners[n%len(t.owners)]
}

// streamer sends the requests.
type streamer struct {
	*askedPool
	known           *talks
	direct, through string
	client          *http.Client
}

// settle asks until the gateway routes as it should: it learns of the fleet after
// it says that it is healthy.
func (s *streamer) settle(ctx context.Context) error {
	for n := 0; ; n++ {
		_, _, err := s.stream(ctx, s.through, n, time.Now())
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the gateway does not route as it should: %w", err)
		case <-time.After(healthEvery):
		}
	}
}

// errAstray is wrapped by errors about where a request went.
var errAstray = errors.New("the request went astray")

// stream sends request n and returns the milliseconds, since it was due, of the
// answer's first part and of its end.
func (s *streamer) stream(ctx context.Context, base string, n int, due time.Time) (first, whole float64, err error) {
	body, owner := s.known.body(n)
	return s.send(ctx, base, body, owner, due)
}

func (s *streamer) send(ctx context.Context, base string, body []byte, owner int, due time.Time) (first, whole float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return 0, 0, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := s.client.Do(request)
	if err != nil {
		return 0, 0, err
	}
	defer response.Body.Close()
	var answer bytes.Buffer
	for {
		read, err := answer.ReadFrom(io.LimitReader(response.Body, int64(firstRead(answer.Len()))))
		if first == 0 {
			first = milliseconds(time.Since(due))
		}
		if err != nil {
			return 0, 0, err
		}
		if read == 0 {
			break
		}
	}
	whole = milliseconds(time.Since(due))
	if response.StatusCode != http.StatusOK {
		return 0, 0, fmt.Errorf("%s: %s", response.Status, strings.TrimSpace(answer.String()))
	}
	if got := bytes.Count(answer.Bytes(), []byte("data: ")); got != streamEvents+2 { // usage and the end
		return 0, 0, fmt.Errorf("the stream has %d events, not %d", got, streamEvents+2)
	}
	if base == s.through {
		want := strconv.Itoa(routeHeld * routeBlock)
		if to, expected := response.Header.Get(headerReplica), response.Header.Get(headerPredicted); to != s.names[owner] || expected != want {
			return 0, 0, fmt.Errorf("%w: to %s with %s tokens expected in its cache; %s holds %s", errAstray, to, expected, s.names[owner], want)
		}
	}
	return first, whole, nil
}

// firstRead is how much to read at once: a first byte, then the rest.
func firstRead(read int) int {
	if read == 0 {
		return 1
	}
	return 1 << 20
}

// streamTimes are the milliseconds of pairs: direct, and through the gateway.
type streamTimes struct {
	first, whole [2][]float64
	failed       int
}

// load sends so many requests a second both ways, by turns.
func (s *streamer) load(ctx context.Context, rate float64, length time.Duration) (*streamTimes, error) {
	ctx, cancel := context.WithTimeout(ctx, length+coldWithin)
	defer cancel()
	pairs := max(1, int(rate*length.Seconds()))
	t := &streamTimes{}
	for way := range 2 {
		t.first[way], t.whole[way] = make([]float64, pairs), make([]float64, pairs)
	}
	var mu sync.Mutex
	bad := make([]bool, pairs)
	var fault error
	seed := int(time.Now().UnixNano() >> 10 & (1<<40 - 1))
	err := pace(ctx, 2*rate, length, func(n int) func(time.Time) {
		one, way := n/2, (n+n/2)%2 // each way goes first as often as the other
		body, owner := s.known.body(seed + one)
		return func(due time.Time) {
			if one >= pairs {
				return
			}
			first, whole, err := s.send(ctx, [2]string{s.direct, s.through}[way], body, owner, due)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				bad[one] = true
				t.failed++
				fault = err
				return
			}
			t.first[way][one], t.whole[way][one] = first, whole
		}
	})
	if err := errors.Join(err, ctx.Err()); err != nil {
		return nil, err
	}
	if t.failed > pairs {
		return nil, fmt.Errorf("most streams failed: %w", fault)
	}
	t.keep(bad)
	return t, nil
}

// keep leaves the pairs of which both were answered.
func (t *streamTimes) keep(bad []bool) {
	for way := range 2 {
		for _, times := range []*[]float64{&t.first[way], &t.whole[way]} {
			var kept []float64
			for i, v := range *times {
				if !bad[i] {
					kept = append(kept, v)
				}
			}
			*times = kept
		}
	}
}

// addedTimes are the median and the tail of what was added, beside those of the
// direct way, round by round.
type addedTimes struct{ p50, p99 pair }

func (a *addedTimes) add(times [2][]float64) {
	added := make([]float64, len(times[1]))
	for i := range added {
		added[i] = times[1][i] - times[0][i]
	}
	a.p50.add(median(times[0]), median(added))
	a.p99.add(quantile(times[0], 0.99), quantile(added, 0.99))
}

func (a *addedTimes) report(b *bench, name string) error {
	if err := b.report(a.p50.figure(name+", p50", "ms"), nil); err != nil {
		return err
	}
	return b.report(a.p99.figure(name+", p99", "ms"), valueAtMost(maxAddedTail))
}
