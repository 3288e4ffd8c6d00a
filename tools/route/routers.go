package route

import (
	"context"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/proto"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
)

// Headers of an answer about what the router made of a text.
const (
	headerTextBytes = "Warmpath-Text-Bytes"
	headerUnkeyed   = "Warmpath-Unkeyed"
)

// asker is who asks, as the router wants to know; nothing is published by it.
const asker = "warmpath-route"

// routers are a pool's routers, behind their subject.
type routers struct {
	pool string
	// request sends one and returns data and headers of the answer.
	request func(ctx context.Context, data []byte) ([]byte, map[string][]string, error)
	close   func()
}

// answer is what a router said.
type answer struct {
	*pb.RouteResponse
	textBytes int
	unkeyed   string
}

func (c *Command) dial(ctx context.Context) (*routers, error) {
	nc, _, err := c.Connect("warmpath-route")
	if err != nil {
		return nil, err
	}
	// The connection tries for good; here it has to be there soon.
	if err := nc.FlushWithContext(ctx); err != nil {
		nc.Close()
		return nil, fmt.Errorf("NATS does not answer: %w; check --nats", err)
	}
	subject := streams.ServiceSubject(c.Pool)
	return &routers{pool: c.Pool, close: nc.Close, request: func(ctx context.Context, data []byte) ([]byte, map[string][]string, error) {
		if limit := nc.MaxPayload(); int64(len(data)) > limit {
			return nil, nil, fmt.Errorf("the request has %d bytes, and NATS takes %d; give --tokenizer, so that keys are sent instead", len(data), limit)
		}
		msg, err := nc.RequestWithContext(ctx, subject, data)
		if err != nil {
			return nil, nil, fmt.Errorf("ask %s: %w; is a router of pool %s running, and caught up? See its /health", subject, err, c.Pool)
		}
		return msg.Data, msg.Header, nil
	}}, nil
}

// ask asks where a request would go, as a dry run.
func (r *routers) ask(ctx context.Context, q *pb.RouteRequest) (*answer, error) {
	q.Pool, q.Gateway, q.DryRun = r.pool, asker, true
	data, err := proto.Marshal(q)
	if err != nil {
		return nil, err
	}
	data, header, err := r.request(ctx, data)
	if err != nil {
		return nil, err
	}
	a := &answer{RouteResponse: &pb.RouteResponse{}}
	if err := proto.Unmarshal(data, a.RouteResponse); err != nil {
		return nil, fmt.Errorf("the router's answer: %w", err)
	}
	if a.Decision == nil {
		return nil, fmt.Errorf("the router gives no decision: %s", a.Error)
	}
	a.textBytes, _ = strconv.Atoi(first(header[headerTextBytes])) // 0: it does not say
	a.unkeyed = first(header[headerUnkeyed])
	return a, nil
}

func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}
