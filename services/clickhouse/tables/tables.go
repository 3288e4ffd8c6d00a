// Package tables brings a ClickHouse database to the schema in schemas/tables,
// forward only, and connects to it.
package tables

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"warmpath/schemas"
)

// Applied is a migration that Apply executed, or that Check found missing.
type Applied struct {
	// Version is the number in the file's name, from 1 without gaps.
	Version uint32 `json:"version"`
	// Name is the rest of the file's name, without .sql.
	Name string `json:"name"`
	// SHA256 is that of the file, in hex.
	SHA256 string `json:"sha256"`
}

// ErrChanged is returned when a migration that the database has differs from
// the file of that number: released migrations never change.
var ErrChanged = errors.New("an applied migration differs from its file")

// ErrGap is returned when numbers are missing, among the files or in the
// database.
var ErrGap = errors.New("a migration is missing")

type migration struct {
	Applied
	statement string
}

// createMigrations makes the table that says what was applied. A version that
// two writers recorded at once collapses into one row.
const createMigrations = `CREATE TABLE IF NOT EXISTS schema_migrations
(
    version UInt32,
    name String,
    sha256 String,
    applied_at DateTime64(6, 'UTC')
)
ENGINE = ReplacingMergeTree
ORDER BY version`

// codeExists is ClickHouse's TABLE_ALREADY_EXISTS.
const codeExists = 57

var filePattern = regexp.MustCompile(`^(\d{4})_([a-z0-9_]+)\.sql$`)

// load reads migrations from the .sql files in dir of fsys.
func load(fsys fs.FS, dir string) ([]migration, error) {
	entries, err := fs.ReadDir(fsys, dir)
	if err != nil {
		return nil, fmt.Errorf("read migrations: %w", err)
	}
	var list []migration
	for _, entry := range entries {
		match := filePattern.FindStringSubmatch(entry.Name())
		if match == nil {
			return nil, fmt.Errorf("migration %s: the name must be like 0001_name.sql", entry.Name())
		}
		text, err := fs.ReadFile(fsys, dir+"/"+entry.Name())
		if err != nil {
			return nil, fmt.Errorf("read migrations: %w", err)
		}
		version, _ := strconv.ParseUint(match[1], 10, 32) // four digits
		sum := sha256.Sum256(text)
		list = append(list, migration{
			Applied:   Applied{Version: uint32(version), Name: match[2], SHA256: hex.EncodeToString(sum[:])},
			statement: strings.TrimRight(strings.TrimSpace(string(text)), ";"),
		})
	}
	slices.SortFunc(list, func(a, b migration) int { return int(a.Version) - int(b.Version) })
	for i, m := range list {
		if m.Version != uint32(i+1) {
			return nil, fmt.Errorf("%w: the files go from %04d to %04d", ErrGap, i, m.Version)
		}
	}
	return list, nil
}

// Apply executes the migrations that conn's database lacks, in order, and
// returns them. It may be run again, and by several processes at once. A
// database that has more migrations than this program is left as it is: only
// additions are ever made, so an older program still runs on it.
//
// The errors are ErrChanged and ErrGap, or that of a statement; the migrations
// before it stay applied, and the next run goes on from there.
func Apply(ctx context.Context, conn driver.Conn) ([]Applied, error) {
	list, err := load(schemas.Tables, "tables")
	if err != nil {
		return nil, err
	}
	return apply(ctx, conn, list)
}

func apply(ctx context.Context, conn driver.Conn, list []migration) ([]Applied, error) {
	if err := conn.Exec(ctx, createMigrations); err != nil {
		return nil, fmt.Errorf("create schema_migrations: %w", err)
	}
	missing, err := missing(ctx, conn, list)
	if err != nil {
		return nil, err
	}
	var done []Applied
	for _, m := range missing {
		if err := execute(ctx, conn, m); err != nil {
			return done, fmt.Errorf("migration %04d_%s: %w", m.Version, m.Name, err)
		}
		done = append(done, m.Applied)
	}
	return done, nil
}

// execute runs one migration and records it. What exists already was made by a
// process that runs at the same time, or that ended before it could record it.
func execute(ctx context.Context, conn driver.Conn, m migration) error {
	err := conn.Exec(ctx, m.statement)
	var exception *clickhouse.Exception
	if errors.As(err, &exception) && exception.Code == codeExists {
		slog.Info("migration found in place", "version", m.Version, "name", m.Name)
		err = nil
	}
	if err != nil {
		return err
	}
	return conn.Exec(ctx, "INSERT INTO schema_migrations (version, name, sha256, applied_at) SELECT toUInt32(?), ?, ?, now64(6, 'UTC')",
		m.Version, m.Name, m.SHA256)
}

// Check returns the migrations that conn's database lacks, without changing
// anything. The errors are those of Apply.
func Check(ctx context.Context, conn driver.Conn) ([]Applied, error) {
	list, err := load(schemas.Tables, "tables")
	if err != nil {
		return nil, err
	}
	return check(ctx, conn, list)
}

func check(ctx context.Context, conn driver.Conn, list []migration) ([]Applied, error) {
	var exists uint8
	if err := conn.QueryRow(ctx, "EXISTS TABLE schema_migrations").Scan(&exists); err != nil {
		return nil, fmt.Errorf("look for schema_migrations: %w", err)
	}
	open := list
	if exists != 0 {
		var err error
		if open, err = missing(ctx, conn, list); err != nil {
			return nil, err
		}
	}
	var lacks []Applied
	for _, m := range open {
		lacks = append(lacks, m.Applied)
	}
	return lacks, nil
}

// missing compares the files with what the database has, which must be the
// same from 1 on.
func missing(ctx context.Context, conn driver.Conn, list []migration) ([]migration, error) {
	rows, err := conn.Query(ctx, "SELECT version, any(name), groupUniqArray(sha256) FROM schema_migrations GROUP BY version ORDER BY version")
	if err != nil {
		return nil, fmt.Errorf("read schema_migrations: %w", err)
	}
	defer func() { _ = rows.Close() }() // rows.Err has said what went wrong
	var last uint32
	for rows.Next() {
		var version uint32
		var name string
		var sums []string
		if err := rows.Scan(&version, &name, &sums); err != nil {
			return nil, fmt.Errorf("read schema_migrations: %w", err)
		}
		if version != last+1 {
			return nil, fmt.Errorf("%w: the database has %04d_%s but not %04d; restore schema_migrations from a backup", ErrGap, version, name, last+1)
		}
		last = version
		if int(version) > len(list) {
			continue // of a newer program
		}
		if want := list[version-1]; len(sums) != 1 || sums[0] != want.SHA256 {
			return nil, fmt.Errorf("%w: %04d_%s was applied from another text; put the file back and add a further migration", ErrChanged, version, want.Name)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read schema_migrations: %w", err)
	}
	return list[min(int(last), len(list)):], nil
}
