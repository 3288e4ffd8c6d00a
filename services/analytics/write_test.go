package analytics

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"warmpath/schemas"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
)

// event makes a stream's event of a message, as Follow hands it over.
func event(t testing.TB, seq uint64, at time.Time, m proto.Message) streams.Event {
	t.Helper()
	e := streams.Event{Stream: streams.RouteStream, Seq: seq, Time: at}
	if m != nil {
		message, err := streams.NewMessage("route.chat.gw", "", m)
		if err != nil {
			t.Fatal(err)
		}
		e.Schema, e.Data = message.Schema, message.Data
	}
	return e
}

// recentBucket is a bucket boundary that no table's TTL is near.
func recentBucket() time.Time { return bucketOf(time.Now()).Add(-time.Minute) }

func startRouteFold(t testing.TB, s *Service) (*routeFold, uint64) {
	t.Helper()
	f, from, err := newRouteFold(t.Context(), s, s.conn, "ROUTE@test")
	if err != nil {
		t.Fatal(err)
	}
	return f, from
}

func TestRowsAsWritten(t *testing.T) {
	conn, _ := openTables(t)
	s := newService(nil, conn, 100)
	f, from := startRouteFold(t, s)
	if from != 1 {
		t.Errorf("an empty table is read from %d, want 1", from)
	}
	at := recentBucket()
	d := decidedEvent("a", 0, 3)
	d.DecidedAtUs, d.FirstChoice, d.Chosen = at.UnixMicro(), "r2", "r1"
	d.Reason, d.DecideUs, d.WaitUs, d.IndexAgeUs, d.SessionKey = pb.DecisionReason_DECISION_REASON_STEAL, 120, 340, -5, 1<<63
	d.PredictedCachedTokens = 32
	d.Candidates[0].Ineligible = "draining"
	d.Candidates[0].ExpectedCachedTokens = 96
	d.Candidates[1].ExpectedCachedTokens = 32
	d.Candidates[2].ExpectedCachedTokens = 64
	d.Candidates[1].Tiers = []*pb.TierBlocks{{Tier: pb.Tier_TIER_GPU, Blocks: 2}, {Tier: pb.Tier_TIER_DISK, Blocks: 5}}
	d.Candidates[1].Load = &pb.LoadTerms{QueuedPrefillTokens: 900, InFlight: 3, Running: 2, Waiting: 1, KvUsed: 0.25, ReportAgeUs: proto.Int64(7)}
	end := finishedEvent("a", 0)
	end.FinishedAtUs, end.Replica, end.CachedTokens = at.Add(1234567*time.Microsecond).UnixMicro(), "r1", proto.Uint64(50)
	silent := finishedEvent("b", 0) // no decision, and an engine that says nothing
	silent.FinishedAtUs = at.UnixMicro()
	silent.PromptTokens, silent.CompletionTokens, silent.CachedTokens, silent.TtftUs, silent.TpotUs = nil, nil, nil, nil, nil
	silent.Status, silent.ErrorKind, silent.Clock = pb.Status_STATUS_NO_REPLICA, "no_replica", pb.Clock_CLOCK_UNSPECIFIED
	zero := finishedEvent("c", 0)
	zero.FinishedAtUs, zero.CachedTokens = at.UnixMicro(), proto.Uint64(0)
	for i, m := range []proto.Message{d, end, silent, zero} {
		if err := f.apply(t.Context(), event(t, uint64(i+1), at.Add(time.Duration(i)*time.Millisecond), m)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	row := func(id string) string {
		return text(t, conn, `SELECT toString(tuple(replica, policy, reason, stolen, first_choice, status, error_kind, clock,
			prompt_tokens, cached_tokens, computed_tokens, hit_class, predicted_cached_tokens, best_cached_tokens, best_replica, regret_tokens,
			chosen_score, best_score, ttft_us, tpot_us, e2e_us, decide_us, wait_us, index_age_us, candidates, eligible,
			stream, stream_seq, decided_seq, floor_seq, session_key, isNull(decided_at)))
			FROM requests WHERE request_id = @id`, named("id", id))
	}
	checkEqual(t, "decided row", row("a"), "('r1','ttft','steal',true,'r2','ok','','model',100,50,50,'hit',32,64,'r2',32,1,1,1000,100,2000,120,340,-5,3,2,'ROUTE@test',2,1,3,9223372036854775808,0)")
	checkEqual(t, "row without a decision", row("b"), "('r0','','',false,'','no_replica','no_replica','',0,NULL,NULL,'unknown',NULL,NULL,'',NULL,NULL,NULL,NULL,NULL,2000,NULL,NULL,NULL,0,0,'ROUTE@test',3,0,4,0,1)")
	checkEqual(t, "row without a hit", row("c"), "('r0','','',false,'','ok','','model',100,0,100,'miss',NULL,NULL,'',NULL,NULL,NULL,1000,100,2000,NULL,NULL,NULL,0,0,'ROUTE@test',4,0,5,0,1)")
	checkEqual(t, "finish time", text(t, conn, "SELECT toString(ts) FROM requests WHERE request_id = 'a'"),
		at.Add(1234567*time.Microsecond).Format("2006-01-02 15:04:05.000000"))
	checkEqual(t, "candidate", text(t, conn, `SELECT toString(tuple(policy, attempt, chosen, ineligible, gpu_blocks, tier_gpu_blocks, tier_cpu_blocks, tier_disk_blocks,
		expected_cached_tokens, queued_prefill_tokens, in_flight, running, waiting, kv_used, report_age_us, score, stream_seq, decided_seq))
		FROM candidates WHERE request_id = 'a' AND replica = 'r1'`), "('ttft',0,true,'',1,2,0,5,32,900,3,2,1,0.25,7,1,2,1)")
	if n := number(t, conn, "SELECT count() FROM candidates WHERE chosen"); n != 1 {
		t.Errorf("%d chosen candidates, want 1", n)
	}
}

// TestSentTwice: the same batch sent again changes no table and no roll-up.
func TestSentTwice(t *testing.T) {
	conn, _ := openTables(t)
	s := newService(nil, conn, 100)
	p := newPipeline(JoinConfig{}, CutConfig{})
	for i, m := range []proto.Message{decidedEvent("a", 0, 4), finishedEvent("a", 0), finishedEvent("b", 0), nil} {
		p.add(message{seq: uint64(i + 1), at: recentBucket().Sub(epoch) + time.Duration(i/3)*time.Second, event: m})
	}
	f, _ := startRouteFold(t, s)
	var want string
	for i := range 3 {
		if err := f.write(t.Context(), p.written[0]); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			want = rowsDigest(t, conn)
			if !strings.Contains(want, "requests rows=2 ") || !strings.Contains(want, "candidates rows=4 ") || !strings.Contains(want, "requests=2 prompt") {
				t.Fatalf("unexpected content\n%s", want)
			}
		}
	}
	checkEqual(t, "content after three sends", rowsDigest(t, conn), want)
}

// TestCrashBetweenInserts: candidates are written, requests are not. The next
// start completes the batch, whether or not it is cut the same.
func TestCrashBetweenInserts(t *testing.T) {
	feed := func(t *testing.T, f *routeFold, base time.Time, from uint64) {
		t.Helper()
		for i, m := range []proto.Message{decidedEvent("a", 0, 2), finishedEvent("a", 0), decidedEvent("b", 0, 2), finishedEvent("b", 0), nil} {
			if seq := uint64(i + 1); seq >= from {
				if err := f.apply(t.Context(), event(t, seq, base.Add(time.Duration(i/4)*time.Second), m)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for _, rows := range []int{100, 1} { // the second start cuts the same, and differently
		conn, _ := openTables(t)
		base := recentBucket()
		ctx, crash := context.WithCancel(t.Context())
		broken := &faultyConn{Conn: conn, fault: func(query string) int {
			if strings.HasPrefix(query, "INSERT INTO requests ") {
				crash()
				return 1
			}
			return 0
		}}
		f, _, err := newRouteFold(t.Context(), newService(nil, broken, 100), broken, "ROUTE@test")
		if err != nil {
			t.Fatal(err)
		}
		for i, m := range []proto.Message{decidedEvent("a", 0, 2), finishedEvent("a", 0), decidedEvent("b", 0, 2), finishedEvent("b", 0)} {
			if err := f.apply(ctx, event(t, uint64(i+1), base, m)); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.flush(ctx); err == nil {
			t.Fatal("the crash did not happen")
		}
		if n, m := number(t, conn, "SELECT count() FROM candidates"), number(t, conn, "SELECT count() FROM requests"); n != 4 || m != 0 {
			t.Fatalf("after the crash %d candidates and %d requests, want 4 and 0", n, m)
		}
		f, from := startRouteFold(t, newService(nil, conn, rows))
		feed(t, f, base, from)
		if err := f.flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n, m := number(t, conn, "SELECT count() FROM candidates"), number(t, conn, "SELECT count() FROM requests"); n != 4 || m != 2 {
			t.Errorf("cut by %d rows: %d candidates and %d requests, want 4 and 2", rows, n, m)
		}
		// And once more: everything is there already.
		f, from = startRouteFold(t, newService(nil, conn, rows))
		if from != 5 {
			t.Errorf("a complete table is read from %d, want 5", from)
		}
		feed(t, f, base, from)
		if n := number(t, conn, "SELECT uniqExact(decided_seq, replica) FROM candidates"); n != 4 {
			t.Errorf("%d distinct candidates, want 4", n)
		}
	}
}

// TestRepairRollup: rows that the roll-up lacks are added at the start, and come
// out as the view would have made them.
func TestRepairRollup(t *testing.T) {
	conn, _ := openTables(t)
	s := newService(nil, conn, 2)
	f, _ := startRouteFold(t, s)
	base := recentBucket()
	for i := range uint64(9) {
		m := finishedEvent(string(rune('a'+i)), 0)
		m.FinishedAtUs = base.Add(time.Duration(i) * 20 * time.Second).UnixMicro()
		if err := f.apply(t.Context(), event(t, i+1, base, m)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	content := func() string {
		return text(t, conn, `SELECT arrayStringConcat(arraySort(groupArray(toString(t))), '\n') FROM (
			SELECT tuple(minute, pool, replica, clock, hit_class, sum(requests), sum(prompt_tokens), sum(cached_tokens),
				quantilesTDigestMerge(0.5, 0.95, 0.99)(ttft_us), max(max_seq)) AS t
			FROM requests_1m GROUP BY minute, pool, replica, clock, hit_class)`)
	}
	want := content()
	if err := conn.Exec(t.Context(), "TRUNCATE TABLE requests_1m"); err != nil {
		t.Fatal(err)
	}
	s.repairAfter = 0 // no insert is on its way
	startRouteFold(t, s)
	checkEqual(t, "repaired roll-up", content(), want)
	startRouteFold(t, s)
	checkEqual(t, "roll-up that needs no repair", content(), want)
}

// TestRepairIsTheView: the statement that repairs selects what the view selects.
func TestRepairIsTheView(t *testing.T) {
	view, err := schemas.Tables.ReadFile("tables/0005_requests_1m_view.sql")
	if err != nil {
		t.Fatal(err)
	}
	from := func(s string) string { return strings.TrimSpace(s[strings.Index(s, "SELECT\n"):]) }
	repair := strings.Replace(rollupRepairSQL, "WHERE stream = @stream AND stream_seq > @from AND stream_seq <= @to\n", "", 1)
	checkEqual(t, "select of the repair", from(repair), from(string(view)))
}

// TestRetries: a batch is sent until it is confirmed, and the service says so.
func TestRetries(t *testing.T) {
	conn, _ := openTables(t)
	tries := 0
	broken := &faultyConn{Conn: conn, fault: func(string) int {
		tries++
		return []int{0, 1, 2, 0}[min(tries, 3)]
	}}
	s := New(Config{Log: slog.New(slog.DiscardHandler)}, nil, broken, prometheus.NewRegistry())
	rows := []*activityRow{{pool: "chat", replica: "r0", bucket: recentBucket(), batches: 1, firstSeq: 1, lastSeq: 1}}
	if err := insert(t.Context(), s.sink, "kv_activity", "t", activityColumns("KV_chat@test"), rows); err != nil {
		t.Fatal(err)
	}
	if tries != 3 {
		t.Errorf("%d tries, want 3", tries)
	}
	if n := number(t, conn, "SELECT count() FROM kv_activity"); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
	metric := func(vec *prometheus.CounterVec) float64 { return counterValue(t, vec.WithLabelValues("kv_activity")) }
	if r, d := metric(s.metrics.retries), metric(s.metrics.suspected); r != 2 || d != 1 {
		t.Errorf("%v retries and %v suspected, want 2 and 1", r, d)
	}
	if err := s.sink.ready(); err != nil {
		t.Errorf("not ready after success: %v", err)
	}
}
