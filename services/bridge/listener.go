package bridge

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"warmpath/services/bridge/zmq"
)

// listener is an endpoint that engines dial. Their topics tell them apart.
type listener struct {
	bridge   *Bridge
	endpoint string
	members  []member
	// owners are the replicas by connection, as frames have shown; strange the
	// topics of nobody that were named in the log.
	owners  map[uint64]*replica
	strange map[string]bool
}

// member is one rank of an engine that dials the listener.
type member struct {
	engine *engine
	rank   int
}

// maxStrange bounds the foreign topics that are told apart in the log.
const maxStrange = 64

// listeners groups the ranks that share an endpoint. Each rank adds its number
// to the port, so how many there are must be configured.
func (b *Bridge) listeners() map[string]*listener {
	all := map[string]*listener{}
	for _, e := range b.engines {
		if e.cfg.KVListen == "" {
			continue
		}
		for rank := range max(e.cfg.Ranks, 1) {
			endpoint, err := zmq.AtRank(e.cfg.KVListen, rank)
			if err != nil {
				continue // its replica says so
			}
			if all[endpoint] == nil {
				all[endpoint] = &listener{bridge: b, endpoint: endpoint, owners: map[uint64]*replica{}, strange: map[string]bool{}}
			}
			all[endpoint].members = append(all[endpoint].members, member{e, rank})
		}
	}
	return all
}

// run listens until ctx ends.
func (l *listener) run(ctx context.Context) error {
	err := zmq.Subscribe(ctx, zmq.Subscription{
		Endpoint: l.endpoint, Listen: true,
		State: func(s zmq.State) { l.state(ctx, s) },
		Ignored: func(reason zmq.Reason) {
			l.bridge.metrics.ignored.WithLabelValues("", string(reason)).Inc()
		},
	}, func(f zmq.Frame) { l.frame(ctx, f) })
	if err != nil {
		return fmt.Errorf("--kv-listen %s: %w", l.endpoint, err)
	}
	return nil
}

func (l *listener) state(ctx context.Context, s zmq.State) {
	switch s.Change {
	case zmq.Listening:
		slog.Info("engines may dial", "endpoint", s.Addr)
	case zmq.Connected:
		if r := l.only(ctx); r != nil {
			l.owners[s.Conn] = r
			r.connected(ctx, s.Conn)
		}
	case zmq.Disconnected:
		if r := l.owners[s.Conn]; r != nil {
			r.disconnected(s.Conn, fmt.Sprint(s.Err))
			delete(l.owners, s.Conn)
		}
	case zmq.Failed:
		slog.Warn("an engine could not connect", "endpoint", l.endpoint, "error", s.Err)
	}
}

func (l *listener) frame(ctx context.Context, f zmq.Frame) {
	r := l.owner(ctx, f)
	if r == nil {
		return
	}
	if l.owners[f.Conn] != r {
		l.owners[f.Conn] = r
	}
	r.frame(ctx, f)
}

// only is the replica of a listener with one member, once its engine was seen.
func (l *listener) only(ctx context.Context) *replica {
	if len(l.members) != 1 {
		return nil
	}
	m := l.members[0]
	select {
	case <-m.engine.ready:
	case <-ctx.Done():
		return nil
	}
	r := m.replica()
	if r == nil {
		return nil
	}
	select {
	case <-r.began:
		return r
	case <-ctx.Done():
		return nil
	}
}

// owner is the replica that a frame's topic names, nil when it is nobody's.
func (l *listener) owner(ctx context.Context, f zmq.Frame) *replica {
	topic := string(topicOf(f))
	for _, m := range l.members {
		if m.engine.cfg.Topic != "" && strings.HasPrefix(topic, m.engine.cfg.Topic) || m.engine.isNamed(topic) {
			return m.awake()
		}
	}
	if r := l.only(ctx); r != nil && r.source.topic == "" {
		return r
	}
	l.bridge.metrics.ignored.WithLabelValues("", "foreign topic").Inc()
	if !l.strange[topic] && len(l.strange) < maxStrange {
		l.strange[topic] = true
		slog.Error("a publisher dials that no engine is configured for; give its engine --topic", "endpoint", l.endpoint, "topic", topic)
	}
	return nil
}

// awake is the member's replica once it can take frames; nil until then, and what
// comes meanwhile is a gap that its feed finds.
func (m member) awake() *replica {
	r := m.replica()
	if r == nil {
		return nil
	}
	select {
	case <-r.began:
		return r
	default:
		return nil
	}
}

// replica is the member's, nil while its engine has not been seen.
func (m member) replica() *replica {
	all := m.engine.all()
	if m.rank >= len(all) {
		return nil
	}
	return all[m.rank]
}

// isNamed says whether a topic of the form kv@<host:port>@<model> names the
// engine by the address that it is bridged or advertised at.
func (e *engine) isNamed(topic string) bool {
	rest, ok := strings.CutPrefix(topic, "kv@")
	if !ok {
		return false
	}
	address, _, _ := strings.Cut(rest, "@")
	return address != "" && (address == hostOf(e.cfg.URL) || address == hostOf(e.cfg.Advertise))
}

// hostOf is host and port of a base URL that was checked.
func hostOf(base string) string {
	_, host, _ := strings.Cut(base, "://")
	return host
}
