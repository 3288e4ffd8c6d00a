package bench

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/alecthomas/kong"

	"warmpath/services/router"
)

// TestMain makes the test binary a router when it is started as the program
// would be: a cold start starts the program that it runs in.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "router" {
		if err := runRouter(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func runRouter(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // any end of the pipe is the end
		stop()
	}()
	var program struct {
		Router router.Command `cmd:""`
	}
	parser, err := kong.New(&program, kong.BindTo(ctx, (*context.Context)(nil)))
	if err != nil {
		return err
	}
	call, err := parser.Parse(args)
	if err != nil {
		return err
	}
	return call.Run()
}
