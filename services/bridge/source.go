package bridge

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"warmpath/services/bridge/feed"
	"warmpath/services/bridge/kvevents"
	"warmpath/services/bridge/zmq"
)

// source is where a replica's events come from: one of dial, listen and pull.
type source struct {
	dial, listen string
	pull         bool
	replay       string
	topic        string
	err          error
}

func (s source) any() bool { return s.dial != "" || s.listen != "" || s.pull }

// subscribe dials the engine's events.
func (r *replica) subscribe(ctx context.Context) error {
	err := zmq.Subscribe(ctx, zmq.Subscription{
		Endpoint: r.source.dial, Topic: r.source.topic,
		State: func(s zmq.State) {
			switch s.Change {
			case zmq.Connected:
				r.setProblem("")
				r.connected(ctx, s.Conn)
			case zmq.Disconnected:
				r.disconnected(s.Conn, fmt.Sprint(s.Err))
			case zmq.Failed:
				r.setProblem(fmt.Sprintf("the engine's events cannot be reached at %s: %v", s.Addr, s.Err))
			}
		},
		Ignored: r.ignored,
	}, func(f zmq.Frame) { r.frame(ctx, f) })
	if err != nil {
		return fmt.Errorf("--kv %s: %w", r.source.dial, err)
	}
	return nil
}

func (r *replica) ignored(reason zmq.Reason) {
	r.engine.bridge.metrics.ignored.WithLabelValues(r.name, string(reason)).Inc()
}

// connected takes that the engine is connected.
func (r *replica) connected(ctx context.Context, conn uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.record(zmq.Record{Kind: zmq.RecordConnected})
	if r.conn != 0 && r.conn != conn {
		r.feed.Disconnected()
	}
	r.conn = conn
	r.feed.Connected(ctx)
	r.last = time.Now()
}

// disconnected takes that a connection ended; why is for people.
func (r *replica) disconnected(conn uint64, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if conn != r.conn {
		return
	}
	r.conn = 0
	r.record(zmq.Record{Kind: zmq.RecordDisconnected, Frame: zmq.Frame{Payload: []byte(why)}})
	r.log.Warn("the engine's events broke off", "error", why)
	r.feed.Disconnected()
}

// frame takes one frame of the engine.
func (r *replica) frame(ctx context.Context, f zmq.Frame) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.accepts(f) {
		return
	}
	if f.Conn != r.conn { // of a listener, where a connection is known by its frames
		if r.conn != 0 {
			r.feed.Disconnected()
		}
		r.conn = f.Conn
	}
	r.record(zmq.Record{Kind: zmq.RecordFrame, Frame: f})
	r.feed.Live(ctx, feed.Batch{Seq: f.Seq, Payload: f.Payload, AtUS: f.AtUS})
	r.last = time.Now()
}

// accepts says whether a frame is of this replica's engine: of the first topic
// seen, and of no connection that was replaced.
func (r *replica) accepts(f zmq.Frame) bool {
	topic := topicOf(f)
	if f.Conn < r.conn {
		r.engine.bridge.metrics.ignored.WithLabelValues(r.name, "old connection").Inc()
		return false
	}
	switch {
	case r.topic == "":
		r.topic = string(topic)
	case r.topic != string(topic):
		r.engine.bridge.metrics.ignored.WithLabelValues(r.name, "foreign topic").Inc()
		if r.foreign == "" {
			r.foreign = string(topic)
			r.log.Error("another publisher's topic comes by the same endpoint and is ignored; give each engine its --topic",
				"topic", r.topic, "other", r.foreign)
		}
		return false
	}
	return true
}

// topicOf is a frame's topic, without the epoch that newer SGLang adds.
func topicOf(f zmq.Frame) []byte {
	topic, _, _ := bytes.Cut(f.Topic, []byte{0})
	return topic
}

// replayer asks the engine's replay socket, or the capture that is replayed; nil
// when the engine has none.
func (r *replica) replayer() feed.Replay {
	if r.source.replay == "" {
		return nil
	}
	return func(ctx context.Context, from uint64, handle func(feed.Batch) error) error {
		got, err := zmq.Replay(ctx, r.source.replay, from, func(f zmq.Frame) error {
			r.record(zmq.Record{Kind: zmq.RecordReplay, Frame: f})
			return handle(feed.Batch{Seq: f.Seq, Payload: f.Payload, AtUS: f.AtUS})
		})
		if err == nil && !got.Complete {
			err = fmt.Errorf("%s: the replay ended early", r.source.replay)
		}
		end := zmq.Record{Kind: zmq.RecordReplayed}
		if err != nil {
			end.Frame.Payload = []byte(err.Error())
		}
		r.record(end)
		return err
	}
}

// record appends to the capture, if there is one.
func (r *replica) record(rec zmq.Record) {
	capture := r.engine.bridge.capture
	if capture == nil {
		return
	}
	rec.Source = r.name
	if rec.Frame.AtUS == 0 {
		rec.Frame.AtUS = r.now()
	}
	if err := capture.Write(rec); err != nil {
		r.engine.bridge.metrics.ignored.WithLabelValues(r.name, "capture").Inc()
	}
}

// decode reads a payload in the form that the replica's source has.
func (r *replica) decode(payload []byte) (*kvevents.Batch, error) {
	if !r.source.pull {
		return r.decoder.Decode(payload)
	}
	return r.decodePulled(payload)
}
