package gateway

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"warmpath/services/analytics"
	"warmpath/services/bridge/kvevents"
	"warmpath/services/clickhouse/clickhousetest"
	"warmpath/services/clickhouse/tables"
	"warmpath/services/gateway/mismatch"
	"warmpath/streams"
	stored "warmpath/streams/source"
	"warmpath/streams/streamstest"
	"warmpath/tools/audit"
)

// Each deployment is wrong in one thing, which the alarm must name.
func TestMismatchesAreNamed(t *testing.T) {
	server := streamstest.Start(t)
	for name, c := range map[string]struct {
		deployment
		cause string
	}{
		"salt-ignored":     {deployment{faults: faults{saltBlind: true}, salted: 6}, mismatch.Salt},
		"salt-untold":      {deployment{faults: faults{generation: kvevents.VLLMLoRAName}, salted: 6}, mismatch.Salt},
		"lora-unnamed":     {deployment{faults: faults{generation: kvevents.VLLMMedium}, adapted: 6}, mismatch.LoRA},
		"block-refused":    {deployment{faults: faults{block: 24}}, mismatch.BlockSize},
		"block-announced":  {deployment{faults: faults{block: 32}, announced: true}, mismatch.BlockSize},
		"events-off":       {deployment{kv: "off"}, mismatch.EventsOff},
		"events-not-heard": {deployment{faults: faults{silent: true}}, mismatch.EventsOff},
		"usage-off":        {deployment{faults: faults{unreported: true}}, mismatch.UsageOff},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newWorld(t, server, name, c.deployment).raised(c.cause)
		})
	}
}

// Wrong tokens are found, the engines' are used instead, and hits come back.
func TestWrongTokensAreReplaced(t *testing.T) {
	server := streamstest.Start(t)
	for name, c := range map[string]struct {
		deployment
		cause string
	}{
		"template":      {deployment{faults: faults{template: systemTemplate}}, mismatch.Template},
		"template-date": {deployment{faults: faults{template: datedTemplate}, ours: otherDate}, mismatch.Template},
		"tokenizer":     {deployment{faults: faults{merges: [][2]string{{"t", "he"}, {"e", "r"}, {"u", "n"}}}}, mismatch.Tokenizer},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, server, name, c.deployment)
			w.raised(c.cause)
			alarmed := w.sent
			if page := w.mismatches(); !strings.HasPrefix(page.Fallback, c.cause) {
				t.Errorf("no fallback: %+v", page)
			}
			for len(w.mismatches().Mismatches) > 0 {
				if w.sent == alarmed+within {
					t.Fatalf("the alarm is still on after %d requests with the engines' tokens: %+v", within, w.mismatches())
				}
				w.request()
			}
			healed := w.sent
			for range 10 {
				w.request()
			}
			alarms, requests := w.recorded()
			t.Logf("alarm after %d requests, over after %d more", alarmed, healed-alarmed)
			if last := alarms[len(alarms)-1]; last.Cause != c.cause || !last.Resolved || w.gateway.metric("mismatch") != 0 {
				t.Errorf("the alarm did not end: %v", alarms)
			}
			before, after := share(requests[:alarmed-1]), share(requests[healed:])
			if before > 0.1 || after < 0.95 {
				t.Errorf("the index said %.2f of what was cached before, and %.2f after", before, after)
			}
			for _, s := range requests[alarmed:] {
				if s.decided[0].TokenSource == mismatch.SourceInProcess {
					t.Errorf("tokens of %s were made in process after the alarm", s.decided[0].RequestId)
				}
			}
		})
	}
}

// What is right, or harmless, is no alarm.
func TestHealthyPoolRaisesNothing(t *testing.T) {
	server := streamstest.Start(t)
	for name, c := range map[string]struct {
		deployment
		requests int
	}{
		"healthy":    {deployment{salted: 3, adapted: 2}, 300},
		"two-blocks": {deployment{faults: faults{block: 32}}, 100}, // each is two of the pool's
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, server, name, c.deployment)
			for range c.requests {
				w.request()
			}
			alarms, requests := w.recorded()
			if page := w.mismatches(); len(alarms) > 0 || len(page.Mismatches) > 0 || page.Fallback != "" {
				t.Errorf("alarms %v, page %+v", alarms, page)
			}
			if got := share(requests); got < 0.95 {
				t.Errorf("the index said %.2f of what was cached", got)
			}
		})
	}
}

// Who reads ROUTE reads past an alarm: every request has its row, and every
// decision is derived again.
func TestReadersOfRouteKnowAlarms(t *testing.T) {
	w := newWorld(t, streamstest.Start(t), "usage-off", deployment{faults: faults{unreported: true}})
	w.raised(mismatch.UsageOff)
	w.request()
	w.recorded() // all is stored
	check := audit.Command{Flags: stored.Flags{Connection: streams.Connection{NATS: w.server.URL("")}}, RouteStream: streams.RouteStream}
	if err := check.Run(w.context()); err != nil {
		t.Error(err)
	}

	conn, _ := clickhousetest.Open(t)
	if _, err := tables.Apply(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	streamstest.Run(w, analytics.New(analytics.Config{Cut: analytics.CutConfig{Rows: 1}, Grace: time.Millisecond}, w.js, conn, prometheus.NewRegistry()).Run)
	w.until("a row for each request", func() bool {
		var rows, requests uint64
		if err := conn.QueryRow(w.context(), "SELECT count(), uniqExact(request_id) FROM requests WHERE pool = 'usage-off' AND status = 'ok'").Scan(&rows, &requests); err != nil {
			t.Fatal(err)
		}
		return rows == uint64(w.sent) && requests == rows
	})
}
