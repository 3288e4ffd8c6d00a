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
	// stopGrace bounds how long a stopping router waits for its requests in flight,
	// and a starting one for its subscriptions.
	stopGrace = 5 * time.Second
)

// question is a request on its way to a worker.
type question struct {
	reply string
	data  []byte
	json  bool
	// answerJSON says that the answer is wanted in JSON.
	answerJSON bool
	at         time.Time
	// request is what data says, once it was read.
	request *pb.RouteRequest
}

// desk is where requests wait: those that are decided at once, and those whose
// prompt is text, which must not hold them up.
type desk struct {
	r         *Router
	quick     questions
	texts     questions
	queueing  sync.WaitGroup
	tokenizes sync.WaitGroup
}

func (r *Router) openDesk() *desk {
	d := &desk{r: r, quick: questions{queue: make(chan question, queueLength)}, texts: questions{queue: make(chan question, queueLength)}}
	for range max(2, runtime.GOMAXPROCS(0)) {
		d.queueing.Go(func() {
			for q := range d.quick.queue {
				d.read(q)
			}
		})
	}
	for range cap(r.texts.slots) {
		d.tokenizes.Go(func() {
			for q := range d.texts.queue {
				r.answerText(q)
			}
		})
	}
	return d
}

// close answers what waits. What is still offered is answered by who offers it.
func (d *desk) close() {
	d.quick.close()
	d.queueing.Wait()
	d.texts.close()
	d.tokenizes.Wait()
}

// take hands a request to the workers, or refuses it at once.
func (d *desk) take(req micro.Request) {
	q := question{reply: req.Reply(), data: req.Data(), at: time.Now()}
	if q.reply == "" { // nobody would hear the decision
		d.r.metrics.shed.WithLabelValues("no_reply").Inc()
		return
	}
	q.json = isJSON(req.Headers().Get("Content-Type"), q.data)
	q.answerJSON = q.json && req.Headers().Get("Accept") != contentProtobuf
	switch d.quick.offer(q) {
	case closed:
		d.read(q)
	case full:
		d.r.overload(q)
	}
}

// read decodes a request, and decides it unless that takes longer.
func (d *desk) read(q question) {
	r := d.r
	if time.Since(q.at) > maxWait {
		r.late(q)
		return
	}
	var err error
	if q.request, err = q.decode(); err != nil {
		r.respond(q, r.turnDown(err))
		return
	}
	if !isText(q.request) {
		answer := r.answer(context.Background(), q.request)
		r.respond(q, answer)
		answer.sheet.release()
		return
	}
	switch d.texts.offer(q) {
	case closed:
		r.answerText(q)
	case full:
		r.overload(q)
	}
}

func (q *question) decode() (*pb.RouteRequest, error) {
	if q.json {
		request, err := decodeJSON(q.data)
		if err != nil {
			return nil, notJSON("request", err)
		}
		return request, nil
	}
	request := &pb.RouteRequest{}
	if err := proto.Unmarshal(q.data, request); err != nil {
		return nil, invalid("request is not a %s: %s", request.ProtoReflect().Descriptor().FullName(), reason(err))
	}
	return request, nil
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
	r.begin()
	desk := r.openDesk()
	defer desk.close()

	service, err := micro.AddService(r.cfg.Requests, micro.Config{
		Name:        serviceName,
		Version:     serviceVersion,
		Description: "answers where requests of pool " + r.cfg.Pool + " go",
		Metadata:    map[string]string{"pool": r.cfg.Pool, "router": r.cfg.Name},
		QueueGroup:  queueGroup,
		Endpoint: &micro.EndpointConfig{
			Subject: streams.ServiceSubject(r.cfg.Pool),
			Handler: micro.HandlerFunc(desk.take),
		},
		StatsHandler: func(*micro.Endpoint) any { return r.stats() },
		ErrorHandler: func(_ micro.Service, err *micro.NATSError) {
			slog.Warn("a router subscription reported an error", "router", r.cfg.Name, "subject", err.Subject, "error", err.Description)
		},
	})
	if err != nil {
		return fmt.Errorf("join %s: %w", streams.ServiceSubject(r.cfg.Pool), err)
	}
	// The server knows of the subscriptions once it answers; ready is after that.
	if err := flush(ctx, r.cfg.Requests); err != nil && ctx.Err() == nil {
		slog.Warn("nats did not confirm that the router joined", "router", r.cfg.Name, "error", err)
	}
	slog.Info("router is ready", "router", r.cfg.Name, "pool", r.cfg.Pool, "policy", r.policy.Name, "kv_seq", r.index().Position(), "http", r.Address())
	close(r.ready)
	<-ctx.Done()
	return r.leave(service)
}

func flush(ctx context.Context, nc *nats.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	return nc.FlushWithContext(ctx)
}

// leave takes the router out of the queue group. When it returns the server
// sends nothing more; what is on its way to the handlers is still answered, for
// as long as the connection's owner keeps it open.
func (r *Router) leave(service micro.Service) error {
	r.started.Store(false)
	if err := service.Stop(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		return fmt.Errorf("leave %s: %w", streams.ServiceSubject(r.cfg.Pool), err)
	}
	if err := r.cfg.Requests.FlushTimeout(stopGrace); err != nil {
		slog.Warn("nats did not confirm the router's leave", "router", r.cfg.Name, "error", err)
	}
	return nil
}

func overloaded() error {
	return notReady("the router is overloaded; ask another one, or fall back")
}

// overload refuses a request for which there is no room.
func (r *Router) overload(q question) {
	r.metrics.shed.WithLabelValues("queue").Inc()
	r.respond(q, reply{RouteResponse: refused(overloaded())})
}

// late refuses a request that nobody waits for any more.
func (r *Router) late(q question) {
	r.metrics.shed.WithLabelValues("late").Inc()
	r.respond(q, reply{RouteResponse: refused(notReady("the request waited too long for a worker; fall back"))})
}

// answerText answers a request whose prompt must be tokenized, unless it has
// waited too long.
func (r *Router) answerText(q question) {
	ctx, cancel := context.WithDeadline(context.Background(), q.at.Add(textPatience))
	defer cancel()
	if ctx.Err() != nil {
		r.late(q)
		return
	}
	r.respond(q, r.answer(ctx, q.request))
}

// answers is room for encoded answers.
var answers = sync.Pool{New: func() any { return new([]byte) }}

// respond sends an answer. Errors stand in the headers of micro services too, so
// that generic clients see them.
func (r *Router) respond(q question, response reply) {
	room := answers.Get().(*[]byte)
	data, contentType, err := encode((*room)[:0], response.RouteResponse, q.answerJSON)
	defer func() { *room = data; answers.Put(room) }() // the connection copies what it sends
	if err != nil {
		slog.Error("an answer cannot be encoded", "router", r.cfg.Name, "error", err)
		return
	}
	if limit := r.cfg.Requests.MaxPayload(); limit > 0 && int64(len(data)) > limit {
		response = r.turnDown(invalid("keys: the decision has %d bytes, and the server's max_payload is %d; use larger blocks, or raise it", len(data), limit))
		if data, contentType, err = encode(data[:0], response.RouteResponse, q.answerJSON); err != nil {
			return
		}
	}
	msg := nats.NewMsg(q.reply)
	msg.Data = data
	response.about(msg.Header)
	if q.json { // who asks in protobuf knows
		msg.Header.Set("Content-Type", contentType)
	}
	msg.Header.Set(schemaHeader, string(response.ProtoReflect().Descriptor().FullName()))
	if response.ErrorCode != pb.RouteErrorCode_ROUTE_ERROR_CODE_UNSPECIFIED {
		msg.Header.Set(micro.ErrorHeader, response.Error)
		msg.Header.Set(micro.ErrorCodeHeader, strconv.Itoa(status(response.ErrorCode)))
	}
	if err := r.cfg.Requests.PublishMsg(msg); err != nil {
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
