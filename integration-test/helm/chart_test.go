package helm

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"ratelimit/src/settings"
	"ratelimit/testbed/testfiles"
)

const (
	repository = "../.."
	chartDir   = repository + "/deploy/helm/ratelimit"
)

var (
	full = flag.Bool("full", false,
		"render the chart with Helm, start the service, and install the chart at an API server; takes minutes")
	update = flag.Bool("update", false, "write the generated parts of the chart anew")
)

func read(t *testing.T, path string) string {
	t.Helper()
	text := testfiles.Read(t, path)
	return string(text)
}

// holdFile compares a generated file with what it must be, or writes it with -update.
func holdFile(t *testing.T, path, want string) {
	t.Helper()
	switch {
	case *update:
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	case read(t, path) != want:
		t.Errorf("%s is out of date: run `make docs`", path)
	}
}

// schema is as much of values.schema.json as tests look at.
type schema struct {
	Ref        string             `json:"$ref"`
	Type       any                `json:"type"`
	Properties map[string]*schema `json:"properties"`
	Additional any                `json:"additionalProperties"`
}

// chartValue is a value of the chart that has no values below it with names that the schema knows.
type chartValue struct{ name, fallback, meaning string }

// chartValues returns all values in the order of values.yaml, and compares their names with the schema.
func chartValues(t *testing.T) []chartValue {
	t.Helper()
	var root yaml.Node
	if err := yaml.Unmarshal([]byte(read(t, chartDir+"/values.yaml")), &root); err != nil {
		t.Fatal(err)
	}
	var s schema
	if err := json.Unmarshal([]byte(read(t, chartDir+"/values.schema.json")), &s); err != nil {
		t.Fatal(err)
	}
	delete(s.Properties, "global") // Helm gives it to every chart.
	var list []chartValue
	collectValues(t, "", root.Content[0], &s, &list)
	return list
}

func collectValues(t *testing.T, prefix string, node *yaml.Node, s *schema, list *[]chartValue) {
	t.Helper()
	missing := maps.Clone(s.Properties)
	for i := 0; i < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		name := prefix + key.Value
		sub := s.Properties[key.Value]
		if sub == nil {
			t.Errorf("values.yaml:%d: %s is not in values.schema.json", key.Line, name)
			continue
		}
		delete(missing, key.Value)
		if sub.Additional == false && sub.Properties != nil { // It has exactly these values below it.
			collectValues(t, name+".", value, sub, list)
			continue
		}
		lines := strings.Split(strings.TrimSpace(key.HeadComment), "\n\n")
		meaning := strings.ReplaceAll(lines[len(lines)-1], "\n", " ")
		meaning = strings.ReplaceAll(strings.TrimPrefix(meaning, "# "), " # ", " ")
		if meaning == "" || !strings.HasSuffix(meaning, ".") {
			t.Errorf("values.yaml:%d: %s: the comment above it is %q; write sentences", key.Line, name, meaning)
		}
		*list = append(*list, chartValue{name, inline(t, value), meaning})
	}
	if prefix != "" && s.Additional != false {
		t.Errorf("values.schema.json: %s takes unknown values", prefix)
	}
	for name := range missing {
		t.Errorf("values.schema.json has %s%s, and values.yaml has not", prefix, name)
	}
}

// inline returns YAML as one line of JSON, with plain texts left without quotes.
func inline(t *testing.T, n *yaml.Node) string {
	t.Helper()
	var v any
	if err := n.Decode(&v); err != nil {
		t.Fatal(err)
	}
	if text, ok := v.(string); ok && text != "" {
		return text
	}
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// The README lists all values with what values.yaml says.
func TestChartReadme(t *testing.T) {
	var b strings.Builder
	fmt.Fprint(&b, "| value | default | meaning |\n|---|---|---|\n")
	for _, v := range chartValues(t) {
		fmt.Fprintf(&b, "| `%s` | `%s` | %s |\n", v.name, strings.ReplaceAll(v.fallback, "|", `\|`), v.meaning)
	}
	path := chartDir + "/README.md"
	const begin, end = "<!-- values: written by `make docs` -->\n", "<!-- end of values -->\n"
	before, rest, ok := strings.Cut(read(t, path), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s: the marks around the table are gone", path)
	}
	holdFile(t, path, before+begin+b.String()+end+after)
}

// goVariables are those that Go's runtime reads.
var goVariables = []string{"GOMAXPROCS", "GOMEMLIMIT"}

func settingNames() []string {
	var names []string
	for _, v := range settings.Table() {
		if !strings.Contains(v.Name, "<") {
			names = append(names, v.Name)
		}
	}
	return slices.Sorted(slices.Values(append(names, goVariables...)))
}

// Every variable that a template or a document of the chart names is a setting.
func TestChartVariables(t *testing.T) {
	known := settingNames()
	variable := regexp.MustCompile(`(?m)^([A-Z][A-Z0-9_]+): |\b([A-Z]+_[A-Z0-9_]+)=`)
	count := 0
	for _, path := range chartFiles(t) {
		if path != "README.md" && (!strings.HasPrefix(path, "templates/") || path == "templates/NOTES.txt") {
			continue
		}
		for _, m := range variable.FindAllStringSubmatch(read(t, filepath.Join(chartDir, path)), -1) {
			count++
			if name := m[1] + m[2]; !slices.Contains(known, name) {
				t.Errorf("%s: %s is no setting", path, name)
			}
		}
	}
	if count < 40 {
		t.Errorf("only %d variables found", count)
	}
}

func chartFiles(t *testing.T) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(chartDir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			name, _ := filepath.Rel(chartDir, path)
			paths = append(paths, filepath.ToSlash(name))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

func TestChartVersions(t *testing.T) {
	var chart struct {
		Name, Version, AppVersion string
	}
	if err := yaml.Unmarshal([]byte(lowerKeys(read(t, chartDir+"/Chart.yaml"))), &chart); err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)
	if chart.Name != filepath.Base(chartDir) || !version.MatchString(chart.Version) ||
		!version.MatchString(chart.AppVersion) {
		t.Errorf("Chart.yaml: %+v: want the name of the directory, and versions such as 1.0.0", chart)
	}
}

// lowerKeys spells keys as yaml.v3 expects them of fields without tags.
func lowerKeys(text string) string {
	return strings.ReplaceAll(text, "\nappVersion:", "\nappversion:")
}

// The defaults that matter for safety and load are those of examples/kubernetes.
func TestChartDefaultsAreTheExamples(t *testing.T) {
	var values map[string]any
	if err := yaml.Unmarshal([]byte(read(t, chartDir+"/values.yaml")), &values); err != nil {
		t.Fatal(err)
	}
	pod := example(t, "deployment.yaml", "Deployment")
	container := at(pod, "spec.template.spec.containers.0")
	hpa := example(t, "availability.yaml", "HorizontalPodAutoscaler")
	policy := example(t, "networkpolicy.yaml", "NetworkPolicy")
	for _, pair := range []struct {
		value   string
		example any
	}{
		{"podSecurityContext", at(pod, "spec.template.spec.securityContext")},
		{"strategy", at(pod, "spec.strategy")},
		{"securityContext", at(container, "securityContext")},
		{"resources", at(container, "resources")},
		{"livenessProbe", at(container, "livenessProbe")},
		{"readinessProbe", at(container, "readinessProbe")},
		{"autoscaling.minReplicas", at(hpa, "spec.minReplicas")},
		{"autoscaling.maxReplicas", at(hpa, "spec.maxReplicas")},
		{"autoscaling.targetCPUUtilizationPercentage", at(hpa, "spec.metrics.0.resource.target.averageUtilization")},
		{
			"podDisruptionBudget.maxUnavailable",
			at(example(t, "availability.yaml", "PodDisruptionBudget"), "spec.maxUnavailable"),
		},
		{"networkPolicy.clients", at(policy, "spec.ingress.0.from")},
		{"networkPolicy.scrapers", at(policy, "spec.ingress.1.from")},
	} {
		got, want := asJSON(t, at(values, pair.value)), asJSON(t, pair.example)
		if got != want {
			t.Errorf("%s: %s in values.yaml, %s in examples/kubernetes", pair.value, got, want)
		}
	}
}

// example returns the object of a kind in a file of examples/kubernetes.
func example(t *testing.T, file, kind string) map[string]any {
	t.Helper()
	for _, o := range decodeObjects(t, read(t, filepath.Join(repository, "examples/kubernetes", file))) {
		if o["kind"] == kind {
			return o
		}
	}
	t.Fatalf("examples/kubernetes/%s has no %s", file, kind)
	return nil
}

// decodeObjects reads documents of YAML. A key that is there twice is an error.
func decodeObjects(t *testing.T, text string) (objects []map[string]any) {
	t.Helper()
	d := yaml.NewDecoder(bytes.NewReader([]byte(text)))
	for {
		var o map[string]any
		switch err := d.Decode(&o); {
		case err == nil && o != nil:
			objects = append(objects, o)
		case err == nil: // only comments
		case errors.Is(err, io.EOF):
			return objects
		default:
			t.Fatalf("%v in\n%s", err, text)
		}
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
