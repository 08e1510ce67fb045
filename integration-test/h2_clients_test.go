package integration

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

const (
	rateLimitMethod = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
	// clientLimit is the limit of the requests in this file. No test reaches it.
	clientLimit = 1_000_000
)

// engines are the values of GRPC_ENGINE.
var engines = []string{"h2", "grpc-go"}

// TestLoadGenerators lets h2load and ghz send calls on several connections. Each call must succeed and count.
func TestLoadGenerators(t *testing.T) {
	generators := []struct {
		name string
		run  func(t *testing.T, address string, withTLS bool) (calls int)
	}{{"h2load", runH2load}, {"ghz", runGHZ}}
	rules := newRuleDir(t)
	rules.put(t, "rules.yaml", fmt.Sprintf("domain: d\ndescriptors: [{key: k, rate_limit: {unit: year, "+
		"requests_per_unit: %d}}]\n", clientLimit))
	certificates := harness.NewCertificates(t)
	for _, engine := range engines {
		for _, withTLS := range []bool{false, true} {
			env := append(rules.env(), "GRPC_ENGINE="+engine, "GRPC_REFLECTION=true")
			if withTLS {
				env = append(env, "GRPC_SERVER_USE_TLS=true",
					"GRPC_SERVER_TLS_CERT="+certificates.Server.Cert, "GRPC_SERVER_TLS_KEY="+certificates.Server.Key)
			}
			for _, g := range generators {
				t.Run(fmt.Sprintf("%s,%s,TLS=%t", g.name, engine, withTLS), func(t *testing.T) {
					s := startService(t, env...)
					calls := g.run(t, s.grpc, withTLS)
					_, answer := s.ask(t, "d", "k=v")
					if got, want := int(answer.GetStatuses()[0].GetLimitRemaining()), clientLimit-calls-1; got != want {
						t.Errorf("after %d calls and one more, %d remain of %d, want %d", calls, got, clientLimit, want)
					}
				})
			}
		}
	}
}

// runH2load sends one message again and again, on connections with up to 100 streams.
func runH2load(t *testing.T, address string, withTLS bool) (calls int) {
	program := harness.Program(t, "h2load", "nghttp2-client")
	message, err := proto.Marshal(request("d", "k=v"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "message")
	prefix := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
	testfiles.Write(t, file, append(prefix, message...))
	const n = 20_000
	scheme := "http"
	if withTLS {
		scheme = "https"
	}
	out, err := exec.CommandContext(t.Context(), program, "-n", strconv.Itoa(n), "-c", "8", "-m", "100", "-d", file,
		"-H", "content-type: application/grpc", "-H", "te: trailers",
		scheme+"://"+address+"/"+rateLimitMethod).CombinedOutput()
	if err != nil {
		t.Fatalf("h2load: %v\n%s", err, out)
	}
	for _, want := range []string{
		fmt.Sprintf("%d total, %[1]d started, %[1]d done, %[1]d succeeded, 0 failed, 0 errored, 0 timeout", n),
		fmt.Sprintf("%d 2xx, 0 3xx, 0 4xx, 0 5xx", n),
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("h2load does not say %q:\n%s", want, out)
		}
	}
	return n
}

// runGHZ sends calls from a client of grpc-go. ghz learns the messages from the service's reflection.
func runGHZ(t *testing.T, address string, withTLS bool) (calls int) {
	program := harness.GoProgram(t, "github.com/bojand/ghz/cmd/ghz", "v0.120.0")
	message, err := protojson.Marshal(request("d", "k=v"))
	if err != nil {
		t.Fatal(err)
	}
	const n = 4000
	security := "--insecure"
	if withTLS {
		security = "--skipTLS" // It encrypts, but does not verify the certificate.
	}
	out, err := exec.CommandContext(t.Context(), program, security, "--call", rateLimitMethod, "-d", string(message),
		"-n", strconv.Itoa(n), "-c", "40", "--connections", "4", "-O", "json", address).CombinedOutput()
	if err != nil {
		t.Fatalf("ghz: %v\n%s", err, out)
	}
	var report struct {
		Codes map[string]int `json:"statusCodeDistribution"`
	}
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatalf("ghz: %v\n%s", err, out)
	}
	if len(report.Codes) != 1 || report.Codes["OK"] != n {
		t.Errorf("ghz met these status codes: %v, want %d times OK", report.Codes, n)
	}
	return n
}
