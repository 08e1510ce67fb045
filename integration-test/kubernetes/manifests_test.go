// Package kubernetes tests that the manifests of examples are what Kubernetes
// takes: built by kustomize, and read strictly into Kubernetes' own types. It is
// a module of its own, so that nothing else depends on those. What the manifests
// say is held to the service by the tests above this directory.
package kubernetes

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const examples = "../../examples"

// object is a manifest as kustomize writes it.
type object struct {
	kind, name, text string
}

// built is what `kubectl apply -k` would send.
func built(t *testing.T, dir string) []object {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(examples, dir))
	if err != nil {
		t.Fatal(err)
	}
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), path)
	if err != nil {
		t.Fatal(err)
	}
	var objects []object
	for _, r := range resources.Resources() {
		text, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, object{r.GetApiVersion() + " " + r.GetKind(), r.GetName(), string(text)})
	}
	return objects
}

// types are Kubernetes' own. Those of the Prometheus Operator are as much of
// them as is used here.
var types = map[string]func() any{
	"v1 Namespace":                            func() any { return new(core.Namespace) },
	"v1 ConfigMap":                            func() any { return new(core.ConfigMap) },
	"v1 Service":                              func() any { return new(core.Service) },
	"apps/v1 Deployment":                      func() any { return new(apps.Deployment) },
	"autoscaling/v2 HorizontalPodAutoscaler":  func() any { return new(autoscaling.HorizontalPodAutoscaler) },
	"policy/v1 PodDisruptionBudget":           func() any { return new(policy.PodDisruptionBudget) },
	"networking.k8s.io/v1 NetworkPolicy":      func() any { return new(networking.NetworkPolicy) },
	"monitoring.coreos.com/v1 PodMonitor":     func() any { return new(podMonitor) },
	"monitoring.coreos.com/v1 PrometheusRule": func() any { return new(prometheusRule) },
}

type operated struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   map[string]any `json:"metadata"`
}

type podMonitor struct {
	operated `json:",inline"`
	Spec     struct {
		Selector struct {
			MatchLabels map[string]string `json:"matchLabels"`
		} `json:"selector"`
		PodMetricsEndpoints []struct {
			Port     string `json:"port"`
			Path     string `json:"path"`
			Interval string `json:"interval"`
		} `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

type prometheusRule struct {
	operated `json:",inline"`
	Spec     struct {
		Groups []struct {
			Name  string `json:"name"`
			Rules []struct {
				Alert       string            `json:"alert"`
				Expr        string            `json:"expr"`
				For         string            `json:"for"`
				Labels      map[string]string `json:"labels"`
				Annotations map[string]string `json:"annotations"`
			} `json:"rules"`
		} `json:"groups"`
	} `json:"spec"`
}

// Each manifest has no field that its type does not have, no value of another
// type, and a name that Kubernetes takes.
func TestManifests(t *testing.T) {
	for _, dir := range []string{"kubernetes", "monitoring"} {
		objects := built(t, dir)
		if len(objects) < 3 {
			t.Errorf("%s: only %d objects", dir, len(objects))
		}
		for _, o := range objects {
			t.Run(fmt.Sprintf("%s/%s %s", dir, strings.ReplaceAll(o.kind, "/", "."), o.name), func(t *testing.T) {
				fresh := types[o.kind]
				if fresh == nil {
					t.Fatalf("kind %s: say in types what it is read into", o.kind)
				}
				if err := fits(o.text, fresh()); err != nil {
					t.Errorf("%v in\n%s", err, o.text)
				}
				if problems := validation.IsDNS1123Label(o.name); len(problems) > 0 {
					t.Errorf("the name %s: %s", o.name, problems)
				}
			})
		}
	}
}

// fits is an error where a manifest has what its type does not, or where the
// type read another value than was written: YAML's reader makes "1" of 1, which
// a cluster would refuse.
func fits(text string, as any) error {
	if err := yaml.UnmarshalStrict([]byte(text), as); err != nil {
		return err
	}
	back, err := json.Marshal(as)
	if err != nil {
		return err
	}
	var wrote, read any
	if err := yaml.Unmarshal([]byte(text), &wrote); err != nil {
		return err
	}
	if err := json.Unmarshal(back, &read); err != nil {
		return err
	}
	if problem := lost("", wrote, read); problem != "" {
		return errors.New(problem)
	}
	return nil
}

// lost is the first place at which read does not have what wrote has. Types add
// fields that are empty; those are no matter.
func lost(at string, wrote, read any) string {
	switch w := wrote.(type) {
	case map[string]any:
		r, ok := read.(map[string]any)
		if !ok {
			return fmt.Sprintf("%s: %#v became %#v", at, wrote, read)
		}
		for key, value := range w {
			if problem := lost(at+"."+key, value, r[key]); problem != "" {
				return problem
			}
		}
	case []any:
		r, ok := read.([]any)
		if !ok || len(r) != len(w) {
			return fmt.Sprintf("%s: %#v became %#v", at, wrote, read)
		}
		for i, value := range w {
			if problem := lost(fmt.Sprintf("%s[%d]", at, i), value, r[i]); problem != "" {
				return problem
			}
		}
	default:
		if wrote != read {
			return fmt.Sprintf("%s: %#v became %#v", at, wrote, read)
		}
	}
	return ""
}

// A slip of the pen is found.
func TestManifestsRefuse(t *testing.T) {
	for _, test := range []struct{ name, spec string }{
		{"unknown field", "enableServiceLink: false"},
		{"field twice", "hostNetwork: false, hostNetwork: true"},
		{"number for a text", "containers: [{name: a, env: [{name: A, value: 1}]}]"},
		{"text for a number", `containers: [{name: a, ports: [{containerPort: "80"}]}]`},
		{"no quantity", "containers: [{name: a, resources: {limits: {memory: 256MB}}}]"},
	} {
		if fits("spec: {template: {spec: {"+test.spec+"}}}", new(apps.Deployment)) == nil {
			t.Errorf("%s: taken: %s", test.name, test.spec)
		}
	}
	if err := fits("spec: {template: {spec: {enableServiceLinks: false}}}", new(apps.Deployment)); err != nil {
		t.Errorf("refused: %v", err)
	}
}
