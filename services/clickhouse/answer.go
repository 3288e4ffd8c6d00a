package clickhouse

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/ClickHouse/ch-go/compress"

	"warmpath/services/clickhouse/chdb"
)

const (
	// stall bounds how long a client may neither send nor take anything while a
	// statement of its runs.
	stall = time.Minute
	// frameSize is the size before compression of a frame, as servers cut them.
	frameSize = 1 << 20
	// tagSize is the length of the tag that marks an exception within an answer.
	tagSize = 16
)

// contentTypes are those that ClickHouse sends; all other formats are text.
var contentTypes = map[string]string{
	"Native": "application/octet-stream", "RowBinary": "application/octet-stream", "RowBinaryWithNames": "application/octet-stream",
	"RowBinaryWithNamesAndTypes": "application/octet-stream", "Parquet": "application/octet-stream", "Arrow": "application/octet-stream",
	"ArrowStream": "application/octet-stream", "ORC": "application/octet-stream", "Avro": "application/octet-stream",
	"JSON": "application/json; charset=UTF-8", "JSONCompact": "application/json; charset=UTF-8", "JSONStrings": "application/json; charset=UTF-8",
	"JSONEachRow": "application/x-ndjson; charset=UTF-8", "JSONCompactEachRow": "application/x-ndjson; charset=UTF-8",
	"CSV": "text/csv; charset=UTF-8; header=absent", "CSVWithNames": "text/csv; charset=UTF-8; header=present",
	"TabSeparated": "text/tab-separated-values; charset=UTF-8", "TSV": "text/tab-separated-values; charset=UTF-8",
	"TabSeparatedWithNames": "text/tab-separated-values; charset=UTF-8", "TSVWithNames": "text/tab-separated-values; charset=UTF-8",
	"XML": "application/xml; charset=UTF-8",
}

// answer writes a statement's answer to the client: in the client's revision
// of the native format, framed or zipped as asked.
type answer struct {
	w        http.ResponseWriter
	control  *http.ResponseController
	request  *request
	format   string
	version  string
	started  bool
	frames   *compress.Writer
	zipped   *gzip.Writer
	tag      string
	encoding []byte
}

// begin sends the header with the first bytes.
func (a *answer) begin() {
	a.started = true
	head := a.w.Header()
	if kind, ok := contentTypes[a.format]; ok {
		head.Set("Content-Type", kind)
	} else {
		head.Set("Content-Type", "text/plain; charset=UTF-8")
	}
	head.Set("X-ClickHouse-Format", a.format)
	a.tag = randomTag()
	head.Set("X-ClickHouse-Exception-Tag", a.tag)
	switch {
	case a.request.framed:
		a.frames = compress.NewWriter(compress.LevelZero, a.request.method)
	case a.request.gzip:
		head.Set("Content-Encoding", "gzip")
		a.zipped = gzip.NewWriter(a.w)
	}
}

func randomTag() string {
	tag := make([]byte, tagSize)
	for i := range tag {
		tag[i] = byte('a' + rand.IntN(26))
	}
	return string(tag)
}

// write sends a part of the answer, for the native format whole blocks.
func (a *answer) write(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	if a.format == "Native" && a.request.revision > 0 {
		var err error
		if a.encoding, err = appendNative(a.encoding[:0], data, a.request.revision); err != nil {
			return err
		}
		data = a.encoding
	}
	if !a.started {
		a.begin()
	}
	_ = a.control.SetWriteDeadline(time.Now().Add(stall)) // a writer without deadlines has none to keep
	if a.frames == nil {
		_, err := a.out().Write(data)
		return gone(err)
	}
	for len(data) > 0 {
		part := data[:min(frameSize, len(data))]
		data = data[len(part):]
		if err := a.frames.Compress(part); err != nil {
			return err
		}
		if _, err := a.w.Write(a.frames.Data); err != nil {
			return gone(err)
		}
	}
	return nil
}

func (a *answer) out() io.Writer {
	if a.zipped != nil {
		return a.zipped
	}
	return a.w
}

// gone says that the client does not take the answer: no fault of the query.
func gone(err error) error {
	if err == nil {
		return nil
	}
	return newException(codeAborted, "the client went away: "+err.Error())
}

// end completes the answer; stats go into the header when nothing was sent yet.
func (a *answer) end(stats *chdb.Stats) error {
	if !a.started && stats != nil {
		summary, err := json.Marshal(map[string]string{
			"read_rows": strconv.FormatUint(stats.ReadRows, 10), "read_bytes": strconv.FormatUint(stats.ReadBytes, 10),
			"written_rows": strconv.FormatUint(stats.WroteRows, 10), "written_bytes": strconv.FormatUint(stats.WroteBytes, 10),
			"elapsed_ns": strconv.FormatInt(int64(stats.Seconds*1e9), 10),
		})
		if err == nil {
			a.w.Header().Set("X-ClickHouse-Summary", string(summary))
		}
	}
	if a.zipped != nil {
		if err := a.zipped.Close(); err != nil {
			return gone(err)
		}
	}
	_ = a.control.SetWriteDeadline(time.Time{}) // the connection lives on
	return nil
}

// fail sends the exception: as the answer, or within one that has begun, in
// the frame that clients look for; the connection then ends without the
// answer's proper end.
func (a *answer) fail(e *Exception) {
	report := e.report(a.version)
	if !a.started {
		head := a.w.Header()
		head.Set("Content-Type", "text/plain; charset=UTF-8")
		head.Set("X-ClickHouse-Exception-Code", strconv.Itoa(e.Code))
		if e.status() == http.StatusServiceUnavailable {
			head.Set("Retry-After", "1")
		}
		a.w.WriteHeader(e.status())
		_, _ = io.WriteString(a.w, report) // nobody is left to tell
		return
	}
	var frame strings.Builder
	frame.WriteString("\r\n__exception__\r\n" + a.tag + "\r\n" + report)
	frame.WriteString(strconv.Itoa(len(report)) + " " + a.tag + "\r\n__exception__\r\n")
	_, _ = io.WriteString(a.out(), frame.String())
	if a.zipped != nil {
		_ = a.zipped.Flush()
	}
	_ = a.control.Flush()
	panic(http.ErrAbortHandler)
}
