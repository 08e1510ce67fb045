package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"ratelimit/testbed/harness"
)

const (
	proxyFile = repository + "/examples/envoy/proxy.yaml"
	mockFile  = repository + "/examples/envoy/mock.yaml"
)

// anyPort is where a test's listeners listen; the system picks the port.
const anyPort = "127.0.0.1:0"

// onAnyPort gives an Envoy admin pages there, whatever its file says.
const onAnyPort = `admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}`

// front is the Envoy of proxy.yaml, running, with the mock behind it.
type front struct {
	*process
	url string
}

// startFront starts both Envoys of the example. What they are told differs
// from the files in the addresses and in these fields of the proxy's
// ratelimit filter: failure_mode_deny as given, and a timeout that does not
// mistake a busy test machine for a service that is gone.
func startFront(t *testing.T, serviceAddress string, failureModeDeny bool) *front {
	t.Helper()
	mock := readYAML(t, mockFile)
	mock.move(t, map[string]string{"0.0.0.0:9999": anyPort})
	_, mockAddress := startEnvoy(t, "mock", mock)

	proxy := readYAML(t, proxyFile)
	proxy.move(t, map[string]string{
		"0.0.0.0:8001":    anyPort,
		"0.0.0.0:8888":    anyPort,
		"envoy-mock:9999": mockAddress,
		"ratelimit:8081":  serviceAddress,
	})
	proxy.set(t, "timeout", "5s")
	proxy.set(t, "failure_mode_deny", strconv.FormatBool(failureModeDeny))
	p, address := startEnvoy(t, "proxy", proxy)
	return &front{process: p, url: "http://" + address}
}

// startEnvoy starts an Envoy with one listener, waits until it is live and
// returns the listener's address.
func startEnvoy(t *testing.T, name string, config *document) (p *process, address string) {
	t.Helper()
	adminFile := filepath.Join(t.TempDir(), "admin")
	p = start(t, name, exec.Command(harness.Envoy(t),
		"--config-path", config.write(t, name+".yaml"),
		"--config-yaml", onAnyPort,
		"--admin-address-path", adminFile,
		"--concurrency", "1",
		"--log-level", "warning",
		"--disable-hot-restart", // hot restart shares memory between the Envoys of a machine
	))
	p.until(t, name+" is live", func() error {
		admin, err := os.ReadFile(adminFile)
		if err != nil {
			return err
		}
		if _, err := get("http://" + string(admin) + "/ready"); err != nil {
			return err
		}
		address, err = listenerOf(string(admin))
		return err
	})
	return p, address
}

// listenerOf asks an Envoy's admin pages where its only listener listens.
func listenerOf(admin string) (string, error) {
	text, err := get("http://" + admin + "/listeners?format=json")
	if err != nil {
		return "", err
	}
	var page struct {
		Statuses []struct {
			Local address `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := json.Unmarshal(text, &page); err != nil {
		return "", fmt.Errorf("%s: %w", text, err)
	}
	if len(page.Statuses) != 1 {
		return "", fmt.Errorf("%d listeners, want one: %s", len(page.Statuses), text)
	}
	return page.Statuses[0].Local.String(), nil
}

// get returns the body of a 200 answer.
func get(url string) ([]byte, error) {
	resp, err := client.Get(url)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	return text, err
}

// call is a request to the front proxy.
type call struct {
	path   string
	header string // "name: value", several with a comma between them; or none
}

// send makes the call and returns the status and the headers of the answer.
func (f *front) send(c call) (int, http.Header, error) {
	req, err := http.NewRequest(http.MethodGet, f.url+c.path, nil)
	if err != nil {
		return 0, nil, err
	}
	for line := range strings.SplitSeq(c.header, ",") {
		name, value, _ := strings.Cut(line, ":")
		if name != "" {
			req.Header.Set(strings.TrimSpace(name), strings.TrimSpace(value))
		}
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	_, err = io.Copy(io.Discard, resp.Body) // read to its end, so that the connection is used again
	resp.Body.Close()
	return resp.StatusCode, resp.Header, err
}

// address is Envoy's, as its files and its admin pages write it.
type address struct {
	Socket struct {
		Host string `json:"address" yaml:"address"`
		Port int    `json:"port_value" yaml:"port_value"`
	} `json:"socket_address" yaml:"socket_address"`
}

func (a address) String() string {
	return net.JoinHostPort(a.Socket.Host, strconv.Itoa(a.Socket.Port))
}

// eachAddress calls do with each address of an Envoy configuration, and puts
// what it returns in its place.
func (d *document) eachAddress(t *testing.T, do func(address) address) {
	t.Helper()
	for _, n := range d.at("address") {
		if n.Kind != yaml.MappingNode {
			continue // the host, inside a socket_address
		}
		var a address
		if err := n.Decode(&a); err != nil {
			t.Fatal(err)
		}
		if err := n.Encode(do(a)); err != nil {
			t.Fatal(err)
		}
	}
}

// move replaces the addresses of an Envoy configuration, every one: a test
// must not reach for anything outside itself.
func (d *document) move(t *testing.T, to map[string]string) {
	t.Helper()
	d.eachAddress(t, func(a address) address {
		host, port, err := net.SplitHostPort(to[a.String()])
		if err != nil {
			t.Fatalf("where to move %s: %v", a, err)
		}
		a.Socket.Host = host
		if a.Socket.Port, err = strconv.Atoi(port); err != nil {
			t.Fatal(err)
		}
		return a
	})
}
