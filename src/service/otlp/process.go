// Package otlp has what spans and metrics share on their way to an OpenTelemetry collector: the variables of the
// exporters, the description of this process, and reports of what was lost.
package otlp

import (
	"cmp"
	"context"
	"slices"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
)

// Process describes this process to the collector.
type Process struct {
	ServiceName string // service.name. Defaults to "RateLimit".
	Namespace   string // service.namespace, or empty.
	// service.instance.id. Defaults to a random UUID, the same for all Resources of the process.
	InstanceID string
	Version    string            // service.version, or empty.
	Tags       map[string]string // further attributes.
}

// randomID is the default of Process.InstanceID.
var randomID = uuid.NewString()

// Resource returns the attributes of p as a Resource.
func (p Process) Resource(ctx context.Context) (*resource.Resource, error) {
	var about []attribute.KeyValue
	for name, value := range p.Tags {
		about = append(about, attribute.String(name, value))
	}
	about = append(about,
		semconv.ServiceName(cmp.Or(p.ServiceName, "RateLimit")),
		semconv.ServiceInstanceID(cmp.Or(p.InstanceID, randomID)),
		semconv.ServiceNamespace(p.Namespace),
		semconv.ServiceVersion(p.Version),
	)
	about = slices.DeleteFunc(about, func(a attribute.KeyValue) bool { return a.Value.AsString() == "" })
	return resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(about...))
}

// WithEnvironment is Resource with the attributes of OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME that p does not
// have.
func (p Process) WithEnvironment(ctx context.Context) (*resource.Resource, error) {
	own, err := p.Resource(ctx)
	if err != nil {
		return nil, err
	}
	return resource.Merge(resource.Environment(), own)
}
