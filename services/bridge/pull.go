package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"warmpath/services/bridge/feed"
	"warmpath/services/bridge/kvevents"
	"warmpath/services/bridge/zmq"
)

const (
	// pullEvery is how often TensorRT-LLM is asked for its events: its own buffer
	// drops the oldest when nobody asks.
	pullEvery = 50 * time.Millisecond
	// maxPull bounds an answer.
	maxPull = 64 << 20
)

// poll asks TensorRT-LLM for its events until ctx ends. An answer that got lost
// takes its events with it, which the next one's numbers show.
func (e *engine) poll(ctx context.Context) {
	client := &http.Client{Timeout: engineTimeout}
	tick := time.NewTicker(pullEvery)
	defer tick.Stop()
	failing := false
	for {
		body, err := e.pull(ctx, client)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			e.bridge.metrics.failures.WithLabelValues("pull").Inc()
			if !failing {
				slog.Warn("the engine's events cannot be polled", "engine", e.cfg.URL, "error", err)
			}
		default:
			e.takePull(ctx, body, time.Now().UnixMicro())
		}
		if failing = err != nil; failing {
			for _, r := range e.all() {
				r.setProblem(fmt.Sprintf("the engine's events cannot be polled: %v", err))
			}
		} else {
			for _, r := range e.all() {
				r.setProblem("")
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (e *engine) pull(ctx context.Context, client *http.Client) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, e.cfg.URL+"/kv_cache_events", nil)
	if err != nil {
		return nil, err
	}
	if key := e.bridge.cfg.Key; key != "" {
		request.Header.Set("Authorization", "Bearer "+key)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("/kv_cache_events answers %s; set event_buffer_max_size and enable_block_reuse in the engine's kv_cache_config", response.Status)
	}
	return io.ReadAll(io.LimitReader(response.Body, maxPull))
}

// takePull takes the events of one answer, each as a batch of its rank.
func (e *engine) takePull(ctx context.Context, body []byte, atUS int64) {
	replicas := e.all()
	events, err := kvevents.DecodePull(body)
	var raw []json.RawMessage
	if err == nil {
		err = json.Unmarshal(body, &raw)
	}
	if err != nil || len(raw) != len(events) {
		e.bridge.metrics.failures.WithLabelValues("pull").Inc()
		slog.Error("the engine's answer to polling cannot be read", "engine", e.cfg.URL, "error", err)
		for _, r := range replicas {
			r.unreadable()
		}
		return
	}
	if len(events) > 0 && len(replicas) > 0 {
		replicas[0].record(zmq.Record{Kind: zmq.RecordPull, Frame: zmq.Frame{Payload: body, AtUS: atUS}})
	}
	for i, event := range events {
		rank := max(event.Rank, 0)
		if rank >= len(replicas) {
			e.bridge.metrics.ignored.WithLabelValues(e.cfg.Replica, "unknown rank").Inc()
			continue
		}
		replicas[rank].takePulled(ctx, event, raw[i], atUS)
	}
}

// takePulled takes one event of its rank.
func (r *replica) takePulled(ctx context.Context, event kvevents.PullEvent, raw json.RawMessage, atUS int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = time.Now()
	if !event.HasID {
		r.lostBatch(atUS, r.lastSeq())
		return
	}
	r.feed.Live(ctx, feed.Batch{Seq: event.ID, Payload: bytes.Join([][]byte{[]byte("["), raw, []byte("]")}, nil), AtUS: atUS})
}

// unreadable says that events came which nobody could read.
func (r *replica) unreadable() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lostBatch(r.now(), r.lastSeq())
}

// lostBatch begins an epoch that does not know everything.
// source is the engine's number of the last batch taken in, nil for none.
func (r *replica) lostBatch(atUS int64, source *uint64) {
	r.out.Begin(doubtBatch, atUS, r.mirror.Lost(doubtBatch), source)
}

// decodePulled reads one polled event as a batch.
func (r *replica) decodePulled(payload []byte) (*kvevents.Batch, error) {
	events, err := kvevents.DecodePull(payload)
	if err != nil {
		return nil, err
	}
	batch := &r.pulled
	*batch = kvevents.Batch{Rank: -1, Events: batch.Events[:0]}
	for _, e := range events {
		batch.Rank = e.Rank
		if e.Bad != "" {
			batch.Skipped++
		}
		if e.Unknown != "" {
			batch.Unknown++
		}
		if len(e.Created) > 0 {
			batch.Events = append(batch.Events, kvevents.Event{Kind: kvevents.Cleared})
		}
		batch.Events = append(batch.Events, e.Events...)
	}
	return batch, nil
}
