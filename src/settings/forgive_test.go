package settings

import (
	"slices"
	"strings"
	"testing"
)

// What envoyproxy/ratelimit never looks at is a warning that names the variable, its
// value, why it has no effect, and what to do. Each env is refused, or taken in
// silence, where the variable has an effect.
func TestNoEffect(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		env      string
		warnings []string
	}{
		{
			"USE_DOG_STATSD_MOGRIFIERS=a",
			[]string{"USE_DOG_STATSD_MOGRIFIERS=a has no effect: USE_DOG_STATSD is not true; remove it, or set " +
				"USE_DOG_STATSD=true"},
		},
		{
			"LIMIT_RESPONSE_HEADERS_FORMAT=ietf",
			[]string{"LIMIT_RESPONSE_HEADERS_FORMAT=ietf has no effect: LIMIT_RESPONSE_HEADERS_ENABLED is not true; remove " +
				"it, or set LIMIT_RESPONSE_HEADERS_ENABLED=true"},
		},
		{
			"LIMIT_RESPONSE_HEADERS_ENABLED=true LIMIT_RESPONSE_HEADERS_FORMAT=IETF LIMIT_RESET_HEADER=X-Reset",
			[]string{"LIMIT_RESET_HEADER=X-Reset has no effect: LIMIT_RESPONSE_HEADERS_FORMAT is ietf, whose headers have " +
				"fixed names; remove it, or set LIMIT_RESPONSE_HEADERS_FORMAT=separate"},
		},
		{
			"USE_STATSD=false STATSD_PORT=-1",
			[]string{"STATSD_PORT=-1 has no effect: nothing is sent to statsd; remove it, or write a port number, 1 to 65535"},
		},
		{
			"USE_STATSD=false STATSD_PROTOCOL=sctp",
			[]string{"STATSD_PROTOCOL=sctp has no effect: nothing is sent to statsd; remove it, or write one of tcp, udp"},
		},
		{
			"USE_PROMETHEUS=true STATSD_PORT=0",
			[]string{"STATSD_PORT=0 has no effect: nothing is sent to statsd; remove it, or write a port number, 1 to 65535"},
		},
		{
			"USE_DOG_STATSD=true STATSD_PROTOCOL=sctp",
			[]string{"STATSD_PROTOCOL=sctp has no effect: DogStatsD is always udp; remove it, or write one of tcp, udp"},
		},
		{
			"DISABLE_STATS=true STATSD_HOST= STATSD_PORT=x",
			[]string{"STATSD_PORT=x has no effect: nothing is sent to statsd; remove it, or write a port number, 1 to 65535"},
		},
		{
			"DISABLE_STATS=true STATS_FLUSH_INTERVAL=0",
			[]string{"STATS_FLUSH_INTERVAL=0 has no effect: nothing is sent; remove it, or write a duration, 10ms or more"},
		},
		{"PROMETHEUS_PATH=", []string{"PROMETHEUS_PATH is set but empty; its default /metrics is used"}},
		{"USE_PROMETHEUS=true PROMETHEUS_PATH=", []string{"PROMETHEUS_PATH is set but empty; its default /metrics is used"}},
		{"PROMETHEUS_PATH=a{b}", []string{"PROMETHEUS_PATH=a{b} has no effect: USE_PROMETHEUS is not true; remove it, or " +
			"write a path such as /metrics"}},
		{
			"REDIS_URL=a:1 REDIS_PERSECOND_TYPE=ring",
			[]string{"REDIS_PERSECOND_TYPE=ring has no effect: REDIS_PERSECOND is not true; remove it, or write one of " +
				"SINGLE, SENTINEL, CLUSTER"},
		},
		{
			"REDIS_URL=a:1 REDIS_PERSECOND_TIMEOUT=soon",
			[]string{"REDIS_PERSECOND_TIMEOUT=soon has no effect: REDIS_PERSECOND is not true; remove it, or write a duration " +
				"with its unit, such as 30s"},
		},
		{
			"BACKEND_TYPE=memory REDIS_TYPE=ring",
			[]string{"REDIS_TYPE=ring has no effect: the counters are in memory; remove it, or write one of SINGLE, SENTINEL, " +
				"CLUSTER"},
		},
		{
			"BACKEND_TYPE=memory REDIS_URL=redis://:secret@x",
			[]string{"REDIS_URL=… has no effect: the counters are in memory; remove it, or set BACKEND_TYPE=redis"},
		},
		{
			"BACKEND_TYPE=memcache MEMCACHE_HOST_PORT=a:1 REDIS_PERSECOND=maybe",
			[]string{"REDIS_PERSECOND=maybe has no effect: the counters are in Memcached; remove it, or set BACKEND_TYPE=redis"},
		},
		{"BACKEND_TYPE=memcache MEMCACHE_HOST_PORT=a:1 REDIS_PERSECOND=false", nil},
		{"MEMCACHE_HASH=crc", []string{"MEMCACHE_HASH=crc has no effect: the counters are in memory; remove it, or write " +
			"one of modulo, rendezvous"}},
		{
			"REDIS_URL=a:1 MEMCACHE_MAX_IDLE_CONNS=x",
			[]string{"MEMCACHE_MAX_IDLE_CONNS=x has no effect: the counters are in Redis; remove it, or write a whole number, " +
				"0 or more"},
		},
		{
			"REDIS_URL=a:1 REDIS_TLS_CLIENT_CERT=c",
			[]string{"REDIS_TLS_CLIENT_CERT=c has no effect: REDIS_TLS is not true; remove it, or set REDIS_TLS=true"},
		},
		{"REDIS_URL=a:1 REDIS_TLS_CLIENT_CERT=c REDIS_TLS_CLIENT_KEY=k REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=yes", []string{
			"REDIS_TLS_CLIENT_CERT=c has no effect: REDIS_TLS is not true; remove it, or set REDIS_TLS=true",
			"REDIS_TLS_CLIENT_KEY=k has no effect: REDIS_TLS is not true; remove it, or set REDIS_TLS=true",
			"REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=yes has no effect: REDIS_TLS is not true; remove it, or write true or false",
		}},
		{"REDIS_URL=rediss://a:1 REDIS_TLS_CACERT=c", nil},
		{
			"BACKEND_TYPE=memcache MEMCACHE_HOST_PORT=a:1 MEMCACHE_TLS_CLIENT_KEY=k",
			[]string{"MEMCACHE_TLS_CLIENT_KEY=k has no effect: MEMCACHE_TLS is not true; remove it, or set MEMCACHE_TLS=true"},
		},
		{"GRPC_SERVER_TLS_CERT=c", []string{"GRPC_SERVER_TLS_CERT=c has no effect: GRPC_SERVER_USE_TLS is not true; remove " +
			"it, or set GRPC_SERVER_USE_TLS=true"}},
		{"GRPC_CLIENT_TLS_SAN=n", []string{"GRPC_CLIENT_TLS_SAN=n has no effect: GRPC_SERVER_USE_TLS is not true; remove " +
			"it, or set GRPC_SERVER_USE_TLS=true"}},
		{"HTTP_TLS_CLIENT_CACERT=c", []string{"HTTP_TLS_CLIENT_CACERT=c has no effect: that port speaks plain text; remove " +
			"it, or set HTTP_TLS_CERT and HTTP_TLS_KEY"}},
		{
			"GRPC_UDS=/run/x GRPC_PORT=-1",
			[]string{"GRPC_PORT=-1 has no effect: GRPC_UDS is set; remove it, or write a port number, 0 to 65535"},
		},
		{
			"TRACING_EXPORTER_PROTOCOL=zipkin",
			[]string{"TRACING_EXPORTER_PROTOCOL=zipkin has no effect: TRACING_ENABLED is not true; remove it, or write one of " +
				"http, grpc"},
		},
		{
			"XDS_CLIENT_BACKOFF_MAX_INTERVAL=x",
			[]string{"XDS_CLIENT_BACKOFF_MAX_INTERVAL=x has no effect: CONFIG_TYPE is not GRPC_XDS_SOTW or GRPC_XDS_DELTA; " +
				"remove it, or write a duration, 10ms or more"},
		},
		{
			"CONFIG_TYPE=GRPC_XDS_SOTW RUNTIME_WATCH_ROOT=yes",
			[]string{"RUNTIME_WATCH_ROOT=yes has no effect: rules come from the management server; remove it, or write true " +
				"or false"},
		},
		{
			"DIVVY_PORT=off DIVVY_ROUND=down",
			[]string{"DIVVY_ROUND=down has no effect: DIVVY_PORT is off; remove it, or write one of nearest, up"},
		},
		{"LIMIT_LIMIT_HEADER=a:b", nil},
	} {
		_, warnings, err := Read(env(strings.Fields(tt.env)...))
		if err != nil || !slices.Equal(warnings, tt.warnings) {
			t.Errorf("%s: %v\n got %s\nwant %s", tt.env, err, strings.Join(warnings, "\n     "),
				strings.Join(tt.warnings, "\n     "))
		}
	}
}

// The same values are problems where they have an effect, one for each mistake.
func TestEffect(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ env, problem string }{
		{
			"USE_DOG_STATSD=true USE_DOG_STATSD_MOGRIFIERS=a DOG_STATSD_MOGRIFIER_A_NAME=x",
			"DOG_STATSD_MOGRIFIER_A_PATTERN=: write a regular expression that matches the names to change",
		},
		{
			"REDIS_PERSECOND=true REDIS_PERSECOND_TYPE=ring",
			"REDIS_PERSECOND_TYPE=ring: write one of SINGLE, SENTINEL, CLUSTER",
		},
		{"REDIS_URL=a:1,b:2 REDIS_TYPE=ring", "REDIS_TYPE=ring: write one of SINGLE, SENTINEL, CLUSTER"},
		{"REDIS_URL=a:1 REDIS_SOCKET_TYPE=udp", "REDIS_SOCKET_TYPE=udp: write tcp, tcp4, tcp6 or unix"},
		{"MEMORY_MAX_BYTES=x", "MEMORY_MAX_BYTES=x: write a number of bytes, 128KiB or more"},
		{"MAX_BUFFERED_BYTES=-1", "MAX_BUFFERED_BYTES=-1: write a number of bytes, 1MiB or more"},
		{"STATS_FLUSH_INTERVAL=x", "STATS_FLUSH_INTERVAL=x: write a duration, 10ms or more"},
		{"STATSD_PORT=x", "STATSD_PORT=x: write a port number, 1 to 65535"},
	} {
		_, _, err := Read(env(strings.Fields(tt.env)...))
		if err == nil || err.Error() != tt.problem {
			t.Errorf("%s:\n got %v\nwant %s", tt.env, err, tt.problem)
		}
	}
}

// Values that can be read and make no sense are problems, one for each. If envoyproxy/ratelimit serves with a value, it
// is a warning.
func TestRanges(t *testing.T) {
	t.Parallel()
	const redis = "REDIS_URL=a:1 "
	for _, tt := range []struct{ env, problem string }{
		{"NEAR_LIMIT_RATIO=8", "NEAR_LIMIT_RATIO=8: write a number, 0 to 1, such as 8%; 1 is used"},
		{"NEAR_LIMIT_RATIO=0", ""},
		{"NEAR_LIMIT_RATIO=NaN", "NEAR_LIMIT_RATIO=NaN: write a number, 0 to 1; 0.8 is used"},
		{"NEAR_LIMIT_RATIO=x", "NEAR_LIMIT_RATIO=x: write a number, 0 to 1"},
		{"NEAR_LIMIT_RATIO=-0.5", "NEAR_LIMIT_RATIO=-0.5: write a number, 0 to 1; 0 is used"},
		{"NEAR_LIMIT_RATIO=+Inf", "NEAR_LIMIT_RATIO=+Inf: write a number, 0 to 1; 1 is used"},
		{"NEAR_LIMIT_RATIO=1", ""},
		{"NEAR_LIMIT_RATIO=0.01", ""},
		{"TRACING_SAMPLING_RATE=50", "TRACING_SAMPLING_RATE=50: write a number, 0 to 1, such as 50%; 1 is used"},
		{"TRACING_ENABLED=true TRACING_SAMPLING_RATE=-1", "TRACING_SAMPLING_RATE=-1: write a number, 0 to 1; 0 is used"},
		{"TRACING_SAMPLING_RATE=0", ""},
		{"TRACING_SAMPLING_RATE=1", ""},
		{"RUNTIME_POLL_INTERVAL=1ns", "RUNTIME_POLL_INTERVAL=1ns: write a duration, 10ms or more, or 0"},
		{"RUNTIME_POLL_INTERVAL=0", ""},
		{"RUNTIME_READ_TIMEOUT=1ms", "RUNTIME_READ_TIMEOUT=1ms: write a duration, 10ms or more, or 0"},
		{"STATS_FLUSH_INTERVAL=1us", "STATS_FLUSH_INTERVAL=1us: write a duration, 10ms or more; 10ms is used"},
		{"GRPC_KEEPALIVE_TIME=10ms", "GRPC_KEEPALIVE_TIME=10ms: write a duration, 1s or more, or 0"},
		{"GRPC_KEEPALIVE_TIME=0", ""},
		{
			redis + "REDIS_STARTUP_INITIAL_INTERVAL=0",
			"REDIS_STARTUP_INITIAL_INTERVAL=0: write a duration, 10ms or more; 10ms is used",
		},
		{
			redis + "REDIS_STARTUP_MAX_INTERVAL=1ms",
			"REDIS_STARTUP_MAX_INTERVAL=1ms: write a duration, 10ms or more; 10ms is used",
		},
		{
			redis + "REDIS_PIPELINE_WINDOW=50ms",
			"REDIS_PIPELINE_WINDOW=50ms: no call would be answered within REDIS_TIMEOUT, 50ms: write a shorter one; 0s is used",
		},
		{redis + "REDIS_TYPE=CLUSTER REDIS_PIPELINE_WINDOW=50ms REDIS_TIMEOUT=1s", ""},
		{
			redis + "REDIS_PIPELINE_WINDOW=150us",
			"REDIS_PIPELINE_WINDOW=150µs has an effect here, where envoyproxy/ratelimit uses it for clusters only: calls wait " +
				"that long, and about a millisecond at least; remove it unless Redis is short of CPU",
		},
		{redis + "REDIS_TYPE=CLUSTER REDIS_PIPELINE_WINDOW=150us", ""},
		{
			redis + "REDIS_PIPELINE_LIMIT=8",
			"REDIS_PIPELINE_LIMIT=8 has an effect here, and none in envoyproxy/ratelimit: smaller batches cost CPU; remove " +
				"it unless calls in a flood wait too long",
		},
		{redis + "REDIS_TIMEOUT=1s", ""},
		{
			redis + "REDIS_PERSECOND=true REDIS_PERSECOND_URL=b:1 REDIS_PERSECOND_TIMEOUT=1001ms",
			"REDIS_PERSECOND_TIMEOUT=1.001s bounds every call here, not only connecting, and is longer than callers wait " +
				"(Envoy: 20ms), so they get no answer while the store is silent; remove it: the default is 50ms",
		},
		{"BACKEND_TYPE=memory REDIS_TIMEOUT=10s REDIS_PIPELINE_WINDOW=1ms REDIS_PIPELINE_LIMIT=8", ""},
		{redis + "REDIS_PIPELINE_LIMIT=-1", "REDIS_PIPELINE_LIMIT=-1: write a whole number, 0 or more; 0 is used"},
		{redis + "REDIS_POOL_SIZE=-1", "REDIS_POOL_SIZE=-1: write a whole number, 0 or more"},
		{
			redis + "LOCAL_CACHE_SIZE_IN_BYTES=1000000000000000",
			"LOCAL_CACHE_SIZE_IN_BYTES=1000000000000000: write a number of bytes, 0 to 64GiB; 64GiB is used",
		},
		{
			"BACKEND_TYPE=memcache MEMCACHE_SRV=_a._tcp.b MEMCACHE_SRV_REFRESH=1us",
			"MEMCACHE_SRV_REFRESH=1us: write a duration, 10ms or more, or 0; 10ms is used",
		},
		{
			"BACKEND_TYPE=memcache MEMCACHE_SRV=_a._tcp.b MEMCACHE_SRV_REFRESH=-1s",
			"MEMCACHE_SRV_REFRESH=-1s: write a duration, 10ms or more, or 0; 0 is used",
		},
		{
			"BACKEND_TYPE=memcache MEMCACHE_SRV=_a._tcp.b MEMCACHE_MAX_IDLE_CONNS=99999999999",
			"MEMCACHE_MAX_IDLE_CONNS=99999999999: write a whole number, 0 or more; 2 is used",
		},
		{
			"BACKEND_TYPE=memcache MEMCACHE_HOST_PORT=a,:1",
			"MEMCACHE_HOST_PORT=a: write host:port, or the path of a socket, for each server; a:11211 is " +
				"used|MEMCACHE_HOST_PORT=:1: write host:port, or the path of a socket, for each server; localhost:1 is used",
		},
		{
			"BACKEND_TYPE=memcache MEMCACHE_HOST_PORT=a:1 STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true",
			"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true: Memcached cannot charge several limits all or none: write false, " +
				"or set BACKEND_TYPE to memory or redis; false is used",
		},
		{
			"BACKEND_TYPE=memcache MEMCACHE_HOST_PORT=a:1 MEMCACHE_TLS=true MEMCACHE_TLS_CLIENT_KEY=k",
			"MEMCACHE_TLS_CLIENT_CERT=: it goes with MEMCACHE_TLS_CLIENT_KEY: set both or neither; no client certificate is sent",
		},
		{
			"STATSD_HOST= STATSD_PORT=-1 STATSD_PROTOCOL=sctp",
			"STATSD_HOST is set but empty; its default localhost is used|STATSD_PORT=-1: write a port number, 1 to 65535; " +
				"8125 is used|STATSD_PROTOCOL=sctp: write one of tcp, udp; tcp is used",
		},
		{
			"USE_PROMETHEUS=true PROMETHEUS_PATH=a{b} PROMETHEUS_ADDR=9090",
			"PROMETHEUS_PATH=a{b}: write a path such as /metrics; /metrics is used|PROMETHEUS_ADDR=9090: write host:port, or " +
				":port; :9090 is used",
		},
		{
			"USE_PROMETHEUS=true EXTRA_TAGS=:a,le:b,c:d",
			"EXTRA_TAGS=:a: write a name before each colon; that tag is left out|EXTRA_TAGS=le:b: Prometheus uses a label of " +
				"that name itself: choose another; that tag is left out",
		},
		{
			"LIMIT_RESPONSE_HEADERS_ENABLED=true LIMIT_LIMIT_HEADER= LIMIT_RESET_HEADER=a:b",
			"LIMIT_LIMIT_HEADER is set but empty; its default RateLimit-Limit is used|LIMIT_RESET_HEADER=a:b: write the name " +
				"of an HTTP header; RateLimit-Reset is used",
		},
		{"DEBUG_PORT=-1", "DEBUG_PORT=-1: write a port number, 0 to 65535; that port is not opened"},
		{
			"GRPC_MAX_CONNECTION_AGE=-1s",
			"GRPC_MAX_CONNECTION_AGE=-1s: write a duration, 0s or more; 0s is used",
		},
		{
			"GRPC_SERVER_USE_TLS=true GRPC_SERVER_TLS_CERT=c GRPC_SERVER_TLS_KEY=k GRPC_CLIENT_TLS_SAN=n",
			"GRPC_CLIENT_TLS_SAN=n: clients need no certificate: set GRPC_CLIENT_TLS_CACERT, too; all clients may connect",
		},
		{"GRPC_MAX_CONCURRENT_STREAMS=0", "GRPC_MAX_CONCURRENT_STREAMS=0: write a whole number above 0"},
		{"MAX_DESCRIPTORS=1001", "MAX_DESCRIPTORS=1001: write a whole number, 1 to 1000"},
		{"LOG_DENIALS=-1", "LOG_DENIALS=-1: write a whole number per second, 0 to 10000"},
		{"LOG_DENIALS=10001", "LOG_DENIALS=10001: write a whole number per second, 0 to 10000"},
		{"LOG_DENIALS=all", "LOG_DENIALS=all: write a whole number per second, 0 to 10000"},
		{"LOG_DENIALS=10", ""},
		{
			redis + "EXPIRATION_JITTER_MAX_SECONDS=-5",
			"EXPIRATION_JITTER_MAX_SECONDS=-5: write a whole number of seconds, 0 to 31536000; 0 is used",
		},
	} {
		_, warnings, err := Read(env(strings.Fields(tt.env)...))
		got := strings.Join(warnings, "|")
		if err != nil {
			got = err.Error()
		}
		if got != tt.problem {
			t.Errorf("%s:\n got %s\nwant %s", tt.env, got, tt.problem)
		}
	}
}
