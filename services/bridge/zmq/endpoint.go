package zmq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// keepAlive finds a peer whose host is gone, without a word on the wire, in half
// a minute: an idle engine says nothing for longer than that.
func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 4}
}

// endpoint is a parsed ZeroMQ address.
type endpoint struct {
	network string // tcp or unix
	host    string // empty for every address of this host
	port    int
	path    string
}

// parseEndpoint reads tcp://host:port, tcp://*:port and ipc://path.
func parseEndpoint(s string) (endpoint, error) {
	scheme, rest, ok := strings.Cut(s, "://")
	switch {
	case !ok:
		return endpoint{}, fmt.Errorf("endpoint %q: give tcp://HOST:PORT or ipc://PATH", s)
	case scheme == "ipc":
		if rest == "" || rest == "*" {
			return endpoint{}, fmt.Errorf("endpoint %q: give the socket's path", s)
		}
		return endpoint{network: "unix", path: rest}, nil
	case scheme != "tcp":
		return endpoint{}, fmt.Errorf("endpoint %q: transport %q is not supported; tcp and ipc are", s, scheme)
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		return endpoint{}, fmt.Errorf("endpoint %q: give tcp://HOST:PORT: %w", s, err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return endpoint{}, fmt.Errorf("endpoint %q: port %q is not a number up to 65535", s, port)
	}
	if host == "*" {
		host = ""
	}
	return endpoint{network: "tcp", host: host, port: int(n)}, nil
}

func (e endpoint) String() string {
	if e.network == "unix" {
		return "ipc://" + e.path
	}
	host := e.host
	if host == "" {
		host = "*"
	}
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(e.port))
}

func (e endpoint) addr() string {
	if e.network == "unix" {
		return e.path
	}
	return net.JoinHostPort(e.host, strconv.Itoa(e.port))
}

// Dialable is why an endpoint cannot be dialed, nil when it can be.
func Dialable(s string) error {
	e, err := parseEndpoint(s)
	if err != nil {
		return err
	}
	return e.dialable()
}

// AtRank is the endpoint of an engine's data-parallel rank: engines add the rank
// to the port, of the events' socket and of the replay's alike. An ipc endpoint
// has no other rank than 0.
func AtRank(base string, rank int) (string, error) {
	e, err := parseEndpoint(base)
	if err != nil || rank == 0 {
		return base, err
	}
	if e.network != "tcp" || rank < 0 || e.port+rank > 65535 {
		return "", fmt.Errorf("endpoint %q has no rank %d: ranks are at tcp port + rank", base, rank)
	}
	e.port += rank
	return e.String(), nil
}

// dial connects to where a peer listens.
func (e endpoint) dial(ctx context.Context) (net.Conn, error) {
	d := net.Dialer{Timeout: handshakeTimeout, KeepAliveConfig: keepAlive()}
	conn, err := d.DialContext(ctx, e.network, e.addr())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e, err)
	}
	return conn, nil
}

// dialable is the error of an endpoint that only a listener can use.
func (e endpoint) dialable() error {
	if e.network == "tcp" && (e.host == "" || e.port == 0) {
		return fmt.Errorf("endpoint %s can be listened on, not dialed; name the host and port where the peer listens", e)
	}
	return nil
}

// listen binds. A socket file that a killed process left behind is replaced.
func (e endpoint) listen(ctx context.Context) (net.Listener, error) {
	lc := net.ListenConfig{KeepAliveConfig: keepAlive()}
	l, err := lc.Listen(ctx, e.network, e.addr())
	if err != nil && e.network == "unix" && errors.Is(err, syscall.EADDRINUSE) && e.abandoned(ctx) {
		if err = os.Remove(e.path); err == nil {
			l, err = lc.Listen(ctx, e.network, e.addr())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", e, err)
	}
	return l, nil
}

// abandoned tells a socket file that nobody listens on.
func (e endpoint) abandoned(ctx context.Context) bool {
	info, err := os.Stat(e.path)
	if err != nil || info.Mode()&os.ModeSocket == 0 {
		return false
	}
	conn, err := e.dial(ctx)
	if err == nil {
		conn.Close()
		return false
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// bound is the endpoint of a listener, with the port that it was given.
func bound(l net.Listener) string {
	if l.Addr().Network() == "unix" {
		return "ipc://" + l.Addr().String()
	}
	return "tcp://" + l.Addr().String()
}

// Port is the TCP port of an endpoint.
func Port(s string) (int, error) {
	e, err := parseEndpoint(s)
	if err == nil && e.network != "tcp" {
		err = fmt.Errorf("endpoint %q has no port", s)
	}
	return e.port, err
}
