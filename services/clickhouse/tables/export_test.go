package tables

import "github.com/ClickHouse/clickhouse-go/v2"

// What the tests, which need the engine and so live outside, call of the inside.
var (
	Load      = load
	ApplyList = apply
	CheckList = check
)

// Migration is what Load returns.
type Migration = migration

// Statement is what the migration executes.
func (m migration) Statement() string { return m.statement }

// Options are those that Open would use.
func (c Connection) Options() (*clickhouse.Options, error) { return c.options() }
