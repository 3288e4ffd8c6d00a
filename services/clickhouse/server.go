package clickhouse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"warmpath/services/clickhouse/chdb"
	"warmpath/services/httpserver"
)

// Config is what a Server needs.
type Config struct {
	EngineConfig
	// Listen is the address of the HTTP interface; port 0 takes a free one.
	Listen string
	// Password that every client must give, under any user name; empty asks for none.
	Password string
}

// Server is the engine behind ClickHouse's HTTP interface: enough of it for
// clickhouse-go and curl. It has no users, and who may ask it may do anything
// that this process may, so it belongs on loopback.
type Server struct {
	engine   *Engine
	listener net.Listener
	handler  http.Handler
	metrics  *metrics
}

// New opens the engine and the address. The caller must Run the server, which
// also closes both.
func New(cfg Config, reg *prometheus.Registry) (*Server, error) {
	engine, err := OpenEngine(cfg.EngineConfig)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		engine.Close()
		return nil, fmt.Errorf("listen on %s: %w; choose another --listen", cfg.Listen, err)
	}
	s := &Server{engine: engine, listener: listener, metrics: newMetrics(reg, engine)}
	host, _, err := net.SplitHostPort(listener.Addr().String())
	s.handler = guard(s.mux(reg), err == nil && isLoopback(host), cfg.Password, engine.version)
	return s, nil
}

// Handler is the HTTP interface of engine for callers that serve it themselves
// and let in whom they want; metrics go to reg.
func Handler(engine *Engine, reg *prometheus.Registry) http.Handler {
	s := &Server{engine: engine, metrics: newMetrics(reg, engine)}
	return s.mux(reg)
}

// Address returns host:port that the server listens on.
func (s *Server) Address() string { return s.listener.Addr().String() }

// Run serves until ctx ends, lets what runs finish, and closes the engine.
func (s *Server) Run(ctx context.Context) error {
	defer s.engine.Close()
	return httpserver.Serve(ctx, s.listener, s.handler)
}

func (s *Server) mux(reg *prometheus.Registry) http.Handler {
	mux := httpserver.Mux(reg, s.ready)
	ok := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "Ok.\n") }
	mux.HandleFunc("GET /ping", ok)
	mux.HandleFunc("GET /replicas_status", ok)
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && r.URL.RawQuery == "" {
			ok(w, r)
			return
		}
		s.serve(w, r)
	})
	mux.HandleFunc("/query", s.serve)
	return mux
}

// ready is nil while the engine takes statements.
func (s *Server) ready() error {
	select {
	case <-s.engine.closed:
		return errClosed
	default:
		return nil
	}
}

// serve answers one query.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	w.Header().Set("X-ClickHouse-Server-Display-Name", "warmpath")
	w.Header().Set("X-ClickHouse-Timezone", s.engine.timezone)
	a := &answer{w: w, control: http.NewResponseController(w), version: s.engine.version}
	kind, err := s.answer(r, a)
	s.metrics.observe(kind, time.Since(start), err)
	if err != nil {
		a.fail(asException(err))
	}
}

// answer runs the query of r; the string is its kind, for metrics.
func (s *Server) answer(r *http.Request, a *answer) (string, error) {
	body := &patient{body: r.Body, control: a.control}
	r.Body = body
	q, format, err := parseRequest(r)
	if err != nil {
		return kindOther, err
	}
	a.request, a.format = q, q.answerFormat(format)
	a.w.Header().Set("X-ClickHouse-Query-Id", q.queryID)
	if q.outfile {
		return kindOther, newException(codeNotSupport, "INTO OUTFILE is not allowed over HTTP")
	}
	var data []byte
	if q.insert {
		if q.readonly {
			return kindInsert, errReadonly
		}
		if data, err = io.ReadAll(io.LimitReader(q.body, gather)); err != nil {
			return kindInsert, newException(codeCannotRead, "cannot read the data: "+err.Error())
		}
	}
	if int64(len(data)) < gather {
		body.done()
	}
	session, err := s.engine.acquire(r.Context())
	if err != nil {
		return kindOther, err
	}
	defer session.close()
	if err := session.prepare(q); err != nil {
		return kindOther, err
	}
	if q.insert {
		return kindInsert, session.insert(q, bytes.NewReader(data), body, a, s.metrics)
	}
	return session.query(r.Context(), q, a)
}

var errReadonly = newException(codeReadonly, "Cannot execute query in readonly mode. For queries over HTTP, method GET implies readonly. You should use method POST for modifying queries")

// patient reads a body whose sender may pause, but not for ever.
type patient struct {
	body    io.ReadCloser
	control *http.ResponseController
}

func (p *patient) Read(b []byte) (int, error) {
	_ = p.control.SetReadDeadline(time.Now().Add(stall)) // a reader without deadlines has none to keep
	return p.body.Read(b)
}

func (p *patient) Close() error { return p.body.Close() }

// done lifts the deadline once the body is read: the server goes on reading to
// learn whether the client leaves, and would take a timeout for that.
func (p *patient) done() { _ = p.control.SetReadDeadline(time.Time{}) }

// prepare gives the session the request's database and settings.
func (s *session) prepare(q *request) error {
	if q.database != "" {
		if err := s.exec("USE " + quoteName(q.database)); err != nil {
			return err
		}
	}
	if len(q.settings) == 0 {
		return nil
	}
	sets := make([]string, len(q.settings))
	for i, set := range q.settings {
		if !isName(set.name) {
			return newException(115, fmt.Sprintf("Unknown setting %q", set.name))
		}
		sets[i] = set.name + " = " + quoteText(set.value)
	}
	return s.exec("SET " + strings.Join(sets, ", "))
}

func isName(s string) bool {
	for i := range len(s) {
		if !isWord(s[i]) || s[i] >= 0x80 {
			return false
		}
	}
	return s != ""
}

func quoteName(s string) string {
	return "`" + strings.NewReplacer("\\", "\\\\", "`", "\\`").Replace(s) + "`"
}

func quoteText(s string) string {
	return "'" + strings.NewReplacer("\\", "\\\\", "'", "\\'").Replace(s) + "'"
}

// insert hands the data to the engine, and commits when all of it has come:
// what is here already, and the rest of the body.
func (s *session) insert(q *request, here io.Reader, rest *patient, a *answer, m *metrics) error {
	format := q.format
	if format == "" {
		format = "Values"
	}
	insert, err := s.conn.Insert(q.text, format, q.params...)
	if err != nil {
		return err
	}
	defer insert.Close()
	if _, err := io.CopyBuffer(writerOnly{insert}, io.MultiReader(here, q.body), make([]byte, 256<<10)); err != nil {
		var engine *chdb.Error
		if !errors.As(err, &engine) {
			return newException(codeCannotRead, "cannot read the data: "+err.Error())
		}
		if engine.Text != "" {
			return err
		}
		// The engine says why when it is asked for the outcome.
	}
	rest.done()
	stats, err := insert.Done()
	if err != nil {
		return err
	}
	m.inserted.Add(float64(stats.WroteRows))
	return a.end(&stats)
}

// writerOnly hides all but Write, so that CopyBuffer uses its buffer.
type writerOnly struct{ io.Writer }

// streamed are the formats in which an answer is its blocks one after the
// other, nothing before, between and behind them.
var streamed = map[string]bool{
	"Native": true, "TabSeparated": true, "TSV": true, "TabSeparatedRaw": true, "TSVRaw": true, "CSV": true,
	"JSONEachRow": true, "JSONCompactEachRow": true, "JSONLines": true, "NDJSON": true, "LineAsString": true, "RowBinary": true,
}

// query runs anything but an insert with data.
func (s *session) query(ctx context.Context, q *request, a *answer) (string, error) {
	class, statements := s.conn.Classify(q.text)
	kind := kindOther
	switch {
	case statements > 1:
		return kind, newException(codeSyntax, "Syntax error (Multi-statements are not allowed): send one statement a request")
	case q.readonly && class != chdb.ReadOnly && class != chdb.Unknown:
		return kind, errReadonly
	case class == chdb.ReadOnly:
		kind = kindSelect
		if streamed[a.format] && !q.whole {
			done, err := s.stream(ctx, q, a)
			if done || err != nil {
				return kind, err
			}
		}
	}
	result, err := s.conn.Query(q.text, a.format, q.params...)
	if err != nil {
		return kind, err
	}
	defer result.Close()
	if err := a.write(result.Data()); err != nil {
		return kind, err
	}
	stats := result.Stats()
	return kind, a.end(&stats)
}

// stream sends the answer block by block; false when the statement is of a
// kind that the engine cannot stream.
func (s *session) stream(ctx context.Context, q *request, a *answer) (bool, error) {
	stream, err := s.conn.Stream(q.text, a.format, q.params...)
	if err != nil {
		if e := asException(err); e.Code == codeBadRequest && strings.Contains(e.Text, "Streaming query is not supported") {
			return false, nil
		}
		return false, err
	}
	defer stream.Close()
	for {
		if ctx.Err() != nil {
			return true, newException(codeAborted, "the client went away")
		}
		chunk, err := stream.Next()
		if err != nil {
			return true, err
		}
		if len(chunk) == 0 {
			return true, a.end(nil)
		}
		if err := a.write(chunk); err != nil {
			return true, err
		}
	}
}
