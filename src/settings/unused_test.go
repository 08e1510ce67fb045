package settings

import (
	"slices"
	"strings"
	"testing"
)

func TestUnknown(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		names string
		want  []string
	}{
		{"REDIS_URL PORT HOME PATH HOSTNAME PWD TERM LANG USER SHLVL LS_COLORS POST DEBUG CI GOMEMLIMIT GOGC", nil},
		{"REDIS_URLL", []string{"REDIS_URLL is no setting; did you mean REDIS_URL?"}},
		{"RDIS_ULR", []string{"RDIS_ULR is no setting; did you mean REDIS_URL?"}},
		{"BACKEND", []string{"BACKEND is no setting; did you mean BACKEND_TYPE?"}},
		{"BACKEND_TPYE", []string{"BACKEND_TPYE is no setting; did you mean BACKEND_TYPE?"}},
		{"LOGLEVEL", []string{"LOGLEVEL is no setting; did you mean LOG_LEVEL?"}},
		{
			"SHADOWMODE NEAR_LIMIT_RATIOS",
			[]string{
				"NEAR_LIMIT_RATIOS is no setting; did you mean NEAR_LIMIT_RATIO?",
				"SHADOWMODE is no setting; did you mean SHADOW_MODE?",
			},
		},
		{"redis_url Log_Level", []string{
			"Log_Level is no setting; did you mean LOG_LEVEL?",
			"redis_url is no setting; did you mean REDIS_URL?",
		}},
		{"REDIS_PASSWORD_OF_MINE", []string{"REDIS_PASSWORD_OF_MINE is no setting; `ratelimit serve --help` lists those " +
			"that begin with REDIS_"}},
		{"MEMCACHE_SERVERS", []string{"MEMCACHE_SERVERS is no setting; `ratelimit serve --help` lists those that begin " +
			"with MEMCACHE_"}},
		{"GRPC_MAX_THINGS", []string{"GRPC_MAX_THINGS is no setting; `ratelimit serve --help` lists those that begin " +
			"with GRPC_"}},
		// A word more, fewer or different.
		{"GRPC_MAX_STREAMS", []string{"GRPC_MAX_STREAMS is no setting; did you mean GRPC_MAX_CONCURRENT_STREAMS?"}},
		{"RESPONSE_DYNAMIC_METADATA_ENABLED", []string{"RESPONSE_DYNAMIC_METADATA_ENABLED is no setting; did you mean " +
			"RESPONSE_DYNAMIC_METADATA?"}},
		{"LOCAL_CACHE_SIZE_BYTES", []string{"LOCAL_CACHE_SIZE_BYTES is no setting; did you mean " +
			"LOCAL_CACHE_SIZE_IN_BYTES?"}},
		{"CONFIG_GRPC_XDS_SERVER_ADDR", []string{"CONFIG_GRPC_XDS_SERVER_ADDR is no setting; did you mean " +
			"CONFIG_GRPC_XDS_SERVER_URL?"}},
		{"CACHE_PREFIX", []string{"CACHE_PREFIX is no setting; did you mean CACHE_KEY_PREFIX?"}},
		{"CACHE_KEY", []string{"CACHE_KEY is no setting; `ratelimit serve --help` lists those that begin with CACHE_"}},
		{"LIMIT_HEADER", []string{"LIMIT_HEADER is no setting; `ratelimit serve --help` lists those that begin with LIMIT_"}},
		{
			"APP_LOG_LEVEL LOG_LEVEL_ROOT DEBUG_HOST_NAME CONFIG_TYPE_NAME USE_STATSD_NOW CACHE_DIR CACHE_TTL BACKEND_URL " +
				"MAX_CONNECTIONS SERVICE_NAME LOCAL_CACHE_DIR EXTRA_CONFIG RESPONSE_TIMEOUT MY_REDIS_URL SHADOW_COPY " +
				"NODE_EXTRA_CA_CERTS KEY_CACHE_PREFIX LOCAL_CACHE_LINE_IN_WORDS RESPONSE_STATIC_METADATA",
			nil,
		},
		{"REDIS", []string{"REDIS is no setting; `ratelimit serve --help` lists those that begin with REDIS_"}},
		// What others read or set.
		{
			"HTTP_PROXY HTTPS_PROXY NO_PROXY GRPC_GO_LOG_SEVERITY_LEVEL GRPC_XDS_BOOTSTRAP GRPC_DEFAULT_SSL_ROOTS_FILE_PATH " +
				"GRPC_POLL_STRATEGY GRPC_ENFORCE_ALPN_ENABLED OTEL_EXPORTER_OTLP_ENDPOINT OTEL_SERVICE_NAME LOG_FILE CONFIG_DIR",
			nil,
		},
		// Kubernetes tells of a Service named redis so.
		{"REDIS_SERVICE_HOST REDIS_SERVICE_PORT REDIS_SERVICE_PORT_REDIS REDIS_PORT REDIS_PORT_6379_TCP " +
			"REDIS_PORT_6379_TCP_PROTO REDIS_PORT_6379_TCP_PORT REDIS_PORT_6379_TCP_ADDR", nil},
		{"REDIS_PORT", []string{"REDIS_PORT is no setting; `ratelimit serve --help` lists those that begin with REDIS_"}},
		// Warned of elsewhere, by name.
		{"DOG_STATSD_MOGRIFIERS REDIS_POOL_ON_EMPTY_WAIT_DURATION GRPC_SERVER_TLS_CA_CERT", nil},
		{"DOG_STATSD_MOGRIFIER_A_PATTERN DOG_STATSD_MOGRIFIER_A_NAME DOG_STATSD_MOGRIFIER_A_TAGS", nil},
		{"", nil},
	} {
		if got := NewEnvironment(strings.Fields(tt.names)).Unknown(Table()); !slices.Equal(got, tt.want) {
			t.Errorf("%s:\n got %q\nwant %q", tt.names, got, tt.want)
		}
	}
	if got := env("REDIS_PORT", "REDIS_HOST", "DEBUG").Unknown(append(Table(), DivvyTable()...)); len(got) > 0 {
		t.Errorf("divvy's own: %q", got)
	}
	many := make([]string, 100)
	for i := range many {
		many[i] = "REDIS_X" + strings.Repeat("Y", i)
	}
	if got := NewEnvironment(many).Unknown(Table()); len(got) != maxUnknownWarnings+1 ||
		got[maxUnknownWarnings] != "and 80 more variables that are no settings" {
		t.Errorf("%d warnings, the last: %s", len(got), got[len(got)-1])
	}
}
