package gateway

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
)

const (
	// routeTail is how many of the newest ROUTE messages a starting gateway reads
	// to learn what the others have in flight.
	routeTail = 8192
	// followPause is the wait before a follower that failed starts again.
	followPause = 500 * time.Millisecond
)

// keep runs a follower again and again until ctx ends: a gateway outlives any
// outage of NATS, and knows less meanwhile.
func keep(ctx context.Context, what string, follow func(context.Context) error) error {
	logged := ""
	for ctx.Err() == nil {
		err := follow(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if text := errorText(err); text != logged {
			slog.Warn("following stopped, and starts again", "what", what, "error", text)
			logged = text
		}
		select {
		case <-ctx.Done():
		case <-time.After(followPause):
		}
	}
	return nil
}

func errorText(err error) string {
	if err == nil {
		return "it ended"
	}
	return err.Error()
}

// followFleet keeps the view's fleet.
func (g *Gateway) followFleet(ctx context.Context) error {
	return streams.WatchFleet(ctx, g.js, g.cfg.Pool, func(entry *pb.FleetEntry, name string) {
		if before := g.view.entry(name); before.GetStartedUs() != entry.GetStartedUs() || before.GetAddress() != entry.GetAddress() {
			g.health.answered(name) // another process than the one that failed
		}
		g.view.changed(entry, name)
		if entry == nil {
			g.raise(ctx, g.mismatch.Forget(name, time.Now().UnixMicro()))
		}
	})
}

// followLoad keeps the engines' load reports.
func (g *Gateway) followLoad(ctx context.Context) error {
	return streams.FollowLoad(ctx, g.nc, g.js, g.cfg.Pool, g.view.reported)
}

// followLive keeps what the other gateways of the pool have in flight. Called
// again, it goes on where it was.
func (g *Gateway) followLive(ctx context.Context) error {
	if g.liveFrom == 0 {
		var err error
		if g.liveFrom, err = streams.TailStart(ctx, g.js, streams.RouteStream, routeTail); err != nil {
			return err
		}
	}
	err := streams.FollowLive(ctx, g.nc, g.js, g.cfg.Pool, g.liveFrom, func(e streams.Event) error {
		g.liveFrom = e.Seq + 1
		message, err := streams.DecodeChoice(e.Schema, e.Data)
		if err != nil {
			// A newer gateway may publish what this one does not know.
			slog.Debug("a live event cannot be decoded", "sequence", e.Seq, "error", err)
			return nil
		}
		g.foreign(message, min(e.Time.UnixMicro(), g.view.now()))
		return nil
	})
	var reset *streams.ResetError
	if errors.As(err, &reset) {
		g.liveFrom = 0 // the stream was made anew; leases end what it forgot
	}
	return err
}

// foreign folds an event of another gateway. Own events were counted when they
// were made; those of an earlier life of this gateway ended with it.
func (g *Gateway) foreign(message any, nowUS int64) {
	switch m := message.(type) {
	case *pb.Decided:
		if !isMade(m.RequestId) {
			g.recent.add(m.RequestId, time.Now()) // those of this gateway's earlier lives, too
		}
		if m.Pool == g.cfg.Pool && m.Gateway != g.cfg.Name {
			g.view.decided(m, nowUS)
		}
	case *pb.Moved:
		if m.Pool == g.cfg.Pool && m.Gateway != g.cfg.Name {
			g.view.moved(m)
		}
	case *pb.Finished:
		if m.Pool == g.cfg.Pool && m.Gateway != g.cfg.Name {
			g.view.finished(m)
		}
	}
}

// sweep expires leases, and watches whether NATS is reachable.
func (g *Gateway) sweep(ctx context.Context) error {
	ticker := time.NewTicker(250 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			g.view.setConnected(g.nc.Status() == nats.CONNECTED)
			g.view.expire()
		}
	}
}
