package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"ratelimit/src/settings"
	"ratelimit/src/tools/command"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

func TestClient(t *testing.T) {
	s := launch(t, `
domain: d
descriptors:
  - key: ip
    rate_limit: {unit: year, requests_per_unit: 2, name: per-ip}
  - key: pay
    rate_limit: {unit: year, requests_per_unit: 2, unit_multiplier: 3}
  - key: staff
    rate_limit: {unlimited: true}
`)
	s.until("ready", s.healthy)
	address := s.address("grpc")
	steps := []struct {
		args string
		code int
		out  []string // are in the output, in this order
	}{
		{"-domain d -descriptors ip=1", 0, []string{"OK\n", "  ip=1: OK, per-ip: 2 per year, 1 remaining, resets in "}},
		{"-domain d -descriptors ip=1 --hits 0", 0, []string{"1 remaining"}},
		{
			"-domain d -descriptors ip=dGVzdA==,path=/items?page=2 -descriptors ip=a=b", 0,
			[]string{`  ip="dGVzdA==",path="/items?page=2": OK`, `  ip="a=b": OK, per-ip: 2 per year, 1 remaining`},
		},
		{"--domain d --descriptors ip=1 --repeat 2", 3, []string{"0 remaining", "OVER_LIMIT"}},
		{"-domain d -descriptors ip=1 --refund --hits 2", 0, []string{"OK\n", "1 remaining"}},
		{
			"-domain d -descriptors ip=1 -descriptors pay=x,y=z -descriptors staff= -descriptors pay=x", 0,
			[]string{
				"ip=1: OK", "pay=x,y=z: OK, no limit applies", "staff: OK, unlimited",
				"pay=x: OK, 2 per 3 years, 1 remaining",
			},
		},
		{"-domain d -descriptors staff=a -json", 0, []string{`"overallCode"`, `4294967295`}},
		{"-domain other -descriptors ip=1", 0, []string{"no limit applies", "nothing is limited", "`ratelimit explain`"}},
	}
	for _, st := range steps {
		code, out, errOut := call(t, append([]string{"ratelimit", "client", "--address", address},
			strings.Fields(st.args)...)...)
		if code != st.code {
			t.Errorf("%s: exit %d, want %d\n%s%s", st.args, code, st.code, out, errOut)
		}
		rest := out
		for _, want := range st.out {
			at := strings.Index(rest, want)
			if at < 0 {
				t.Errorf("%s: no %q in\n%s", st.args, want, out)
				break
			}
			rest = rest[at+len(want):]
		}
	}
}

// The client says what to do about a wrong address and a wrong descriptor.
func TestClientErrors(t *testing.T) {
	s := launch(t, "domain: d\ndescriptors: [{key: ip, rate_limit: {unit: year, requests_per_unit: 2}}]\n")
	s.until("ready", s.healthy)
	closed := harness.Listen(t)
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args string
		code int
		want string
	}{
		{"--address " + s.address("debug") + " -descriptors ip=1", 1, "is not the gRPC port of the service"},
		{"--address " + s.address("http") + " -descriptors ip=1", 1, "it is 8081 by default"},
		{"--address " + closed.Addr().String() + " -descriptors ip=1", 1, "connection refused: no service listens there"},
		{"--address " + s.address("grpc") + " --tls -descriptors ip=1", 1, "leave out --tls"},
		{"--address " + s.address("grpc") + " -descriptors ipalex", 2, `-descriptors "ipalex": write key=value,key=value`},
	} {
		code, out, errOut := call(t, append([]string{"ratelimit", "client", "-domain", "d"}, strings.Fields(tt.args)...)...)
		if code != tt.code || !strings.Contains(errOut, tt.want) || strings.Contains(errOut, "rpc error") {
			t.Errorf("%s: exit %d, %s%s, want %d and %q", tt.args, code, out, errOut, tt.code, tt.want)
		}
	}
}

// With the name ratelimit_client, the program has the flags, the output and the exit status
// of envoyproxy/ratelimit's client.
func TestUpstreamClient(t *testing.T) {
	s := launch(t, `
domain: d
descriptors:
  - key: ip
    rate_limit: {unit: year, requests_per_unit: 1}
`)
	s.until("ready", s.healthy)
	address := s.address("grpc")
	flags := func(descriptors, target, domain string) string {
		return fmt.Sprintf(`Flag: --descriptors=%q
Flag: --dial_string=%q
Flag: --domain=%q
Flag: --grpc-cert-file=""
Flag: --grpc-key-file=""
Flag: --grpc-server-ca-file=""
Flag: --grpc-use-tls="false"
Flag: --oltp-protocol=""
`, descriptors, target, domain)
	}
	answer := regexp.MustCompile(`^response: overall_code:\s?\w+\s+statuses:\s?\{.*\}\n$`)
	for _, tt := range []struct {
		args, flags, answer string
		code                int
	}{
		{
			"-dial_string=" + address + " -domain d -descriptors ip=1,x=y",
			flags("[ <key=ip, value=1>  <key=x, value=y> ] ", address, "d"), "overall_code:OK", 0,
		},
		{
			"-dial_string " + address + " --domain=d --descriptors ip=2 -descriptors ip=2",
			flags("[ <key=ip, value=2> ] [ <key=ip, value=2> ] ", address, "d"), "overall_code:OVER_LIMIT", 0,
		},
		{
			"-dial_string " + address + " -domain d -descriptors ip=a==,x=/?p=2",
			flags("[ <key=ip, value=a==>  <key=x, value=/?p=2> ] ", address, "d"), "overall_code:OK", 0,
		},
		{
			"-dial_string " + address + " -domain d -descriptors ip=2", flags("[ <key=ip, value=2> ] ", address, "d"),
			"overall_code:OVER_LIMIT", 0,
		},
		{
			"-dial_string " + address + " -domain d", flags("", address, "d"),
			"request error: rpc error: code = InvalidArgument desc = ", 1,
		},
		{
			"-dial_string 127.0.0.1:1 -domain d -descriptors a=b", flags("[ <key=a, value=b> ] ", "127.0.0.1:1", "d"),
			"request error: rpc error: code = Unavailable desc = ", 1,
		},
	} {
		code, out, errOut := call(t, append([]string{"/bin/ratelimit_client"}, strings.Fields(tt.args)...)...)
		got, ok := strings.CutPrefix(out, tt.flags)
		got = strings.NewReplacer(": ", ":", "response: ", "").Replace(got)
		if code != tt.code || !ok || !strings.Contains(got, strings.ReplaceAll(tt.answer, ": ", ":")) || errOut != "" {
			t.Errorf("%s: exit %d\n%s%s\nwant exit %d\n%s%s", tt.args, code, out, errOut, tt.code, tt.flags, tt.answer)
		}
		if rest := strings.TrimPrefix(out, tt.flags); tt.code == 0 && !answer.MatchString(rest) {
			t.Errorf("%s: the answer is %q", tt.args, rest)
		}
	}
	for _, tt := range []struct{ args, want string }{
		{"-descriptors ip", `invalid value "ip" for flag -descriptors: invalid descriptor list`},
		{"-nothing", "flag provided but not defined: -nothing"},
	} {
		code, out, errOut := call(t, append([]string{"ratelimit_client"}, strings.Fields(tt.args)...)...)
		if code != command.ExitInput || out != "" || !strings.Contains(errOut, tt.want) ||
			!strings.Contains(errOut, "-dial_string") {
			t.Errorf("%s: exit %d, %s%s\nwant %s and the flags", tt.args, code, out, errOut, tt.want)
		}
	}
	if code, out, errOut := call(t, "ratelimit_client", "-h"); code != 0 || !strings.Contains(out+errOut, "-dial_string") {
		t.Errorf("-h: exit %d, %s%s", code, out, errOut)
	}
}

// --path asks trees of limits; the answer also has a summary of the levels.
func TestClientPath(t *testing.T) {
	s := launch(t, `
schema:
  user:
    children:
      "*": {limits: [15, 30, 3600000], children: {trade: {limits: [0, 1, 3600000]}}}
`, "RESPONSE_DYNAMIC_METADATA=true")
	s.until("ready", s.healthy)
	for _, want := range []string{"[0,1,0,-1,3600000]\n", "[1,1,0,3600000,3600000]\n"} {
		_, out, errOut := call(t, "ratelimit", "client", "--address", s.address("grpc"), "-domain", "rules", "-path",
			"user/alex/trade")
		if !strings.HasSuffix(out, "reset after]: "+want) {
			t.Errorf("got\n%s%swant %s", out, errOut, want)
		}
	}
}

// certificate writes a self-signed certificate for 127.0.0.1 and its key.
func certificate(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA:         true, BasicConstraintsValid: true,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: cert},
		keyFile:  {Type: "PRIVATE KEY", Bytes: der},
	} {
		testfiles.Write(t, file, pem.EncodeToMemory(block))
	}
	return certFile, keyFile
}

// tlsServer answers OK to all clients that have a certificate.
type tlsServer struct {
	pb.UnimplementedRateLimitServiceServer
}

func (tlsServer) ShouldRateLimit(context.Context, *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	return &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OK}, nil
}

func TestClientTLS(t *testing.T) {
	t.Parallel()
	certFile, keyFile := certificate(t)
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{cert},
		ClientAuth:   tls.RequireAnyClientCert,
	})))
	pb.RegisterRateLimitServiceServer(srv, tlsServer{})
	l := harness.Listen(t)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	defer func() {
		srv.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	args := []string{
		"ratelimit", "client", "--address", l.Addr().String(), "-domain", "d", "-descriptors", "a=1", "--tls",
		"--tls-ca", certFile,
	}
	if code, out, errOut := call(t,
		append(args, "--tls-cert", certFile, "--tls-key", keyFile)...); code != command.ExitOK ||
		!strings.HasPrefix(out, "OK") {
		t.Errorf("with a certificate: exit %d, %s%s", code, out, errOut)
	}
	if code, _, _ := call(t, args...); code != command.ExitError {
		t.Errorf("without one: exit %d", code)
	}
	args = []string{
		"ratelimit", "bench", "--requests", "20", "--warmup", "0s", "--tls", "--tls-ca", certFile, "--address",
		l.Addr().String(),
	}
	if code, out, errOut := call(t,
		append(args, "--tls-cert", certFile, "--tls-key", keyFile)...); code != command.ExitOK ||
		!strings.Contains(out, "OK") {
		t.Errorf("bench with a certificate: exit %d, %s%s", code, out, errOut)
	}
	if code, _, _ := call(t, args...); code != command.ExitError {
		t.Errorf("bench without one: exit %d", code)
	}
}

// Each command that asks a service takes its address from --address and RATELIMIT_ADDRESS, and by the names of earlier
// versions.
func TestAddress(t *testing.T) {
	s := launch(t, oneRule)
	s.until("ready", s.healthy)
	debug, grpc := s.address("debug"), s.address("grpc")
	const ask, load = " --domain d --descriptors ip=1 --hits 0", "bench --json --requests 1 --warmup 0s"
	for _, tt := range []struct {
		args, port string
		older      []string // are spellings of earlier versions; ADDRESS stands for the address.
	}{
		{"top --once", debug, []string{"ADDRESS", "http://ADDRESS"}},
		{"denials", debug, []string{"ADDRESS"}},
		{"record --for 10ms", debug, []string{"--url ADDRESS", "-url http://ADDRESS"}},
		{"explain" + ask, debug, []string{"--url http://ADDRESS", "--url ADDRESS", "--url http://ADDRESS/explain"}},
		{"counter get d ip=1", debug, nil},
		{"client" + ask, grpc, []string{"-dial_string ADDRESS", "--dial-string=ADDRESS"}},
		{load, grpc, []string{"ADDRESS"}},
	} {
		for _, spelling := range append(tt.older, "--address ADDRESS", "RATELIMIT_ADDRESS") {
			cmd := program(t, strings.Fields("ratelimit "+tt.args+" "+strings.ReplaceAll(spelling, "ADDRESS", tt.port))...)
			if spelling == "RATELIMIT_ADDRESS" {
				cmd = program(t, strings.Fields("ratelimit "+tt.args)...)
				cmd.Env = []string{"RATELIMIT_ADDRESS=" + tt.port}
			}
			if code, out, errOut := finish(t, cmd, ""); code != command.ExitOK {
				t.Errorf("%s with %s: exit %d\n%s%s", tt.args, spelling, code, out, errOut)
			}
		}
		code, out, errOut := call(t, strings.Fields("ratelimit "+tt.args+" --address 127.0.0.1:1")...)
		if code != command.ExitError || !strings.Contains(errOut, "connection refused") {
			t.Errorf("%s of no service: exit %d\n%s%s", tt.args, code, out, errOut)
		}
		code, out, errOut = call(t, strings.Fields("ratelimit "+tt.args+" --address a/b")...)
		if code != command.ExitInput || !strings.Contains(errOut, "address a/b: write only the host and the port") {
			t.Errorf("%s of no address: exit %d\n%s%s", tt.args, code, out, errOut)
		}
	}
	if code, out, errOut := call(t, "ratelimit", "health", "--address", s.address("http")); code != command.ExitOK ||
		out != "OK\n" {
		t.Errorf("health: exit %d\n%s%s", code, out, errOut)
	}
	tls := []string{"ratelimit", "client", "--address", grpc, "-domain", "d", "-descriptors", "ip=1", "--timeout", "2s"}
	for _, names := range [][4]string{
		{"--tls", "--tls-ca", "--tls-cert", "--tls-key"},
		{"-grpc-use-tls", "-grpc-server-ca-file", "-grpc-cert-file", "-grpc-key-file"},
	} {
		for i, want := range []string{
			"handshake", "--tls-ca: open x", "--tls-cert and --tls-key: ",
			"--tls-cert and --tls-key: ",
		} {
			args := append(tls, names[0])
			if i > 0 {
				args = append(args, names[i], "x")
			}
			if code, _, errOut := call(t, args...); code == command.ExitOK || !strings.Contains(errOut, want) {
				t.Errorf("%s: exit %d, %s, want %s", args[len(tls):], code, errOut, want)
			}
		}
	}
}

// An unknown flag ends each command with status 2.
func TestWrongFlags(t *testing.T) {
	for _, cmd := range append(commands(io.Discard, io.Discard).Commands(), commands(io.Discard, io.Discard)) {
		name := strings.TrimPrefix(cmd.CommandPath(), "ratelimit")
		if cmd.Hidden {
			continue
		}
		code, out, errOut := call(t, strings.Fields("ratelimit "+name+" --no-such-flag")...)
		if code != command.ExitInput || out != "" || !strings.Contains(errOut, "unknown flag: --no-such-flag") {
			t.Errorf("%s: exit %d, %s%s", name, code, out, errOut)
		}
	}
}

func TestVersionCommand(t *testing.T) {
	for _, arg := range []string{"version", "--version", "-version"} {
		code, out, _ := call(t, "ratelimit", arg)
		if code != 0 || !strings.Contains(out, " (commit ") || !strings.Contains(out, "go1.") ||
			strings.Count(out, "\n") != 1 {
			t.Errorf("%s: exit %d, %s", arg, code, out)
		}
	}
}

func TestHelp(t *testing.T) {
	_, help, _ := call(t, "ratelimit", "serve", "--help")
	for _, v := range settings.Table() {
		if !strings.Contains(help, v.Name+" ") {
			t.Errorf("serve --help lacks %s", v.Name)
		}
	}
	for _, name := range []string{
		"", "serve", "divvy", "client", "check", "explain", "test", "simulate", "bench", "top",
		"denials", "record", "man", "version",
	} {
		code, help, _ := call(t, strings.Fields("ratelimit "+name+" --help")...)
		if code != 0 || !strings.Contains(help, "Examples:") {
			t.Errorf("%s --help: exit %d, no examples", name, code)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if code, out, _ := call(t, "ratelimit", "completion", shell); code != 0 || len(out) < 100 {
			t.Errorf("completion %s: exit %d, %d bytes", shell, code, len(out))
		}
	}
}

// The help texts of the commands, but for the tables of settings, are those of testdata/help.txt.
func TestHelpTexts(t *testing.T) {
	const name = "testdata/help.txt"
	var all strings.Builder
	for _, cmd := range append([]string{""},
		strings.Fields("client check explain test simulate record top denials health schema bench man version")...) {
		_, help, _ := call(t, strings.Fields("ratelimit "+cmd+" --help")...)
		fmt.Fprintf(&all, "$ ratelimit %s --help\n%s\n", cmd, help)
	}
	if *update {
		testfiles.Write(t, name, all.String())
	}
	want, err := os.ReadFile(name)
	if err != nil || string(want) != all.String() {
		t.Errorf("the help texts are not those of %s (%v); if that is meant, run `make docs`. Now they are:\n%s", name, err,
			all.String())
	}
}

// Names of the program, a repeated name behind an entry point, and long flags with one dash choose the command. The
// variable LOG_LEVEL of this test is wrong: its error shows that the program was about to serve.
func TestArguments(t *testing.T) {
	const serves = "LOG_LEVEL=none: write one of panic, "
	t.Chdir(t.TempDir())
	writeFile(t, "ratelimit/a.yaml", "domain: a\n")
	for _, tt := range []struct {
		args, want string
		code       int
	}{
		{"ratelimit", serves, command.ExitError},
		{"/bin/ratelimit", serves, command.ExitError},
		// the command of a compose file behind the image's entry point
		{"ratelimit /bin/ratelimit", serves, command.ExitError},
		{"/bin/ratelimit /bin/ratelimit", serves, command.ExitError},
		{"ratelimit serve", serves, command.ExitError},
		{"ratelimit ratelimit serve --try", serves, command.ExitError},
		{"ratelimit serve /bin/ratelimit --try", serves, command.ExitError},
		{"ratelimit /bin/ratelimit --config ratelimit", serves, command.ExitError},
		{"ratelimit client -domain d -h", "client asks a rate limit server", command.ExitOK},
		{"/bin/ratelimit_client -domain=d", `Flag: --domain="d"`, command.ExitError},
		{"ratelimit /usr/local/bin/ratelimit_client -domain d", `Flag: --domain="d"`, command.ExitError},
		// its flags end at the first argument, as those of envoyproxy/ratelimit's client
		{"ratelimit_client /bin/ratelimit -domain d", `Flag: --domain=""`, command.ExitError},
		{"ratelimit_config_check -config_dir x", "/x does not exist", command.ExitError},
		{"ratelimit /bin/ratelimit_config_check -config_dir x", "/x does not exist", command.ExitError},
		{"ratelimit check ratelimit", "ok: 1 file", command.ExitOK}, // a directory
		{"ratelimit check -- -odd", "/-odd does not exist", command.ExitError},
	} {
		cmd := program(t, strings.Fields(tt.args)...)
		cmd.Env = []string{"LOG_LEVEL=none"}
		if code, out, errOut := finish(t, cmd, ""); code != tt.code || !strings.Contains(out+errOut, tt.want) {
			t.Errorf("%s: exit %d, %s%s\nwant exit %d, %s", tt.args, code, out, errOut, tt.code, tt.want)
		}
	}
}
