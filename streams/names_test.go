package streams_test

import (
	"strings"
	"testing"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
)

func TestNames(t *testing.T) {
	for _, name := range []string{"chat", "llama-3_70b", "A9"} {
		if err := streams.ValidName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		if err := streams.ValidReplica(name); err != nil {
			t.Errorf("replica %q: %v", name, err)
		}
	}
	for _, name := range []string{"", "a.b", "a b", "*", ">", "a=b", "é", streams.FleetBucket, strings.Repeat("x", 101)} {
		if streams.ValidName(name) == nil {
			t.Errorf("%q is taken as valid", name)
		}
	}
	for _, name := range []string{"e.dp0", "10.0.0.1", "a.b.c"} {
		if err := streams.ValidReplica(name); err != nil {
			t.Errorf("replica %q: %v", name, err)
		}
	}
	for _, name := range []string{".", ".a", "a.", "a..b", "a=b", "a.*"} {
		if streams.ValidReplica(name) == nil {
			t.Errorf("replica %q is taken as valid", name)
		}
	}
}

func TestSubjects(t *testing.T) {
	for got, want := range map[string]string{
		streams.KVStream("chat"):                  "KV_chat",
		streams.KVSubject("chat", "e0.dp1"):       "kv.chat.e0=dp1",
		streams.RouteSubject("chat", "gw"):        "route.chat.gw",
		streams.LiveSubject("chat", "gw"):         "live.route.chat.gw",
		streams.LoadSubject("chat", "e0.dp1"):     "load.chat.e0=dp1",
		streams.FleetKey("chat", "e0.dp1"):        "chat.e0=dp1",
		streams.ServiceSubject("chat"):            "svc.route.chat",
		streams.SubjectReplica("kv.chat.e0=dp1"):  "e0.dp1",
		streams.KVID("e0.dp1", []byte{1, 255}, 7): "e0.dp1/01ff/7",
		streams.RouteID("r1", 2, "moved"):         "r1/2/moved",
		streams.PasswordVariable("gateway-a-b.c"): "WARMPATH_PASSWORD_GATEWAY_A_B_C",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestMessageAndDecode(t *testing.T) {
	m, err := streams.NewMessage("kv.chat.e0", "id", &pb.KVBatch{Replica: "e0", Seq: 3})
	if err != nil {
		t.Fatal(err)
	}
	if m.Schema != "warmpath.v1.KVBatch" {
		t.Errorf("schema is %s", m.Schema)
	}
	back, err := streams.Decode(m.Schema, m.Data)
	if err != nil {
		t.Fatal(err)
	}
	if batch, ok := back.(*pb.KVBatch); !ok || batch.GetSeq() != 3 || batch.GetReplica() != "e0" {
		t.Errorf("decoded %v", back)
	}
	if _, err := streams.Decode("warmpath.v1.Nothing", nil); err == nil {
		t.Error("an unknown schema was decoded")
	}
	if _, err := streams.Decode(m.Schema, []byte{0xff}); err == nil {
		t.Error("garbage was decoded")
	}
}
