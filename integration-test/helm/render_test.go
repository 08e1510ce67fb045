package helm

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"ratelimit/src/service"
	"ratelimit/src/settings"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

// needFull skips a test that only `make helm-check` runs, where a missing program fails the test.
func needFull(t *testing.T) {
	t.Helper()
	if !*full {
		t.Skip("this test runs with -full: make helm-check")
	}
	t.Setenv("CI", "true")
}

// helmVersion returns the version of Helm that the Makefile names.
func helmVersion(t *testing.T) string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^HELM_VERSION := (v4\.\S+)$`).FindStringSubmatch(read(t, repository+"/Makefile"))
	if m == nil {
		t.Fatal("the Makefile has no HELM_VERSION")
	}
	return m[1]
}

// helm runs Helm with directories of its own, and returns what it prints.
func helm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return helmWith(t, "", args...)
}

// helmWith gives Helm text as its standard input.
func helmWith(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	home := t.TempDir()
	cmd := exec.CommandContext(t.Context(), harness.GoProgram(t, "helm.sh/helm/v4/cmd/helm", helmVersion(t)), args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "KUBECONFIG=" + filepath.Join(home, "none")}
	cmd.Stdin = strings.NewReader(stdin)
	var problems strings.Builder
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("helm %s: %w\n%s", strings.Join(args, " "), err, problems.String())
	}
	return string(out), err
}

// release is what Helm would install.
type release struct {
	objects []map[string]any
	notes   string
}

func (r release) of(kind string) (objects []map[string]any) {
	for _, o := range r.objects {
		if o["kind"] == kind {
			objects = append(objects, o)
		}
	}
	return objects
}

func (r release) deployment() map[string]any { return r.of("Deployment")[0] }
func (r release) pod() any                   { return at(r.deployment(), "spec.template.spec") }
func (r release) container() any             { return at(r.pod(), "containers.0") }

// environment returns the variables of the container; those from a Secret as "Secret:name/key".
func (r release) environment(t *testing.T) map[string]string {
	t.Helper()
	env := make(map[string]string)
	for _, v := range list(r.container(), "env") {
		name := text(v, "name")
		if _, ok := env[name]; ok {
			t.Errorf("%s is there twice", name)
		}
		switch {
		case at(v, "valueFrom.secretKeyRef") != nil:
			env[name] = "Secret:" + text(v, "valueFrom.secretKeyRef.name") + "/" + text(v, "valueFrom.secretKeyRef.key")
		case at(v, "valueFrom") != nil:
			env[name] = "Pod"
		default:
			env[name] = text(v, "value")
		}
	}
	return env
}

// render renders the chart with values. It writes the objects to a file, for the strict check.
func render(t *testing.T, values, file string) (release, error) {
	t.Helper()
	out, err := helmWith(t, values, "install", "edge", chartDir, "--namespace", "limits", "--dry-run=client", "-o", "json",
		"-f", "-")
	if err != nil {
		return release{}, err
	}
	var installed struct {
		Info     struct{ Notes string }
		Manifest string
		Hooks    []struct{ Manifest string }
	}
	if err := json.Unmarshal([]byte(out), &installed); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	manifests := installed.Manifest
	for _, h := range installed.Hooks {
		manifests += "\n---\n" + h.Manifest
	}
	r := release{objects: decodeObjects(t, manifests), notes: installed.Info.Notes}
	var documents strings.Builder
	for _, o := range r.objects {
		fmt.Fprintf(&documents, "---\n%s\n", asJSON(t, o))
	}
	if file != "" {
		testfiles.Write(t, file, documents.String())
	}
	return r, nil
}

func TestLint(t *testing.T) {
	needFull(t)
	if out, err := helm(t, "lint", "--strict", chartDir); err != nil || strings.Contains(out, "[WARN") {
		t.Errorf("%v\n%s", err, out)
	}
	dir := t.TempDir()
	if out, err := helm(t, "package", chartDir, "--destination", dir); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	packages, err := filepath.Glob(dir + "/ratelimit-*.tgz")
	if err != nil || len(packages) != 1 {
		t.Fatalf("packages %q, error %v: want one", packages, err)
	}
	if out, err := helm(t, "show", "values", packages[0]); err != nil || out != read(t, chartDir+"/values.yaml")+"\n" {
		t.Errorf("%v; the package has other values:\n%s", err, out)
	}
}

// Each way to use the chart renders objects that fit Kubernetes' types, each other and the service's settings.
func TestRows(t *testing.T) {
	needFull(t)
	dir := t.TempDir()
	var files []string
	_, production, _ := strings.Cut(read(t, chartDir+"/README.md"), "```yml\n")
	production, _, _ = strings.Cut(production, "```")
	for i, row := range append(append(rows, recipeRows(t)...),
		row{name: "README", values: production, want: "STORE_FAILURE_MODE=local NetworkPolicy PodMonitor PrometheusRule"}) {
		t.Run(row.name, func(t *testing.T) {
			file := filepath.Join(dir, fmt.Sprintf("%02d-%s.yaml", i, strings.ReplaceAll(row.name, " ", "-")))
			r, err := render(t, row.values, file)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, file)
			for _, want := range strings.Fields(row.want) {
				checkWant(t, r, want)
			}
			if !strings.Contains(r.notes, row.notes) {
				t.Errorf("the notes have no %q:\n%s", row.notes, r.notes)
			}
			checkNames(t, r)
			checkSelectors(t, r)
			checkPorts(t, r)
			checkVolumes(t, r)
			checkSecurity(t, r)
			checkSettings(t, r)
			checkRules(t, r)
		})
	}
	strict := exec.CommandContext(t.Context(), "go", append([]string{"run", "./strict"}, files...)...)
	strict.Dir = repository + "/integration-test/kubernetes"
	out, err := strict.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("%d rows: %s", len(files), out)
}

// recipeRows returns the values in docs/recipes/managed-redis.md.
func recipeRows(t *testing.T) []row {
	t.Helper()
	page := read(t, repository+"/docs/recipes/managed-redis.md")
	block := func(name string) string {
		_, block, ok := strings.Cut(page, "```yml\n# "+name+"\n")
		block, _, isClosed := strings.Cut(block, "```")
		if !ok || !isClosed {
			t.Fatalf("the recipe has no %s", name)
		}
		return block
	}
	// The values of MemoryDB replace some of ElastiCache.
	memorydb := block("elasticache.yaml")
	for _, change := range []struct{ line, name, instead string }{
		{"  url: clustercfg.limits.abc123.memorydb.eu-central-1.amazonaws.com:6379\n", "  url: ", ""},
		{"  iam: {service: memorydb}\n", "  iam: {", "  iam: {service: memorydb, "},
	} {
		if !strings.Contains(block("memorydb.yaml"), change.line) {
			t.Errorf("memorydb.yaml has no line %s", change.line)
		}
		before, after, _ := strings.Cut(memorydb, change.name)
		if memorydb = before + change.instead + after; change.instead == "" {
			_, after, _ = strings.Cut(after, "\n")
			memorydb = before + change.line + after
		}
	}
	return []row{
		{
			name: "ElastiCache", values: block("elasticache.yaml"),
			want: "REDIS_AWS_IAM_AUTH=true REDIS_AWS_IAM_CACHE_NAME=limits REDIS_AWS_IAM_USER_ID=ratelimit REDIS_TLS=true " +
				"REDIS_AWS_IAM_REGION=eu-central-1 REDIS_AWS_IAM_SERVICE=elasticache REDIS_TYPE=CLUSTER ServiceAccount",
		},
		{name: "MemoryDB", values: memorydb, want: "REDIS_AWS_IAM_SERVICE=memorydb REDIS_AWS_IAM_CACHE_NAME=limits"},
		{
			name: "Azure", values: block("azure.yaml"),
			want: "REDIS_AUTH_USER=66666666-7777-8888-9999-000000000000 REDIS_TLS=true ServiceAccount",
		},
		{name: "Google", values: block("memorystore.yaml"), want: "REDIS_AUTH_USER=default REDIS_TYPE=CLUSTER ServiceAccount"},
	}
}

func TestRefused(t *testing.T) {
	needFull(t)
	for _, test := range refused {
		switch _, err := render(t, test.values, ""); {
		case err == nil:
			t.Errorf("taken: %s", test.values)
		case !strings.Contains(err.Error(), test.message) || len(err.Error()) > 2000:
			t.Errorf("%s: want %q in a short message: %v", test.values, test.message, err)
		}
	}
}

// checkWant tests one word of row.want.
func checkWant(t *testing.T, r release, want string) {
	t.Helper()
	left, value, isEqual := strings.Cut(want, "=")
	kind, path, isPath := strings.Cut(left, ":")
	switch {
	case isPath:
		var got []string
		for _, o := range r.of(kind) {
			got = append(got, fmt.Sprint(at(o, path)))
		}
		if !slices.Contains(got, value) {
			t.Errorf("%s %s: got %q, want %q", kind, path, got, value)
		}
	case isEqual:
		if got, ok := r.environment(t)[left]; !ok || got != value {
			t.Errorf("%s: got %q, want %q", left, got, value)
		}
	case strings.HasPrefix(want, "-"):
		if len(r.of(want[1:])) > 0 {
			t.Errorf("there is a %s", want[1:])
		}
	case len(r.of(want)) == 0:
		t.Errorf("there is no %s", want)
	}
}

// checkNames tests that names fit into a label of DNS, and that each is there once.
func checkNames(t *testing.T, r release) {
	t.Helper()
	seen := make(map[string]bool)
	for _, o := range r.objects {
		name := text(o, "metadata.name")
		id := text(o, "kind") + " " + name
		if name == "" || len(name) > 63 || seen[id] || text(o, "metadata.namespace") != "limits" {
			t.Errorf("%s, in namespace %q: want a name of at most 63 bytes, once, in namespace limits", id,
				text(o, "metadata.namespace"))
		}
		seen[id] = true
		for _, key := range []string{
			"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/version",
			"helm.sh/chart",
		} {
			labels, _ := at(o, "metadata.labels").(map[string]any)
			if value, _ := labels[key].(string); value == "" || len(value) > 63 {
				t.Errorf("%s: label %s is %q", id, key, value)
			}
		}
	}
}

// checkSelectors tests that whatever selects pods selects those of the Deployment, and not the pod of the test.
func checkSelectors(t *testing.T, r release) {
	t.Helper()
	labels, _ := at(r.deployment(), "spec.template.metadata.labels").(map[string]any)
	for kind, path := range map[string]string{
		"Deployment": "spec.selector.matchLabels", "Service": "spec.selector",
		"PodDisruptionBudget": "spec.selector.matchLabels",
		"NetworkPolicy":       "spec.podSelector.matchLabels", "PodMonitor": "spec.selector.matchLabels",
		"ServiceMonitor": "spec.selector.matchLabels",
	} {
		for _, o := range r.of(kind) {
			selector, _ := at(o, path).(map[string]any)
			selected := labels
			if kind == "ServiceMonitor" {
				selected, _ = at(r.of("Service")[0], "metadata.labels").(map[string]any)
			}
			if len(selector) != 2 {
				t.Errorf("%s selects by %v", kind, selector)
			}
			for key, value := range selector {
				if selected[key] != value {
					t.Errorf("%s selects %s=%v; there is %v", kind, key, value, selected[key])
				}
			}
		}
	}
	for _, o := range r.of("HorizontalPodAutoscaler") {
		if got, want := text(o, "spec.scaleTargetRef.name"), text(r.deployment(), "metadata.name"); got != want {
			t.Errorf("the autoscaler scales %s, want %s", got, want)
		}
	}
}

// checkPorts tests that ports that objects name are ports of the container, and those are what the settings say.
func checkPorts(t *testing.T, r release) {
	t.Helper()
	ports := make(map[string]string)
	for _, p := range list(r.container(), "ports") {
		ports[text(p, "name")] = text(p, "containerPort")
	}
	env := r.environment(t)
	for name, want := range map[string]string{
		"grpc": env["GRPC_PORT"], "http": env["PORT"], "health": env["HEALTH_PORT"],
		"metrics": strings.TrimPrefix(env["PROMETHEUS_ADDR"], ":"),
		"resp":    env["RESP_PORT"], "divvy": strings.TrimPrefix(env["DIVVY_PORT"], "off"),
	} {
		if ports[name] != want {
			t.Errorf("port %s is %q in the container and %q in the settings", name, ports[name], want)
		}
	}
	for _, p := range list(r.of("Service")[0], "spec.ports") {
		if ports[text(p, "targetPort")] != text(p, "port") {
			t.Errorf("the Service's port %v leads to %q", p, ports[text(p, "targetPort")])
		}
	}
	named := []string{
		text(r.container(), "livenessProbe.httpGet.port"),
		text(r.container(), "readinessProbe.httpGet.port"),
	}
	for _, o := range r.of("NetworkPolicy") {
		for _, rule := range list(o, "spec.ingress") {
			for _, p := range list(rule, "ports") {
				named = append(named, text(p, "port"))
			}
		}
	}
	for _, kind := range []string{"PodMonitor", "ServiceMonitor"} {
		for _, o := range r.of(kind) {
			named = append(named, text(o, "spec.podMetricsEndpoints.0.port")+text(o, "spec.endpoints.0.port"))
		}
	}
	for _, name := range named {
		if ports[name] == "" {
			t.Errorf("port %q is named, and the container has %v", name, ports)
		}
	}
}

// checkVolumes tests that every mount has a volume, that what is mounted is in the release or named by the values, and
// that files that settings name are below a mount.
func checkVolumes(t *testing.T, r release) {
	t.Helper()
	volumes := make(map[string]bool)
	for _, v := range list(r.pod(), "volumes") {
		volumes[text(v, "name")] = true
		for kind, name := range map[string]string{
			"ConfigMap":             text(v, "configMap.name"),
			"PersistentVolumeClaim": text(v, "persistentVolumeClaim.claimName"),
		} {
			isOurs := strings.HasPrefix(name, text(r.deployment(), "metadata.name"))
			if isOurs && !slices.ContainsFunc(r.of(kind),
				func(o map[string]any) bool { return text(o, "metadata.name") == name }) {
				t.Errorf("volume %s: there is no %s %s", text(v, "name"), kind, name)
			}
		}
	}
	var paths []string
	for _, m := range list(r.container(), "volumeMounts") {
		if !volumes[text(m, "name")] || at(m, "subPath") != nil {
			t.Errorf("mount %v: no such volume, or a subPath, which never changes", m)
		}
		paths = append(paths, text(m, "mountPath"))
	}
	env := r.environment(t)
	files := map[string]string{"--config": text(r.container(), "args.2")}
	for name, value := range env {
		if strings.HasPrefix(value, "/") && name != "RUNTIME_ROOT" {
			files[name] = value
		}
	}
	if sub := env["RUNTIME_CANDIDATE_SUBDIRECTORY"]; sub != "" {
		files["candidate rules"] = env["RUNTIME_ROOT"] + sub + "/" + env["RUNTIME_APPDIRECTORY"]
	}
	for name, file := range files {
		if file != "" && !slices.ContainsFunc(paths,
			func(p string) bool { return file == p || strings.HasPrefix(file, p+"/") }) {
			t.Errorf("%s: %s is in no mount of %q", name, file, paths)
		}
	}
}

// checkSecurity tests what the Pod Security Standard "restricted" asks for, and more.
func checkSecurity(t *testing.T, r release) {
	t.Helper()
	for _, pod := range []any{r.pod(), at(append(r.of("Pod"), nil)[0], "spec")} {
		if pod == nil {
			continue
		}
		containers := append(list(pod, "containers"), list(pod, "initContainers")...)
		for path, want := range map[string]string{
			"automountServiceAccountToken": "false", "enableServiceLinks": "false", "securityContext.runAsNonRoot": "true",
			"securityContext.runAsUser": "65532", "securityContext.seccompProfile.type": "RuntimeDefault",
		} {
			if got := text(pod, path); got != want {
				t.Errorf("%s is %q, want %q", path, got, want)
			}
		}
		for _, c := range containers {
			for path, want := range map[string]string{
				"securityContext.allowPrivilegeEscalation": "false", "securityContext.readOnlyRootFilesystem": "true",
				"securityContext.capabilities.drop": "[ALL]",
			} {
				if got := text(c, path); got != want {
					t.Errorf("container %s: %s is %q, want %q", text(c, "name"), path, got, want)
				}
			}
		}
	}
	env := r.environment(t)
	grace, _ := strconv.Atoi(text(r.pod(), "terminationGracePeriodSeconds"))
	drain, err := time.ParseDuration(env["SHUTDOWN_DRAIN"])
	timeout, err2 := time.ParseDuration(env["SHUTDOWN_TIMEOUT"])
	if need := drain + timeout + 5*time.Second; err != nil || err2 != nil || time.Duration(grace)*time.Second < need {
		t.Errorf("%d s to stop; it may take %v", grace, need)
	}
}

// checkSettings tests that the service takes the variables, without a warning.
func checkSettings(t *testing.T, r release) {
	t.Helper()
	known := settingNames()
	var environ []string
	for name, value := range r.environment(t) {
		if !slices.Contains(known, name) && !strings.HasPrefix(name, "OTEL_EXPORTER_OTLP_") {
			t.Errorf("%s is no setting", name)
		}
		environ = append(environ, name+"="+value)
	}
	cfg, err := service.ServeConfig(environ, text(r.container(), "args.2"))
	if err != nil || len(cfg.SettingsWarnings) > 0 {
		t.Errorf("the service does not take the variables: %v %q", err, cfg.SettingsWarnings)
	}
}

// writeRules writes the rule files of a ConfigMap whose name has the suffix, and returns their directory; "" if there
// is none.
func writeRules(t *testing.T, r release, suffix string) string {
	t.Helper()
	for _, o := range r.of("ConfigMap") {
		if !strings.HasSuffix(text(o, "metadata.name"), suffix) {
			continue
		}
		dir := t.TempDir()
		data, _ := o["data"].(map[string]any)
		for name, content := range data {
			testfiles.Write(t, filepath.Join(dir, name), fmt.Sprint(content))
		}
		return dir
	}
	return ""
}

// checkRules tests that the rules of ConfigMaps are what the service loads, in the store of the row.
func checkRules(t *testing.T, r release) {
	t.Helper()
	for _, suffix := range []string{"-rules", "-candidate"} {
		if dir := writeRules(t, r, suffix); dir != "" {
			if out, err := exec.CommandContext(t.Context(), binary(t), "check", "--backend", r.environment(t)["BACKEND_TYPE"],
				dir).CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", suffix, err, out)
			}
		}
	}
}

// The chart with the values of examples/kubernetes gives the objects of examples/kubernetes, but for labels, for names
// of the release, and for variables that the chart sets to their defaults.
func TestChartGivesTheExample(t *testing.T) {
	needFull(t)
	r, err := render(t, read(t, "testdata/example-values.yaml"), "")
	if err != nil {
		t.Fatal(err)
	}
	defaults := make(map[string]string)
	for _, v := range settings.Table() {
		defaults[v.Name] = v.Default
	}
	for kind, file := range map[string]string{
		"Deployment": "deployment.yaml", "Service": "service.yaml", "HorizontalPodAutoscaler": "availability.yaml",
		"PodDisruptionBudget": "availability.yaml", "NetworkPolicy": "networkpolicy.yaml",
	} {
		got, want := comparable(at(r.of(kind)[0], "spec"), defaults), comparable(example(t, file, kind)["spec"], defaults)
		if g, w := asJSON(t, got), asJSON(t, want); g != w {
			t.Errorf("%s: the chart gives\n%s\nand examples/kubernetes/%s has\n%s", kind, g, file, w)
		}
	}
}

// comparable returns v without labels of the release, without values that are Kubernetes' defaults, and with lists of
// named elements as maps.
func comparable(v any, defaults map[string]string) any {
	switch in := v.(type) {
	case map[string]any:
		out := make(map[string]any)
		for key, value := range maps.All(in) {
			switch {
			case key == "app.kubernetes.io/instance", key == "image":
			case key == "serviceAccountName" && value == "default", key == "imagePullPolicy" && value == "IfNotPresent",
				key == "type" && value == "ClusterIP":
			default:
				out[key] = comparable(value, defaults)
			}
		}
		return out
	case []any:
		named, plain := make(map[string]any), []any{}
		for _, element := range in {
			name := text(element, "name")
			value, isVariable := at(element, "value").(string)
			switch {
			case isVariable && value == defaults[name] && value != "":
			case name != "":
				named[name] = comparable(element, defaults)
			default:
				plain = append(plain, comparable(element, defaults))
			}
		}
		if len(named) > 0 {
			return named
		}
		return plain
	default:
		return v
	}
}
