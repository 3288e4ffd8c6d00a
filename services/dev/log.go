package dev

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
)

// splitLog sends this process's log to a file in the data directory, as the
// children's logs go, and what deserves attention to the terminal too. With
// --log-level=debug the terminal keeps everything. undo puts the log back.
func splitLog(dir string) (undo func(), err error) {
	before := slog.Default()
	if before.Enabled(context.Background(), slog.LevelDebug) {
		return func() {}, nil
	}
	file, err := os.OpenFile(filepath.Join(dir, "dev.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	slog.SetDefault(slog.New(split{terminal: before.Handler(), file: slog.NewTextHandler(file, nil)}))
	return func() {
		slog.SetDefault(before)
		file.Close()
	}, nil
}

// split hands every record to file, and from the level of a warning to terminal.
type split struct{ terminal, file slog.Handler }

// Enabled is what the file takes.
func (s split) Enabled(ctx context.Context, level slog.Level) bool {
	return s.file.Enabled(ctx, level) || s.loud(ctx, level)
}

func (s split) loud(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && s.terminal.Enabled(ctx, level)
}

// Handle writes the record.
func (s split) Handle(ctx context.Context, r slog.Record) error {
	var err error
	if s.file.Enabled(ctx, r.Level) {
		err = s.file.Handle(ctx, r)
	}
	if s.loud(ctx, r.Level) {
		err = errors.Join(err, s.terminal.Handle(ctx, r))
	}
	return err
}

// WithAttrs adds attributes to both.
func (s split) WithAttrs(attrs []slog.Attr) slog.Handler {
	return split{s.terminal.WithAttrs(attrs), s.file.WithAttrs(attrs)}
}

// WithGroup opens a group in both.
func (s split) WithGroup(name string) slog.Handler {
	return split{s.terminal.WithGroup(name), s.file.WithGroup(name)}
}
