// Package kubernetes reads manifests strictly into Kubernetes' own types. It is a module of its own, so that nothing
// else depends on those types. Its tests read the manifests of examples; the program in strict reads others. The tests
// in the directory above compare what the manifests say with the service.
package kubernetes

import (
	"encoding/json"
	"errors"
	"fmt"

	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

// types makes the value that a kind is read into. The types of the Prometheus Operator have only the fields that are
// used here.
var types = map[string]func() any{
	"v1 Namespace":                            func() any { return new(core.Namespace) },
	"v1 ConfigMap":                            func() any { return new(core.ConfigMap) },
	"v1 Service":                              func() any { return new(core.Service) },
	"v1 ServiceAccount":                       func() any { return new(core.ServiceAccount) },
	"v1 PersistentVolumeClaim":                func() any { return new(core.PersistentVolumeClaim) },
	"v1 Pod":                                  func() any { return new(core.Pod) },
	"apps/v1 Deployment":                      func() any { return new(apps.Deployment) },
	"autoscaling/v2 HorizontalPodAutoscaler":  func() any { return new(autoscaling.HorizontalPodAutoscaler) },
	"policy/v1 PodDisruptionBudget":           func() any { return new(policy.PodDisruptionBudget) },
	"networking.k8s.io/v1 NetworkPolicy":      func() any { return new(networking.NetworkPolicy) },
	"monitoring.coreos.com/v1 PodMonitor":     func() any { return new(podMonitor) },
	"monitoring.coreos.com/v1 ServiceMonitor": func() any { return new(serviceMonitor) },
	"monitoring.coreos.com/v1 PrometheusRule": func() any { return new(prometheusRule) },
}

type operated struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   map[string]any `json:"metadata"`
}

type monitorSelector struct {
	MatchLabels map[string]string `json:"matchLabels"`
}

type endpoint struct {
	Port     string `json:"port"`
	Path     string `json:"path"`
	Interval string `json:"interval"`
}

type podMonitor struct {
	operated `json:",inline"`
	Spec     struct {
		Selector            monitorSelector `json:"selector"`
		PodMetricsEndpoints []endpoint      `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

type serviceMonitor struct {
	operated `json:",inline"`
	Spec     struct {
		Selector  monitorSelector `json:"selector"`
		Endpoints []endpoint      `json:"endpoints"`
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

// Object is what identifies a manifest.
type Object struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
}

// Check returns which object a manifest is, and an error if it has a field that its type does not have, a value of
// another type, or a name that Kubernetes does not take.
func Check(text string) (Object, error) {
	var o Object
	if err := yaml.Unmarshal([]byte(text), &o); err != nil {
		return o, err
	}
	kind := o.APIVersion + " " + o.Kind
	fresh := types[kind]
	if fresh == nil {
		return o, fmt.Errorf("kind %q is not in the table types of integration-test/kubernetes/strict.go", kind)
	}
	if problems := validation.IsDNS1123Label(o.Metadata.Name); len(problems) > 0 {
		return o, fmt.Errorf("name %q: %s", o.Metadata.Name, problems)
	}
	return o, fits(text, fresh())
}

// fits returns an error if a manifest has what its type does not, or if the type read another value than was written:
// YAML's reader makes "1" of 1, which a cluster would refuse.
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

// lost returns the first place at which read does not have what wrote has. Types add empty fields, which lost ignores.
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
