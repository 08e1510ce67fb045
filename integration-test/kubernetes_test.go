package integration

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"ratelimit/testbed/redistest"
)

const manifestDir = "examples/kubernetes"

// manifest is as much of any object as is looked at here. That there is nothing
// in it which Kubernetes does not know is tested in the module kubernetes.
type manifest struct {
	Kind     string `yaml:"kind"`
	Metadata struct {
		Name string `yaml:"name"`
	} `yaml:"metadata"`
	Spec struct {
		Selector    selector  `yaml:"selector"`
		PodSelector selector  `yaml:"podSelector"`
		Replicas    *int      `yaml:"replicas"`
		ClusterIP   string    `yaml:"clusterIP"`
		Ports       []netPort `yaml:"ports"`
		Ingress     []peers   `yaml:"ingress"`
		Egress      []peers   `yaml:"egress"`
		Template    struct {
			Metadata struct {
				Labels map[string]string `yaml:"labels"`
			} `yaml:"metadata"`
			Spec pod `yaml:"spec"`
		} `yaml:"template"`
		ScaleTargetRef struct {
			Kind string `yaml:"kind"`
			Name string `yaml:"name"`
		} `yaml:"scaleTargetRef"`
		PodMetricsEndpoints []struct {
			Port string `yaml:"port"`
			Path string `yaml:"path"`
		} `yaml:"podMetricsEndpoints"`
	} `yaml:"spec"`
}

// selector is one with matchLabels, or a Service's, which has the labels alone.
type selector map[string]string

func (s *selector) UnmarshalYAML(n *yaml.Node) error {
	var in struct {
		Labels map[string]string `yaml:"matchLabels"`
	}
	if err := n.Decode(&in); err == nil && in.Labels != nil {
		*s = in.Labels
		return nil
	}
	return n.Decode((*map[string]string)(s))
}

type netPort struct {
	Name       string `yaml:"name"`
	Port       string `yaml:"port"` // of policies also a name
	TargetPort string `yaml:"targetPort"`
}

type peers struct {
	From []struct {
		PodSelector selector `yaml:"podSelector"`
	} `yaml:"from"`
	To []struct {
		PodSelector       selector `yaml:"podSelector"`
		NamespaceSelector selector `yaml:"namespaceSelector"`
	} `yaml:"to"`
	Ports []netPort `yaml:"ports"`
}

type pod struct {
	AutomountServiceAccountToken  *bool       `yaml:"automountServiceAccountToken"`
	EnableServiceLinks            *bool       `yaml:"enableServiceLinks"`
	SecurityContext               security    `yaml:"securityContext"`
	TerminationGracePeriodSeconds int         `yaml:"terminationGracePeriodSeconds"`
	Containers                    []container `yaml:"containers"`
	Volumes                       []struct {
		Name      string `yaml:"name"`
		ConfigMap struct {
			Name string `yaml:"name"`
		} `yaml:"configMap"`
	} `yaml:"volumes"`
}

type security struct {
	RunAsNonRoot             bool  `yaml:"runAsNonRoot"`
	RunAsUser                int   `yaml:"runAsUser"`
	RunAsGroup               int   `yaml:"runAsGroup"`
	AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
	ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
	Capabilities             struct {
		Drop []string `yaml:"drop"`
	} `yaml:"capabilities"`
	SeccompProfile struct {
		Type string `yaml:"type"`
	} `yaml:"seccompProfile"`
}

type container struct {
	Image string   `yaml:"image"`
	Args  []string `yaml:"args"`
	Ports []struct {
		Name          string `yaml:"name"`
		ContainerPort int    `yaml:"containerPort"`
	} `yaml:"ports"`
	Env []struct {
		Name  string `yaml:"name"`
		Value string `yaml:"value"`
	} `yaml:"env"`
	Resources struct {
		Limits map[string]string `yaml:"limits"`
	} `yaml:"resources"`
	LivenessProbe   probe    `yaml:"livenessProbe"`
	ReadinessProbe  probe    `yaml:"readinessProbe"`
	SecurityContext security `yaml:"securityContext"`
	VolumeMounts    []struct {
		Name      string `yaml:"name"`
		MountPath string `yaml:"mountPath"`
		SubPath   string `yaml:"subPath"`
		ReadOnly  bool   `yaml:"readOnly"`
	} `yaml:"volumeMounts"`
}

type probe struct {
	HTTPGet struct {
		Path string `yaml:"path"`
		Port string `yaml:"port"`
	} `yaml:"httpGet"`
}

func (c container) env(name string) string {
	for _, v := range c.Env {
		if v.Name == name {
			return v.Value
		}
	}
	return ""
}

// port is the number of a port that a manifest names.
func (c container) port(name string) int {
	for _, p := range c.Ports {
		if p.Name == name {
			return p.ContainerPort
		}
	}
	return 0
}

// manifests are all objects, by kind and name.
type manifests map[string]manifest

func (m manifests) deployment(name string) (pod, container) {
	p := m["Deployment "+name].Spec.Template.Spec
	return p, p.Containers[0]
}

// kustomization is what ours uses of the format; other keys are errors.
type kustomization struct {
	APIVersion string   `yaml:"apiVersion"`
	Kind       string   `yaml:"kind"`
	Namespace  string   `yaml:"namespace"`
	Resources  []string `yaml:"resources"`
	Images     []struct {
		Name    string `yaml:"name"`
		NewName string `yaml:"newName"`
		NewTag  string `yaml:"newTag"`
	} `yaml:"images"`
	ConfigMapGenerator []struct {
		Name    string   `yaml:"name"`
		Files   []string `yaml:"files"`
		Options struct {
			DisableNameSuffixHash bool `yaml:"disableNameSuffixHash"`
		} `yaml:"options"`
	} `yaml:"configMapGenerator"`
}

func readManifests(t *testing.T) (kustomization, manifests) {
	t.Helper()
	var k kustomization
	d := yaml.NewDecoder(strings.NewReader(read(t, filepath.Join(manifestDir, "kustomization.yaml"))))
	d.KnownFields(true)
	if err := d.Decode(&k); err != nil {
		t.Fatal(err)
	}
	all := make(manifests)
	for _, file := range k.Resources {
		d := yaml.NewDecoder(strings.NewReader(read(t, filepath.Join(manifestDir, file))))
		for {
			var m manifest
			err := d.Decode(&m)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			all[m.Kind+" "+m.Metadata.Name] = m
		}
	}
	for _, name := range []string{
		"Deployment ratelimit", "Service ratelimit", "HorizontalPodAutoscaler ratelimit", "PodDisruptionBudget ratelimit",
		"NetworkPolicy ratelimit",
		"Deployment redis", "Service redis", "NetworkPolicy redis", "Namespace " + k.Namespace,
	} {
		if _, ok := all[name]; !ok {
			t.Fatalf("there is no %s among %q", name, slices.Sorted(maps.Keys(all)))
		}
	}
	return k, all
}

// Every file beside the kustomization is in it.
func TestKubernetesFiles(t *testing.T) {
	k, _ := readManifests(t)
	listed := slices.Clone(k.Resources)
	for _, g := range k.ConfigMapGenerator {
		listed = append(listed, g.Files...)
	}
	var there []string
	for _, pattern := range []string{"*.yaml", "*/*"} {
		paths, err := filepath.Glob(filepath.Join(repository, manifestDir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			name, err := filepath.Rel(filepath.Join(repository, manifestDir), path)
			if err != nil {
				t.Fatal(err)
			}
			if name != "kustomization.yaml" {
				there = append(there, name)
			}
		}
	}
	slices.Sort(listed)
	slices.Sort(there)
	if !slices.Equal(listed, there) {
		t.Errorf("listed are %q\nthere are  %q", listed, there)
	}
}

// The service runs as the image wants it, on the ports it has by default.
func TestKubernetesMatchesImage(t *testing.T) {
	k, all := readManifests(t)
	p, c := all.deployment("ratelimit")
	image := readDockerfile(t)[1]
	if got := fmt.Sprintf("%d:%d", p.SecurityContext.RunAsUser,
		p.SecurityContext.RunAsGroup); got != image.all("USER")[0] {
		t.Errorf("it runs as %s, the image as %s", got, image.all("USER")[0])
	}
	if len(k.Images) != 1 || k.Images[0].Name != c.Image {
		t.Errorf("images %v do not say what %s is", k.Images, c.Image)
	} else if want := "image: " + k.Images[0].NewName + ":" + k.Images[0].NewTag; !strings.Contains(read(t,
		"docker-compose.yml"), want+"\n") {
		t.Errorf("docker-compose.yml has no %s", want)
	}
	// Ports are asked of the service's own table of settings, which has the
	// default in the third column.
	help, err := run("serve", "--help")
	if err != nil {
		t.Fatal(err)
	}
	variables := make(map[string]string)
	for line := range strings.Lines(help) {
		if word := strings.Fields(line); len(word) > 2 {
			variables[word[0]] = word[2]
		}
	}
	for port, want := range map[string]string{
		"http": variables["PORT"], "grpc": variables["GRPC_PORT"],
		"metrics": strings.TrimPrefix(variables["PROMETHEUS_ADDR"], ":"),
	} {
		if got := strconv.Itoa(c.port(port)); got != want {
			t.Errorf("port %s is %s, and by default %s", port, got, want)
		}
		if exposed := image.all("EXPOSE")[0]; port != "metrics" && !strings.Contains(exposed, want) {
			t.Errorf("the image exposes %s, not %s", exposed, want)
		}
	}
	for _, v := range c.Env {
		if goOwn := v.Name == "GOMEMLIMIT" || v.Name == "GOMAXPROCS"; !goOwn && variables[v.Name] == "" {
			t.Errorf("%s is no setting", v.Name)
		}
	}
	if got := c.env("USE_PROMETHEUS"); got != "true" {
		t.Errorf("USE_PROMETHEUS is %q, and port metrics is there for it", got)
	}
}

// No pod can do more than it has to.
func TestKubernetesPodsAreRestricted(t *testing.T) {
	_, all := readManifests(t)
	for name, m := range all {
		if m.Kind != "Deployment" {
			continue
		}
		p, c := all.deployment(m.Metadata.Name)
		s := c.SecurityContext
		for what, ok := range map[string]bool{
			"one container": len(p.Containers) == 1,
			"an unprivileged user": p.SecurityContext.RunAsNonRoot && p.SecurityContext.RunAsUser > 0 &&
				p.SecurityContext.RunAsGroup > 0,
			"seccomp":                   p.SecurityContext.SeccompProfile.Type == "RuntimeDefault",
			"no token":                  p.AutomountServiceAccountToken != nil && !*p.AutomountServiceAccountToken,
			"no variables of Services":  p.EnableServiceLinks != nil && !*p.EnableServiceLinks,
			"no more privileges":        s.AllowPrivilegeEscalation != nil && !*s.AllowPrivilegeEscalation,
			"root file system readable": s.ReadOnlyRootFilesystem,
			"no capabilities":           slices.Equal(s.Capabilities.Drop, []string{"ALL"}),
			"a limit of memory":         c.Resources.Limits["memory"] != "",
			"no limit of CPU":           c.Resources.Limits["cpu"] == "",
		} {
			if !ok {
				t.Errorf("%s: not so: %s", name, what)
			}
		}
	}
}

// What selects pods selects those it is meant for, and ports that are named
// are theirs.
func TestKubernetesSelectors(t *testing.T) {
	k, all := readManifests(t)
	for name, m := range all {
		if m.Kind == "Namespace" {
			continue
		}
		of := all["Deployment "+m.Metadata.Name]
		labels := of.Spec.Template.Metadata.Labels
		selects := m.Spec.Selector
		switch m.Kind {
		case "NetworkPolicy":
			selects = m.Spec.PodSelector
		case "HorizontalPodAutoscaler":
			if to := m.Spec.ScaleTargetRef; to.Kind != "Deployment" || to.Name != "ratelimit" || of.Spec.Replicas != nil {
				t.Errorf("%s scales %v, which has %v replicas of its own", name, to, of.Spec.Replicas)
			}
			continue
		}
		if !maps.Equal(selects, selector(labels)) {
			t.Errorf("%s selects %v, and its pods have %v", name, selects, labels)
		}
		_, c := all.deployment(m.Metadata.Name)
		for _, p := range m.Spec.Ports {
			if n, _ := strconv.Atoi(p.Port); n == 0 || c.port(p.TargetPort) != n {
				t.Errorf("%s: port %s leads to %s, which is %d", name, p.Port, p.TargetPort, c.port(p.TargetPort))
			}
		}
		for _, rule := range m.Spec.Ingress {
			for _, p := range rule.Ports {
				if c.port(p.Port) == 0 {
					t.Errorf("%s: the pods have no port %s", name, p.Port)
				}
			}
			for _, from := range rule.From {
				if from.PodSelector != nil && !maps.Equal(from.PodSelector, all["Deployment ratelimit"].Spec.Selector) {
					t.Errorf("%s lets in %v", name, from.PodSelector)
				}
			}
		}
		if m.Kind == "NetworkPolicy" && m.Metadata.Name == "ratelimit" {
			all.testEgress(t, m.Spec.Egress)
		}
	}
	if m := all["Service ratelimit"]; m.Spec.ClusterIP != "None" {
		t.Errorf("the Service has the address %q; Envoy would stay with one pod", m.Spec.ClusterIP)
	}
	var monitor manifest
	if err := yaml.Unmarshal([]byte(read(t, "examples/monitoring/podmonitor.yaml")), &monitor); err != nil {
		t.Fatal(err)
	}
	_, c := all.deployment("ratelimit")
	if ends := monitor.Spec.PodMetricsEndpoints; !maps.Equal(monitor.Spec.Selector,
		all["Deployment ratelimit"].Spec.Selector) || len(ends) != 1 || c.port(ends[0].Port) == 0 ||
		ends[0].Path != "/metrics" {
		t.Errorf("the PodMonitor looks for %v at %v", monitor.Spec.Selector, ends)
	}
	if !strings.Contains(read(t, "examples/monitoring/kustomization.yaml"), "\nnamespace: "+k.Namespace+"\n") {
		t.Errorf("the PodMonitor is not in the namespace %s, where the pods are", k.Namespace)
	}
}

// testEgress holds what pods may reach to what their settings have them reach.
func (m manifests) testEgress(t *testing.T, egress []peers) {
	t.Helper()
	_, c := m.deployment("ratelimit")
	host, port, _ := strings.Cut(c.env("REDIS_URL"), ":")
	service := m["Service "+host]
	redis, dns := false, false
	for _, rule := range egress {
		for _, to := range rule.To {
			redis = redis || service.Spec.Selector != nil && maps.Equal(to.PodSelector, service.Spec.Selector) &&
				rule.Ports[0].Port == port
			dns = dns || to.NamespaceSelector["kubernetes.io/metadata.name"] == "kube-system" && rule.Ports[0].Port == "53"
		}
	}
	if !redis || !dns || len(egress) != 2 {
		t.Errorf("egress %+v: want Redis at %s, names, and nothing else", egress, c.env("REDIS_URL"))
	}
	if service.Spec.Ports[0].Port != port {
		t.Errorf("the Service %s has the port %s, want %s", host, service.Spec.Ports[0].Port, port)
	}
}

// A pod has the time to end that its settings ask for, and the memory.
func TestKubernetesBudgets(t *testing.T) {
	_, all := readManifests(t)
	p, c := all.deployment("ratelimit")
	length := func(name string) time.Duration {
		d, err := time.ParseDuration(c.env(name))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return d
	}
	const spans = 5 * time.Second // that the last of them have
	grace := time.Duration(p.TerminationGracePeriodSeconds) * time.Second
	if need := length("SHUTDOWN_DRAIN") + length("SHUTDOWN_TIMEOUT") + spans; grace < need ||
		length("SHUTDOWN_DRAIN") < 5*time.Second {
		t.Errorf("%v to end, and it may take %v", grace, need)
	}
	mebibytes := func(text, unit string) float64 {
		number, ok := strings.CutSuffix(text, unit)
		n, err := strconv.Atoi(number)
		if !ok || err != nil {
			t.Fatalf("%q is not in %s", text, unit)
		}
		return float64(n)
	}
	limit, soft := mebibytes(c.Resources.Limits["memory"], "Mi"), mebibytes(c.env("GOMEMLIMIT"), "MiB")
	cache, err := strconv.Atoi(c.env("LOCAL_CACHE_SIZE_IN_BYTES"))
	if err != nil {
		t.Fatal(err)
	}
	// Beside Go's memory there are the program and the kernel's buffers; within
	// it, the cache, and 64 MiB that the heap grows by between collections.
	if soft > 0.9*limit || float64(cache>>20)+64 > soft/2 {
		t.Errorf("memory: %v MiB, GOMEMLIMIT %v MiB, cache %v MiB", limit, soft, cache>>20)
	}
}

// The service starts as the Deployment starts it, beside the Redis that is
// there: with its variables, with rules mounted as a kubelet mounts them, and
// counted as answers to its probes. A ConfigMap that changes is noticed.
func TestKubernetesServiceStarts(t *testing.T) {
	k, all := readManifests(t)
	p, c := all.deployment("ratelimit")
	_, r := all.deployment("redis")
	if len(p.Volumes) != 1 || len(k.ConfigMapGenerator) != 1 || len(c.VolumeMounts) != 1 {
		t.Fatalf("volumes %v, ConfigMaps %v, mounts %v: want one of each", p.Volumes, k.ConfigMapGenerator, c.VolumeMounts)
	}
	made, volume, mount := k.ConfigMapGenerator[0], p.Volumes[0], c.VolumeMounts[0]
	if made.Name != volume.ConfigMap.Name || !made.Options.DisableNameSuffixHash || mount.Name != volume.Name ||
		mount.SubPath != "" || !mount.ReadOnly {
		t.Errorf("the ConfigMap %+v is mounted as %+v at %+v", made, volume, mount)
	}
	if out, err := run("check", filepath.Join(repository, manifestDir, "rules")); err != nil ||
		strings.Contains(out, "warning:") {
		t.Errorf("%v\n%s", err, out)
	}
	files := make(map[string]string)
	for _, file := range made.Files {
		files[filepath.Base(file)] = read(t, filepath.Join(manifestDir, file))
	}
	root := t.TempDir()
	mounted := filepath.Join(root, mount.MountPath)
	mountConfigMap(t, mounted, "..2026_01_01", files)

	server := redistest.Start(t, redistest.Options{Args: r.Args})
	// what is not tested here
	env := []string{
		"REDIS_TIMEOUT=1s", "PROMETHEUS_ADDR=127.0.0.1:0", "HEALTH_HOST=127.0.0.1", "HEALTH_PORT=0",
		"LOG_FORMAT=text", "SHUTDOWN_DRAIN=0s",
	}
	for _, v := range c.Env {
		switch v.Name {
		case "REDIS_URL":
			env = append(env, "REDIS_URL="+server.Addr)
		case "LOG_FORMAT", "SHUTDOWN_DRAIN", "HEALTH_PORT":
		default:
			env = append(env, v.Name+"="+v.Value)
		}
	}
	s := startServiceFrom(t, filepath.Join(root, configFlag(t, c.Args)), env...)
	for name, pr := range map[string]probe{"liveness": c.LivenessProbe, "readiness": c.ReadinessProbe} {
		if pr.HTTPGet.Port != "health" || strconv.Itoa(c.port("health")) != c.env("HEALTH_PORT") {
			t.Errorf("%s asks the port %s, which is %d, and HEALTH_PORT is %s", name, pr.HTTPGet.Port, c.port("health"),
				c.env("HEALTH_PORT"))
		}
		s.until(t, name, func() error {
			_, err := get("http://" + s.health + pr.HTTPGet.Path)
			return err
		})
	}
	if log := s.log(t); strings.Contains(log, "level=warning") {
		t.Errorf("it warns of its own settings:\n%s", log)
	}
	if _, err := get("http://" + s.prometheus + "/metrics"); err != nil {
		t.Errorf("scrape: %v", err)
	}
	_, answer := s.ask(t, "api", "remote_address=192.0.2.1")
	if got := describe(answer); !slices.Equal(got, []string{"OK 99/100 SECOND"}) {
		t.Errorf("got %q", got)
	}
	if keys := server.Do(t, "KEYS", "*192.0.2.1*").([]any); len(keys) != 1 {
		t.Errorf("counters in Redis: %v, want 1", keys)
	}
	for name, text := range files {
		files[name] = strings.ReplaceAll(text, "requests_per_unit: 100}", "requests_per_unit: 200}")
	}
	mountConfigMap(t, mounted, "..2026_01_02", files)
	s.until(t, "the new rules are in force", func() error {
		_, answer := s.ask(t, "api", "remote_address=192.0.2.2")
		if got := answer.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit(); got != 200 {
			return fmt.Errorf("the limit is %d", got)
		}
		return nil
	})
}

// mountConfigMap does as a kubelet: the files are in a directory of their own,
// the link ..data leads there and is swapped, and each name is a link through it.
func mountConfigMap(t *testing.T, dir, version string, files map[string]string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(dir, version), 0o755))
	for name, text := range files {
		must(os.WriteFile(filepath.Join(dir, version, name), []byte(text), 0o644))
	}
	must(os.Symlink(version, filepath.Join(dir, "..data_tmp")))
	must(os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	for name := range files {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil &&
			!errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
	}
}

// A start as Istio's sample has it, where Services of the same namespace have
// left their variables: HOST is IPv6, the mounted rules are in dot files too.
func TestIstioSample(t *testing.T) {
	root := t.TempDir()
	mountConfigMap(t, filepath.Join(root, "data/ratelimit/config"), "..2026_01_01", map[string]string{
		"config.yaml": "domain: d\ndescriptors:\n- {key: PATH, rate_limit: {unit: year, requests_per_unit: 2}}\n",
	})
	server := redistest.Start(t, redistest.Options{})
	s := startService(t,
		"LOG_LEVEL=debug", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+server.Addr, "USE_STATSD=false",
		"RUNTIME_ROOT="+root+"/data", "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false",
		"RUNTIME_IGNOREDOTFILES=true",
		"HOST=::", "GRPC_HOST=::", "REDIS_TIMEOUT=1s",
		"REDIS_PORT=tcp://10.96.0.7:6379", "REDIS_SERVICE_HOST=10.96.0.7", "RATELIMIT_PORT=tcp://10.96.0.8:8080",
	)
	if status, text := s.healthcheck(t); status != http.StatusOK {
		t.Errorf("/healthcheck: %d %s", status, text)
	}
	for _, want := range []string{"OK 1/2 YEAR", "OK 0/2 YEAR", "OVER_LIMIT 0/2 YEAR"} {
		_, answer := s.ask(t, "d", "PATH=/")
		if got := describe(answer); !slices.Equal(got, []string{want}) {
			t.Errorf("got %q, want %s", got, want)
		}
	}
}
