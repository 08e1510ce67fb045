package gateway

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"ratelimit/testbed/testfiles"
)

const (
	gatewayModule  = "github.com/envoyproxy/gateway"
	gatewayVersion = "v1.9.1"

	loopback = `"127.0.0.1"`
	anywhere = `"0.0.0.0"`
)

// change replaces an expression of Envoy Gateway's source, which must occur once in the file.
type change struct{ file, from, to, why string }

// changes are all that the tested Envoy Gateway differs from the released one.
var changes = []change{
	{
		"internal/globalratelimit/runner/runner.go", "XdsGrpcSotwConfigServerAddress = " + anywhere,
		"XdsGrpcSotwConfigServerAddress = " + loopback,
		"rules for the service are served on the loopback interface only",
	},
	{
		"internal/xds/runner/runner.go", "XdsServerAddress = " + anywhere, "XdsServerAddress = " + loopback,
		"Envoy's configuration is served on the loopback interface only",
	},
	{
		"api/v1alpha1/envoygateway_types.go", "GatewayMetricsHost = " + anywhere, "GatewayMetricsHost = " + loopback,
		"metrics are served on the loopback interface only",
	},
	{
		"internal/utils/net/ip.go", "IPv4ListenerAddress = " + anywhere, "IPv4ListenerAddress = " + loopback,
		"Envoy listens on the loopback interface only",
	},
	{
		"internal/provider/file/file.go", `":8081"`, `"127.0.0.1:18081"`,
		"health is served on another port: in Kubernetes 8081 is the port of the rate limit service, and here both share a " +
			"host",
	},
	{
		"internal/xds/translator/globalresources.go", `"/certs/ca.crt"`, `"certs/envoy/ca.crt"`,
		"Envoy reads the authority of the service's certificate from a file that Kubernetes mounts, and here from the " +
			"working directory",
	},
	{
		"internal/provider/kubernetes/controller_offline.go", `"k8s.io/apimachinery/pkg/runtime/schema"`,
		`"k8s.io/apimachinery/pkg/runtime/schema"; "k8s.io/apimachinery/pkg/runtime/serializer"; clienttesting "k8s.io/client-go/testing"`,
		"imports of the next change",
	},
	{
		"internal/provider/kubernetes/controller_offline.go", "WithScheme(scheme).",
		"WithScheme(scheme).WithObjectTracker(clienttesting.NewObjectTracker(scheme, " +
			"serializer.NewCodecFactory(scheme).UniversalDecoder())).",
		"the default tracker of the memory in which standalone mode keeps resources panics on unsigned numbers, as in " +
			"cost.request.number",
	},
}

// gatewayBinary returns the path of GATEWAY_BIN, or of the Envoy Gateway in the user's cache directory, where it builds
// it once. The name in the cache has a hash of the changes.
var gatewayBinary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("GATEWAY_BIN"); path != "" {
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("GATEWAY_BIN: %w", err)
		}
		return filepath.Abs(path)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "ratelimit-test")
	path := filepath.Join(dir, fmt.Sprintf("envoy-gateway-%s-%.4x", gatewayVersion,
		sha256.Sum256(fmt.Append(nil, changes))))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	draft, err := os.MkdirTemp(dir, "building-")
	if err != nil {
		return "", err
	}
	binary, err := buildGateway(draft)
	if err == nil {
		err = os.Rename(binary, path)
	}
	return path, errors.Join(err, os.RemoveAll(draft))
})

// buildGateway builds Envoy Gateway with the changes in dir, and returns the path of the binary.
func buildGateway(dir string) (string, error) {
	source, err := gatewaySource()
	if err != nil {
		return "", err
	}
	patched := filepath.Join(dir, "source")
	if err := os.CopyFS(patched, os.DirFS(source)); err != nil {
		return "", err
	}
	for _, c := range changes {
		if err := c.apply(patched); err != nil {
			return "", err
		}
	}
	binary := filepath.Join(dir, "envoy-gateway")
	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w", "-o", binary,
		"./cmd/envoy-gateway")
	build.Dir = patched
	defer progress("building Envoy Gateway " + gatewayVersion)()
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s in %s: %w\n%s", build, patched, err, out)
	}
	return binary, nil
}

// gatewaySource returns the directory of Envoy Gateway's source in the module cache, where it downloads it if it is not
// there.
var gatewaySource = sync.OnceValues(func() (string, error) {
	download := exec.Command("go", "mod", "download", "-json", gatewayModule+"@"+gatewayVersion)
	download.Dir = os.TempDir() // outside of this module, whose go.mod must not change
	defer progress("downloading Envoy Gateway " + gatewayVersion)()
	out, err := download.Output()
	var module struct{ Dir, Error string }
	if err := errors.Join(err, json.Unmarshal(out, &module)); err != nil {
		return "", fmt.Errorf("%s: %w %s", download, err, module.Error)
	}
	return module.Dir, nil
})

func (c change) apply(source string) error {
	path := filepath.Join(source, filepath.FromSlash(c.file))
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("changing Envoy Gateway's source, so that %s: %w; is this another version than %s?", c.why, err,
			gatewayVersion)
	}
	if n := strings.Count(string(text), c.from); n != 1 {
		return fmt.Errorf("changing Envoy Gateway's source, so that %s: %s has %d times %s, want once; is this another "+
			"version than %s?",
			c.why, c.file, n, c.from, gatewayVersion)
	}
	return os.WriteFile(path, []byte(strings.Replace(string(text), c.from, c.to, 1)), 0o600)
}

// progress prints what goes on, now and every 20 seconds, until the returned function is called.
func progress(what string) (done func()) {
	begun, stop := time.Now(), make(chan struct{})
	fmt.Printf("%s\n", what)
	go func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Second):
				fmt.Printf("%s: %v so far\n", what, time.Since(begun).Round(time.Second))
			}
		}
	}()
	return func() {
		close(stop)
		fmt.Printf("%s took %v\n", what, time.Since(begun).Round(100*time.Millisecond))
	}
}

// A change is made once, and says what is wrong with the source of another version.
func TestChange(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, text, want, problem string }{
		{"once", "a = 1", "a = 2", ""},
		{"absent", "b = 1", "", "f.go has 0 times a = 1, want once; is this another version"},
		{"twice", "a = 1; a = 1", "", "f.go has 2 times a = 1, want once; is this another version"},
		{"no file", "", "", "no such file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file := filepath.Join(dir, "f.go")
			if tt.text != "" {
				testfiles.Write(t, file, tt.text)
			}
			err := change{"f.go", "a = 1", "a = 2", "it is tested"}.apply(dir)
			if tt.problem != "" {
				if err == nil || !strings.Contains(err.Error(), tt.problem) ||
					!strings.Contains(err.Error(), "so that it is tested") {
					t.Errorf("%v, want %q", err, tt.problem)
				}
				return
			}
			if text, readErr := os.ReadFile(file); err != nil || readErr != nil || string(text) != tt.want {
				t.Errorf("%v, %v, %q", err, readErr, text)
			}
		})
	}
}
