package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"google.golang.org/protobuf/proto"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
)

// Limits of the NATS side.
const (
	serviceName    = "warmpath-router"
	serviceVersion = "0.1.0"
	queueGroup     = "routers"
	// schemaHeader names the message in an answer, as in every event.
	schemaHeader = "Warmpath-Schema"
	// queueLength bounds requests that wait for a worker. At tens of microseconds
	// each, a full queue is already longer than any gateway's budget.
	queueLength = 1024
	// maxWait is how long a request may have waited and still be answered with a
	// decision: after it the gateway has fallen back, and a decision would only
	// add a request to the ledger that no one sends.
	maxWait = 250 * time.Millisecond
	// stopGrace bounds how long a stopping router waits for its requests in flight.
	stopGrace = 5 * time.Second
)

// question is a request on its way to a worker.
type question struct {
	reply string
	data  []byte
	at    time.Time
}

// questions are the requests that wait for a worker. A full queue refuses; a
// closed one lets the caller answer what still arrives itself.
type questions struct {
	sync.RWMutex
	queue  chan question
	closed bool
}

type admission int

const (
	admitted admission = iota
	full
	closed
)

func (q *questions) offer(one question) admission {
	q.RLock()
	defer q.RUnlock()
	if q.closed {
		return closed
	}
	select {
	case q.queue <- one:
		return admitted
	default:
		return full
	}
}

func (q *questions) close() {
	q.Lock()
	defer q.Unlock()
	q.closed = true
	close(q.queue)
}

// runService joins the pool's queue group once the router has caught up, and
// leaves it when ctx ends. Before, other routers get the requests, or the
// gateway hears at once that there is none.
func (r *Router) runService(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-r.missing.all():
	}
	r.sweep(r.now()) // what the tail of ROUTE left open longer than its lease
	r.started.Store(true)
	waiting := &questions{queue: make(chan question, queueLength)}
	var workers sync.WaitGroup
	for range max(2, runtime.GOMAXPROCS(0)) {
		workers.Go(func() {
			for q := range waiting.queue {
				r.answerQuestion(q)
			}
		})
	}
	defer workers.Wait()
	defer waiting.close()

	service, err := micro.AddService(r.nc, micro.Config{
		Name:        serviceName,
		Version:     serviceVersion,
		Description: "answers where requests of pool " + r.cfg.Pool + " go",
		Metadata:    map[string]string{"pool": r.cfg.Pool, "router": r.cfg.Name},
		QueueGroup:  queueGroup,
		Endpoint: &micro.EndpointConfig{
			Subject: streams.ServiceSubject(r.cfg.Pool),
			Handler: micro.HandlerFunc(func(req micro.Request) { r.take(waiting, req) }),
		},
		StatsHandler: func(*micro.Endpoint) any { return r.stats() },
		ErrorHandler: func(_ micro.Service, err *micro.NATSError) {
			slog.Warn("a router subscription reported an error", "router", r.cfg.Name, "subject", err.Subject, "error", err.Description)
		},
	})
	if err != nil {
		return fmt.Errorf("join %s: %w", streams.ServiceSubject(r.cfg.Pool), err)
	}
	slog.Info("router is ready", "router", r.cfg.Name, "pool", r.cfg.Pool, "policy", r.policy.Name, "kv_seq", r.index().Position(), "http", r.Address())
	close(r.ready)
	<-ctx.Done()
	return r.leave(service)
}

// leave takes the router out of the queue group. When it returns the server
// sends nothing more; what is on its way to the handlers is still answered, for
// as long as the connection's owner keeps it open.
func (r *Router) leave(service micro.Service) error {
	r.started.Store(false)
	if err := service.Stop(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		return fmt.Errorf("leave %s: %w", streams.ServiceSubject(r.cfg.Pool), err)
	}
	if err := r.nc.FlushTimeout(stopGrace); err != nil {
		slog.Warn("nats did not confirm the router's leave", "router", r.cfg.Name, "error", err)
	}
	return nil
}

// take hands a request to the workers, or refuses it at once.
func (r *Router) take(waiting *questions, req micro.Request) {
	q := question{reply: req.Reply(), data: req.Data(), at: time.Now()}
	if q.reply == "" { // nobody would hear the decision
		r.metrics.shed.WithLabelValues("no_reply").Inc()
		return
	}
	switch waiting.offer(q) {
	case closed:
		r.answerQuestion(q)
	case full:
		r.metrics.shed.WithLabelValues("queue").Inc()
		r.respond(q.reply, refused(notReady("the router is overloaded; ask another one, or fall back")))
	}
}

func (r *Router) answerQuestion(q question) {
	if time.Since(q.at) > maxWait {
		r.metrics.shed.WithLabelValues("late").Inc()
		r.respond(q.reply, refused(notReady("the request waited too long for a worker; fall back")))
		return
	}
	request := &pb.RouteRequest{}
	if err := proto.Unmarshal(q.data, request); err != nil {
		r.respond(q.reply, r.refuse(invalid("request is not a %s: %s", request.ProtoReflect().Descriptor().FullName(), reason(err))))
		return
	}
	r.respond(q.reply, r.Decide(request))
}

// respond sends an answer. Errors stand in the headers of micro services too, so
// that generic clients see them.
func (r *Router) respond(reply string, response *pb.RouteResponse) {
	data, err := proto.Marshal(response)
	if err != nil {
		slog.Error("an answer cannot be encoded", "router", r.cfg.Name, "error", err)
		return
	}
	if limit := r.nc.MaxPayload(); limit > 0 && int64(len(data)) > limit {
		response = r.refuse(invalid("keys: the decision has %d bytes, and the server's max_payload is %d; use larger blocks, or raise it", len(data), limit))
		if data, err = proto.Marshal(response); err != nil {
			return
		}
	}
	msg := nats.NewMsg(reply)
	msg.Data = data
	msg.Header.Set(schemaHeader, string(response.ProtoReflect().Descriptor().FullName()))
	if response.ErrorCode != pb.RouteErrorCode_ROUTE_ERROR_CODE_UNSPECIFIED {
		msg.Header.Set(micro.ErrorHeader, response.Error)
		msg.Header.Set(micro.ErrorCodeHeader, strconv.Itoa(status(response.ErrorCode)))
	}
	if err := r.nc.PublishMsg(msg); err != nil {
		slog.Debug("an answer could not be sent", "router", r.cfg.Name, "error", err)
	}
}

// ServiceStats is what the micro service adds to its statistics: requests are
// answered by workers, so its own figures are of their admission alone.
type ServiceStats struct {
	Decisions    uint64  `json:"decisions"`
	Refused      uint64  `json:"refused"`
	DecideUSMean float64 `json:"decide_us_mean"`
	KVSeq        uint64  `json:"kv_seq"`
	KVLastSeq    uint64  `json:"kv_last_seq"`
}

func (r *Router) stats() ServiceStats {
	read, lag := r.followed()
	s := ServiceStats{
		Decisions: r.totals.decisions.Load(),
		Refused:   r.totals.refused.Load(),
		KVSeq:     r.index().Position(),
		KVLastSeq: read + lag,
	}
	if s.Decisions > 0 {
		s.DecideUSMean = float64(r.totals.micros.Load()) / float64(s.Decisions)
	}
	return s
}
