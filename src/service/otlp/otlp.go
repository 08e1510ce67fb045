// Package otlp sends spans of requests, and figures, to an OpenTelemetry collector. It does not use the global state of
// the OpenTelemetry libraries.
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

// Config is what spans and figures share on their way to the collector. The exporters read the address, headers,
// certificates and timeouts from the environment variables OTEL_EXPORTER_OTLP_*.
type Config struct {
	Protocol string // "grpc" or "http". Empty means "http".
	Process  Process
	// OnLoss, if set, is called at most once a minute, and at the end, if spans or messages of figures were lost. It gets
	// their number since the last call, and the last error, without the values of OTEL_EXPORTER_OTLP_HEADERS.
	OnLoss func(lost int, err error)
	// OnMistake, if set, gets the mistakes in these variables, without the values, which may be secret. A variable with a
	// mistake is ignored.
	OnMistake func(error)
}

// Process describes this process to the collector. The SDK adds the attributes of OTEL_RESOURCE_ATTRIBUTES.
type Process struct {
	ServiceName string // service.name. Defaults to "RateLimit".
	Namespace   string // service.namespace, or empty.
	// service.instance.id. Defaults to a random UUID, the same for all resources of the process.
	InstanceID string
	Version    string            // service.version, or empty.
	Tags       map[string]string // further attributes.
}

// randomID is the default of Process.InstanceID.
var randomID = uuid.NewString()

// resource returns the attributes of p.
func (p Process) resource(ctx context.Context) (*resource.Resource, error) {
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
