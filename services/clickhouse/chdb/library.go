// Package chdb binds libchdb.so, the ClickHouse engine as a shared library,
// without cgo. It knows the C interface of chdb.h and nothing else.
package chdb

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// ErrConnect is returned by Connect when the engine refuses without saying
// why: another process has the data directory open, it cannot be written, or
// the engine of this process was shut down or stands on another directory.
var ErrConnect = errors.New("the engine refused to connect")

// handle is an opaque pointer of the library.
type handle = unsafe.Pointer

// Library is a loaded libchdb.so. Safe for concurrent use.
type Library struct {
	path string

	version       func() string
	signals       func(enabled int32)
	shutdown      func() int32
	connect       func(argc int32, argv unsafe.Pointer) handle
	closeConn     func(conn handle)
	query         func(conn handle, sql string, sqlLen uintptr, format string, formatLen uintptr, names, nameLens, values, valueLens unsafe.Pointer, count uintptr) handle
	stream        func(conn handle, sql string, sqlLen uintptr, format string, formatLen uintptr, names, nameLens, values, valueLens unsafe.Pointer, count uintptr) handle
	fetch         func(conn, result handle) handle
	cancelQuery   func(conn, result handle)
	insert        func(conn handle, sql string, sqlLen uintptr, format string, formatLen uintptr, names, nameLens, values, valueLens unsafe.Pointer, count uintptr) handle
	insertAppend  func(insert handle, data unsafe.Pointer, size uintptr) int32
	insertDone    func(insert handle) handle
	insertCancel  func(insert handle)
	insertError   func(insert handle) string
	insertDestroy func(insert handle)
	classify      func(conn handle, sql string, sqlLen uintptr, target unsafe.Pointer, targetLen uintptr, out unsafe.Pointer) int32
	buffer        func(result handle) unsafe.Pointer
	length        func(result handle) uintptr
	elapsed       func(result handle) float64
	rowsRead      func(result handle) uint64
	bytesRead     func(result handle) uint64
	rowsWritten   func(result handle) uint64
	bytesWritten  func(result handle) uint64
	resultError   func(result handle) string
	destroy       func(result handle)
}

func (l *Library) symbols() map[string]any {
	return map[string]any{
		"chdb_version":                     &l.version,
		"chdb_set_signal_handlers_enabled": &l.signals,
		"chdb_shutdown":                    &l.shutdown,
		"chdb_connect":                     &l.connect,
		"chdb_close_conn":                  &l.closeConn,
		"chdb_query_with_params_n":         &l.query,
		"chdb_stream_query_with_params_n":  &l.stream,
		"chdb_stream_fetch_result":         &l.fetch,
		"chdb_stream_cancel_query":         &l.cancelQuery,
		"chdb_stream_insert_with_params_n": &l.insert,
		"chdb_stream_append":               &l.insertAppend,
		"chdb_stream_done":                 &l.insertDone,
		"chdb_stream_cancel_insert":        &l.insertCancel,
		"chdb_stream_insert_error":         &l.insertError,
		"chdb_destroy_insert_stream":       &l.insertDestroy,
		"chdb_classify_query_n":            &l.classify,
		"chdb_result_buffer":               &l.buffer,
		"chdb_result_length":               &l.length,
		"chdb_result_elapsed":              &l.elapsed,
		"chdb_result_storage_rows_read":    &l.rowsRead,
		"chdb_result_storage_bytes_read":   &l.bytesRead,
		"chdb_result_rows_written":         &l.rowsWritten,
		"chdb_result_bytes_written":        &l.bytesWritten,
		"chdb_result_error":                &l.resultError,
		"chdb_destroy_query_result":        &l.destroy,
	}
}

var loaded struct {
	sync.Mutex
	library *Library
}

// Load loads the library at path. A process has one engine, hence one library:
// a second call returns the first one, or an error for another path. The
// engine's own signal handlers stay off, because the Go runtime needs the
// signals.
func Load(path string) (*Library, error) {
	loaded.Lock()
	defer loaded.Unlock()
	if l := loaded.library; l != nil {
		if l.path != path {
			return nil, fmt.Errorf("load %s: this process has loaded %s already", path, l.path)
		}
		return l, nil
	}
	lib, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", path, err)
	}
	l := &Library{path: path}
	for name, fn := range l.symbols() {
		if _, err := purego.Dlsym(lib, name); err != nil {
			return nil, fmt.Errorf("load %s: it lacks %s; install the version that this program asks for", path, name)
		}
		purego.RegisterLibFunc(fn, lib, name)
	}
	l.signals(0)
	loaded.library = l
	return l, nil
}

// Version returns the library's version, such as 26.7.3.
func (l *Library) Version() string { return l.version() }

// Shutdown stops the engine's threads. Every connection must be closed before.
// The process cannot open the engine again afterwards.
func (l *Library) Shutdown() error {
	if l.shutdown() != 0 {
		return errors.New("shut the engine down: a connection is open or a thread did not stop")
	}
	return nil
}

// Connect opens a connection: a session with settings and a current database
// of its own, which runs one statement at a time. The first one boots the
// engine on the directory in --path; later ones must name the same.
func (l *Library) Connect(args ...string) (*Conn, error) {
	var pinner runtime.Pinner
	defer pinner.Unpin()
	argv := make([]unsafe.Pointer, 0, len(args)+1)
	for _, arg := range append([]string{"clickhouse"}, args...) {
		text := append([]byte(arg), 0)
		pinner.Pin(&text[0])
		argv = append(argv, unsafe.Pointer(&text[0]))
	}
	pinner.Pin(&argv[0])
	conn := l.connect(int32(len(argv)), unsafe.Pointer(&argv[0]))
	if conn == nil || *(*handle)(conn) == nil {
		return nil, ErrConnect
	}
	return &Conn{library: l, owner: conn, conn: *(*handle)(conn)}, nil
}
