package simengine

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/alecthomas/kong"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
	"warmpath/streams/streamstest"
)

// TestCommand runs a command line until it is told to stop.
func TestCommand(t *testing.T) {
	server := streamstest.Start(t)
	r := &rig{}
	r.nc, r.js = streamstest.Connect(t, server.URL(""))
	streamstest.Apply(t, r.js, 1, pool)
	var command Command
	parser, err := kong.New(&command)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse([]string{
		"--pool", pool, "--replica", "e7", "--listen", "127.0.0.1:0", "--model", "llama-3-8b", "--gpu", "2xl40s",
		"--blocks", "500", "--block-tokens", "32", "--speed", "50", "--nats", server.URL(""),
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := command.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	watch, unwatch := context.WithCancel(t.Context())
	entries := make(chan *pb.FleetEntry, 16)
	running.Go(func() {
		err := streams.WatchFleet(watch, r.js, pool, func(entry *pb.FleetEntry, _ string) { entries <- entry })
		if watch.Err() == nil {
			t.Error(err)
		}
	})
	entry := <-entries
	if entry.GetReplica() != "e7" || entry.GetBlockTokens() != 32 || entry.GetCapacities()[0].GetBlocks() != 500 {
		t.Errorf("entry %v", entry)
	}
	if got := r.get(t, entry.GetAddress()+"/metrics"); !strings.Contains(got, `num_gpu_blocks="500"`) {
		t.Error("no metrics at the address that the entry gives")
	}
	unwatch()
	cancel()
	running.Wait()

	command.Speed = 0
	if err := command.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "--speed") {
		t.Errorf("speed 0: %v", err)
	}
}
