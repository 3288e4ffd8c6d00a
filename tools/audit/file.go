package audit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"warmpath/streams"
	"warmpath/streams/eventjson"
)

// readFile hands over the events of a file that `warmpath tail` printed, "-" for
// standard input.
func readFile(ctx context.Context, path string, handle func(streams.Event) error) error {
	in := io.Reader(os.Stdin)
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		in = file
	}
	lines := bufio.NewReaderSize(in, 1<<20)
	for number := 1; ctx.Err() == nil; number++ {
		line, err := lines.ReadBytes('\n')
		if len(line) > 1 {
			event, err := eventjson.Decode(line)
			if err != nil {
				return fmt.Errorf("%s:%d: %w; give lines as warmpath tail prints them", path, number, err)
			}
			if err := handle(event); err != nil {
				return fmt.Errorf("%s:%d: %w", path, number, err)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}
