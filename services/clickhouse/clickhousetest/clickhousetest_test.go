package clickhousetest_test

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"warmpath/services/clickhouse/clickhousetest"
)

// The engine outlives the tests; nothing of it that Go can see does.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEachOpenIsADatabase(t *testing.T) {
	ctx := context.Background()
	var left string
	t.Run("two at once", func(t *testing.T) {
		one, dsn := clickhousetest.Open(t)
		other, otherDSN := clickhousetest.Open(t)
		if dsn == otherDSN {
			t.Error("two opens share a database")
		}
		if err := one.Exec(ctx, "CREATE TABLE t (a UInt8) ENGINE = MergeTree ORDER BY a"); err != nil {
			t.Fatal(err)
		}
		var exists uint8
		if err := other.QueryRow(ctx, "EXISTS TABLE t").Scan(&exists); err != nil || exists != 0 {
			t.Errorf("the other database has the table: %d, %v", exists, err)
		}
		if err := one.QueryRow(ctx, "SELECT currentDatabase()").Scan(&left); err != nil {
			t.Fatal(err)
		}
	})
	conn, _ := clickhousetest.Open(t)
	var n uint64
	if err := conn.QueryRow(ctx, "SELECT count() FROM system.databases WHERE name = ?", left).Scan(&n); err != nil || n != 0 {
		t.Errorf("the database is left behind: %d, %v", n, err)
	}
}
