package streams

import (
	"fmt"
	"log/slog"
	"net/url"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// reconnectWait is the pause between attempts to reach a server again; short,
// because routing is degraded for as long as it lasts.
const reconnectWait = 250 * time.Millisecond

// Connection is how a command reaches NATS: embed it in a command's flags.
type Connection struct {
	// NATS is one or several server URLs, comma separated; user and password may
	// stand in the URL. The user's name also chooses its inbox prefix.
	NATS string `name:"nats" env:"WARMPATH_NATS_URL" default:"nats://127.0.0.1:4222" help:"NATS server URLs, comma separated, with user:password@ where the server asks for it."`
	// CA is a PEM file to verify the server by; empty for the system's.
	CA string `name:"nats-ca" type:"path" env:"WARMPATH_NATS_CA" help:"PEM file of the authority that signed the server's certificate."`
}

// InboxPrefix is the subject prefix of the inboxes of a user, the only one its
// role lets it subscribe to. Without a user it is the client's default.
func InboxPrefix(user string) string {
	if user == "" {
		return "_INBOX"
	}
	return "_INBOX_" + escape(user)
}

// Connect connects as name, and keeps reconnecting for as long as the
// connection is not closed, also when no server is there yet. more are options
// beside those of every connection. The caller closes the connection.
func (c Connection) Connect(name string, more ...nats.Option) (*nats.Conn, jetstream.JetStream, error) {
	user, err := urlUser(c.NATS)
	if err != nil {
		return nil, nil, err
	}
	options := []nats.Option{
		nats.Name(name),
		nats.MaxReconnects(-1),
		nats.RetryOnFailedConnect(true),
		nats.ReconnectWait(reconnectWait),
		nats.CustomInboxPrefix(InboxPrefix(user)),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			subject := ""
			if sub != nil {
				subject = sub.Subject
			}
			slog.Warn("nats reported an error", "name", name, "subject", subject, "error", err)
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				slog.Warn("nats connection was lost", "name", name, "error", err)
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			slog.Info("nats connection is back", "name", name, "server", nc.ConnectedUrlRedacted())
		}),
	}
	if c.CA != "" {
		options = append(options, nats.RootCAs(c.CA))
	}
	nc, err := nats.Connect(c.NATS, append(options, more...)...)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to NATS: %w; check --nats", err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, nil, fmt.Errorf("open JetStream: %w", err)
	}
	return nc, js, nil
}

// Unbuffered makes a connection for requests and their answers: what is published is
// written at once, by who publishes it, instead of by a goroutine that collects what
// there is and must be woken for it.
func Unbuffered() nats.Option { return nats.WriteBufferSize(1) }

// urlUser returns the user of the first of a comma separated list of URLs. The
// URL itself is kept out of the error, because it may hold a password.
func urlUser(urls string) (string, error) {
	first := urls
	for i := range len(urls) {
		if urls[i] == ',' {
			first = urls[:i]
			break
		}
	}
	u, err := url.Parse(first)
	if err != nil {
		return "", fmt.Errorf("--nats is not a URL; give nats://user:password@host:port")
	}
	return u.User.Username(), nil
}
