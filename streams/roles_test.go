package streams_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"
	"golang.org/x/crypto/bcrypt"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
	"warmpath/streams/natsserver"
	"warmpath/streams/streamstest"
)

const bridgeUser, gatewayUser = "bridge-chat-e0.dp0", "gateway-chat-gw1"

// secured is a server with one user of each kind, one bridge and one gateway of
// their own, and the topology of two pools.
func secured(t *testing.T) *natsserver.Server {
	t.Helper()
	pools := []string{"chat", "code"}
	roles := streams.Roles(pools)
	bridge, err := streams.BridgeRole("chat", "e0.dp0", "e0.dp1")
	if err != nil {
		t.Fatal(err)
	}
	gateway, err := streams.GatewayRole("chat", "gw1")
	if err != nil {
		t.Fatal(err)
	}
	s := streamstest.StartRoles(t, append(roles, bridge, gateway))
	_, js := streamstest.Connect(t, s.URL(streams.RoleOperator))
	streamstest.Apply(t, js, 1, pools...)
	return s
}

// publishOne publishes one message the way services do.
func publishOne(t *testing.T, js jetstream.JetStream, subject string) {
	t.Helper()
	p := streams.NewPublisher(js, streams.PublisherConfig{AckWait: time.Second})
	ctx := testContext(t)
	if err := p.Publish(ctx, message(subject, int(time.Now().UnixNano()))); err != nil {
		t.Fatal(err)
	}
	if err := p.Flush(ctx); err != nil {
		t.Fatalf("publish on %s: %v", subject, err)
	}
	if s := p.Stats(); s.Acked != 1 {
		t.Errorf("publish on %s: %+v", subject, s)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// publishBatch publishes an empty batch of a new epoch.
func publishBatch(t *testing.T, js jetstream.JetStream, pool, replica string) {
	t.Helper()
	epoch := uuid.Must(uuid.NewV7())
	m, err := streams.NewMessage(streams.KVSubject(pool, replica), streams.KVID(replica, epoch[:], 1),
		&pb.KVBatch{Pool: pool, Replica: replica, Epoch: epoch[:], Seq: 1})
	if err != nil {
		t.Fatal(err)
	}
	p := streams.NewPublisher(js, streams.PublisherConfig{AckWait: time.Second})
	ctx := testContext(t)
	if err := errors.Join(p.Publish(ctx, m), p.Flush(ctx), p.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestRolesCanDoTheirWork(t *testing.T) {
	s := secured(t)
	ctx := testContext(t)
	for _, user := range []string{bridgeUser, streams.RoleBridge} {
		_, js := streamstest.Connect(t, s.URL(user))
		for _, replica := range []string{"e0.dp0", "e0.dp1"} {
			publishBatch(t, js, "chat", replica)
			p := streams.NewPublisher(js, streams.PublisherConfig{})
			report(t, p, "chat", replica, 1)
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			put(t, js, "chat", replica, user)
			last, seq, err := streams.LastKV(ctx, js, "chat", replica)
			if err != nil || last == nil {
				t.Errorf("%s reads its last batch: %v %v", user, last, err)
			}
			n := 0
			if err := streams.ReadKV(ctx, js, "chat", replica, seq, func(*pb.KVBatch) error { n++; return nil }); err != nil || n == 0 {
				t.Errorf("%s reads %d of its batches: %v", user, n, err)
			}
		}
	}
	for _, user := range []string{gatewayUser, streams.RoleGateway} {
		_, js := streamstest.Connect(t, s.URL(user))
		publishOne(t, js, streams.RouteSubject("chat", "gw1"))
	}
	for _, user := range []string{gatewayUser, streams.RoleGateway, streams.RoleRouter, streams.RoleAnalytics, streams.RoleAuditor} {
		t.Run(user+" reads", func(t *testing.T) {
			nc, js := streamstest.Connect(t, s.URL(user))
			r := followLive(t, nc, js, "chat", 1)
			streamstest.Until(t, func() bool { return len(r.ids()) == 2 })
			r.end(t)
			var fleet, load journal
			stop := until(t, watch(js, "chat", &fleet))
			fleet.await(t, "+e0.dp0:bridge +e0.dp1:bridge")
			stop()
			stop = until(t, followLoad(nc, js, &load))
			streamstest.Until(t, func() bool { return strings.Count(load.String(), ":") == 2 })
			stop()
		})
	}
	for _, user := range []string{streams.RoleRouter, streams.RoleAnalytics, streams.RoleAuditor} {
		_, js := streamstest.Connect(t, s.URL(user))
		if ids := contents(t, js, streams.KVStream("chat")); len(ids) != 4 {
			t.Errorf("%s read %d KV batches", user, len(ids))
		}
		if user != streams.RoleRouter {
			if ids := contents(t, js, streams.RouteStream); len(ids) != 2 {
				t.Errorf("%s read %d decisions", user, len(ids))
			}
		}
	}
	_, js := streamstest.Connect(t, s.URL(streams.RoleOperator))
	stream, err := js.Stream(ctx, streams.KVStream("code"))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(ctx); err != nil {
		t.Error(err)
	}
}

// A router answers gateways, and is found by service discovery.
func TestRolesService(t *testing.T) {
	s := secured(t)
	routerNC, _ := streamstest.Connect(t, s.URL(streams.RoleRouter))
	service, err := micro.AddService(routerNC, micro.Config{Name: "route", Version: "1.0.0"})
	if err != nil {
		t.Fatal(err)
	}
	err = service.AddEndpoint("chat", micro.HandlerFunc(func(r micro.Request) {
		if err := r.Respond(append([]byte("to "), r.Data()...)); err != nil {
			t.Error(err)
		}
	}), micro.WithEndpointSubject(streams.ServiceSubject("chat")))
	if err != nil {
		t.Fatal(err)
	}
	if err := routerNC.Flush(); err != nil {
		t.Fatal(err)
	}
	gatewayNC, _ := streamstest.Connect(t, s.URL(gatewayUser))
	for i := range 3 {
		answer, err := gatewayNC.RequestWithContext(testContext(t), streams.ServiceSubject("chat"), fmt.Append(nil, i))
		if err != nil || string(answer.Data) != fmt.Sprintf("to %d", i) {
			t.Fatalf("got %v, %v", answer, err)
		}
	}
	operatorNC, _ := streamstest.Connect(t, s.URL(streams.RoleOperator))
	if _, err := operatorNC.RequestWithContext(testContext(t), "$SRV.PING.route", nil); err != nil {
		t.Error(err)
	}
	if err := service.Stop(); err != nil {
		t.Error(err)
	}
}

// denials connects as user and collects the subjects the server denies.
func denials(t *testing.T, s *natsserver.Server, user string) (*nats.Conn, func() []string) {
	t.Helper()
	denied := make(chan string, 1000)
	nc, err := nats.Connect(s.URL(user), nats.CustomInboxPrefix(streams.InboxPrefix(user)),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrPermissionViolation) {
				denied <- err.Error()
			}
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc, func() []string {
		// The server answers in order, and errors are handled in order too.
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		var all []string
		for {
			select {
			case d := <-denied:
				all = append(all, d)
			case <-time.After(100 * time.Millisecond):
				return all
			}
		}
	}
}

// Everybody is denied what is not theirs.
func TestRolesAreDeniedTheRest(t *testing.T) {
	s := secured(t)
	management := []string{
		"$JS.API.STREAM.CREATE.NEW", "$JS.API.STREAM.UPDATE.KV_chat", "$JS.API.STREAM.DELETE.KV_chat",
		"$JS.API.STREAM.PURGE.KV_chat", "$JS.API.STREAM.PURGE.ROUTE", "$JS.API.STREAM.PURGE.KV_FLEET",
		"$JS.API.STREAM.MSG.DELETE.KV_chat", "$JS.API.STREAM.MSG.GET.ROUTE", "$JS.API.STREAM.LIST", "$JS.API.STREAM.NAMES",
		"$JS.API.STREAM.SNAPSHOT.ROUTE", "$JS.API.STREAM.RESTORE.ROUTE", "$JS.API.STREAM.LEADER.STEPDOWN.ROUTE",
		"$JS.API.CONSUMER.DELETE.KV_chat.x", "$JS.API.CONSUMER.DURABLE.CREATE.KV_chat.x", "$JS.API.CONSUMER.LIST.KV_chat",
		"$JS.API.INFO", "$JS.API.STREAM.PURGE.OBJ_INDEX", "$JS.API.STREAM.MSG.DELETE.OBJ_INDEX", "$O.INDEX.C.x", "live.route.chat.gw1", "anything", "_INBOX.x", "_INBOX_operator.x",
	}
	otherInboxes := []string{">", "*", "_INBOX.>", "_INBOX_operator.>", "kv.>", "route.>", "load.>", "$KV.>", "$JS.>"}
	for _, test := range []struct {
		user               string
		publish, subscribe []string
	}{
		{bridgeUser,
			[]string{"$O.INDEX.M.x", "$O.INDEX.C.chat.1.x", "kv.chat.e1", "kv.chat.e0", "kv.chat.e0=dp2", "kv.code.e0=dp0", "load.chat.e1", "$KV.FLEET.chat.e1", "$KV.FLEET.code.e0=dp0",
				"route.chat.gw1", "svc.route.chat", "$JS.API.CONSUMER.CREATE.KV_chat.x", "$JS.API.CONSUMER.CREATE.KV_chat.x.kv.chat.e1",
				"$JS.API.STREAM.INFO.KV_code", "$JS.API.STREAM.MSG.GET.KV_code", "$JS.API.DIRECT.GET.ROUTE"},
			[]string{"live.route.chat.>", "svc.route.chat", "$SRV.>", "_INBOX_bridge.>", "_INBOX_gateway-chat-gw1.>"}},
		{gatewayUser,
			[]string{"$O.INDEX.M.x", "$O.INDEX.C.chat.1.x", "route.chat.gw2", "route.code.gw1", "kv.chat.e0", "load.chat.e0", "$KV.FLEET.chat.e0=dp0", "svc.route.code",
				"$JS.API.STREAM.INFO.KV_chat", "$JS.API.CONSUMER.CREATE.KV_chat.x", "$JS.API.CONSUMER.CREATE.ROUTE.x",
				"$JS.API.CONSUMER.CREATE.LOAD.x", "$JS.API.CONSUMER.CREATE.KV_FLEET.x.$KV.FLEET.code.>", "$JS.API.DIRECT.GET.KV_chat"},
			[]string{"live.route.code.>", "live.route.>", "svc.route.chat", "$SRV.>", "_INBOX_gateway.>"}},
		{streams.RoleRouter,
			[]string{"$O.INDEX.C.other.1.x", "route.chat.gw1", "kv.chat.e0", "load.chat.e0", "$KV.FLEET.chat.e0=dp0", "svc.route.chat", "$JS.API.CONSUMER.CREATE.ROUTE.x"},
			[]string{"live.route.>"}},
		{streams.RoleAnalytics,
			[]string{"$O.INDEX.M.x", "$O.INDEX.C.chat.1.x", "route.chat.gw1", "kv.chat.e0", "load.chat.e0", "$KV.FLEET.chat.e0=dp0", "svc.route.chat"},
			[]string{"svc.route.chat", "$SRV.>"}},
		{streams.RoleAuditor,
			[]string{"$O.INDEX.M.x", "$O.INDEX.C.chat.1.x", "route.chat.gw1", "kv.chat.e0", "load.chat.e0", "$KV.FLEET.chat.e0=dp0", "svc.route.chat"},
			[]string{"svc.route.chat", "$SRV.>"}},
	} {
		t.Run(test.user, func(t *testing.T) {
			nc, collect := denials(t, s, test.user)
			for _, subject := range append(test.publish, management...) {
				if err := nc.Publish(subject, nil); err != nil {
					t.Fatal(err)
				}
			}
			got := strings.Join(collect(), "\n")
			for _, subject := range append(test.publish, management...) {
				if !strings.Contains(got, fmt.Sprintf("Publish to %q", subject)) && !strings.Contains(strings.ToLower(got), strings.ToLower(fmt.Sprintf("publish to %q", subject))) {
					t.Errorf("may publish %s", subject)
				}
			}
			for _, subject := range append(test.subscribe, otherInboxes...) {
				if _, err := nc.SubscribeSync(subject); err != nil {
					t.Fatal(err)
				}
			}
			got = strings.ToLower(strings.Join(collect(), "\n"))
			for _, subject := range append(test.subscribe, otherInboxes...) {
				if !strings.Contains(got, strings.ToLower(fmt.Sprintf("subscription to %q", subject))) {
					t.Errorf("may subscribe to %s", subject)
				}
			}
		})
	}
}

// Nothing of what was denied has happened, and without a password nobody gets in.
func TestRolesNeedPasswords(t *testing.T) {
	s := secured(t)
	for _, url := range []string{
		"nats://" + s.Address(),
		"nats://" + streams.RoleOperator + ":wrong@" + s.Address(),
		"nats://nobody:x@" + s.Address(),
	} {
		if nc, err := nats.Connect(url); err == nil {
			nc.Close()
			t.Errorf("%s got in", url)
		}
	}
}

func TestWriteServerConf(t *testing.T) {
	hash, err := bcrypt.GenerateFromPassword([]byte("geheim"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("WARMPATH_PASSWORD_OPERATOR", "fromenvironment")
	passwords := map[string]string{streams.RoleBridge: string(hash), streams.RoleGateway: `pla"in\`}
	for _, user := range []string{streams.RoleRouter, streams.RoleAnalytics, streams.RoleAuditor} {
		passwords[user] = user
	}
	var b strings.Builder
	if err := streams.WriteServerConf(&b, streams.Roles([]string{"chat"}), passwords); err != nil {
		t.Fatal(err)
	}
	opts := &server.Options{}
	if err := opts.ProcessConfigString(b.String()); err != nil {
		t.Fatalf("%v in\n%s", err, b.String())
	}
	opts.Host, opts.Port, opts.NoSigs, opts.NoLog = "127.0.0.1", server.RANDOM_PORT, true, true
	opts.JetStream, opts.StoreDir = true, t.TempDir()
	s, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	defer s.WaitForShutdown()
	defer s.Shutdown()
	if !s.ReadyForConnections(within) {
		t.Fatal("server is not ready")
	}
	for user, password := range map[string]string{streams.RoleBridge: "geheim", streams.RoleGateway: `pla"in\`, streams.RoleOperator: "fromenvironment"} {
		nc, err := nats.Connect(s.ClientURL(), nats.UserInfo(user, password))
		if err != nil {
			t.Errorf("%s: %v", user, err)
			continue
		}
		if nc.MaxPayload() != streams.MaxPayload {
			t.Errorf("max payload is %d", nc.MaxPayload())
		}
		nc.Close()
	}
	for name, bad := range map[string]map[string]string{
		"unknown user":      {"nobody": "x"},
		"control character": {streams.RoleBridge: "a\nb"},
	} {
		if streams.WriteServerConf(&strings.Builder{}, streams.Roles([]string{"chat"}), bad) == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

// The in-process connection is the operator's.
func TestClientConn(t *testing.T) {
	s := secured(t)
	nc, err := s.ClientConn()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := streams.PutFleet(context.Background(), js, &pb.FleetEntry{Pool: "chat", Replica: "e0"}); err != nil {
		t.Error(err)
	}
}
