package analytics

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"warmpath/services/clickhouse/tables"
	"warmpath/streams"
	"warmpath/streams/streamstest"
)

// childVariable makes the test binary the analytics service, for tests that kill
// it the hard way; its value is "<NATS URL> <ClickHouse URL>".
const childVariable = "WARMPATH_ANALYTICSTEST_CHILD"

func TestMain(m *testing.M) {
	if urls := os.Getenv(childVariable); urls != "" {
		os.Exit(child(urls))
	}
	streamstest.Main(m)
}

func child(urls string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var nats, clickhouse string
	if _, err := fmt.Sscan(urls, &nats, &clickhouse); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	c := Command{
		NATS: streams.Connection{NATS: nats}, ClickHouse: tables.Connection{Clickhouse: clickhouse},
		Listen: "127.0.0.1:0", BatchRows: 50,
	}
	if err := c.Run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
