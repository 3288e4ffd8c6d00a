// Package natsserver runs nats-server with JetStream inside the process.
package natsserver

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"warmpath/streams"
)

const (
	// readyWithin is generous: a start takes milliseconds, recovery of a large
	// store longer.
	readyWithin = 30 * time.Second
	// maxStore and maxMemory are what JetStream may reserve; the streams' own
	// limits are what bounds them. They are above the default topology's sum.
	maxStore  = 1 << 40
	maxMemory = 4 << 30
)

// Config says where an embedded server keeps its data and listens.
type Config struct {
	// StoreDir is where streams are kept; it must be private to this server.
	StoreDir string
	// Host and Port to listen on; "" is 127.0.0.1, 0 is a free port.
	Host string
	Port int
	// Roles are the users the server knows; none: no authentication.
	Roles []streams.Role
	// Passwords by user; a user without one gets a random one, see Server.URL.
	Passwords map[string]string
	// Name of the server; needed in a cluster, and then unique in it.
	Name string
	// Cluster joins the server to a cluster when it has a name.
	Cluster Cluster
	// Log receives the server's warnings and errors; nil drops them.
	Log *slog.Logger
}

// Cluster is how an embedded server finds its peers.
type Cluster struct {
	// Name of the cluster, the same on all servers.
	Name string
	// Port of this server for its peers, on Config.Host.
	Port int
	// Peers are "host:port" of the cluster ports of all servers.
	Peers []string
}

// Server is a running embedded server. It is safe for concurrent use.
type Server struct {
	inner     *server.Server
	cfg       Config
	passwords map[string]string
}

// Start starts a server and returns when clients can connect.
func Start(cfg Config) (*Server, error) {
	if cfg.StoreDir == "" {
		return nil, errors.New("store directory is empty; give a directory for the streams")
	}
	if cfg.Host == "" {
		cfg.Host = "127.0.0.1"
	}
	passwords := map[string]string{}
	for _, r := range cfg.Roles {
		passwords[r.User] = cfg.Passwords[r.User]
		if passwords[r.User] == "" {
			passwords[r.User] = rand.Text()
		}
	}
	opts, err := options(cfg, passwords)
	if err != nil {
		return nil, err
	}
	inner, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("make nats server: %w", err)
	}
	if cfg.Log != nil {
		inner.SetLoggerV2(logger{cfg.Log}, false, false, false)
	}
	inner.Start()
	if !inner.ReadyForConnections(readyWithin) {
		inner.Shutdown()
		inner.WaitForShutdown()
		return nil, fmt.Errorf("nats server on %s:%d was not ready within %v; is the port free and %s writable?", cfg.Host, cfg.Port, readyWithin, cfg.StoreDir)
	}
	if addr, ok := inner.Addr().(*net.TCPAddr); ok {
		cfg.Port = addr.Port
	}
	return &Server{inner: inner, cfg: cfg, passwords: passwords}, nil
}

// options are the server's; the users come from the same text that production
// servers are given.
func options(cfg Config, passwords map[string]string) (*server.Options, error) {
	opts := &server.Options{}
	if len(cfg.Roles) > 0 {
		var conf strings.Builder
		if err := streams.WriteServerConf(&conf, cfg.Roles, passwords); err != nil {
			return nil, fmt.Errorf("write roles: %w", err)
		}
		if err := opts.ProcessConfigString(conf.String()); err != nil {
			return nil, fmt.Errorf("read roles: %w", err)
		}
	}
	if err := os.MkdirAll(cfg.StoreDir, 0o700); err != nil {
		return nil, fmt.Errorf("make store directory: %w", err)
	}
	opts.Host, opts.Port = cfg.Host, cfg.Port
	if opts.Port == 0 {
		opts.Port = server.RANDOM_PORT
	}
	opts.ServerName = cfg.Name
	opts.JetStream, opts.StoreDir = true, cfg.StoreDir
	opts.JetStreamMaxStore, opts.JetStreamMaxMemory = maxStore, maxMemory
	opts.MaxPayload = streams.MaxPayload
	opts.NoSigs, opts.NoLog = true, cfg.Log == nil
	if cfg.Cluster.Name != "" {
		opts.Cluster = server.ClusterOpts{Name: cfg.Cluster.Name, Host: cfg.Host, Port: cfg.Cluster.Port}
		for _, peer := range cfg.Cluster.Peers {
			opts.Routes = append(opts.Routes, &url.URL{Scheme: "nats", Host: peer})
		}
	}
	return opts, nil
}

// URL returns the server's URL with the credentials of a user: a role's kind,
// or the name of a narrowed role. "" is for a server without roles.
func (s *Server) URL(user string) string {
	u := url.URL{Scheme: "nats", Host: s.Address()}
	if user != "" && len(s.cfg.Roles) > 0 {
		u.User = url.UserPassword(user, s.passwords[user])
	}
	return u.String()
}

// Address is host:port that clients connect to.
func (s *Server) Address() string {
	return net.JoinHostPort(s.cfg.Host, strconv.Itoa(s.cfg.Port))
}

// Config is what the server was started with, its actual port and passwords
// filled in: starting with it again is a restart.
func (s *Server) Config() Config {
	cfg := s.cfg
	cfg.Passwords = s.passwords
	return cfg
}

// ClientConn connects from inside the process, without a socket, as operator
// where there are roles. The caller closes the connection.
func (s *Server) ClientConn() (*nats.Conn, error) {
	options := []nats.Option{nats.InProcessServer(s.inner), nats.Name("in process")}
	if len(s.cfg.Roles) > 0 {
		options = append(options,
			nats.UserInfo(streams.RoleOperator, s.passwords[streams.RoleOperator]),
			nats.CustomInboxPrefix(streams.InboxPrefix(streams.RoleOperator)))
	}
	nc, err := nats.Connect("", options...)
	if err != nil {
		return nil, fmt.Errorf("connect in process: %w", err)
	}
	return nc, nil
}

// JetStreamReady says whether this server knows the cluster's leader and is
// caught up with it; a single server always is.
func (s *Server) JetStreamReady() bool { return s.inner.JetStreamIsCurrent() }

// Leads says whether this server leads a stream, in a cluster.
func (s *Server) Leads(stream string) bool {
	return s.inner.JetStreamIsStreamLeader(s.account(), stream)
}

func (s *Server) account() string {
	if len(s.cfg.Roles) > 0 {
		return streams.Account
	}
	return server.DEFAULT_GLOBAL_ACCOUNT
}

// StepDown makes this server give up leading a stream, in a cluster.
func (s *Server) StepDown(stream string) error {
	if err := s.inner.JetStreamStepdownStream(s.account(), stream); err != nil {
		return fmt.Errorf("step down from %s: %w", stream, err)
	}
	return nil
}

// Shutdown stops the server and waits for it. It may be called again.
func (s *Server) Shutdown() {
	s.inner.Shutdown()
	s.inner.WaitForShutdown()
}

// logger passes on what deserves attention.
type logger struct{ log *slog.Logger }

func (l logger) Warnf(format string, v ...any) {
	l.log.Warn("nats server", "message", fmt.Sprintf(format, v...))
}

func (l logger) Errorf(format string, v ...any) {
	l.log.Error("nats server", "message", fmt.Sprintf(format, v...))
}

func (l logger) Fatalf(format string, v ...any) {
	l.log.Error("nats server", "message", fmt.Sprintf(format, v...))
}

func (logger) Noticef(string, ...any) {}
func (logger) Debugf(string, ...any)  {}
func (logger) Tracef(string, ...any)  {}
