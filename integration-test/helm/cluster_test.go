package helm

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

// cluster is an API server of Kubernetes with etcd. It has no controllers, no scheduler and no nodes.
type cluster struct {
	url, kubeconfig string
	client          *http.Client
}

// token is that of the administrator of the cluster, which listens at 127.0.0.1 only.
const token = "administrator"

// built returns the path of a program from the module apiserver. It builds the program once into the user's cache
// directory.
func built(t *testing.T, name, module, pkg string) string {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Version}}", module)
	list.Dir = "apiserver"
	version, err := list.Output()
	if err != nil {
		t.Fatalf("%s: %v", list, err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	release := strings.TrimSpace(string(version))
	path := filepath.Join(cache, "ratelimit-test", name+"-"+release)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	fmt.Fprintf(os.Stderr, "building %s, which takes several minutes\n", path)
	// The chart refuses old versions of Kubernetes, so the API server must know its own.
	build := exec.CommandContext(t.Context(), "go", "build",
		"-ldflags=-s -w -X k8s.io/component-base/version.gitVersion="+release, "-o", path, pkg)
	build.Dir = "apiserver"
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", build, err, out)
	}
	return path
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	dir := t.TempDir()
	etcd, peers, secure := freePort(t), freePort(t), freePort(t)
	c := &cluster{
		url:        fmt.Sprintf("https://127.0.0.1:%d", secure),
		kubeconfig: filepath.Join(dir, "kubeconfig"),
		// its certificate is its own
		client: &http.Client{
			Timeout:   30 * time.Second,
			Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
		},
	}
	etcdURL, peerURL := fmt.Sprintf("http://127.0.0.1:%d", etcd), fmt.Sprintf("http://127.0.0.1:%d", peers)
	write(t, filepath.Join(dir, "tokens"), token+",admin,admin,system:masters\n")
	write(t, filepath.Join(dir, "accounts.key"), newKey(t))
	write(t, c.kubeconfig, fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: "+
		"{cluster: c, user: u}}]\n"+
		"clusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}]\nusers: [{name: u, user: {token: "+
		"%q}}]\n", c.url, token))
	run(t, dir, built(t, "etcd", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3"),
		"--data-dir="+filepath.Join(dir, "etcd"), "--unsafe-no-fsync", "--listen-client-urls="+etcdURL,
		"--advertise-client-urls="+etcdURL,
		"--listen-peer-urls="+peerURL, "--initial-advertise-peer-urls="+peerURL, "--initial-cluster=default="+peerURL)
	// There are no controllers that make a ServiceAccount, and no classes of priority.
	run(t, dir, built(t, "kube-apiserver", "k8s.io/kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"),
		"--etcd-servers="+etcdURL, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", secure),
		"--cert-dir="+filepath.Join(dir, "certs"),
		"--token-auth-file="+filepath.Join(dir, "tokens"), "--authorization-mode=RBAC",
		"--service-cluster-ip-range=10.96.0.0/16",
		"--service-account-issuer=https://kubernetes.default",
		"--service-account-key-file="+filepath.Join(dir, "accounts.key"),
		"--service-account-signing-key-file="+filepath.Join(dir, "accounts.key"),
		"--disable-admission-plugins=ServiceAccount,Priority")
	harness.Await(t, 3*time.Minute, "the API server is ready", func() error {
		_, err := c.do(http.MethodGet, "/readyz", "", "")
		return err
	})
	return c
}

// run starts a program until the end of the test.
func run(t *testing.T, dir, path string, args ...string) {
	t.Helper()
	p := &harness.Process{Path: path, Args: args, Log: filepath.Join(dir, filepath.Base(path)+".log")}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Stop()
		if t.Failed() {
			p.ShowLog(t, filepath.Base(path))
		}
	})
}

func freePort(t *testing.T) int {
	t.Helper()
	port, err := harness.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func write(t *testing.T, path, content string) {
	t.Helper()
	testfiles.Write(t, path, content)
}

func newKey(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
}

// do sends a request to the API server, and returns the object that it answers.
func (c *cluster) do(method, path, contentType, body string) (map[string]any, error) {
	req, err := http.NewRequest(method, c.url+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 300 {
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, out)
	}
	var object map[string]any
	_ = json.Unmarshal(out, &object) // /readyz answers text
	return object, nil
}

func (c *cluster) must(t *testing.T, method, path, contentType string, body any) map[string]any {
	t.Helper()
	text := ""
	if body != nil {
		text = asJSON(t, body)
	}
	o, err := c.do(method, path, contentType, text)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// helm runs Helm against the cluster with values as its standard input, in the namespace limits.
func (c *cluster) helm(t *testing.T, values string, args ...string) {
	t.Helper()
	if out, err := helmWith(t, values,
		append(args, "--kubeconfig", c.kubeconfig, "--namespace", "limits")...); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

type object = map[string]any

// prepare makes the namespace, which takes only pods of the standard "restricted", and the kinds of the Prometheus
// Operator.
func (c *cluster) prepare(t *testing.T) {
	t.Helper()
	const asObject = "application/json"
	c.must(t, http.MethodPost, "/api/v1/namespaces", asObject, object{"metadata": object{
		"name": "limits", "labels": object{"pod-security.kubernetes.io/enforce": "restricted"},
	}})
	const group = "monitoring.coreos.com"
	for _, kind := range []string{"PodMonitor", "ServiceMonitor", "PrometheusRule"} {
		plural := strings.ToLower(kind) + "s"
		c.must(t, http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", asObject, object{
			"metadata": object{"name": plural + "." + group},
			"spec": object{
				"group": group, "scope": "Namespaced", "names": object{"plural": plural, "kind": kind},
				"versions": []any{object{"name": "v1", "served": true, "storage": true, "schema": object{
					"openAPIV3Schema": object{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
				}}},
			},
		})
		harness.Await(t, time.Minute, kind, func() error {
			_, err := c.do(http.MethodGet, "/apis/"+group+"/v1/namespaces/limits/"+plural, "", "")
			return err
		})
	}
}

func (c *cluster) deployment(t *testing.T, name string) map[string]any {
	t.Helper()
	return c.must(t, http.MethodGet, "/apis/apps/v1/namespaces/limits/deployments/"+name, "", nil)
}

// The API server takes the objects of each row, and the pods where only those of the standard "restricted" are allowed.
func TestClusterTakesRows(t *testing.T) {
	needFull(t)
	c := startCluster(t)
	c.prepare(t)
	for i, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			name := fmt.Sprintf("row-%d", i)
			c.helm(t, row.values, "install", name, chartDir, "-f", "-")
			deployments := c.must(t, http.MethodGet,
				"/apis/apps/v1/namespaces/limits/deployments?labelSelector=app.kubernetes.io/instance="+name, "", nil)
			template, _ := at(deployments, "items.0.spec.template").(map[string]any)
			if template == nil {
				t.Fatalf("there is no Deployment of %s", name)
			}
			template["metadata"].(map[string]any)["name"] = name
			_, err := c.do(http.MethodPost, "/api/v1/namespaces/limits/pods?dryRun=All", "application/json", asJSON(t, template))
			isHost := strings.Contains(row.values, "hostNetwork: true") // The standard forbids it.
			if isHost != (err != nil) || isHost && !strings.Contains(err.Error(), "violates PodSecurity") {
				t.Errorf("the pod: %v", err)
			}
			c.helm(t, "", "uninstall", name)
		})
	}
}

// What the README says of upgrades: a change of rules touches no pod, a rollback restores the objects, and an upgrade
// leaves the number of pods to the autoscaler.
func TestClusterUpgrades(t *testing.T) {
	needFull(t)
	c := startCluster(t)
	c.prepare(t)
	const (
		memory = "rules: {a.yaml: {domain: a}}\n"
		redis  = "store: redis\nredis: {url: \"redis:6379\"}\nautoscaling: {enabled: true}\n"
		scale  = "/apis/apps/v1/namespaces/limits/deployments/ratelimit/scale"
	)
	upgrade := func(values string) { c.helm(t, values, "upgrade", "ratelimit", chartDir, "-f", "-") }
	autoscale := func(replicas int) {
		c.must(t, http.MethodPatch, scale, "application/merge-patch+json", object{"spec": object{"replicas": replicas}})
	}
	c.helm(t, memory+"replicas: 3\n", "install", "ratelimit", chartDir, "-f", "-")
	first := c.deployment(t, "ratelimit")

	upgrade("replicas: 3\nrules: {a.yaml: {domain: a, descriptors: [{key: k}]}, b.yaml: {domain: b}}\n")
	second := c.deployment(t, "ratelimit")
	if at(first, "metadata.generation") != at(second, "metadata.generation") {
		t.Errorf("a change of rules changed the Deployment from\n%s\nto\n%s", asJSON(t, first["spec"]),
			asJSON(t, second["spec"]))
	}
	rules := c.must(t, http.MethodGet, "/api/v1/namespaces/limits/configmaps/ratelimit-rules", "", nil)
	if data, _ := rules["data"].(map[string]any); len(data) != 2 {
		t.Errorf("rules: %v, want two files", data)
	}

	upgrade(memory + redis)
	autoscale(7)
	upgrade(memory + redis + "settings: {LOG_LEVEL: warn}\n")
	third := c.deployment(t, "ratelimit")
	if got := text(third, "spec.replicas"); got != "7" {
		t.Errorf("an upgrade with the autoscaler set %s replicas, want 7 as before", got)
	}
	if spec := asJSON(t, third["spec"]); !strings.Contains(spec, "redis:6379") || !strings.Contains(spec, `"warn"`) {
		t.Errorf("after the upgrade: %s", spec)
	}

	autoscale(8)
	c.helm(t, "", "rollback", "ratelimit", "1")
	if got, want := asJSON(t, c.deployment(t, "ratelimit")["spec"]), asJSON(t, first["spec"]); got != want {
		t.Errorf("after the rollback: %s\nat first: %s", got, want)
	}
	if _, err := c.do(http.MethodGet, "/apis/autoscaling/v2/namespaces/limits/horizontalpodautoscalers/ratelimit", "",
		""); err == nil {
		t.Error("the autoscaler is there after the rollback")
	}
	c.helm(t, "", "uninstall", "ratelimit")
}
