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

	"warmpath/services/gateway"
	"warmpath/services/router"
)

// TestMain makes the test binary a router or a gateway when it is started as the
// program would be: what is measured starts the program that it runs in.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "router" || os.Args[1] == "gateway") {
		if err := runService(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func runService(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // any end of the pipe is the end
		stop()
	}()
	var program struct {
		Router  router.Command  `cmd:""`
		Gateway gateway.Command `cmd:""`
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
