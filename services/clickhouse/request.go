package clickhouse

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/ClickHouse/ch-go/compress"

	"warmpath/services/clickhouse/chdb"
)

const (
	// maxQuery bounds a query's text; what an INSERT carries as data is not text.
	maxQuery = 16 << 20
	// peekQuery is how much of a body is read to see whether it is an INSERT.
	peekQuery = 1 << 20
	// gather is how much of an insert's data is read before it takes a place at
	// the engine, so that a slow sender does not hold one.
	gather = 16 << 20
)

// notSettings are the parameters of ClickHouse's HTTP interface itself.
// Sessions are not kept: the parameters that ask for one are let pass, since
// some clients always send them.
var notSettings = []string{
	"query", "database", "default_format", "client_protocol_version", "compress", "decompress",
	"user", "password", "quota_key", "query_id", "session_id", "session_timeout", "session_check", "close_session",
	"stacktrace", "role", "buffer_size", "wait_end_of_query", "enable_http_compression", "http_zlib_compression_level",
	"add_http_cors_header", "send_progress_in_http_headers", "cancel_http_readonly_queries_on_client_close",
}

type setting struct{ name, value string }

// request is one call of ClickHouse's HTTP interface.
type request struct {
	statement
	settings []setting
	params   []chdb.Param
	database string
	queryID  string
	// readonly: GET may not change anything.
	readonly bool
	// revision of the native protocol that the client decodes; 0 is plain Native.
	revision uint64
	// method of the frames around the answer when compress=1.
	framed bool
	method compress.Method
	// gzip says that the answer may be sent as gzip.
	gzip bool
	// whole says that the answer must be complete before any of it is sent.
	whole bool
	// body is the rest of the data of an insert.
	body io.Reader
}

// answerFormat is the format that the answer will be in.
func (q *request) answerFormat(def string) string {
	if q.insert || q.format == "" {
		return def
	}
	return q.format
}

// parseRequest reads r as far as the query's text goes. Errors are *Exception.
func parseRequest(r *http.Request) (*request, string, error) {
	values := r.URL.Query()
	q := &request{
		database: first(values.Get("database"), r.Header.Get("X-ClickHouse-Database")),
		queryID:  values.Get("query_id"),
		readonly: r.Method == http.MethodGet || r.Method == http.MethodHead,
		framed:   values.Get("compress") == "1",
		method:   compress.LZ4,
		whole:    values.Get("wait_end_of_query") == "1",
		gzip:     values.Get("enable_http_compression") == "1" && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip"),
	}
	q.revision, _ = strconv.ParseUint(values.Get("client_protocol_version"), 10, 32) // absent or not a number: 0
	if strings.EqualFold(values.Get("network_compression_method"), "ZSTD") {
		q.method = compress.ZSTD
	}
	if strings.HasPrefix(r.Header.Get("Content-Type"), "multipart/form-data") {
		return nil, "", newException(codeNotSupport, "external tables are not supported by the embedded engine's HTTP interface")
	}
	q.options(values)
	body, err := decoded(r, values)
	if err != nil {
		return nil, "", err
	}
	if err := q.read(values.Get("query"), body); err != nil {
		return nil, "", err
	}
	return q, first(values.Get("default_format"), r.Header.Get("X-ClickHouse-Format"), "TabSeparated"), nil
}

func first(list ...string) string {
	for _, s := range list {
		if s != "" {
			return s
		}
	}
	return ""
}

// options sorts the URL's parameters into settings and query parameters.
func (q *request) options(values url.Values) {
	for name, list := range values {
		if len(list) == 0 || slices.Contains(notSettings, name) {
			continue
		}
		value := list[len(list)-1]
		if param, ok := strings.CutPrefix(name, "param_"); ok {
			q.params = append(q.params, chdb.Param{Name: param, Value: value})
			continue
		}
		q.settings = append(q.settings, setting{name: name, value: value})
	}
	slices.SortFunc(q.settings, func(a, b setting) int { return strings.Compare(a.name, b.name) })
}

// decoded is the body without its compression.
func decoded(r *http.Request, values url.Values) (io.Reader, error) {
	var body io.Reader = r.Body
	var err error
	switch encoding := r.Header.Get("Content-Encoding"); encoding {
	case "", "identity":
	case "gzip":
		body, err = gzip.NewReader(body)
	case "deflate":
		body, err = zlib.NewReader(body)
	default:
		return nil, newException(codeNotSupport, fmt.Sprintf("content encoding %q is not supported by the embedded engine's HTTP interface; use gzip, deflate, or decompress=1", encoding))
	}
	if err != nil {
		return nil, newException(codeCannotRead, "cannot read the compressed body: "+err.Error())
	}
	if values.Get("decompress") == "1" {
		body = unframed{compress.NewReader(body)}
	}
	return body, nil
}

// unframed reads ClickHouse's compressed frames; their reader reports the end
// of the body as an error of its own.
type unframed struct{ frames *compress.Reader }

func (u unframed) Read(p []byte) (int, error) {
	n, err := u.frames.Read(p)
	switch {
	case err == nil:
	case errors.Is(err, io.EOF) && strings.Contains(err.Error(), "header"):
		err = io.EOF // between two frames
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// read takes the query from the URL, else from the body; what is left of the
// body is an insert's data.
func (q *request) read(query string, body io.Reader) error {
	if query == "" {
		return q.readBody(body)
	}
	if len(query) > maxQuery {
		return tooLong()
	}
	q.statement = parseStatement(query)
	if q.insert {
		q.body = io.MultiReader(strings.NewReader(q.data), body)
		return nil
	}
	// ClickHouse takes the body as the query's continuation.
	more, err := readAll(body)
	if err != nil {
		return err
	}
	if len(bytes.TrimSpace(more)) > 0 {
		q.statement = parseStatement(query + "\n" + string(more))
		if q.insert {
			q.body = strings.NewReader(q.data)
		}
	}
	return nil
}

func (q *request) readBody(body io.Reader) error {
	buffered := bufio.NewReaderSize(body, peekQuery)
	head, err := buffered.Peek(peekQuery)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
		return newException(codeCannotRead, "cannot read the query: "+err.Error())
	}
	q.statement = parseStatement(string(head))
	if q.insert && q.format != "" {
		if _, err := buffered.Discard(len(head)); err != nil {
			return newException(codeCannotRead, "cannot read the query: "+err.Error())
		}
		q.body = io.MultiReader(strings.NewReader(q.data), buffered)
		return nil
	}
	text, err := readAll(buffered)
	if err != nil {
		return err
	}
	q.statement = parseStatement(string(text))
	if q.insert {
		q.body = strings.NewReader(q.data)
	}
	if strings.TrimSpace(q.text) == "" {
		return newException(codeSyntax, "Syntax error: the query is empty")
	}
	return nil
}

func readAll(body io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(body, maxQuery+1))
	if err != nil {
		return nil, newException(codeCannotRead, "cannot read the query: "+err.Error())
	}
	if len(text) > maxQuery {
		return nil, tooLong()
	}
	return text, nil
}

func tooLong() error {
	return newException(codeTooLarge, fmt.Sprintf("the query's text is longer than %d bytes; send data after INSERT … FORMAT", maxQuery))
}
