package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"warmpath/services/bridge/discovery"
)

const (
	// dialTimeout is how long a port may take to accept; one behind a firewall
	// that drops never does.
	dialTimeout = 3 * time.Second
	defaultPort = "5557"
)

// door is how an endpoint answers a connection.
type door uint8

const (
	open door = iota
	refused
	silent
	noName
	otherwise
)

// knock connects to an endpoint and hangs up.
func knock(ctx context.Context, endpoint string) (door, error) {
	network, address := "tcp", strings.TrimPrefix(endpoint, "tcp://")
	if path, ok := strings.CutPrefix(endpoint, "ipc://"); ok {
		network, address = "unix", path
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	var name *net.DNSError
	var timeout net.Error
	switch {
	case err == nil:
		return open, conn.Close()
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, os.ErrNotExist):
		return refused, err
	case errors.As(err, &name):
		return noName, err
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return silent, err
	}
	return otherwise, err
}

// endpoint is the KV event endpoint of rank 0, and says where it is known from.
func (x *examination) endpoint() (endpoint, from string) {
	switch {
	case x.KVListen != "":
		return x.KVListen, "as given by --kv-listen"
	case x.KV != "":
		return x.KV, "as given by --kv"
	case x.engine.KVEvents.Endpoint != "":
		return x.engine.KVEvents.Endpoint, "as the engine says"
	}
	return "tcp://" + net.JoinHostPort(hostOf(x.URL), defaultPort), "the default"
}

// guessed reports whether neither a flag nor the engine says where it publishes.
func (x *examination) guessed() bool {
	return x.KV == "" && x.KVListen == "" && x.engine.KVEvents.Endpoint == ""
}

func hostOf(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

// portOf is the port in an endpoint, the default where there is none.
func portOf(endpoint string) string {
	_, port, err := net.SplitHostPort(strings.TrimPrefix(endpoint, "tcp://"))
	if err != nil || port == "" {
		return defaultPort
	}
	return port
}

// closed reports a port that cannot be subscribed to.
func (x *examination) closed(ctx context.Context, s *sight, d door, err error) {
	events := x.engine.KVEvents
	_, from := x.endpoint()
	on := switchOnEvents(x.engine.Kind, portOf(s.endpoint))
	seen := fmt.Sprintf("%s (%s): %v", s.endpoint, from, err)
	switch {
	case events.Known && !events.Enabled && d == refused:
		x.found("kv port", Problem, seen, "the engine says itself that it does not publish KV events: they are off", on)
	case x.engine.Kind == discovery.TRTLLM && d == refused && x.KV == "" && x.polled(ctx):
		x.found("kv port", Unknown, seen, "nothing is pushed, but the engine has POST /kv_cache_events, which a bridge polls; it stays empty unless events are on (they are not asked for here, for they would be missing to a bridge)", on)
	case d == refused && events.Enabled:
		x.found("kv port", Problem, seen, fmt.Sprintf("the engine says that it publishes there (on host %q), yet nothing listens: %s", events.Host, wildcardTrap), on)
	case d == refused:
		x.found("kv port", Problem, seen, "nothing listens there: either KV events are off, or they are on another port (give it by --kv; rank N publishes at the first port plus N), or the engine connects instead of binding: "+wildcardTrap, on)
	case d == silent:
		x.found("kv port", Problem, seen, "the host does not answer on this port at all: a firewall or network policy drops the connection, or the address is not the engine's", "open the port between bridge and engine (and the replay port), or give the right address by --kv")
	case d == noName:
		x.found("kv port", Problem, seen, "the host's name cannot be resolved here", "give an address that can by --kv")
	default:
		x.found("kv port", Problem, seen, "the endpoint cannot be connected to", "give tcp://host:port or ipc://path by --kv")
	}
}
