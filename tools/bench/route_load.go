package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"warmpath/schemas/decided"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
)

const (
	// routeGateway is who asks.
	routeGateway = "bench-asker"
	// patience is how long a request may take and still be counted.
	patience = 10 * time.Second
	// generated are the tokens of an answer.
	generated = 50
	// checkEvery is how many answers one is looked at whole: that takes longer than
	// all that gateways do with one.
	checkEvery = 16
)

// loadTimes are the milliseconds of requests: from when their gateway had them, and
// the parts of that; how much later that was than they were due, and both together.
type loadTimes struct {
	mu                            sync.Mutex
	total, encode, decide, decode []float64
	late, sinceDue                []float64
	// undecided got no decision, and astray one for a replica that does not hold
	// their prefix.
	undecided, astray int
	fault             error
}

// add takes a request that was due, was made and was answered then.
func (t *loadTimes) add(due, began, end time.Time) {
	t.total = append(t.total, milliseconds(end.Sub(began)))
	t.sinceDue = append(t.sinceDue, milliseconds(end.Sub(due)))
	t.late = append(t.late, milliseconds(began.Sub(due)))
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }

// load asks the router as gateways do, and publishes the decisions and how the
// requests ended as they do, so that the router's ledger and predictions do not
// fill up.
func (p *askedPool) load(ctx context.Context, rate float64, length time.Duration) (*loadTimes, error) {
	ctx, cancel := context.WithTimeout(ctx, length+coldWithin)
	defer cancel()
	t := &loadTimes{}
	run := time.Now().UnixNano()
	subject := streams.ServiceSubject(pool)
	err := pace(ctx, rate, length, func(n int) func(time.Time) {
		asked := p.asked(n)
		request := &pb.RouteRequest{Pool: pool, Gateway: routeGateway, RequestId: fmt.Sprintf("%x-%d", run, n), Model: routeModel, Keys: asked.keys, PromptTokens: routeTokens}
		return func(due time.Time) { p.one(ctx, t, n, request, asked, subject, due) }
	})
	if err := errors.Join(err, t.fault, ctx.Err()); err != nil {
		return nil, err
	}
	return t, p.publisher.Flush(ctx)
}

// one asks once.
func (p *askedPool) one(ctx context.Context, t *loadTimes, n int, request *pb.RouteRequest, asked prompt, subject string, due time.Time) {
	began := time.Now()
	data, err := proto.Marshal(request)
	sent := time.Now()
	if err == nil {
		within, cancel := context.WithTimeout(ctx, patience)
		data, err = p.request(within, subject, data)
		cancel()
	}
	back := time.Now()
	var d decided.Part
	if err == nil {
		_, d, err = decided.ReadAnswer(data, asked.keys)
	}
	end := time.Now()
	if err != nil || d.Decided == nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.undecided++
		return
	}
	if n%checkEvery == 0 {
		err = p.checkAnswer(data, asked)
	}
	d.WaitUs = uint64(back.Sub(sent).Microseconds())
	err = errors.Join(err, p.record(ctx, d))
	t.mu.Lock()
	defer t.mu.Unlock()
	if d.Chosen != p.names[asked.owner] {
		t.astray++
	}
	t.add(due, began, end)
	t.encode = append(t.encode, milliseconds(sent.Sub(began)))
	t.decode = append(t.decode, milliseconds(end.Sub(back)))
	t.decide = append(t.decide, float64(d.DecideUs)/1e3)
	if t.fault == nil { // one of them is enough
		t.fault = err
	}
}

// checkAnswer is check for an answer as it came.
func (p *askedPool) checkAnswer(data []byte, asked prompt) error {
	response := &pb.RouteResponse{}
	if err := proto.Unmarshal(data, response); err != nil {
		return err
	}
	return p.check(response.Decision, asked)
}

// record publishes a decision, and that the request ended as it said.
func (p *askedPool) record(ctx context.Context, d decided.Part) error {
	data, err := d.Append(nil)
	if err != nil {
		return err
	}
	subject := streams.RouteSubject(pool, routeGateway)
	err = p.publisher.Publish(ctx, streams.Message{Subject: subject, ID: streams.RouteID(d.RequestId, d.Attempt, "decided"), Schema: decided.Schema, Data: data})
	if err != nil {
		return err
	}
	prefill := uint64(1e6 * float64(d.PromptTokens-d.PredictedCachedTokens) / prefillRate)
	tokens, cached := uint64(generated), d.PredictedCachedTokens
	m, err := streams.NewMessage(subject, streams.RouteID(d.RequestId, d.Attempt, "finished"), &pb.Finished{
		Pool: pool, Gateway: routeGateway, RequestId: d.RequestId, FinishedAtUs: time.Now().UnixMicro(), Replica: d.Chosen,
		Status: pb.Status_STATUS_OK, HttpStatus: 200, PromptTokens: &d.PromptTokens, CompletionTokens: &tokens, CachedTokens: &cached,
		Clock: pb.Clock_CLOCK_WALL, TtftUs: &prefill, EngineUs: &prefill, E2EUs: 2 * prefill, FinishReason: "stop", Streamed: true,
	})
	if err != nil {
		return err
	}
	return p.publisher.Publish(ctx, m)
}

// echo answers requests at once with so many bytes, on a connection of its own.
type echo struct {
	*askedPool
	question, answer []byte
	stop             func()
}

// echoSubject is where it answers.
const echoSubject = "bench.echo"

// echo starts one with the sizes of a request and its answer.
func (p *askedPool) echo(ctx context.Context) (*echo, error) {
	asked := p.asked(0)
	question, err := proto.Marshal(&pb.RouteRequest{
		Pool: pool, Gateway: routeGateway, RequestId: fmt.Sprintf("%x-size", time.Now().UnixNano()), Model: routeModel,
		Keys: asked.keys, PromptTokens: routeTokens, DryRun: true,
	})
	if err != nil {
		return nil, err
	}
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer, response, err := p.first(within, question)
	if err != nil {
		return nil, err
	}
	if err := p.check(response.Decision, asked); err != nil {
		return nil, err
	}
	nc, _, err := streams.Connection{NATS: p.server.URL("")}.Connect("warmpath bench floor")
	if err != nil {
		return nil, err
	}
	requests, err := nc.SubscribeSync(echoSubject)
	if err == nil {
		err = nc.FlushWithContext(within)
	}
	if err != nil {
		nc.Close()
		return nil, err
	}
	var answers sync.WaitGroup
	life, end := context.WithCancel(ctx)
	answers.Go(func() {
		for {
			m, err := requests.NextMsgWithContext(life)
			if err != nil {
				return
			}
			_ = m.Respond(answer) // who asks notices
		}
	})
	return &echo{askedPool: p, question: question, answer: answer, stop: func() { end(); answers.Wait(); nc.Close() }}, nil
}

// first asks until there is a decision: a router says that it is ready a moment
// before it takes requests.
func (p *askedPool) first(ctx context.Context, question []byte) ([]byte, *pb.RouteResponse, error) {
	for {
		answer, err := p.request(ctx, streams.ServiceSubject(pool), question)
		response := &pb.RouteResponse{}
		if err == nil {
			err = proto.Unmarshal(answer, response)
		}
		if err == nil && response.Decision == nil {
			err = errors.New(response.Error)
		}
		if err == nil {
			return answer, response, nil
		}
		select {
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("the router gives no decision: %w", err)
		case <-time.After(healthEvery):
		}
	}
}

// load is the floor: the same rate of requests that nothing is done with.
func (e *echo) load(ctx context.Context, rate float64, length time.Duration) (*loadTimes, error) {
	ctx, cancel := context.WithTimeout(ctx, length+coldWithin)
	defer cancel()
	t := &loadTimes{}
	err := pace(ctx, rate, length, func(int) func(time.Time) {
		return func(due time.Time) {
			within, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			began := time.Now()
			answer, err := e.request(within, echoSubject, e.question)
			end := time.Now()
			if err == nil && len(answer) != len(e.answer) {
				err = fmt.Errorf("the echo has %d bytes, not %d", len(answer), len(e.answer))
			}
			t.mu.Lock()
			defer t.mu.Unlock()
			t.add(due, began, end)
			t.fault = errors.Join(t.fault, err)
		}
	})
	return t, errors.Join(err, t.fault, ctx.Err())
}

// stepTimes are what the steps of a request take at the median, round by round.
type stepTimes struct{ encode, wire, decide, decode, rest, whole []float64 }

func (s *stepTimes) add(floor, got *loadTimes) {
	encode, decide, decode, whole := median(got.encode), median(got.decide), median(got.decode), median(got.total)
	wire := median(floor.total)
	s.encode, s.wire = append(s.encode, encode), append(s.wire, wire)
	s.decide, s.decode, s.whole = append(s.decide, decide), append(s.decode, decode), append(s.whole, whole)
	s.rest = append(s.rest, max(0, whole-encode-wire-decide-decode))
}

// report prints each step and its share of the whole.
func (s *stepTimes) report(b *bench) error {
	whole := median(s.whole)
	for _, step := range []struct {
		name   string
		values []float64
	}{
		{"encode the request", s.encode}, {"NATS there and back, the floor", s.wire},
		{"decide", s.decide}, {"wait, decode and encode in the router", s.rest}, {"decode the answer", s.decode},
	} {
		value := median(step.values)
		if err := b.report(Figure{Name: "step: " + step.name, Value: value * 1e3, Unit: "us"}, nil); err != nil {
			return err
		}
		share := Figure{Name: "step: " + step.name + ", share of p50", Unit: "%"}
		if whole > 0 {
			share.Value = value / whole * 100
		}
		if err := b.report(share, nil); err != nil {
			return err
		}
	}
	return nil
}
