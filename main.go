// Command warmpath routes LLM requests to the replica that already holds their
// prefix in KV cache, and can prove afterwards why it did. One subcommand per
// service and tool.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"warmpath/services/analytics"
	"warmpath/services/bridge"
	"warmpath/services/clickhouse"
	"warmpath/services/clickhouse/tables"
	"warmpath/services/dev"
	"warmpath/services/gateway"
	"warmpath/services/router"
	"warmpath/services/simengine"
	"warmpath/streams"
	"warmpath/tools/audit"
	"warmpath/tools/bench"
	"warmpath/tools/doctor"
	"warmpath/tools/index"
	"warmpath/tools/route"
	"warmpath/tools/tail"
	"warmpath/tools/tokenize"
)

type commands struct {
	LogLevel slog.Level `help:"Least level that is logged: debug, info, warn or error." env:"WARMPATH_LOG_LEVEL" default:"info"`

	Dev        dev.Command        `cmd:"" help:"Run everything in one process tree on loopback, and replay a trace through it."`
	Bridge     bridge.Command     `cmd:"" help:"Stand beside engines: publish their KV events, load and presence."`
	Router     router.Command     `cmd:"" help:"Fold a pool's KV stream into a prefix index and answer where requests go."`
	Gateway    gateway.Command    `cmd:"" help:"Serve the OpenAI API in front of a pool; publish decisions and outcomes."`
	Analytics  analytics.Command  `cmd:"" help:"Write a row per request into ClickHouse, effectively once."`
	Simengine  simengine.Command  `cmd:"" help:"Serve the OpenAI API from a modelled engine that publishes its KV events."`
	Clickhouse clickhouse.Command `cmd:"" help:"Run the embedded ClickHouse engine behind ClickHouse's HTTP interface."`
	Streams    streams.Command    `cmd:"" help:"Apply or check the JetStream topology; print the server's roles."`
	Tables     tables.Command     `cmd:"" help:"Apply or check the ClickHouse migrations."`
	Tail       tail.Command       `cmd:"" help:"Print events as JSON lines, live or from a sequence or a time."`
	Audit      audit.Command      `cmd:"" help:"Recompute recorded decisions from the streams; exit 1 on any that differs."`
	Index      index.Command      `cmd:"" help:"Look into prefix indexes: of snapshots, of files, folded from the stream; compare two."`
	Route      route.Command      `cmd:"" help:"Show where one request would go, and why; nothing is sent or counted."`
	Tokenize   tokenize.Command   `cmd:"" help:"Print what a model directory makes of a text or a chat: token ids, rendered prompt, block keys."`
	Doctor     doctor.Command     `cmd:"" help:"Look at a part of a deployment and say in words what is wrong with it; exit 1 when something is."`
	Bench      bench.Command      `cmd:"" help:"Measure the promised figures, each beside its floor; exit 1 when a bound is missed."`
}

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run executes one command line and returns the exit code: 0 when what was
// asked holds, 1 when it does not, 2 for a command line that cannot be used.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if os.Getenv("WARMPATH_EXIT_WITH_STDIN") != "" {
		ctx = untilEOF(ctx, os.Stdin)
	}

	var cmds commands
	exit := -1
	parser, err := kong.New(&cmds,
		kong.Name("warmpath"),
		kong.Description("KV-cache-aware routing for LLM fleets: every decision can be explained, recomputed and audited."),
		kong.UsageOnError(),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { exit = code }),
		kong.BindTo(ctx, (*context.Context)(nil)),
	)
	if err != nil {
		fmt.Fprintln(stderr, "warmpath:", err)
		return 2
	}
	call, err := parser.Parse(args)
	if exit >= 0 { // --help was printed
		return exit
	}
	if err != nil {
		fmt.Fprintf(stderr, "warmpath: %v\n", err)
		return 2
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: cmds.LogLevel})))
	if err := call.Run(); err != nil {
		fmt.Fprintf(stderr, "warmpath %s: %v\n", call.Command(), err)
		return 1
	}
	return 0
}

// untilEOF returns a context that also ends when r does: a supervised process
// must not outlive its supervisor, however that ended.
func untilEOF(parent context.Context, r io.Reader) context.Context {
	ctx, cancel := context.WithCancel(parent)
	go func() {
		_, _ = io.Copy(io.Discard, r) // any end of the pipe is the end
		cancel()
	}()
	return ctx
}
