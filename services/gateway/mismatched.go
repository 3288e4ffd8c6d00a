package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/gateway/mismatch"
	"warmpath/services/tokensource"
	"warmpath/streams"
	"warmpath/tokenize"
)

const (
	// kindMismatch is the event's kind in message ids and metrics.
	kindMismatch = "mismatch"
	// probeTimeout bounds a comparison with an engine's tokenizer, which nobody
	// waits for.
	probeTimeout = 5 * time.Second
)

// compare gives the mismatch detector what a request was predicted and what its
// engine reported.
func (x *exchange) compare(f *pb.Finished) {
	if x.rq.kind == endpointPooling {
		return
	}
	record, ok := mismatch.RecordOf(x.decided, f, x.g.view.entry(f.GetReplica()))
	if !ok {
		return
	}
	record.Salted, record.Chat = x.rq.salt != "", x.rq.kind == endpointChat
	if p := x.rq.prompt; p != nil && p.Chat {
		record.Messages, record.Media = tokenize.CountElements(p.Messages), hasMedia(p.Messages)
	}
	x.g.raise(x.ctx, x.g.mismatch.Observe(record))
	if x.rq.prompt != nil && x.g.mismatch.WantsProbe(record) {
		x.g.probe(*x.rq.prompt, f.GetReplica())
	}
}

// hasMedia says whether messages carry what is not text.
func hasMedia(messages json.RawMessage) bool {
	for _, kind := range []string{`"image_url"`, `"input_audio"`, `"audio_url"`, `"video_url"`, `"image"`} {
		if bytes.Contains(messages, []byte(kind)) {
			return true
		}
	}
	return false
}

// raise publishes alarms and their ends, and stops making tokens in process when
// those are shown to be wrong.
func (g *Gateway) raise(ctx context.Context, alarms []*pb.Mismatch) {
	for _, m := range alarms {
		labels := []string{m.GetReplica(), m.GetCause()}
		if m.GetResolved() {
			g.log.Info("a mismatch is over", "replica", m.GetReplica(), "cause", m.GetCause())
			g.metrics.mismatch.DeleteLabelValues(labels...)
		} else {
			g.log.Error("predicted and actual hits do not belong together", "replica", m.GetReplica(), "cause", m.GetCause(), "detail", m.GetDetail())
			g.metrics.mismatch.WithLabelValues(labels...).Set(1)
			g.metrics.mismatches.WithLabelValues(m.GetCause()).Inc()
			g.distrust(m)
		}
		id := fmt.Sprintf("%s/%s%d", kindMismatch, g.life, g.serial.Add(1))
		g.put(ctx, id, kindMismatch, m)
	}
}

// distrust lets the engines tokenize when the tokens made here are the cause.
func (g *Gateway) distrust(m *pb.Mismatch) {
	source, ok := g.source.(*tokensource.Source)
	if !ok || m.GetCause() != mismatch.Template && m.GetCause() != mismatch.Tokenizer {
		return
	}
	if !source.UseEngine(m.GetCause() + ": " + m.GetDetail()) {
		g.log.Error("there is no other source of tokens to fall back to", "cause", m.GetCause(), "tokenizer", g.cfg.Tokenizer)
	}
}

// probe asks an engine what tokens it makes of a prompt, one prompt at a time, and
// tells the detector. The prompt's raw values outlive its request.
func (g *Gateway) probe(p tokensource.Prompt, replica string) {
	source, ok := g.source.(*tokensource.Source)
	if !ok || !g.probing.CompareAndSwap(false, true) {
		return
	}
	g.probes.Go(func() {
		defer g.probing.Store(false)
		ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
		defer cancel()
		result, err := source.Probe(ctx, &p, replica)
		if err != nil {
			g.log.Debug("an engine's tokens could not be compared", "replica", replica, "error", err)
			return
		}
		g.raise(ctx, g.mismatch.Probed(mismatch.Probe{
			Replica: replica, Chat: p.Chat, SameText: result.SameText, SameChat: result.SameChat, FirstDifference: result.FirstDifference,
		}, time.Now().UnixMicro()))
	})
}

// put publishes an event that belongs to no request.
func (g *Gateway) put(ctx context.Context, id, kind string, event *pb.Mismatch) {
	message, err := streams.NewMessage(g.subject(), id, event)
	g.handOrLose(ctx, "", kind, message, err)
}

// serveMismatches lists the alarms that are on, and where tokens come from.
func (g *Gateway) serveMismatches(w http.ResponseWriter, _ *http.Request) {
	out := struct {
		Pool       string            `json:"pool"`
		Gateway    string            `json:"gateway"`
		Tokenizer  string            `json:"tokenizer"`
		Fallback   string            `json:"fallback,omitempty"`
		Mismatches []json.RawMessage `json:"mismatches"`
	}{Pool: g.cfg.Pool, Gateway: g.cfg.Name, Tokenizer: g.cfg.Tokenizer, Mismatches: []json.RawMessage{}}
	if source, ok := g.source.(*tokensource.Source); ok {
		out.Fallback, _ = source.Fallback()
	}
	for _, m := range g.mismatch.Active() {
		text, err := protojson.Marshal(m)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		out.Mismatches = append(out.Mismatches, text)
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(out); err != nil {
		g.log.Debug("mismatches were not sent", "error", err)
	}
}
