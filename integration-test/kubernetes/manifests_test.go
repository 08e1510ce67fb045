package kubernetes

import (
	"path/filepath"
	"testing"

	apps "k8s.io/api/apps/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

const examples = "../../examples"

// built returns the manifests that `kubectl apply -k` would send.
func built(t *testing.T, dir string) (manifests []string) {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(examples, dir))
	if err != nil {
		t.Fatal(err)
	}
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), path)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range resources.Resources() {
		text, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		manifests = append(manifests, string(text))
	}
	return manifests
}

func TestManifests(t *testing.T) {
	for _, dir := range []string{"kubernetes", "monitoring"} {
		manifests := built(t, dir)
		if len(manifests) < 3 {
			t.Errorf("%s: only %d objects", dir, len(manifests))
		}
		for _, text := range manifests {
			if o, err := Check(text); err != nil {
				t.Errorf("%s: %s %s: %v in\n%s", dir, o.Kind, o.Metadata.Name, err, text)
			}
		}
	}
}

// Mistakes are found.
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
	for _, text := range []string{
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: Upper}}",
		"{apiVersion: v1, kind: Config, metadata: {name: a}}",
	} {
		if _, err := Check(text); err == nil {
			t.Errorf("taken: %s", text)
		}
	}
}
