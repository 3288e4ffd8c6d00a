package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
	"warmpath/streams/natsserver"
)

const (
	// heartbeatEvery and loadEvery are how often a bridge tells of its replica.
	heartbeatEvery = 5 * time.Second
	loadEvery      = time.Second
	// routeModel is the fleet's model, and prefillRate its hardware: an H100 over
	// an 8 B model.
	routeModel  = "bench"
	prefillRate = 20_000
)

// askedPool is a fleet that lives: its blocks are in the stream, its replicas tell
// of themselves and store and evict blocks, and a router answers for it.
type askedPool struct {
	*fleet
	server    *natsserver.Server
	publisher *streams.Publisher
	router    *process
	listen    string
	// address is the base URL of every replica's API.
	address string
	author  *author
	close   func()

	request func(ctx context.Context, subject string, data []byte) ([]byte, error)
	apply   func(context.Context) error
	put     func(context.Context, *pb.FleetEntry) error
	putLoad func(context.Context, *pb.LoadReport) error
}

// openPool fills a pool and starts its router. planted are blocks that replicas
// hold beside the fleet's. Replicas store and evict as many blocks as requests at the
// rate given make.
func (b *bench) openPool(ctx context.Context, server *natsserver.Server, rate float64, address string, planted []step) (*askedPool, error) {
	nc, js, err := streams.Connection{NATS: server.URL("")}.Connect("warmpath bench")
	if err != nil {
		return nil, err
	}
	requests, _, err := streams.Connection{NATS: server.URL("")}.Connect("warmpath bench requests", streams.Unbuffered())
	if err != nil {
		nc.Close()
		return nil, err
	}
	p := &askedPool{
		fleet: newFleet(b.routedShape()), server: server, address: address,
		publisher: streams.NewPublisher(js, streams.PublisherConfig{Name: "warmpath bench"}),
		request: func(ctx context.Context, subject string, data []byte) ([]byte, error) {
			m, err := requests.RequestWithContext(ctx, subject, data)
			if err != nil {
				return nil, err
			}
			return m.Data, nil
		},
		apply: func(ctx context.Context) error {
			_, err := (streams.Topology{Pools: []string{pool}}).Apply(ctx, js)
			return err
		},
		put:     func(ctx context.Context, entry *pb.FleetEntry) error { return streams.PutFleet(ctx, js, entry) },
		putLoad: func(ctx context.Context, report *pb.LoadReport) error { return streams.PutLoad(ctx, js, report) },
	}
	p.author = p.fleet.author()
	life, end := context.WithCancel(ctx)
	var beside sync.WaitGroup
	p.close = func() {
		if p.router != nil {
			p.router.stop()
		}
		end()
		beside.Wait()
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		_ = p.publisher.Flush(ending) // the last batches are nobody's any more
		_ = p.publisher.Close()
		nc.Close()
		requests.Close()
	}
	starting, cancel := context.WithTimeout(ctx, coldWithin)
	defer cancel()
	if err := p.fill(starting, planted); err != nil {
		p.close()
		return nil, err
	}
	beside.Go(func() { p.tell(life) })
	if err := p.startRouter(ctx, starting); err != nil {
		p.close()
		return nil, err
	}
	work := p.churn(routeHeld)
	made := float64(routeTokens/routeBlock - routeHeld)
	beside.Go(func() { p.live(life, work, rate*made/float64(p.event)) })
	return p, nil
}

// routedShape is the fleet's shape. A quick one is smaller in families alone, so
// that prompts match as much.
func (b *bench) routedShape() shape {
	s := routed
	if b.quick {
		s.families = 2
	}
	return s
}

// fill publishes what the replicas hold, and that they are there.
func (p *askedPool) fill(ctx context.Context, planted []step) error {
	if err := p.apply(ctx); err != nil {
		return err
	}
	for s := range p.steps() {
		if err := p.publish(ctx, s.replica, storeEvent(s)); err != nil {
			return err
		}
	}
	for _, s := range planted {
		if err := p.publish(ctx, s.replica, storeEvent(s)); err != nil {
			return err
		}
	}
	if err := p.publisher.Flush(ctx); err != nil {
		return err
	}
	for r := range p.replicas {
		if err := p.heartbeat(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// publish appends a batch of a replica to the stream.
func (p *askedPool) publish(ctx context.Context, replica int, event *pb.KVEvent) error {
	batch := p.author.message(replica, event)
	batch.EventTimeUs = time.Now().UnixMicro()
	m, err := streams.NewMessage(streams.KVSubject(pool, batch.Replica), streams.KVID(batch.Replica, batch.Epoch, batch.Seq), batch)
	if err != nil {
		return err
	}
	return p.publisher.Publish(ctx, m)
}

func (p *askedPool) heartbeat(ctx context.Context, replica int) error {
	now := time.Now().UnixMicro()
	return p.put(ctx, &pb.FleetEntry{
		Pool: pool, Replica: p.names[replica], Address: p.address, EngineKind: "bench", Model: routeModel, Epoch: p.epochs[replica],
		BlockTokens: routeBlock, KvEvents: true, StartedUs: now, HeartbeatUs: now, PrefillTokensPerSecond: prefillRate,
		Capacities: []*pb.TierCapacity{{Tier: pb.Tier_TIER_GPU, Blocks: uint64(p.families * p.chain)}},
	})
}

// tell says of each replica in turn that it lives and has nothing to do.
func (p *askedPool) tell(ctx context.Context) {
	running, waiting, queued, used := uint32(0), uint32(0), uint64(0), 0.0
	rounds := int(heartbeatEvery / loadEvery)
	ticker := time.NewTicker(loadEvery / time.Duration(p.replicas))
	defer ticker.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		replica := n % p.replicas
		err := p.putLoad(ctx, &pb.LoadReport{
			Pool: pool, Replica: p.names[replica], Epoch: p.epochs[replica], TimeUs: time.Now().UnixMicro(),
			Running: &running, Waiting: &waiting, QueuedPrefillTokens: &queued, KvUsed: &used,
		})
		if n/p.replicas%rounds == replica%rounds {
			err = errors.Join(err, p.heartbeat(ctx, replica))
		}
		if err != nil && ctx.Err() == nil {
			slog.Warn("a replica of the bench could not tell of itself", "replica", p.names[replica], "error", err)
		}
	}
}

// live stores and evicts blocks behind those that prompts match, so many batches a
// second. Nobody else publishes batches meanwhile.
func (p *askedPool) live(ctx context.Context, work *churn, rate float64) {
	began := time.Now()
	done := 0
	for ticker := time.NewTicker(10 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			ticker.Stop()
			return
		case <-ticker.C:
		}
		for ; float64(done) < rate*time.Since(began).Seconds(); done++ {
			t := work.turn()
			if err := p.publish(ctx, t.replica, t.event); err != nil {
				if ctx.Err() == nil {
					slog.Warn("a replica of the bench could not publish", "replica", p.names[t.replica], "error", err)
				}
				return
			}
		}
	}
}

// startRouter starts the pool's router, for as long as ctx, and awaits it.
func (p *askedPool) startRouter(ctx, starting context.Context) (err error) {
	if p.listen, err = freeAddress(); err != nil {
		return err
	}
	if p.router, err = startProcess(ctx, p.server.URL(""), "router", "--pool="+pool, "--name=bench", "--listen="+p.listen); err != nil {
		return err
	}
	return p.router.await(starting, p.listen)
}

// vouch checks that the router still believes every replica.
func (p *askedPool) vouch(ctx context.Context) error {
	body, err := get(ctx, p.listen, "/v1/state")
	if err != nil {
		return fmt.Errorf("ask the router for its state: %w", err)
	}
	var state struct {
		Index struct {
			Entries  int `json:"entries"`
			Suspects int `json:"suspects"`
		} `json:"index"`
	}
	if err := json.Unmarshal(body, &state); err != nil {
		return fmt.Errorf("read the router's state: %w", err)
	}
	// What is evicted just now is stored again soon.
	if least := p.entries() * 9 / 10; state.Index.Suspects > 0 || state.Index.Entries < least {
		return fmt.Errorf("the router holds %d entries, not %d or so, and doubts %d replicas", state.Index.Entries, p.entries(), state.Index.Suspects)
	}
	return nil
}

// asked is the keys of request n: what its owner holds, and a turn that is new.
func (p *askedPool) asked(n int) prompt {
	owner := n * 5 % p.replicas
	keys := append(make([]blockkey.Key, 0, routeTokens/routeBlock), p.prompt(n/p.replicas%p.families, owner, (routeHeld+p.event-1)/p.event*p.event)[:routeHeld]...)
	for i := len(keys); i < cap(keys); i++ {
		keys = append(keys, mix(1<<63|uint64(n)<<16|uint64(i)))
	}
	return prompt{owner, keys}
}

// check says what is wrong with the decision on a prompt: every match must be as
// the replicas were filled, and the expectation that of the replica chosen. Which
// that is may depend on load, too, and is not judged here.
func (p *askedPool) check(d *pb.Decided, asked prompt) error {
	if len(d.Candidates) != p.replicas {
		return fmt.Errorf("request %s: %d candidates of %d replicas", d.RequestId, len(d.Candidates), p.replicas)
	}
	for r, c := range d.Candidates {
		want := p.depth(asked.owner, routeHeld, r)
		if c.Replica != p.names[r] || int(c.GpuBlocks) != want || int(c.TotalBlocks) != want || c.Suspect {
			return fmt.Errorf("request %s: candidate %s has %d blocks of %s's prompt, not %d (suspect: %v)", d.RequestId, c.Replica, c.GpuBlocks, p.names[asked.owner], want, c.Suspect)
		}
		if c.Replica == d.Chosen && d.PredictedCachedTokens < uint64(want*routeBlock) {
			return fmt.Errorf("request %s: %d tokens are expected in the cache of %s, which holds %d", d.RequestId, d.PredictedCachedTokens, d.Chosen, want*routeBlock)
		}
	}
	return nil
}
