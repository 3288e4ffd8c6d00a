package dev

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"warmpath/services/simengine"
	"warmpath/streams"
)

const (
	// routerBudget is how long a gateway here waits for the router. Production's
	// is much shorter; on two cores that run a whole fleet the wait is the host's
	// fault, and a killed router is told apart at once anyway: nobody answers.
	routerBudget = time.Second
	// holdPatience is how long the model clock stands for what may be lost.
	holdPatience = time.Minute
	// fleetWithin is how long a router may take to see all engines.
	fleetWithin = 30 * time.Second
)

// poolPlan says what to open.
type poolPlan struct {
	name, policy    string
	params          map[string]float64
	gateway, router string // addresses; empty for free ports
}

// pool is one fleet of simulated engines with its router and gateway.
type pool struct {
	poolPlan
	clock    simengine.Clock
	hooks    *lateHooks
	engines  []*simengine.Server
	children *supervisor
	nc       *nats.Conn

	router, gateway *component

	stopEngines context.CancelFunc
	stopClock   context.CancelFunc
	running     *errgroup.Group
	clockDone   chan struct{}
	closed      sync.Once
}

// lateHooks are hooks that are set once the run starts: what comes before is
// nobody's.
type lateHooks struct {
	mu sync.RWMutex
	simengine.Hooks
}

func (h *lateHooks) set(hooks simengine.Hooks) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Hooks = hooks
}

// hooks call what is set at the time.
func (h *lateHooks) hooks() simengine.Hooks {
	call := func(pick func() func(string)) func(string) {
		return func(id string) {
			h.mu.RLock()
			f := pick()
			h.mu.RUnlock()
			if f != nil {
				f(id)
			}
		}
	}
	return simengine.Hooks{
		Accepted: call(func() func(string) { return h.Accepted }),
		Finished: call(func() func(string) { return h.Finished }),
	}
}

// openPool starts engines, router and gateway, and waits until the router knows
// all engines.
func (h *house) openPool(ctx context.Context, p *plan, what poolPlan) (_ *pool, err error) {
	f := &pool{poolPlan: what, children: h.children, hooks: &lateHooks{}}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	f.startClock(p.speed)
	if err := f.startEngines(h, p); err != nil {
		return nil, err
	}
	if err := f.startServices(ctx, h, p); err != nil {
		return nil, err
	}
	return f, f.awaitFleet(ctx, p.Replicas)
}

// startClock starts the engines' clock: speed times the wall clock, or a model
// clock for 0.
func (f *pool) startClock(speed float64) {
	if speed > 0 {
		f.clock = simengine.NewWallClock(speed)
		return
	}
	model := NewModelClock(holdPatience)
	ctx, cancel := context.WithCancel(context.Background())
	f.clock, f.stopClock, f.clockDone = model, cancel, make(chan struct{})
	go func() {
		defer close(f.clockDone)
		model.Run(ctx)
	}()
}

func (f *pool) startEngines(h *house, p *plan) error {
	nc, js, err := streams.Connection{NATS: h.nats.URL(streams.RoleBridge)}.Connect("simulated engines of " + f.name)
	if err != nil {
		return err
	}
	f.nc = nc
	ctx, cancel := context.WithCancel(context.Background())
	f.stopEngines = cancel
	f.running = &errgroup.Group{}
	for i := range p.Replicas {
		server, err := simengine.New(simengine.Config{
			Pool: f.name, Replica: fmt.Sprintf("engine-%d", i), Listen: "127.0.0.1:0", Model: p.Model, GPU: p.GPU,
			Blocks: p.Blocks, BlockTokens: p.BlockTokens, Clock: f.clock, ModelTime: p.speed == 0, Timing: p.speed != 1,
			Hooks: f.hooks.hooks(), Seed: p.Seed + uint64(i),
		}, nc, js, prometheus.NewRegistry())
		if err != nil {
			return err
		}
		f.engines = append(f.engines, server)
		f.running.Go(func() error {
			err := server.Run(ctx)
			if err != nil {
				h.children.broken(fmt.Errorf("simulated engine %d of %s: %w", i, f.name, err))
			}
			return err
		})
	}
	return nil
}

func (f *pool) startServices(ctx context.Context, h *house, p *plan) error {
	router, err := address(f.poolPlan.router)
	if err != nil {
		return err
	}
	gateway, err := address(f.poolPlan.gateway)
	if err != nil {
		return err
	}
	suffix := ""
	if f.name != p.Pool {
		suffix = "-" + f.policy
	}
	f.router = &component{
		name: "router" + suffix, url: "http://" + router,
		args: append([]string{"router", "--pool=" + f.name, "--name=router", "--listen=" + router, "--policy=" + f.policy,
			"--tokenizer=bytes", fmt.Sprintf("--seed=%d", p.Seed)}, paramFlags(f.params)...),
		env: []string{h.natsEnv(streams.RoleRouter)},
	}
	clock := "model"
	if p.speed == 1 {
		clock = "wall" // the same, and the host's share shows too
	}
	if p.speed == 0 {
		// Engines report before each decision, so that no report is older than an
		// earlier decision; the grace would count requests twice.
		f.router.args = append(f.router.args, "--dispatch-grace=0s")
	}
	f.gateway = &component{
		name: "gateway" + suffix, url: "http://" + gateway,
		args: []string{"gateway", "--pool=" + f.name, "--name=gateway", "--listen=" + gateway, "--tokenizer=bytes",
			"--clock=" + clock, "--router-budget=" + routerBudget.String()},
		env: []string{h.natsEnv(streams.RoleGateway)},
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return f.children.start(ctx, f.router) })
	group.Go(func() error { return f.children.start(ctx, f.gateway) })
	return group.Wait()
}

// awaitFleet waits until the router takes every engine for alive.
func (f *pool) awaitFleet(ctx context.Context, replicas int) error {
	ctx, cancel := context.WithTimeout(ctx, fleetWithin)
	defer cancel()
	for {
		live, err := f.live(ctx)
		if err == nil && live == replicas {
			return nil
		}
		select {
		case <-ctx.Done():
			if err == nil {
				err = fmt.Errorf("it sees %d of %d", live, replicas)
			}
			return fmt.Errorf("router of %s does not see all engines: %w", f.name, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// live asks the router how many replicas are alive.
func (f *pool) live(ctx context.Context) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.router.url+"/v1/state", nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return 0, errors.New(response.Status)
	}
	var state struct {
		Replicas []struct {
			State string `json:"state"`
		} `json:"replicas"`
	}
	if err := json.NewDecoder(response.Body).Decode(&state); err != nil {
		return 0, err
	}
	live := 0
	for _, r := range state.Replicas {
		if r.State == "live" {
			live++
		}
	}
	return live, nil
}

// settle waits until what the engines did so far is in the streams.
func (f *pool) settle(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, e := range f.engines {
		group.Go(func() error { return e.Settle(ctx) })
	}
	return group.Wait()
}

// close stops gateway, router, engines and clock. It may be called again.
func (f *pool) close() {
	f.closed.Do(func() {
		for _, c := range []*component{f.gateway, f.router} {
			if c != nil && c.cancel != nil {
				f.children.stop(c)
			}
		}
		if f.stopEngines != nil {
			f.stopEngines()
			_ = f.running.Wait() // told to broken already
		}
		if f.stopClock != nil {
			f.stopClock()
			<-f.clockDone
		}
		if f.nc != nil {
			f.nc.Close()
		}
	})
}
