package compat

import (
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"

	pb "warmpath/schemas/warmpathv1"
)

func released(t *testing.T) *descriptorpb.FileDescriptorProto {
	t.Helper()
	raw, err := os.ReadFile("../released.binpb")
	if err != nil {
		t.Fatal(err)
	}
	file := new(descriptorpb.FileDescriptorProto)
	if err := proto.Unmarshal(raw, file); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestCurrentSchemaIsCompatibleWithReleased(t *testing.T) {
	current := protodesc.ToFileDescriptorProto(pb.File_warmpath_v1_events_proto)
	if err := Check(released(t), current); err != nil {
		t.Fatalf("breaking change:\n%v", err)
	}
}

func TestCheckNamesEveryBreak(t *testing.T) {
	message := func(f *descriptorpb.FileDescriptorProto, name string) *descriptorpb.DescriptorProto {
		for _, m := range f.MessageType {
			if m.GetName() == name {
				return m
			}
		}
		t.Fatalf("no message %s", name)
		return nil
	}
	for name, test := range map[string]struct {
		change func(*descriptorpb.FileDescriptorProto)
		want   string // empty: compatible
	}{
		"nothing": {func(*descriptorpb.FileDescriptorProto) {}, ""},
		"field added": {func(f *descriptorpb.FileDescriptorProto) {
			m := message(f, "KVBatch")
			m.Field = append(m.Field, &descriptorpb.FieldDescriptorProto{
				Name: proto.String("extra"), Number: proto.Int32(99), Type: descriptorpb.FieldDescriptorProto_TYPE_BOOL.Enum(),
			})
		}, ""},
		"message removed": {func(f *descriptorpb.FileDescriptorProto) { f.MessageType = f.MessageType[1:] },
			"message warmpath.v1.KVBatch was removed"},
		"field removed": {func(f *descriptorpb.FileDescriptorProto) {
			m := message(f, "KVBatch")
			m.Field = m.Field[1:]
		}, "field warmpath.v1.KVBatch.pool = 1 was removed"},
		"field renumbered": {func(f *descriptorpb.FileDescriptorProto) {
			message(f, "KVBatch").Field[0].Number = proto.Int32(77)
		}, "field warmpath.v1.KVBatch.pool = 1 was removed"},
		"field retyped": {func(f *descriptorpb.FileDescriptorProto) {
			message(f, "KVBatch").Field[0].Type = descriptorpb.FieldDescriptorProto_TYPE_BYTES.Enum()
		}, "field 1 of warmpath.v1.KVBatch was"},
		"field renamed": {func(f *descriptorpb.FileDescriptorProto) {
			message(f, "KVBatch").Field[0].Name = proto.String("fleet")
		}, "field 1 of warmpath.v1.KVBatch was"},
		"field left its oneof": {func(f *descriptorpb.FileDescriptorProto) {
			message(f, "KVEvent").Field[0].OneofIndex = nil
		}, "field 1 of warmpath.v1.KVEvent was"},
		"enum value moved": {func(f *descriptorpb.FileDescriptorProto) {
			f.EnumType[0].Value[1].Number = proto.Int32(40)
		}, "value 1 of enum warmpath.v1.Tier was TIER_GPU"},
		"enum removed": {func(f *descriptorpb.FileDescriptorProto) { f.EnumType = f.EnumType[1:] },
			"enum warmpath.v1.Tier was removed"},
	} {
		t.Run(name, func(t *testing.T) {
			changed := proto.Clone(released(t)).(*descriptorpb.FileDescriptorProto)
			test.change(changed)
			err := Check(released(t), changed)
			switch {
			case test.want == "" && err != nil:
				t.Fatalf("refused: %v", err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Fatalf("got %v, want %q", err, test.want)
			}
		})
	}
}
