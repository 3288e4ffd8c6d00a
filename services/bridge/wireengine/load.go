package wireengine

import (
	"context"
	"sync"

	"warmpath/services/bridge/kvevents"
	"warmpath/services/bridge/zmq"
)

// loadHWM is SGLang's: a late load report is of no use.
const loadHWM = 8

// LoadSocket publishes load reports as SGLang does, on the topic "load". It is safe
// for concurrent use.
type LoadSocket struct {
	pub *zmq.Publisher
	mu  sync.Mutex
	seq uint64
}

// NewLoadSocket binds endpoint. Close ends it.
func NewLoadSocket(endpoint string) (*LoadSocket, error) {
	pub, err := zmq.NewPublisher(zmq.Publishing{Endpoint: endpoint, HWM: loadHWM})
	if err != nil {
		return nil, err
	}
	return &LoadSocket{pub: pub}, nil
}

// Endpoint is where it publishes.
func (s *LoadSocket) Endpoint() string { return s.pub.Endpoint() }

// AwaitSubscribers waits until n subscribers get what is published.
func (s *LoadSocket) AwaitSubscribers(ctx context.Context, n int) error {
	return s.pub.AwaitSubscribers(ctx, n)
}

// Publish publishes a report.
func (s *LoadSocket) Publish(stat kvevents.LoadStat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pub.Send([]byte("load"), seqPart(s.seq), kvevents.AppendLoad(nil, stat))
	s.seq++
}

// Close ends it.
func (s *LoadSocket) Close() { s.pub.Close() }
