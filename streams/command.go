package streams

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Command is "warmpath streams": the topology and the roles.
type Command struct {
	Apply ApplyCommand `cmd:"" help:"Make the streams and buckets as the topology says. Safe to run twice; refuses what would lose data."`
	Check CheckCommand `cmd:"" help:"List how the server differs from the topology. Exit 1 when it does."`
	Roles RolesCommand `cmd:"" help:"Print the nats-server configuration of the roles: users and permissions."`
}

// TopologyFlags are the topology as flags, and the server it is for.
type TopologyFlags struct {
	Connection
	Pools           []string      `name:"pools" required:"" env:"WARMPATH_POOLS" help:"Pools, comma separated."`
	Replicas        int           `name:"replicas" default:"1" env:"WARMPATH_NATS_REPLICAS" help:"Copies of each stream: 1, or 3 or 5 in a cluster."`
	KVMaxAge        time.Duration `name:"kv-max-age" default:"48h" help:"How long KV batches are kept."`
	KVMaxBytes      int64         `name:"kv-max-bytes" default:"4294967296" help:"Size of each pool's KV stream, in bytes."`
	RouteMaxAge     time.Duration `name:"route-max-age" default:"720h" help:"How long decisions and outcomes are kept."`
	RouteMaxBytes   int64         `name:"route-max-bytes" default:"17179869184" help:"Size of decisions and outcomes, in bytes."`
	LoadMaxAge      time.Duration `name:"load-max-age" default:"1m" help:"How long a load report is kept."`
	FleetTTL        time.Duration `name:"fleet-ttl" default:"15s" help:"How long a replica is known without a heartbeat."`
	IndexMaxBytes   int64         `name:"index-max-bytes" default:"8589934592" help:"Size of index snapshots, in bytes."`
	DuplicateWindow time.Duration `name:"duplicate-window" default:"2m" help:"How long message ids are remembered."`
	Wait            time.Duration `name:"wait" default:"30s" help:"How long to wait for the server."`
	JSON            bool          `name:"json" help:"Print JSON."`
}

func (f *TopologyFlags) topology() Topology {
	return Topology{
		Pools: f.Pools, Replicas: f.Replicas,
		KVMaxAge: f.KVMaxAge, KVMaxBytes: f.KVMaxBytes,
		RouteMaxAge: f.RouteMaxAge, RouteMaxBytes: f.RouteMaxBytes,
		LoadMaxAge: f.LoadMaxAge, FleetTTL: f.FleetTTL,
		IndexMaxBytes: f.IndexMaxBytes, DuplicateWindow: f.DuplicateWindow,
	}
}

// with runs do on a connection, within the time to wait.
func (f *TopologyFlags) with(ctx context.Context, do func(context.Context, jetstream.JetStream) error) error {
	ctx, cancel := context.WithTimeout(ctx, or(f.Wait, 30*time.Second))
	defer cancel()
	nc, js, err := f.Connect("warmpath streams")
	if err != nil {
		return err
	}
	defer nc.Close()
	for !nc.IsConnected() {
		if err := sleep(ctx, minBackoff); err != nil {
			return fmt.Errorf("no NATS server was reached: %w; check --nats", or(nc.LastError(), err))
		}
	}
	return do(ctx, js)
}

// ApplyCommand is "warmpath streams apply".
type ApplyCommand struct {
	TopologyFlags
}

// Run applies the topology and prints what it changed.
func (c *ApplyCommand) Run(ctx context.Context) error {
	return c.with(ctx, func(ctx context.Context, js jetstream.JetStream) error {
		changes, err := c.topology().Apply(ctx, js)
		if err != nil {
			return err
		}
		return printChanges(os.Stdout, changes, c.JSON)
	})
}

// CheckCommand is "warmpath streams check".
type CheckCommand struct {
	TopologyFlags
}

// Run prints the differences, and fails when there are any.
func (c *CheckCommand) Run(ctx context.Context) error {
	return c.with(ctx, func(ctx context.Context, js jetstream.JetStream) error {
		changes, err := c.topology().Check(ctx, js)
		if err != nil {
			return err
		}
		if err := printChanges(os.Stdout, changes, c.JSON); err != nil {
			return err
		}
		if len(changes) > 0 {
			return fmt.Errorf("the server differs from the topology in %d settings; run \"warmpath streams apply\"", len(changes))
		}
		return nil
	})
}

func printChanges(w io.Writer, changes []Change, asJSON bool) error {
	if asJSON {
		if changes == nil {
			changes = []Change{}
		}
		return json.NewEncoder(w).Encode(struct {
			Changes []Change `json:"changes"`
		}{changes})
	}
	if len(changes) == 0 {
		_, err := fmt.Fprintln(w, "everything is as the topology says")
		return err
	}
	for _, c := range changes {
		if _, err := fmt.Fprintln(w, c); err != nil {
			return err
		}
	}
	return nil
}

// RolesCommand is "warmpath streams roles".
type RolesCommand struct {
	Pools     []string          `name:"pools" required:"" env:"WARMPATH_POOLS" help:"Pools, comma separated."`
	Gateways  []string          `name:"gateway" sep:"none" placeholder:"POOL/GATEWAY" help:"A gateway that gets a user of its own, gateway-<pool>-<gateway>. May be repeated; without any, one user gateway is for all."`
	Followers []string          `name:"follower" sep:"none" placeholder:"POOL/GATEWAY" help:"A gateway that decides in its own process and gets a user of its own, follower-<pool>-<gateway>. May be repeated."`
	Bridges   []string          `name:"bridge" sep:"none" placeholder:"POOL/REPLICA,…" help:"The replicas of a bridge that gets a user of its own, bridge-<pool>-<first replica>. May be repeated; without any, one user bridge is for all."`
	Passwords map[string]string `name:"password" mapsep:"none" placeholder:"USER=PASSWORD" help:"A user's password, plain or bcrypt. A user without one has it read from the server's environment, WARMPATH_PASSWORD_<USER>."`
	JSON      bool              `name:"json" help:"Print the roles as JSON, without passwords."`
}

// Run prints the configuration.
func (c *RolesCommand) Run(context.Context) error {
	roles, err := c.roles()
	if err != nil {
		return err
	}
	if c.JSON {
		encoder := json.NewEncoder(os.Stdout)
		encoder.SetEscapeHTML(false)
		return encoder.Encode(struct {
			Roles []Role `json:"roles"`
		}{roles})
	}
	return WriteServerConf(os.Stdout, roles, c.Passwords)
}

func (c *RolesCommand) roles() ([]Role, error) {
	for _, pool := range c.Pools {
		if err := ValidName(pool); err != nil {
			return nil, fmt.Errorf("--pools: %w", err)
		}
	}
	var roles []Role
	for _, r := range Roles(c.Pools) {
		if (r.Kind == RoleGateway && len(c.Gateways) > 0) || (r.Kind == RoleBridge && len(c.Bridges) > 0) {
			continue
		}
		roles = append(roles, r)
	}
	for _, g := range c.Gateways {
		pool, name, _ := strings.Cut(g, "/")
		r, err := GatewayRole(pool, name)
		if err != nil {
			return nil, fmt.Errorf("--gateway %s: %w", g, err)
		}
		roles = append(roles, r)
	}
	for _, f := range c.Followers {
		pool, name, _ := strings.Cut(f, "/")
		r, err := FollowerRole(pool, name)
		if err != nil {
			return nil, fmt.Errorf("--follower %s: %w", f, err)
		}
		roles = append(roles, r)
	}
	for _, b := range c.Bridges {
		pool, names, _ := strings.Cut(b, "/")
		r, err := BridgeRole(pool, strings.Split(names, ",")...)
		if err != nil {
			return nil, fmt.Errorf("--bridge %s: %w", b, err)
		}
		roles = append(roles, r)
	}
	return roles, nil
}
