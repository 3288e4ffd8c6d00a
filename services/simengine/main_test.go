package simengine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
	"warmpath/streams/streamstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a NATS server with one pool.
type rig struct {
	nc *nats.Conn
	js jetstream.JetStream
}

const pool = "p"

func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{}
	r.nc, r.js = streamstest.Connect(t, streamstest.Start(t).URL(""))
	streamstest.Apply(t, r.js, 1, pool)
	return r
}

// replica is a server that runs.
type replica struct {
	*Server
	client *http.Client
	stop   func() error
}

// start runs a replica until the test ends or stop is called. Its hardware is
// small and fast unless cfg says otherwise.
func (r *rig) start(t testing.TB, cfg Config) *replica {
	t.Helper()
	cfg.Pool, cfg.Listen = pool, "127.0.0.1:0"
	if cfg.Replica == "" {
		cfg.Replica = "e0"
	}
	if cfg.Model == "" {
		cfg.Model = "llama-3-8b"
	}
	if cfg.Clock == nil {
		cfg.Clock = NewWallClock(100)
	}
	s, err := New(cfg, r.nc, r.js, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- s.Run(ctx) }()
	transport := &http.Transport{}
	stop := sync.OnceValue(func() error {
		cancel()
		err := <-ran
		transport.CloseIdleConnections()
		return err
	})
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return &replica{Server: s, client: &http.Client{Transport: transport}, stop: stop}
}

// result is an answer: the fields of a body, or of all parts of a stream.
type result struct {
	status  int
	id      string
	text    string
	deltas  int // parts with text
	reason  string
	usage   *usage
	timing  *timing
	done    bool
	failure struct{ Message, Type, Param, Code string }
}

type choicePart struct {
	Text         string `json:"text"`
	FinishReason string `json:"finish_reason"`
	Delta        struct {
		Role, Content string
	} `json:"delta"`
	Message struct {
		Role, Content string
	} `json:"message"`
}

type part struct {
	ID      string       `json:"id"`
	Choices []choicePart `json:"choices"`
	Usage   *usage       `json:"usage"`
	Timing  *timing      `json:"warmpath_timing"`
	Error   *struct{ Message, Type, Param, Code string }
}

func (a *result) take(t testing.TB, data []byte) {
	t.Helper()
	var p part
	if err := json.Unmarshal(data, &p); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	a.id = p.ID
	if p.Usage != nil {
		a.usage, a.timing = p.Usage, p.Timing
	}
	if p.Error != nil {
		a.failure = *p.Error
	}
	for _, c := range p.Choices {
		text := c.Text + c.Delta.Content + c.Message.Content
		if text != "" {
			a.deltas++
		}
		a.text += text
		if c.FinishReason != "" {
			a.reason = c.FinishReason
		}
	}
}

// post sends a request and reads the answer.
func (r *replica) post(t testing.TB, path, id string, body map[string]any) result {
	t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	return r.postRaw(t, path, id, raw)
}

func (r *replica) postRaw(t testing.TB, path, id string, body []byte) result {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, r.Address()+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Request-Id", id)
	resp, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	a := result{status: resp.StatusCode}
	if resp.Header.Get("Content-Type") != "text/event-stream" {
		a.take(t, data)
		return a
	}
	for event := range strings.SplitSeq(strings.TrimSuffix(string(data), "\n\n"), "\n\n") {
		payload, ok := strings.CutPrefix(event, "data: ")
		if !ok {
			t.Fatalf("event %q", event)
		}
		if payload == "[DONE]" {
			a.done = true
			continue
		}
		a.take(t, []byte(payload))
	}
	return a
}

func (r *rig) get(t testing.TB, url string) string {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: transport}).Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// folded is what a naive reader of the KV stream knows of a replica.
type folded struct {
	epoch   []byte
	seq     uint64
	epochs  int
	keys    map[blockkey.Key]bool
	batches int
}

var errHead = errors.New("head reached")

// fold reads a replica's batches up to the stream's head, checking their order.
func (r *rig) fold(t testing.TB, replica string) folded {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	head, err := streams.LastSeq(ctx, r.js, streams.KVStream(pool))
	if err != nil {
		t.Fatal(err)
	}
	f := folded{keys: map[blockkey.Key]bool{}}
	if head == 0 {
		return f
	}
	err = streams.Follow(ctx, r.js, streams.FollowConfig{Stream: streams.KVStream(pool)}, func(e streams.Event) error {
		message, err := streams.Decode(e.Schema, e.Data)
		if err != nil {
			return err
		}
		if b := message.(*pb.KVBatch); b.GetReplica() == replica {
			f.apply(t, b)
		}
		if e.Seq >= head {
			return errHead
		}
		return nil
	})
	if !errors.Is(err, errHead) {
		t.Fatal(err)
	}
	return f
}

func (f *folded) apply(t testing.TB, b *pb.KVBatch) {
	t.Helper()
	f.batches++
	if !bytes.Equal(f.epoch, b.GetEpoch()) {
		if bytes.Compare(f.epoch, b.GetEpoch()) > 0 {
			t.Errorf("epoch %x after %x", b.GetEpoch(), f.epoch)
		}
		f.epoch, f.seq, f.keys = b.GetEpoch(), 0, map[blockkey.Key]bool{}
		f.epochs++
	}
	if f.seq++; b.GetSeq() != f.seq {
		t.Errorf("seq %d, want %d", b.GetSeq(), f.seq)
	}
	for _, event := range b.GetEvents() {
		if event.GetClear() != nil {
			clear(f.keys)
		}
		if s := event.GetStore(); s != nil && s.Parent != nil && !f.keys[s.GetParent()] {
			t.Errorf("parent %x is not there", s.GetParent())
		}
		for _, key := range event.GetStore().GetKeys() {
			if f.keys[key] {
				t.Errorf("%x stored twice", key)
			}
			f.keys[key] = true
		}
		for _, key := range event.GetRemove().GetKeys() {
			if !f.keys[key] {
				t.Errorf("%x removed and not there", key)
			}
			delete(f.keys, key)
		}
	}
}

// checkFold fails unless the stream gives exactly the engine's cache.
func (r *rig) checkFold(t testing.TB, s *replica) folded {
	t.Helper()
	if err := s.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	f := r.fold(t, s.cfg.Replica)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(f.keys) != s.engine.Size() {
		t.Errorf("the stream gives %d blocks, the cache has %d", len(f.keys), s.engine.Size())
	}
	for key := range f.keys {
		if !s.engine.Has(key) {
			t.Errorf("the stream gives %x, the cache does not have it", key)
		}
	}
	return f
}

// ids are n token ids.
func ids(from, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32((from + i) % 1000)
	}
	return out
}

// stepClock is a model clock that a test moves.
type stepClock struct {
	mu     sync.Mutex
	now    time.Duration
	seq    int
	timers []stepTimer
}

type stepTimer struct {
	at  time.Duration
	seq int
	f   func()
}

func (c *stepClock) Now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *stepClock) At(at time.Duration, f func()) func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seq++
	seq := c.seq
	c.timers = append(c.timers, stepTimer{at: at, seq: seq, f: f})
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.timers = slices.DeleteFunc(c.timers, func(t stepTimer) bool { return t.seq == seq })
	}
}

// step runs the next timer; it is false when there is none.
func (c *stepClock) step() bool {
	c.mu.Lock()
	if len(c.timers) == 0 {
		c.mu.Unlock()
		return false
	}
	first := 0
	for i, t := range c.timers {
		if t.at < c.timers[first].at || (t.at == c.timers[first].at && t.seq < c.timers[first].seq) {
			first = i
		}
	}
	t := c.timers[first]
	c.timers = slices.Delete(c.timers, first, first+1)
	c.now = max(c.now, t.at)
	c.mu.Unlock()
	t.f()
	return true
}

func prompt(n int) string { return strings.Repeat("warmpath ", n/9+1)[:n] }

func wantStatus(t testing.TB, a result, status int) {
	t.Helper()
	if a.status != status {
		t.Fatalf("status %d: %s", a.status, fmt.Sprint(a.failure))
	}
}
