// Command gen writes the Go code of the event schema, and the released
// descriptors that later changes are checked against. It compiles the .proto in
// process, so that `make generate` gives the same bytes on every machine.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/cmd/protoc-gen-go/internal_gengo"
	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"

	"warmpath/schemas/compat"
)

const (
	source   = "warmpath/v1/events.proto"
	released = "released.binpb"
)

func main() {
	if err := run(context.Background(), "schemas"); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string) error {
	file, err := compile(ctx, dir)
	if err != nil {
		return err
	}
	if err := refuseBreaking(filepath.Join(dir, released), file); err != nil {
		return err
	}
	if err := writeGo(dir, file); err != nil {
		return err
	}
	file.SourceCodeInfo = nil
	out, err := proto.MarshalOptions{Deterministic: true}.Marshal(file)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, released), out, 0o644)
}

func compile(ctx context.Context, dir string) (*descriptorpb.FileDescriptorProto, error) {
	compiler := protocompile.Compiler{
		Resolver:       &protocompile.SourceResolver{ImportPaths: []string{dir}},
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	files, err := compiler.Compile(ctx, source)
	if err != nil {
		return nil, err
	}
	return protoutil.ProtoFromFileDescriptor(files[0]), nil
}

func refuseBreaking(path string, file *descriptorpb.FileDescriptorProto) error {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	old := new(descriptorpb.FileDescriptorProto)
	if err := proto.Unmarshal(raw, old); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return compat.Check(old, file)
}

func writeGo(dir string, file *descriptorpb.FileDescriptorProto) error {
	plugin, err := protogen.Options{}.New(&pluginpb.CodeGeneratorRequest{
		FileToGenerate: []string{source},
		Parameter:      proto.String("module=warmpath/schemas"),
		ProtoFile:      []*descriptorpb.FileDescriptorProto{file},
	})
	if err != nil {
		return err
	}
	internal_gengo.GenerateFile(plugin, plugin.Files[0])
	res := plugin.Response()
	if res.Error != nil {
		return errors.New(res.GetError())
	}
	for _, f := range res.File {
		path := filepath.Join(dir, f.GetName())
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(f.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}
