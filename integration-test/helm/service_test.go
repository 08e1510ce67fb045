package helm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/testfiles"
)

func TestMain(m *testing.M) { harness.RunTests(m, nil) }

// binary returns the path of the service's program.
func binary(t *testing.T) string {
	t.Helper()
	path, err := harness.BuiltService()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// The service starts with the arguments, the variables and the files of the Deployment, answers its probes and the
// request of the notes, and warns of nothing. Only addresses and the place of files are others.
func TestServiceStarts(t *testing.T) {
	needFull(t)
	const rules = "rules: {api.yaml: {domain: api, descriptors: [{key: remote_address, rate_limit: {unit: year, " +
		"requests_per_unit: 1}}]}}\n"
	for _, test := range []struct{ name, values string }{
		{"memory", rules},
		{"snapshot", rules + "memory: {snapshot: {enabled: true}}"},
		{"Redis", rules + "store: redis\nredis: {url: \"REDIS\", auth: {secret: a}}\nsettings: {REDIS_TIMEOUT: 5s}"},
		{"TLS", rules + "ports: {resp: 6380, divvy: 8321}\ntls: {grpc: {secret: a, clientCA: true}, debug: {secret: a}, " +
			"resp: {secret: a}, divvy: {secret: a}}"},
		{"candidate rules", rules + strings.Replace(rules, "rules:", "candidateRules:", 1)},
	} {
		t.Run(test.name, func(t *testing.T) {
			values := test.values
			if strings.Contains(values, "REDIS") {
				server := redistest.Start(t, redistest.Options{Args: []string{"--requirepass", "secret"}})
				values = strings.Replace(values, `"REDIS"`, `"`+server.Addr+`"`, 1)
			}
			r, err := render(t, values, "")
			if err != nil {
				t.Fatal(err)
			}
			startRelease(t, r)
		})
	}
}

// startRelease runs the service of a release, and sends it two requests; the second is refused.
func startRelease(t *testing.T, r release) {
	t.Helper()
	root := t.TempDir()
	fillMounts(t, r, root)
	env := r.environment(t)
	ports := make(map[string]string)
	for _, name := range []string{"PORT", "GRPC_PORT", "HEALTH_PORT", "DEBUG_PORT", "RESP_PORT", "DIVVY_PORT"} {
		if env[name] == "" || env[name] == "off" {
			continue
		}
		port, err := harness.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		env[name] = fmt.Sprint(port)
		ports[name] = env[name]
		env[strings.TrimSuffix(name, "PORT")+"HOST"] = "127.0.0.1"
	}
	env["PROMETHEUS_ADDR"] = "127.0.0.1:0"
	env["SHUTDOWN_DRAIN"] = "0s"
	var environ []string
	for name, value := range env {
		if strings.HasPrefix(value, "/") {
			value = filepath.Join(root, value)
		}
		environ = append(environ, name+"="+value)
	}
	args := []string{
		text(r.container(), "args.0"), text(r.container(), "args.1"),
		filepath.Join(root, text(r.container(), "args.2")),
	}
	p := &harness.Process{Path: binary(t), Args: args, Env: environ, Log: filepath.Join(root, "log")}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Stop()
		if t.Failed() {
			p.ShowLog(t, "the service")
		}
	})
	for _, probe := range []string{"livenessProbe", "readinessProbe"} {
		url := "http://127.0.0.1:" + ports["HEALTH_PORT"] + text(r.container(), probe+".httpGet.path")
		harness.Await(t, time.Minute, probe, func() error { return ask(url, "", "") })
	}
	url := "http://127.0.0.1:" + ports["PORT"] + "/json"
	const request = `{"domain": "api", "descriptors": [{"entries": [{"key": "remote_address", "value": "192.0.2.1"}]}]}`
	for _, want := range []string{"OK", "OVER_LIMIT"} {
		if err := ask(url, request, want); err != nil {
			t.Error(err)
		}
	}
	if log := read(t, p.Log); strings.Contains(log, `"level":"warning"`) || strings.Contains(log, `"level":"error"`) {
		t.Errorf("it warns:\n%s", log)
	}
}

// fillMounts makes the directories that the container mounts below root: rules, and Secrets with what each kind has.
func fillMounts(t *testing.T, r release, root string) {
	t.Helper()
	certificates := harness.NewCertificates(t)
	for _, m := range list(r.container(), "volumeMounts") {
		dir := filepath.Join(root, text(m, "mountPath"))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		files := make(map[string]string)
		switch name, _, _ := strings.Cut(text(m, "name"), "-"); name {
		case "rules", "candidate":
			if err := os.CopyFS(dir, os.DirFS(writeRules(t, r, "-"+name))); err != nil {
				t.Fatal(err)
			}
		case "auth":
			files["password"] = "secret\n"
		case "tls":
			files["tls.crt"], files["tls.key"], files["ca.crt"] = read(t, certificates.Server.Cert),
				read(t, certificates.Server.Key), read(t, certificates.CA)
		}
		for _, name := range slices.Sorted(maps.Keys(files)) {
			testfiles.Write(t, filepath.Join(dir, name), files[name])
		}
	}
}

// ask sends a request, a POST if it has a body, and compares overallCode of the answer with want; "" accepts every
// answer with 200.
func ask(url, body, want string) error {
	client := http.Client{Timeout: 10 * time.Second}
	var resp *http.Response
	var err error
	if body == "" {
		resp, err = client.Get(url)
	} else {
		resp, err = client.Post(url, "application/json", bytes.NewReader([]byte(body)))
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if want == "" {
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s: %s", url, resp.Status, out)
		}
		return nil
	}
	var answer struct{ OverallCode string }
	if err := json.Unmarshal(out, &answer); err != nil || answer.OverallCode != want {
		return fmt.Errorf("%s: got %s, want overallCode %s; error %v", url, out, want, err)
	}
	return nil
}
