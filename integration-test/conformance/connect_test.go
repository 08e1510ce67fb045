package conformance

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

// conformanceFeatures limit the cases to unary calls of gRPC: other protocols than gRPC, other encodings than protobuf,
// and HTTP/1.1 and HTTP/3 do not exist on this port. Compressions other than gzip are not part of grpc-go.
const conformanceFeatures = `
features:
  versions: [HTTP_VERSION_2]
  protocols: [PROTOCOL_GRPC]
  codecs: [CODEC_PROTO]
  compressions: [COMPRESSION_IDENTITY, COMPRESSION_GZIP]
  streamTypes: [STREAM_TYPE_UNARY]
  supportsH2c: true
  supportsTls: true
  supportsTlsClientCerts: true
`

// conformanceCases is how many cases connectconformance 1.0.7 has for these features.
const conformanceCases = 179

// TestConnectConformance runs connectconformance against the server.
func TestConnectConformance(t *testing.T) {
	t.Parallel()
	runner := harness.GoProgram(t, "connectrpc.com/conformance/cmd/connectconformance", "v1.0.7")
	features := filepath.Join(t.TempDir(), "features.yaml")
	testfiles.Write(t, features, conformanceFeatures)
	// These are answers of grpc-go, whose server is the handler.
	grpcGo := []string{
		"**/unary/no-request",        // INTERNAL. grpc.io's list of status codes demands UNIMPLEMENTED.
		"**/unary/multiple-requests", // The same.
	}
	tests := []struct {
		server string
		fail   []string // the patterns of the cases that must fail.
	}{
		{"handled", grpcGo},
		// Decide gets no metadata, which these cases want back.
		{"decided", append(grpcGo, "Basic/**/success", "Duplicate Metadata/**", "Server Empty Requests/**")},
	}
	for _, test := range tests {
		t.Run(test.server, func(t *testing.T) {
			t.Parallel()
			args := []string{"--mode", "server", "--conf", features}
			for _, pattern := range test.fail {
				args = append(args, "--known-failing", pattern)
			}
			args = append(args, "--", os.Args[0], "conformance-server", test.server)
			out, err := exec.CommandContext(t.Context(), runner, args...).CombinedOutput()
			want := fmt.Sprintf("Total cases: %d\n", conformanceCases)
			if err != nil || !regexp.MustCompile("(?m)^"+want).Match(out) {
				t.Errorf("connectconformance ended with %v, want %q in\n%s", err, want, out)
			}
		})
	}
}
