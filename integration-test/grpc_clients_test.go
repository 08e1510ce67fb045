package integration

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"ratelimit/testbed/testfiles"
)

// grpcioVersion is the version of grpcio-tools, which brings grpcio of the same version.
const grpcioVersion = "1.85.1"

// clientsPage has the clients that the tests run.
const clientsPage = "docs/clients.md"

// runIn runs a program in a directory and returns its output.
func runIn(t *testing.T, dir string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // mvn downloads
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
	return string(out)
}

// The client of docs/clients.md in Python, with code generated as the page says, gets the answers that the page shows.
func TestPythonClient(t *testing.T) {
	t.Parallel()
	python, err := installOnce("grpcio-tools-"+grpcioVersion, pipInstall("grpcio-tools", grpcioVersion))
	switch {
	case err != nil && os.Getenv("CI") == "true":
		t.Fatalf("no grpcio-tools to test with: %v", err)
	case err != nil:
		t.Skipf("no grpcio-tools to test with: %v", err)
	}
	dir := t.TempDir()
	_, line, _ := strings.Cut(blocks(t, clientsPage, "sh", "python3 -m venv .venv ")[0], "grpcio-tools\npython3 ")
	args := append([]string{python}, strings.Fields(line)...)
	examples, err := filepath.Abs(filepath.Join(repository, "examples"))
	if err != nil {
		t.Fatal(err)
	}
	for i, arg := range args {
		args[i] = strings.Replace(arg, "examples", examples, 1)
	}
	runIn(t, dir, append(args, "--descriptor_set_out=rls.binpb")...)
	compareWithEnvoy(t, filepath.Join(dir, "rls.binpb"))

	s := startClientsPage(t)
	program := strings.NewReplacer("localhost:8081", s.grpc, "timeout=1)", "timeout=20)"). // for busy machines
												Replace(blocks(t, clientsPage, "python", "import grpc\n")[0])
	for _, want := range []string{"OK 1\n", "OK 0\n", "OVER_LIMIT 0\n"} {
		if got := runIn(t, dir, python, "-c", program); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// startClientsPage serves the rules of docs/clients.md, by the year, so that no test meets the end of a day.
func startClientsPage(t *testing.T) *service {
	t.Helper()
	rules := newRuleDir(t)
	text := blocks(t, clientsPage, "yaml", "domain: shop\n")[0]
	rules.put(t, "shop.yaml", strings.ReplaceAll(text, "unit: day", "unit: year"))
	return startService(t, rules.env()...)
}

// The client in Java is the example's, and its project, built by mvn as the page says, gets the answers that the page
// shows. Without -full only the program is compared: mvn downloads 50 MB.
func TestJavaClient(t *testing.T) {
	t.Parallel()
	const example, javaFile = "examples/grpc-clients/java", "/src/main/java/Ask.java"
	if page := blocks(t, clientsPage, "java", "import ")[0]; page != read(t, example+javaFile) {
		t.Errorf("%s shows another program than %s:\n%s", clientsPage, example+javaFile, page)
	}
	if !*full {
		t.Skip("make java-check builds and runs it")
	}
	dir := t.TempDir() // a copy, since mvn writes beside the sources
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(repository, filepath.Dir(example)))); err != nil {
		t.Fatal(err)
	}
	s := startClientsPage(t)
	line := blocks(t, clientsPage, "sh", "mvn ")[0]
	args := strings.Fields(
		strings.NewReplacer(example, filepath.Join(dir, "java"), "localhost:8081", s.grpc).Replace(line))
	// For busy machines.
	patient := strings.Replace(read(t, example+javaFile), "withDeadlineAfter(5,", "withDeadlineAfter(60,", 1)
	testfiles.Write(t, filepath.Join(dir, "java", javaFile), patient)
	for _, want := range []string{"OK 1\n", "OK 0\n", "OVER_LIMIT 0\n"} {
		got := strings.ReplaceAll(runIn(t, dir, args...), "\x1b[0m", "") // mvn resets colours that it did not set
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// compareWithEnvoy compares the messages of a file of descriptors with Envoy's: each field and value is there, with the
// same number, type and cardinality.
func compareWithEnvoy(t *testing.T, file string) {
	t.Helper()
	data := testfiles.Read(t, file)
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(data, &set); err != nil {
		t.Fatal(err)
	}
	ours := set.GetFile()[len(set.GetFile())-1]
	envoy := map[string]protoreflect.MessageDescriptor{}
	for _, m := range []proto.Message{
		(*rlsv3.RateLimitRequest)(nil), (*commonv3.RateLimitDescriptor)(nil), (*rlsv3.RateLimitResponse)(nil),
	} {
		d := m.ProtoReflect().Descriptor()
		envoy[string(d.Name())] = d
	}
	for _, m := range ours.GetMessageType() {
		compareMessage(t, m, envoy[m.GetName()])
	}
	if len(ours.GetMessageType()) != len(envoy) || len(ours.GetService()) != 1 {
		t.Errorf("%d messages and %d services", len(ours.GetMessageType()), len(ours.GetService()))
	}
	name := ours.GetPackage() + "." + ours.GetService()[0].GetName()
	if name != rlsv3.RateLimitService_ServiceDesc.ServiceName {
		t.Errorf("the service is %s, want %s", name, rlsv3.RateLimitService_ServiceDesc.ServiceName)
	}
}

func compareMessage(t *testing.T, ours *descriptorpb.DescriptorProto, envoy protoreflect.MessageDescriptor) {
	t.Helper()
	for _, f := range ours.GetField() {
		e := envoy.Fields().ByName(protoreflect.Name(f.GetName()))
		if e == nil || e.Number() != protoreflect.FieldNumber(f.GetNumber()) || e.Kind() != protoreflect.Kind(f.GetType()) ||
			e.Cardinality() != protoreflect.Cardinality(f.GetLabel()) {
			t.Errorf("%s.%s: %v, Envoy has %v", ours.GetName(), f.GetName(), f, e)
		}
	}
	for _, enum := range ours.GetEnumType() {
		for _, v := range enum.GetValue() {
			e := envoy.Enums().ByName(protoreflect.Name(enum.GetName())).Values().ByName(protoreflect.Name(v.GetName()))
			if e == nil || e.Number() != protoreflect.EnumNumber(v.GetNumber()) {
				t.Errorf("%s.%s: %v, Envoy has %v", enum.GetName(), v.GetName(), v, e)
			}
		}
	}
	for _, nested := range ours.GetNestedType() {
		compareMessage(t, nested, envoy.Messages().ByName(protoreflect.Name(nested.GetName())))
	}
}
