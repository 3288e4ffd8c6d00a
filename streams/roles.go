package streams

import (
	"fmt"
	"slices"
	"strings"
)

// Kinds of role: who may do what. A user of a kind may be narrowed to one
// gateway or one bridge by Role.For.
const (
	// RoleBridge publishes KV batches, load and fleet entries of its replicas, and
	// reads its own batches back when it starts again.
	RoleBridge = "bridge"
	// RoleGateway publishes decisions and outcomes, asks routers, follows the
	// live decisions of others, and reads fleet and load to fall back on.
	RoleGateway = "gateway"
	// RoleFollower is a gateway that decides in its own process: it also reads KV
	// batches and index snapshots, as a router does.
	RoleFollower = "follower"
	// RoleRouter answers svc.route, reads everything that a decision needs, and
	// writes index snapshots.
	RoleRouter = "router"
	// RoleAnalytics and RoleAuditor read every stream and publish nothing; the
	// auditor reads index snapshots too.
	RoleAnalytics = "analytics"
	RoleAuditor   = "auditor"
	// RoleOperator may do everything: apply the topology, purge, delete.
	RoleOperator = "operator"
)

// maxRouteAnswer bounds how long after a request its answer may be published.
const maxRouteAnswer = "10s"

// Role is one user of the server and what it may do. Everything that is not
// listed is denied.
type Role struct {
	// Kind is one of the Role constants.
	Kind string `json:"kind"`
	// User is the name it logs in by, and chooses its inbox prefix.
	User string `json:"user"`
	// Pools it works for.
	Pools []string `json:"pools"`
	// Names are the replicas of a bridge, or the gateway's name; empty: all names.
	Names []string `json:"names,omitempty"`
	// Publish and Subscribe are the subjects allowed.
	Publish   []string `json:"publish"`
	Subscribe []string `json:"subscribe"`
	// Respond allows one answer to each request received, on its reply subject.
	Respond bool `json:"respond"`
}

// Roles returns one user of each kind for all names in pools: bridge, gateway,
// router, analytics, auditor, operator. For narrows the first two.
func Roles(pools []string) []Role {
	return []Role{
		newRole(RoleBridge, RoleBridge, pools, nil),
		newRole(RoleGateway, RoleGateway, pools, nil),
		newRole(RoleRouter, RoleRouter, pools, nil),
		newRole(RoleAnalytics, RoleAnalytics, pools, nil),
		newRole(RoleAuditor, RoleAuditor, pools, nil),
		newRole(RoleOperator, RoleOperator, pools, nil),
	}
}

// GatewayRole is the user of one gateway of one pool, named
// "gateway-<pool>-<gateway>": it may publish only its own subject.
func GatewayRole(pool, gateway string) (Role, error) {
	if err := ValidName(pool); err != nil {
		return Role{}, fmt.Errorf("pool of gateway %s: %w", gateway, err)
	}
	if err := ValidName(gateway); err != nil {
		return Role{}, fmt.Errorf("gateway: %w", err)
	}
	return newRole(RoleGateway, RoleGateway+"-"+pool+"-"+gateway, []string{pool}, []string{gateway}), nil
}

// FollowerRole is GatewayRole for a gateway that decides by itself (package
// follow), named "follower-<pool>-<gateway>".
func FollowerRole(pool, gateway string) (Role, error) {
	r, err := GatewayRole(pool, gateway)
	if err != nil {
		return Role{}, err
	}
	return newRole(RoleFollower, RoleFollower+"-"+pool+"-"+gateway, r.Pools, r.Names), nil
}

// BridgeRole is the user of one bridge, named "bridge-<pool>-<first replica>":
// it may publish only for the replicas given, which are those of its engine.
func BridgeRole(pool string, replicas ...string) (Role, error) {
	if err := ValidName(pool); err != nil {
		return Role{}, fmt.Errorf("pool of bridge: %w", err)
	}
	if len(replicas) == 0 {
		return Role{}, fmt.Errorf("bridge of pool %s has no replicas; name at least one", pool)
	}
	for _, r := range replicas {
		if err := ValidReplica(r); err != nil {
			return Role{}, fmt.Errorf("replica of bridge: %w", err)
		}
	}
	return newRole(RoleBridge, RoleBridge+"-"+pool+"-"+replicas[0], []string{pool}, replicas), nil
}

func newRole(kind, user string, pools, names []string) Role {
	r := Role{Kind: kind, User: user, Pools: slices.Clone(pools), Names: slices.Clone(names)}
	switch kind {
	case RoleBridge:
		r.grantBridge()
	case RoleGateway:
		r.grantGateway()
	case RoleFollower:
		r.grantGateway()
		r.grantSnapshots()
		for _, pool := range r.Pools {
			r.grantConsume(KVStream(pool), "")
		}
	case RoleRouter:
		r.grantRouter()
	case RoleAnalytics:
		r.grantReader()
	case RoleAuditor:
		r.grantReader()
		r.grantSnapshots()
	case RoleOperator:
		r.Publish, r.Subscribe = []string{">"}, []string{">"}
		return r
	}
	r.Subscribe = append(r.Subscribe, InboxPrefix(user)+".>")
	return r
}

// tokens are the last tokens of the subjects a role may publish.
func (r *Role) tokens() []string {
	if len(r.Names) == 0 {
		return []string{"*"}
	}
	tokens := make([]string, len(r.Names))
	for i, name := range r.Names {
		tokens[i] = escape(name)
	}
	return tokens
}

func (r *Role) grantBridge() {
	for _, pool := range r.Pools {
		for _, token := range r.tokens() {
			r.Publish = append(r.Publish,
				"kv."+pool+"."+token,
				"load."+pool+"."+token,
				fleetSubject+pool+"."+token)
			r.grantConsume(KVStream(pool), "kv."+pool+"."+token)
		}
		// Which subject's last message is wanted stands in the payload, so this lets
		// the role read the block keys of the pool's other replicas too.
		r.allow("$JS.API.STREAM.MSG.GET." + KVStream(pool))
	}
}

func (r *Role) grantGateway() {
	for _, pool := range r.Pools {
		for _, token := range r.tokens() {
			r.Publish = append(r.Publish, "route."+pool+"."+token)
		}
		r.Publish = append(r.Publish, ServiceSubject(pool))
		r.grantLive(pool)
		r.grantFleetAndLoad(pool)
	}
}

func (r *Role) grantRouter() {
	r.Respond = true
	r.Subscribe = append(r.Subscribe, "$SRV.>")
	r.grantSnapshots()
	// Descriptions of objects are named in base64, so pools cannot be told apart
	// here; their data can.
	r.allow("$O." + IndexBucket + ".M.*")
	for _, pool := range r.Pools {
		r.allow("$O." + IndexBucket + ".C." + pool + ".>")
		r.Subscribe = append(r.Subscribe, ServiceSubject(pool))
		r.grantConsume(KVStream(pool), "")
		r.grantLive(pool)
		r.grantFleetAndLoad(pool)
	}
}

func (r *Role) grantReader() {
	for _, pool := range r.Pools {
		r.grantConsume(KVStream(pool), "")
		r.grantLive(pool)
		r.grantFleetAndLoad(pool)
	}
	r.grantConsume(RouteStream, "")
}

// grantLive allows to follow the republished decisions of a pool and to fill
// gaps from the stream. Direct reads name their filter in the payload, so this
// also lets the role read other pools' decisions: they hold no prompts.
func (r *Role) grantLive(pool string) {
	r.Subscribe = append(r.Subscribe, "live.route."+pool+".>")
	r.allow("$JS.API.DIRECT.GET."+RouteStream, "$JS.API.STREAM.INFO."+RouteStream)
}

// grantSnapshots allows to list and read the objects of INDEX. Removing them is
// writing, by a rollup: no role but the operator's may purge.
func (r *Role) grantSnapshots() {
	r.allow("$JS.API.DIRECT.GET."+indexStream, "$JS.API.STREAM.INFO."+indexStream)
}

func (r *Role) grantFleetAndLoad(pool string) {
	r.grantConsume(fleetStream, fleetSubject+pool+".>")
	r.grantConsume(LoadStream, "load."+pool+".>")
}

// grantConsume allows the ephemeral pull consumers that followers make, with
// the filter given or none, and acknowledgements in both forms of their subject.
func (r *Role) grantConsume(stream, filter string) {
	create := "$JS.API.CONSUMER.CREATE." + stream + ".*"
	if filter != "" {
		create += "." + filter
	}
	r.allow(create,
		"$JS.API.CONSUMER.MSG.NEXT."+stream+".*",
		"$JS.API.STREAM.INFO."+stream,
		"$JS.ACK."+stream+".>",
		"$JS.ACK.*.*."+stream+".>")
}

// allow adds subjects to publish, each once.
func (r *Role) allow(subjects ...string) {
	for _, s := range subjects {
		if !slices.Contains(r.Publish, s) {
			r.Publish = append(r.Publish, s)
		}
	}
}

// PasswordVariable is the environment variable that WriteServerConf refers to
// for a user without a password: WARMPATH_PASSWORD_<USER>, in capitals with '_'
// for what is neither letter nor digit.
func PasswordVariable(user string) string {
	return "WARMPATH_PASSWORD_" + strings.Map(func(c rune) rune {
		switch {
		case c >= 'a' && c <= 'z':
			return c - 'a' + 'A'
		case c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
			return c
		}
		return '_'
	}, user)
}
