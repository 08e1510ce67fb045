package gateway

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"ratelimit/src/settings"
	"ratelimit/testbed/testfiles"
)

// environment has all variables that Envoy Gateway sets in the container of the rate limit service, with TLS to Redis,
// Prometheus and tracing. TestDeployment compares it with Envoy Gateway's source.
var environment = []string{
	"RUNTIME_ROOT=/data", "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_IGNOREDOTFILES=true", "RUNTIME_WATCH_ROOT=false",
	"LOG_LEVEL=info", "USE_STATSD=false",
	"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=envoy-gateway:18001",
	"CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit",
	"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=/certs/tls.crt", "GRPC_SERVER_TLS_KEY=/certs/tls.key",
	"GRPC_SERVER_TLS_CA_CERT=/certs/ca.crt",
	"CONFIG_GRPC_XDS_SERVER_USE_TLS=true", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT=/certs/tls.crt",
	"CONFIG_GRPC_XDS_CLIENT_TLS_KEY=/certs/tls.key",
	"CONFIG_GRPC_XDS_SERVER_TLS_CACERT=/certs/ca.crt", "FORCE_START_WITHOUT_INITIAL_CONFIG=true",
	"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=redis.redis.svc:6379",
	"REDIS_TLS=true", "REDIS_TLS_CLIENT_CERT=/redis-certs/tls.crt", "REDIS_TLS_CLIENT_KEY=/redis-certs/tls.key",
	"USE_PROMETHEUS=true", "PROMETHEUS_ADDR=:19001", "PROMETHEUS_MAPPER_YAML=/etc/statsd-exporter/conf.yaml",
	"TRACING_ENABLED=true", "TRACING_SERVICE_NAME=envoy-ratelimit", "TRACING_SERVICE_NAMESPACE=envoy-gateway-system",
	"TRACING_SERVICE_INSTANCE_ID=", "TRACING_SAMPLING_RATE=1.0",
	"OTEL_EXPORTER_OTLP_ENDPOINT=http://trace-collector.envoy-gateway-system.svc.cluster.local:4318",
}

// The service knows every variable, and warns of the one that has no effect.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	s, warnings, err := settings.Read(settings.NewEnvironment(environment))
	if err != nil {
		t.Fatal(err)
	}
	if len(warnings) != 1 || !strings.HasPrefix(warnings[0], "GRPC_SERVER_TLS_CA_CERT has no effect") {
		t.Errorf("warnings %q, want one about GRPC_SERVER_TLS_CA_CERT", warnings)
	}
	if s.ConfigType != settings.ConfigXDS {
		t.Errorf("the type of configuration is %v, want xDS", s.ConfigType)
	}
}

// container is what a golden file of Envoy Gateway's tests says about the container of the rate limit service.
type container struct {
	Command []string
	Env     []struct{ Name, Value string }
	Ports   []struct {
		Name          string
		ContainerPort int `yaml:"containerPort"`
	}
	ReadinessProbe struct {
		HTTPGet struct {
			Path string
			Port int
		} `yaml:"httpGet"`
	} `yaml:"readinessProbe"`
}

// Envoy Gateway starts the service as the table says: the golden files of its own tests have these variables, and no
// others.
func TestDeployment(t *testing.T) {
	onlyFull(t)
	t.Parallel()
	source, err := gatewaySource()
	if err != nil {
		t.Fatal(err)
	}
	want := make(map[string]string)
	for _, line := range environment {
		name, value, _ := strings.Cut(line, "=")
		want[name] = value
	}
	seen := make(map[string]bool)
	for _, file := range []string{"default.yaml", "enable-tracing.yaml", "redis-tls-settings.yaml"} {
		c := readContainer(t, filepath.Join(source,
			"internal/infrastructure/kubernetes/ratelimit/testdata/deployments", file))
		for _, v := range c.Env {
			seen[v.Name] = true
			switch value, known := want[v.Name]; {
			case v.Name == "REDIS_AUTH" || v.Name == "USE_STATSD" &&
				file == "redis-tls-settings.yaml": // what a user added in that file
			case !known:
				t.Errorf("%s sets %s=%s, which the table does not have", file, v.Name, v.Value)
			case v.Value != value:
				t.Errorf("%s sets %s=%s, and the table says %s", file, v.Name, v.Value, value)
			}
		}
		if probe := c.ReadinessProbe.HTTPGet; !slices.Equal(c.Command, []string{"/bin/ratelimit"}) ||
			probe.Path != "/healthcheck" || probe.Port != 8080 {
			t.Errorf("%s: command %q, probe %v; want /bin/ratelimit and /healthcheck on port 8080", file, c.Command, probe)
		}
		for _, p := range c.Ports {
			if p.Name == "grpc" && p.ContainerPort != 8081 || p.Name == "metrics" && p.ContainerPort != 19001 {
				t.Errorf("%s: port %s is %d", file, p.Name, p.ContainerPort)
			}
		}
	}
	for name := range want {
		if !seen[name] {
			t.Errorf("the table has %s, which no golden file sets", name)
		}
	}
}

func readContainer(t *testing.T, file string) container {
	t.Helper()
	text := testfiles.Read(t, file)
	var deployment struct {
		Spec struct {
			Template struct {
				Spec struct{ Containers []container }
			}
		}
	}
	if err := yaml.Unmarshal(text, &deployment); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if n := len(deployment.Spec.Template.Spec.Containers); n != 1 {
		t.Fatalf("%s has %d containers, want one", file, n)
	}
	return deployment.Spec.Template.Spec.Containers[0]
}
