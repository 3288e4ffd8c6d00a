package streams

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	pb "warmpath/schemas/warmpathv1"
)

// FollowLoad calls handle with the last load report of each replica of a pool,
// then with every newer one as it comes. A slow reader may miss reports that
// newer ones replaced, never the newest. It blocks until ctx ends and returns
// its error, or ErrNoStream when the stream is not there at first. When LOAD is
// lost and made anew, following goes on with the new one.
func FollowLoad(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, pool string, handle func(*pb.LoadReport)) error {
	if err := ValidName(pool); err != nil {
		return fmt.Errorf("follow load: pool: %w", err)
	}
	cfg := FollowConfig{Stream: LoadStream, filter: "load." + pool + ".>"}
	return followLast(ctx, js, cfg, func(e Event, _ nats.Header) error {
		report := &pb.LoadReport{}
		if err := proto.Unmarshal(e.Data, report); err != nil {
			slog.Warn("load report is unreadable and was passed over", "subject", e.Subject, "seq", e.Seq, "error", err)
			return nil
		}
		handle(report)
		return nil
	})
}

// followLast follows last values, and starts again when the stream was made anew.
func followLast(ctx context.Context, js jetstream.JetStream, cfg FollowConfig, handle deliver) error {
	cfg.lastPerSubject = true
	for {
		err := NewFollower(js, cfg).run(ctx, handle)
		var reset *ResetError
		if !errors.As(err, &reset) {
			return err
		}
		slog.Warn("last values start again", "stream", cfg.Stream, "reason", err)
		cfg.await = true
	}
}

// PutLoad publishes a load report and waits until it is stored. The error is the
// server's, or names the field that is wrong.
func PutLoad(ctx context.Context, js jetstream.JetStream, report *pb.LoadReport) error {
	if _, err := fleetKey(report.GetPool(), report.GetReplica()); err != nil {
		return fmt.Errorf("put load: %w", err)
	}
	m, err := NewMessage(LoadSubject(report.GetPool(), report.GetReplica()), "", report)
	if err != nil {
		return err
	}
	if _, err := js.PublishMsg(ctx, &nats.Msg{Subject: m.Subject, Header: headers(m), Data: m.Data}); err != nil {
		return fmt.Errorf("put load of %s: %w", report.GetReplica(), err)
	}
	return nil
}
