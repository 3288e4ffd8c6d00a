package streams

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	pb "warmpath/schemas/warmpathv1"
)

// errCodeNoMessage is the server's answer for a subject without messages.
const errCodeNoMessage = 10037

// LastKV reads the last batch that a replica's subject holds, and its sequence
// in the stream; nil and 0 when there is none. The stream's leader is asked, so
// the answer is never behind what was acknowledged. The error is ErrNoStream, or
// that the server could not be asked; then ask again.
func LastKV(ctx context.Context, js jetstream.JetStream, pool, replica string) (*pb.KVBatch, uint64, error) {
	if _, err := fleetKey(pool, replica); err != nil {
		return nil, 0, fmt.Errorf("last kv batch: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	question, err := json.Marshal(map[string]string{"last_by_subj": KVSubject(pool, replica)})
	if err != nil {
		return nil, 0, fmt.Errorf("last kv batch of %s: %w", replica, err)
	}
	m, err := js.Conn().RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+KVStream(pool), question)
	if err != nil {
		return nil, 0, fmt.Errorf("last kv batch of %s: %w", replica, err)
	}
	var answer struct {
		Error *struct {
			Code        int    `json:"code"`
			ErrCode     int    `json:"err_code"`
			Description string `json:"description"`
		} `json:"error"`
		Message *struct {
			Seq  uint64 `json:"seq"`
			Data []byte `json:"data"`
		} `json:"message"`
	}
	switch err := json.Unmarshal(m.Data, &answer); {
	case err != nil:
		return nil, 0, fmt.Errorf("last kv batch of %s: %w", replica, err)
	case answer.Error != nil && answer.Error.ErrCode == errCodeNoMessage:
		return nil, 0, nil
	case answer.Error != nil && answer.Error.ErrCode == int(jetstream.JSErrCodeStreamNotFound):
		return nil, 0, fmt.Errorf("last kv batch of %s: %w", replica, ErrNoStream)
	case answer.Error != nil:
		return nil, 0, fmt.Errorf("last kv batch of %s: server says %s", replica, answer.Error.Description)
	case answer.Message == nil:
		return nil, 0, fmt.Errorf("last kv batch of %s: server answered without a message", replica)
	}
	batch := &pb.KVBatch{}
	if err := proto.Unmarshal(answer.Message.Data, batch); err != nil {
		return nil, 0, fmt.Errorf("last kv batch of %s, at %d: %w", replica, answer.Message.Seq, err)
	}
	return batch, answer.Message.Seq, nil
}

// errHistoryRead ends the follower of ReadKV.
var errHistoryRead = errors.New("history is read")

// ReadKV calls handle with the batches that a replica's subject holds, in order,
// up to the one at stream sequence last, which LastKV returned. It returns when
// that is handled, with the error of handle, ErrNoStream, or the error of ctx.
func ReadKV(ctx context.Context, js jetstream.JetStream, pool, replica string, last uint64, handle func(*pb.KVBatch) error) error {
	if _, err := fleetKey(pool, replica); err != nil {
		return fmt.Errorf("read kv batches: %w", err)
	}
	follower := NewFollower(js, FollowConfig{Stream: KVStream(pool), filter: KVSubject(pool, replica)})
	err := follower.run(ctx, func(e Event, _ nats.Header) error {
		if e.Seq > last {
			return errHistoryRead
		}
		batch := &pb.KVBatch{}
		if err := proto.Unmarshal(e.Data, batch); err != nil {
			return fmt.Errorf("batch at %d: %w", e.Seq, err)
		}
		if err := handle(batch); err != nil {
			return err
		}
		if e.Seq == last {
			return errHistoryRead
		}
		return nil
	})
	if errors.Is(err, errHistoryRead) {
		return nil
	}
	return fmt.Errorf("read kv batches of %s: %w", replica, err)
}
