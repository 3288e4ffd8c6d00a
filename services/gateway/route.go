package gateway

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"warmpath/schemas/decided"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
)

// Causes of a fallback, as Decided.fallback_cause and metrics name them.
const (
	causeTimeout      = "timeout"       // no answer in the budget
	causeCircuit      = "circuit_open"  // not asked: the last answers did not come in time
	causeNoResponders = "no_responders" // no router is there
	causeDisconnected = "disconnected"  // NATS is not reachable
	causeNotReady     = "not_ready"     // the router has not caught up yet
	causeNoReplica    = "no_replica"    // the router knows of none
	causeInvalid      = "invalid"       // the router refused the request
	causeBadAnswer    = "bad_answer"    // the answer is not one to this request
	causeFailed       = "request_failed"
	causeTooLarge     = "too_large" // the prompt's keys do not fit in a NATS message
)

const (
	// circuitAfter is how many answers in a row must be late before requests
	// stop waiting. One is a hiccup.
	circuitAfter = 2
	// probeEvery is how often a request waits for the router in spite of that.
	// With the default budget it costs a request 50 ms, ten times a second.
	probeEvery = 100 * time.Millisecond
	// lateAnswer is how long an answer that is over budget still counts as a sign
	// that the router is back.
	lateAnswer = 2 * time.Second
	// payloadMargin is what a request or a decision needs beside its keys:
	// candidates, names, headers.
	payloadMargin = 128 << 10
)

// routerClient asks the pool's routers. Safe for concurrent use.
type routerClient struct {
	nc      *nats.Conn
	subject string
	budget  time.Duration
	circuit circuit
	late    sync.WaitGroup // requests that may outlive those who wait for them
	life    context.Context
	end     context.CancelFunc
}

func newRouterClient(nc *nats.Conn, pool string, budget time.Duration, onChange func(open bool)) *routerClient {
	life, end := context.WithCancel(context.Background())
	return &routerClient{
		nc: nc, subject: streams.ServiceSubject(pool), budget: budget,
		circuit: circuit{onChange: onChange}, life: life, end: end,
	}
}

// close waits for requests whose answers nobody waits for any more.
func (c *routerClient) close() {
	c.end()
	c.late.Wait()
}

// routerAnswer is what a router said: its decision, if there is one, apart.
type routerAnswer struct {
	*pb.RouteResponse
	decision decided.Part
}

// ask returns the router's answer, or why there is none within the budget. The
// cause is empty exactly when there is an answer.
func (c *routerClient) ask(ctx context.Context, request *pb.RouteRequest) (answer routerAnswer, cause string) {
	if c.nc.Status() != nats.CONNECTED {
		return routerAnswer{}, causeDisconnected // else it would be sent after a reconnect, to nobody's use
	}
	data, err := proto.Marshal(request)
	if err != nil {
		return routerAnswer{}, causeInvalid
	}
	if int64(len(data))+payloadMargin > c.nc.MaxPayload() {
		return routerAnswer{}, causeTooLarge
	}
	if !c.circuit.enter(time.Now()) {
		return routerAnswer{}, causeCircuit
	}
	result := make(chan routerAnswer, 1)
	failed := make(chan string, 1)
	sent := time.Now()
	c.late.Add(1)
	go func() {
		defer c.late.Done()
		life, cancel := context.WithTimeout(c.life, max(c.budget, lateAnswer))
		defer cancel()
		answer, cause := c.exchange(life, data, request.Keys)
		if life.Err() == nil && time.Since(sent) > c.budget {
			c.circuit.late() // nobody waits any more, but there is a router
		}
		if cause != "" {
			failed <- cause
			return
		}
		result <- answer
	}()
	timer := time.NewTimer(c.budget)
	defer timer.Stop()
	select {
	case answer = <-result:
		c.circuit.answered()
		return answer, ""
	case cause = <-failed:
		switch cause {
		case causeTimeout: // only when the budget is longer than lateAnswer
			c.circuit.missed(time.Now())
		case causeFailed:
			c.circuit.left()
		default: // an answer, if not a useful one
			c.circuit.answered()
		}
		return routerAnswer{}, cause
	case <-timer.C:
		c.circuit.missed(time.Now())
		return routerAnswer{}, causeTimeout
	case <-ctx.Done():
		c.circuit.left()
		return routerAnswer{}, causeTimeout
	}
}

// exchange sends one request, which has these keys, and reads its answer.
func (c *routerClient) exchange(ctx context.Context, data []byte, keys []uint64) (routerAnswer, string) {
	reply, err := c.nc.RequestWithContext(ctx, c.subject, data)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return routerAnswer{}, causeNoResponders
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
		return routerAnswer{}, causeTimeout
	case err != nil:
		return routerAnswer{}, causeFailed
	case reply.Header.Get("Nats-Service-Error-Code") != "":
		return routerAnswer{}, causeFailed
	}
	answer, decision, err := decided.ReadAnswer(reply.Data, keys)
	if err != nil {
		return routerAnswer{}, causeBadAnswer
	}
	return routerAnswer{answer, decision}, ""
}

// circuit spares requests the wait for a router that does not answer. Open, it
// lets one request at a time try, every probeEvery; any answer closes it.
type circuit struct {
	mu       sync.Mutex
	misses   int
	lastMiss time.Time
	probing  bool
	hinted   bool // a late answer has already been followed by a probe
	onChange func(open bool)
}

// enter says whether a request may ask. Each true must be followed by answered,
// missed or left.
func (c *circuit) enter(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.misses < circuitAfter {
		return true
	}
	if c.probing || now.Sub(c.lastMiss) < probeEvery {
		return false
	}
	c.probing = true
	return true
}

// answered closes the circuit.
func (c *circuit) answered() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.misses >= circuitAfter {
		c.onChange(false)
	}
	c.misses, c.probing, c.hinted = 0, false, false
}

// late takes an answer over the budget: the router is there, so the next request
// may try at once. Once only: a router that is always late must not make every
// request wait.
func (c *circuit) late() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.hinted {
		c.hinted = true
		c.lastMiss = time.Time{}
	}
}

// missed counts an answer that did not come in time.
func (c *circuit) missed(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.misses++
	c.lastMiss = now
	c.probing = false
	if c.misses == circuitAfter {
		c.onChange(true)
	}
}

// left ends a try whose request went away: it says nothing of the router.
func (c *circuit) left() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.probing = false
}
