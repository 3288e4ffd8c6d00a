package tables

import (
	"fmt"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
)

// Connection says which ClickHouse to speak to. Embed it in a command.
type Connection struct {
	// Clickhouse is scheme://[user[:password]@]host:port/database[?setting=value]:
	// http and https speak to ClickHouse's HTTP interface, the embedded engine's
	// too; clickhouse speaks the native protocol.
	Clickhouse string `help:"URL of ClickHouse with its database: http, https or clickhouse (native protocol)." env:"WARMPATH_CLICKHOUSE_URL" default:"http://127.0.0.1:8123/default" placeholder:"URL"`
}

const (
	// dialTimeout bounds one attempt to connect. A server that is up answers in
	// milliseconds; a name that has to be resolved may take a second.
	dialTimeout = 5 * time.Second
	// readTimeout bounds how long an answer may be silent.
	readTimeout = 2 * time.Minute
)

// Open returns a pool of connections, which connects when it is first used. It
// is safe for concurrent use; the caller closes it.
//
// Inserts are synchronous (async_insert=0): a batch that was acknowledged is
// written, and its deduplication token is kept, which asynchronous inserts do
// not promise by default.
func (c Connection) Open() (driver.Conn, error) {
	options, err := c.options()
	if err != nil {
		return nil, err
	}
	conn, err := clickhouse.Open(options)
	if err != nil {
		return nil, fmt.Errorf("clickhouse: %w; correct --clickhouse", err)
	}
	return conn, nil
}

func (c Connection) options() (*clickhouse.Options, error) {
	scheme, _, found := strings.Cut(c.Clickhouse, "://")
	if !found || scheme != "http" && scheme != "https" && scheme != "clickhouse" {
		return nil, fmt.Errorf("clickhouse: the URL must begin with http://, https:// or clickhouse://; correct --clickhouse")
	}
	dsn := c.Clickhouse
	if scheme == "https" { // clickhouse-go wants it said twice
		separator := "?"
		if strings.Contains(dsn, "?") {
			separator = "&"
		}
		dsn += separator + "secure=true"
	}
	options, err := clickhouse.ParseDSN(dsn)
	if err != nil {
		// The error may show the URL, and the URL a password.
		return nil, fmt.Errorf("clickhouse: the URL cannot be read; correct --clickhouse to scheme://[user:password@]host:port/database")
	}
	if options.Settings == nil {
		options.Settings = clickhouse.Settings{}
	}
	options.Settings["async_insert"] = 0
	options.DialTimeout = dialTimeout
	options.ReadTimeout = readTimeout
	if options.Compression == nil {
		options.Compression = &clickhouse.Compression{Method: clickhouse.CompressionLZ4}
	}
	options.ClientInfo.Products = append(options.ClientInfo.Products, struct{ Name, Version string }{"warmpath", "1"})
	return options, nil
}
