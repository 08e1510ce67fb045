// Protogen compiles the .proto files below a directory and has protoc-gen-go
// write their Go code beside them. It needs neither protoc nor buf.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) < 3 {
		log.Fatal("usage: protogen DIRECTORY PLUGIN [ARGUMENT...]")
	}
	if err := generate(os.Args[1], os.Args[2:]); err != nil {
		log.Fatal("protogen: ", err)
	}
}

func generate(dir string, plugin []string) error {
	files, err := protoFiles(dir)
	if err != nil {
		return err
	}
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{dir}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	compiled, err := compiler.Compile(context.Background(), files...)
	if err != nil {
		return err
	}
	request := &pluginpb.CodeGeneratorRequest{FileToGenerate: files, Parameter: proto.String("paths=source_relative")}
	seen := make(map[string]bool)
	for _, f := range compiled {
		request.ProtoFile = add(request.ProtoFile, seen, f)
	}
	input, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	cmd := exec.Command(plugin[0], plugin[1:]...)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(input), os.Stderr
	output, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w", strings.Join(plugin, " "), err)
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(output, &response); err != nil {
		return err
	}
	if response.Error != nil {
		return fmt.Errorf("%s: %s", strings.Join(plugin, " "), response.GetError())
	}
	for _, f := range response.File {
		if err := os.WriteFile(filepath.Join(dir, f.GetName()), []byte(f.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// protoFiles are those below dir, as imports name them.
func protoFiles(dir string) (files []string, err error) {
	err = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".proto" {
			return err
		}
		name, err := filepath.Rel(dir, path)
		files = append(files, filepath.ToSlash(name))
		return err
	})
	return files, err
}

// add appends f behind all that it imports.
func add(
	list []*descriptorpb.FileDescriptorProto, seen map[string]bool, f protoreflect.FileDescriptor,
) []*descriptorpb.FileDescriptorProto {
	if seen[f.Path()] {
		return list
	}
	seen[f.Path()] = true
	for i := range f.Imports().Len() {
		list = add(list, seen, f.Imports().Get(i).FileDescriptor)
	}
	return append(list, protoutil.ProtoFromFileDescriptor(f))
}
