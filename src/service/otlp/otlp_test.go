package otlp

import (
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/sdk/resource"
)

// attributesOf returns the attributes of r as name=value, sorted, without those of the SDK.
func attributesOf(r *resource.Resource) string {
	var list []string
	for _, a := range r.Attributes() {
		if !strings.HasPrefix(string(a.Key), "telemetry.sdk.") {
			list = append(list, string(a.Key)+"="+a.Value.AsString())
		}
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// All resources of a process have the same random ID.
func TestResource(t *testing.T) {
	first, err := Process{Tags: map[string]string{"zone": "a", "empty": "", "service.name": "tag"}}.resource(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	second, err := Process{ServiceName: "limits", Namespace: "edge", Version: "v1"}.resource(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text, id := attributesOf(first), randomID
	if want := "service.instance.id=" + id + " service.name=RateLimit zone=a"; text != want {
		t.Errorf("got %s, want %s", text, want)
	}
	text = attributesOf(second)
	if want := "service.instance.id=" + id + " service.name=limits service.namespace=edge service.version=v1"; text != want {
		t.Errorf("got %s, want %s", text, want)
	}
}
