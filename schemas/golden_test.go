package schemas_test

import (
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	pb "warmpath/schemas/warmpathv1"
)

var update = flag.Bool("update", false, "write golden files that do not exist yet")

// onTheWire are the messages that other processes read: each has golden bytes
// under testdata/golden, named <Message>.<n>.json and .hex. Those files are
// never rewritten, only added to: old bytes must stay readable for ever.
var onTheWire = []proto.Message{
	&pb.KVBatch{}, &pb.LoadReport{}, &pb.FleetEntry{}, &pb.RouteRequest{}, &pb.RouteResponse{},
	&pb.Decided{}, &pb.Moved{}, &pb.Finished{}, &pb.Mismatch{},
}

func TestGoldenBytes(t *testing.T) {
	files, err := filepath.Glob("testdata/golden/*.json")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, path := range files {
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		message, _, _ := strings.Cut(name, ".")
		seen[message] = true
		t.Run(name, func(t *testing.T) { checkGolden(t, path, message) })
	}
	for _, m := range onTheWire {
		if name := string(m.ProtoReflect().Descriptor().Name()); !seen[name] {
			t.Errorf("no golden file for %s: add testdata/golden/%s.1.json and run with -update", name, name)
		}
	}
}

func checkGolden(t *testing.T, path, message string) {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName("warmpath.v1." + message))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := kind.New().Interface()
	if err := protojson.Unmarshal(text, want); err != nil {
		t.Fatal(err)
	}
	bytes, err := proto.MarshalOptions{Deterministic: true}.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	hexPath := strings.TrimSuffix(path, ".json") + ".hex"
	if _, err := os.Stat(hexPath); *update && os.IsNotExist(err) {
		if err := os.WriteFile(hexPath, []byte(hex.EncodeToString(bytes)+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(hexPath)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := hex.DecodeString(strings.TrimSpace(string(golden)))
	if err != nil {
		t.Fatal(err)
	}
	got := kind.New().Interface()
	if err := proto.Unmarshal(raw, got); err != nil {
		t.Fatal(err)
	}
	if len(got.ProtoReflect().GetUnknown()) > 0 {
		t.Errorf("golden bytes have fields that the schema no longer knows")
	}
	if !proto.Equal(got, want) {
		t.Errorf("golden bytes read as\n%v\nwant\n%v", got, want)
	}
	if string(bytes) != string(raw) {
		t.Errorf("message now encodes as\n%x\ngolden\n%x", bytes, raw)
	}
}
