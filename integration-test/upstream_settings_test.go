package integration

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	configv3 "ratelimit/api/ratelimit/config/ratelimit/v3"
	"ratelimit/src/settings"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/memcachedtest"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/xdstest"
)

// oddSettings is a row of the table of odd values: the service starts once for each variable and value, beside the
// variables of a surrounding.
type oddSettings struct {
	in     string // a surrounding, see settingsLab.
	names  string // lists variables, separated by blanks.
	serves []odd  // values with which the service becomes ready.
	ends   []odd  // values with which it ends, with status 1.
}

// odd is a value, and words of the log. $NAME stands for the name of the variable. Without words, no warning names the
// variable. $redis and the like in a value are replaced, see settingsLab.
type odd struct{ value, words string }

const (
	isEmpty = "$NAME is set but empty; its default "
	noUnit  = "$NAME=5: write a duration"
)

// Values of each type that envoyproxy/ratelimit serves with, or that it refuses, too.
var (
	oddFalse    = []odd{{"", isEmpty}, {"f", ""}, {"FALSE", ""}}
	oddTrue     = append([]odd{{"TRUE", ""}, {"1", ""}}, oddFalse...)
	badBools    = []odd{{"yes", "$NAME=yes: write true or false"}, {"2", "$NAME=2: write true or false"}}
	badIntegers = []odd{
		{"1.5", "$NAME=1.5: write "},
		{"1e3", "$NAME=1e3: write "},
		{"08", "$NAME=08: write "},
		{" 1", "$NAME= 1: write "},
	}
	badDurations = []odd{
		{"5", noUnit},
		{"1d", "$NAME=1d: write a duration"},
		{"3000000h", "$NAME=3000000h: write a duration"},
	}
	badPorts = []odd{
		{"-1", "$NAME=-1: write a port number"},
		{"65536", "$NAME=65536: write a port number"},
		{"http", "$NAME=http: write a port number"},
	}
	anyText   = []odd{{"", ""}, {" ", ""}, {"a b", ""}, {"é", ""}}
	tenMillis = []odd{
		{"", isEmpty},
		{"0", "$NAME=0: write a duration, 10ms or more; 10ms is used"},
		{"-1s", "; 10ms is used"},
		{"1ns", "; 10ms is used"},
		{"9ms", "; 10ms is used"},
		{"10ms", ""},
		{"100000h", ""},
		{"1s\n", "$NAME ends with a line break, which is left out"},
	}
)

// Every variable of envoyproxy/ratelimit has a row here. What that serves with, this service serves with; a warning
// says what is used instead of a value that makes no sense. What ends the start here although envoyproxy/ratelimit
// serves is in docs/migrating.md.
var oddTable = []oddSettings{
	// Listeners.
	{
		in: "memory", names: "HOST GRPC_HOST", serves: []odd{{"localhost", ""}},
		ends: []odd{{"x.invalid", "x.invalid"}, {"300.1.1.1", "300.1.1.1"}},
	},
	{in: "memory", names: "PORT GRPC_PORT", serves: []odd{{"", isEmpty}, {"0x0", ""}}, ends: badPorts},
	{in: "memory", names: "DEBUG_HOST", serves: []odd{
		{"localhost", ""},
		{"x.invalid", "the service runs without that port: correct DEBUG_HOST or DEBUG_PORT"},
		{"[::1]", "the service runs without that port"},
		{"192.0.2.1", "the service runs without that port"},
	}},
	{in: "memory", names: "DEBUG_PORT", serves: []odd{
		{"", isEmpty},
		{"-1", "$NAME=-1: write a port number, 0 to 65535; that port is not opened"},
		{"70000", "that port is not opened"},
	}, ends: []odd{{"off", "$NAME=off: write a port number"}, {"1e3", "$NAME=1e3: write a port number"}}},
	{in: "memory", names: "GRPC_UDS", serves: []odd{{"", ""}, {"$dir/s", ""}}, ends: []odd{{"/none/s", "/none/s"}}},
	{in: "memory", names: "GRPC_MAX_CONNECTION_AGE GRPC_MAX_CONNECTION_AGE_GRACE", serves: []odd{
		{"", isEmpty},
		{"0", ""},
		{"1ns", ""},
		{"-1s", "$NAME=-1s: write a duration with its unit, such as 500ms, 30s, 1h30m; 0s is used"},
	}, ends: badDurations},
	{
		in: "memory", names: "GRPC_SERVER_TLS_CERT GRPC_SERVER_TLS_KEY GRPC_CLIENT_TLS_CACERT",
		serves: []odd{{"", ""}, {"/none", "$NAME=/none has no effect: GRPC_SERVER_USE_TLS is not true"}},
	},
	{
		in: "tls", names: "GRPC_SERVER_TLS_CERT GRPC_SERVER_TLS_KEY",
		ends: []odd{{"", "$NAME=: write the path of a PEM file"}, {"/none", "/none: no such file"}},
	},
	{
		in: "tls", names: "GRPC_CLIENT_TLS_CACERT", serves: []odd{{"", ""}, {"$ca", ""}},
		ends: []odd{{"/none", "/none: no such file"}},
	},
	{
		in: "tls", names: "GRPC_CLIENT_TLS_SAN",
		serves: []odd{{"", ""}, {
			"gateway",
			"$NAME=gateway: clients need no certificate: set GRPC_CLIENT_TLS_CACERT, too; all clients may connect",
		}},
	},
	{
		in: "memory", names: "LOG_LEVEL", serves: []odd{{"", isEmpty}, {"Warn", ""}, {"warning", ""}, {"TRACE", ""}},
		ends: []odd{{"loud", "$NAME=loud: write one of panic, "}, {"5", "$NAME=5: write one of"}},
	},
	{in: "memory", names: "LOG_FORMAT", serves: []odd{{"", ""}, {"xml", ""}}},

	// Sources of rules.
	{
		in: "memory", names: "CONFIG_TYPE", serves: []odd{{"", ""}, {"FILE ", ""}},
		ends: []odd{{"file", "$NAME=file: write FILE, "}, {"grpc_xds_sotw", "$NAME=grpc_xds_sotw: write "}},
	},
	{
		in: "memory", names: "RUNTIME_ROOT",
		serves: []odd{
			{"$root/", ""},
			{"$root/../$base", ""},
			{"$root\n", "$NAME ends with a line break, which is left out"},
		},
	},
	{
		in: "memory", names: "RUNTIME_SUBDIRECTORY",
		serves: []odd{{"ratelimit/", ""}, {"/ratelimit", ""}, {"./ratelimit", ""}},
	},
	{in: "memory", names: "RUNTIME_APPDIRECTORY", serves: []odd{{"", ""}, {"config/", ""}, {"/config", ""}}},
	{in: "xds", names: "CONFIG_GRPC_XDS_NODE_ID", serves: []odd{{"", ""}, {"a b", ""}}},
	{
		in: "xds", names: "CONFIG_GRPC_XDS_SERVER_TLS_SAN",
		serves: []odd{{"", ""}, {"a b", "$NAME=a b has no effect: CONFIG_GRPC_XDS_SERVER_USE_TLS is not true"}},
	},
	{
		in: "xds", names: "CONFIG_GRPC_XDS_NODE_METADATA",
		serves: []odd{{"", ""}, {"a=b=c", ""}, {"=b", ""}, {"a=1,b", `\"b\" is left out: it is not key=value`}},
	},
	{
		in: "xds", names: "CONFIG_GRPC_XDS_SERVER_URL", serves: []odd{{"dns:///$xds", ""}, {"passthrough:///$xds", ""}},
		ends: []odd{
			{"", "$NAME=: write host:port"},
			{"http://$xds", ": write host:port; TLS is a matter of CONFIG_GRPC_XDS_SERVER_USE_TLS"},
		},
	},
	{
		in: "xds", names: "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL XDS_CLIENT_BACKOFF_INITIAL_INTERVAL " +
			"XDS_CLIENT_BACKOFF_MAX_INTERVAL",
		serves: tenMillis, ends: badDurations,
	},
	{
		in: "xds", names: "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
		serves: []odd{{"", ""}, {"A:b", ""}, {"grpc-x:1,grpc-timeout:2", ""}},
		ends:   []odd{{"a", "$NAME=…: write name:value"}, {"a b:c", "$NAME=…: a name is none that gRPC sends"}},
	},
	{
		in: "xds", names: "CONFIG_GRPC_XDS_CLIENT_TLS_CERT CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
		serves: []odd{{"", ""}, {"/none", "$NAME=/none has no effect: "}},
	},
	{
		in: "xds", names: "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
		serves: []odd{{"", ""}, {"/none", "$NAME=/none has no effect: CONFIG_GRPC_XDS_SERVER_USE_TLS is not true"}},
	},
	{in: "xds", names: "XDS_CLIENT_BACKOFF_RANDOM_FACTOR", serves: []odd{
		{"", isEmpty},
		{"0", ""},
		{"-1", "$NAME=-1: write a number, 0 or more; 0.5 is used"},
		{"NaN", "; 0.5 is used"},
		{"Inf", "; 0.5 is used"},
		{"2", ""},
	}, ends: []odd{{"half", "$NAME=half: write a number"}, {"1,5", "$NAME=1,5: write a number"}}},
	{in: "xds", names: "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", serves: []odd{
		{"", isEmpty},
		{"0", ""},
		{"-1", "; 0 is used"},
		{"4294967296", "; 2147483647 is used"},
		{"99999999999", "; 2147483647 is used"},
	}, ends: badIntegers},

	// Limiting and answers.
	{
		in: "memory", names: "BACKEND_TYPE", serves: []odd{{"", ""}},
		ends: []odd{
			{"Redis", "$NAME=Redis: write memory, redis or memcache"},
			{"disk", "$NAME=disk: write memory, redis or memcache"},
		},
	},
	{
		in: "redis", names: "CACHE_KEY_PREFIX",
		serves: append([]odd{{"{x}", ""}, {"a\n", ""}, {strings.Repeat("x", 300), ""}}, anyText...),
	},
	{
		in: "redis", names: "EXPIRATION_JITTER_MAX_SECONDS",
		serves: []odd{{"", isEmpty}, {"0", ""}, {"-5", "; 0 is used"}, {"0x10", ""}, {"99999999999", "; 31536000 is used"}},
		ends:   badIntegers,
	},
	{
		in: "redis", names: "LOCAL_CACHE_SIZE_IN_BYTES",
		serves: []odd{
			{"", isEmpty},
			{"1", ""},
			{"-1", "$NAME=-1: write a number of bytes, 0 to 68719476736; 0 is used"},
			{"99999999999", "; 68719476736 is used"},
		}, ends: badIntegers,
	},
	{in: "memory", names: "NEAR_LIMIT_RATIO", serves: []odd{
		{"", isEmpty},
		{"0", ""},
		{"-0", ""},
		{"1", ""},
		{"1e-3", ""},
		{"-1", "$NAME=-1: write a number, 0 to 1; 0 is used"},
		{"1.5", "; 1 is used"},
		{"100", "; 1 is used"},
		{"Inf", "; 1 is used"},
		{"NaN", "; 0.8 is used"},
	}, ends: []odd{{"80%", "$NAME=80%: write a number, 0 to 1"}, {" 0.5", "$NAME= 0.5: write a number"}}},
	{
		in: "memcache", names: "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
		serves: []odd{{"true", "Memcached cannot charge several limits all or none: write false, or set BACKEND_TYPE to " +
			"memory or redis; false is used"}, {"false", ""}},
	},
	{in: "headers", names: "LIMIT_LIMIT_HEADER LIMIT_REMAINING_HEADER LIMIT_RESET_HEADER", serves: []odd{
		{"", isEmpty},
		{" ", "$NAME= : write the name of an HTTP header; RateLimit-"},
		{"a b", "; RateLimit-"},
		{"a:b", "; RateLimit-"},
		{":path", "; RateLimit-"},
		{"é", "; RateLimit-"},
		{"X-A", ""},
	}},
	{in: "memory", names: "LIMIT_LIMIT_HEADER LIMIT_REMAINING_HEADER LIMIT_RESET_HEADER", serves: anyText},

	// Redis.
	{
		in: "redis", names: "REDIS_SOCKET_TYPE", serves: []odd{{"", ""}, {"tcp4", ""}},
		ends: []odd{{"udp", "$NAME=udp: write tcp, tcp4, tcp6 or unix"}},
	},
	{
		in: "redis", names: "REDIS_TYPE", serves: []odd{{"", isEmpty}, {"Single", ""}},
		ends: []odd{
			{"ring", "$NAME=ring: write one of SINGLE, SENTINEL, CLUSTER"},
			{"sentinel", "write the primary's name and the sentinels"},
		},
	},
	{in: "redis", names: "REDIS_URL", serves: []odd{
		{"redis://$redis/", ""},
		{":$redisport", ""},
		{" $redis ", "$NAME begins or ends with blanks or quotes"},
		{"$redis\n", "$NAME ends with a line break"},
		{`"$redis"`, "$NAME begins or ends with blanks or quotes"},
		{"redis://$redis'", "$NAME begins or ends with blanks or quotes"},
	}, ends: []odd{
		{"", "$NAME=: write host:port"},
		{" ", "$NAME=: write host:port"},
		{"$redis,$redis", "these are several servers"},
		{"tcp://$redis", "it begins like a URL"},
	}},
	{
		in: "cluster", names: "REDIS_URL",
		serves: []odd{
			{"$cluster,", ""},
			{",$cluster", ""},
			{"$cluster, $cluster", ""},
			{"redis://$cluster", ""},
			{"$cluster\n", "ends with a line break"},
		},
		ends: []odd{{"", "write some nodes of the cluster"}, {"127.0.0.1", "a node is not host:port"}},
	},
	{
		in: "redis", names: "REDIS_POOL_SIZE", serves: []odd{{"", isEmpty}, {"0", ""}, {"100000", ""}},
		ends: append([]odd{{"-1", "$NAME=-1: write a whole number, 0 or more"}}, badIntegers...),
	},
	{
		in: "password", names: "REDIS_AUTH",
		serves: []odd{
			{"s3cret", ""},
			{"default:s3cret", ""},
			{"s3cret\n", "$NAME ends with a line break"},
			{"s3cret\r\n", "$NAME ends with a line break"},
		},
	},
	{in: "redis", names: "REDIS_AUTH REDIS_SENTINEL_AUTH", serves: []odd{{"", ""}, {":", ""}}},
	{
		in: "redis", names: "REDIS_SENTINEL_AUTH",
		serves: []odd{{`"s3cret"`, "$NAME begins or ends with a blank or a quote"}},
	},
	{
		in: "redis", names: "REDIS_TLS_CLIENT_CERT REDIS_TLS_CLIENT_KEY REDIS_TLS_CACERT",
		serves: []odd{{"", ""}, {"/none", "$NAME=/none has no effect: REDIS_TLS is not true"}},
	},
	{
		in: "redistls", names: "REDIS_TLS_CLIENT_CERT REDIS_TLS_CLIENT_KEY",
		serves: []odd{
			{"", ""},
			{
				"$ca",
				"it goes with REDIS_TLS_CLIENT_KEY: set both or neither; no client certificate is sent",
			},
			{"/none", "no client certificate is sent"},
		},
	},
	{in: "redistls", names: "REDIS_TLS_CACERT", serves: []odd{{"$ca", ""}, {"$ca\n", "ends with a line break"}}},
	{in: "redis", names: "REDIS_PIPELINE_WINDOW", serves: []odd{
		{"", isEmpty},
		{"1ns", ""},
		{"-1s", "; 0s is used"},
		{"1h", "no call would be answered within REDIS_TIMEOUT, 50ms: write a shorter one; 0s is used"},
	}, ends: badDurations},
	{
		in: "redis", names: "REDIS_TIMEOUT", serves: []odd{{"", isEmpty}, {"0", ""}, {"1h", ""}, {"-10s", "; 50ms is used"}},
		ends: badDurations,
	},
	{
		in: "redis", names: "REDIS_PIPELINE_LIMIT",
		serves: []odd{{"", isEmpty}, {"1", ""}, {"-1", "; 0 is used"}, {"99999999999", "; 2147483647 is used"}},
		ends:   badIntegers,
	},
	{
		in: "redis", names: "REDIS_CLUSTER_PIPELINE_PARALLELISM REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM",
		serves: []odd{{"", isEmpty}, {"0", ""}, {"-1", ""}},
	},
	{
		in: "cluster", names: "REDIS_CLUSTER_PIPELINE_PARALLELISM", serves: []odd{{"0", ""}},
		ends: append([]odd{{"-1", "$NAME=-1: write 0 or more"}}, badIntegers...),
	},
	{
		in: "redis", names: "REDIS_POOL_ON_EMPTY_BEHAVIOR REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR",
		serves: []odd{{"", ""}, {"CREATE", ""}, {"error", ""}, {"x", ""}},
	},
	{
		in: "redis", names: "REDIS_STARTUP_INITIAL_INTERVAL REDIS_STARTUP_MAX_INTERVAL", serves: tenMillis,
		ends: badDurations,
	},
	{
		in: "redis", names: "REDIS_STARTUP_MAX_ELAPSED_TIME",
		serves: []odd{{"", isEmpty}, {"0", ""}, {"-1s", "; 0s is used"}}, ends: badDurations,
	},
	{in: "redis", names: "REDIS_PERSECOND_SOCKET_TYPE REDIS_PERSECOND_URL", serves: anyText},
	{
		in: "redis", names: "REDIS_PERSECOND_TYPE REDIS_PERSECOND_POOL_SIZE REDIS_PERSECOND_TIMEOUT " +
			"REDIS_PERSECOND_PIPELINE_WINDOW REDIS_PERSECOND_PIPELINE_LIMIT",
		serves: []odd{{"x", "$NAME=x has no effect: REDIS_PERSECOND is not true"}},
	},
	{
		in: "persecond", names: "REDIS_PERSECOND_SOCKET_TYPE", serves: []odd{{"", ""}},
		ends: []odd{{"udp", "$NAME=udp: write tcp, tcp4, tcp6 or unix"}},
	},
	{
		in: "persecond", names: "REDIS_PERSECOND_TYPE", serves: []odd{{"", isEmpty}, {"single", ""}},
		ends: []odd{{"ring", "$NAME=ring: write one of SINGLE"}},
	},
	{
		in: "persecond", names: "REDIS_PERSECOND_URL",
		serves: []odd{{"redis://$redis", ""}, {"'$redis'", "$NAME begins or ends with blanks or quotes"}},
		ends:   []odd{{"", "$NAME=: write host:port"}},
	},
	{
		in: "persecond", names: "REDIS_PERSECOND_POOL_SIZE", serves: []odd{{"", isEmpty}, {"0", ""}},
		ends: []odd{{"-1", "$NAME=-1: write"}},
	},
	{in: "persecond", names: "REDIS_PERSECOND_AUTH REDIS_PERSECOND_SENTINEL_AUTH", serves: []odd{{"", ""}, {":", ""}}},
	{in: "persecond", names: "REDIS_PERSECOND_TIMEOUT", serves: []odd{{"-1s", "; 50ms is used"}}, ends: badDurations},
	{
		in: "persecond", names: "REDIS_PERSECOND_PIPELINE_WINDOW",
		serves: []odd{
			{"-1s", "; 0s is used"},
			{"1h", "within REDIS_PERSECOND_TIMEOUT, 50ms: write a shorter one; 0s is used"},
		}, ends: badDurations,
	},
	{in: "persecond", names: "REDIS_PERSECOND_PIPELINE_LIMIT", serves: []odd{{"-1", "; 0 is used"}}, ends: badIntegers},

	// Memcached.
	{
		in: "memcache", names: "MEMCACHE_HOST_PORT",
		serves: []odd{
			{"$memcached,", ""},
			{" $memcached , $memcached\n", "ends with a line break"},
			{":$memcachedport", "$NAME=:$memcachedport: write host:port, or the path of a socket, for each server; " +
				"localhost:$memcachedport is used"},
		},
		ends: []odd{
			{"", "$NAME=: write the servers"},
			{",", "$NAME=: write the servers"},
			{"127.0.0.1:0", "$NAME=127.0.0.1:0: write host:port"},
			{"127.0.0.1:x", "write host:port"},
			{"127.0.0.1:70000", "write host:port"},
		},
	},
	{in: "memory", names: "MEMCACHE_HOST_PORT MEMCACHE_SRV MEMCACHE_TLS_CLIENT_CERT MEMCACHE_TLS_CLIENT_KEY " +
		"MEMCACHE_TLS_CACERT", serves: anyText},
	{
		in: "memory", names: "MEMCACHE_SRV_REFRESH MEMCACHE_MAX_IDLE_CONNS",
		serves: []odd{{"x", "$NAME=x has no effect: the counters are in memory"}},
	},
	{
		in: "memcache", names: "MEMCACHE_SRV", serves: []odd{{"", ""}},
		ends: []odd{{"_a._tcp.invalid", "MEMCACHE_HOST_PORT is set as well: set one of them"}},
	},
	{
		in: "memcache", names: "MEMCACHE_SRV_REFRESH",
		serves: []odd{{"", isEmpty}, {"-1s", "; 0 is used"}, {"1ms", "; 10ms is used"}}, ends: badDurations,
	},
	{
		in: "memcache", names: "MEMCACHE_MAX_IDLE_CONNS",
		serves: []odd{{"", isEmpty}, {"0", ""}, {"-1", "; 2 is used"}, {"99999999999", "; 2 is used"}}, ends: badIntegers,
	},
	{
		in: "memcache", names: "MEMCACHE_TLS_CLIENT_CERT MEMCACHE_TLS_CLIENT_KEY MEMCACHE_TLS_CACERT",
		serves: []odd{{"", ""}, {"/none", "$NAME=/none has no effect: MEMCACHE_TLS is not true"}},
	},

	// Statistics.
	{in: "memory", names: "STATSD_HOST", serves: anyText},
	{in: "memory", names: "STATSD_PORT", serves: []odd{{"-1", "$NAME=-1 has no effect: nothing is sent to statsd"}}},
	{
		in: "statsd", names: "STATSD_HOST",
		serves: []odd{{"", "$NAME is set but empty; its default localhost is used"}, {"x.invalid", ""}},
	},
	{
		in: "statsd", names: "STATSD_PORT",
		serves: []odd{{"", isEmpty}, {"0", "; 8125 is used"}, {"-1", "; 8125 is used"}, {"70000", "; 8125 is used"}},
		ends:   []odd{{"abc", "$NAME=abc: write a port number"}},
	},
	{
		in: "statsd", names: "STATSD_PROTOCOL",
		serves: []odd{
			{"", isEmpty},
			{"UDP", ""},
			{"unix", "$NAME=unix: write one of tcp, udp; tcp is used"},
			{" ", "; tcp is used"},
		},
	},
	{in: "dogstatsd", names: "STATSD_HOST", serves: []odd{{"", "its default localhost is used"}}},
	{in: "dogstatsd", names: "STATSD_PORT", serves: []odd{{"0", "; 8125 is used"}}},
	{
		in: "dogstatsd", names: "USE_DOG_STATSD_MOGRIFIERS", serves: []odd{{"", ""}, {",", ""}},
		ends: []odd{{"A", "DOG_STATSD_MOGRIFIER_A_PATTERN=: write a regular expression"}},
	},
	{
		in: "mogrifier", names: "DOG_STATSD_MOGRIFIER_A_PATTERN", serves: []odd{{"$1", ""}},
		ends: []odd{{"", "$NAME=: write a regular expression"}, {"(", "$NAME=(: write a regular expression"}},
	},
	{
		in: "mogrifier", names: "DOG_STATSD_MOGRIFIER_A_NAME", serves: []odd{{"$9", ""}},
		ends: []odd{{"", "$NAME=: write the new name"}},
	},
	{
		in: "mogrifier", names: "DOG_STATSD_MOGRIFIER_A_TAGS", serves: []odd{{"", ""}, {"a:$9", ""}},
		ends: []odd{{"a:", "write a value behind each colon"}, {":b", "write key:value"}, {"a", "write key:value"}},
	},
	{in: "prometheus", names: "PROMETHEUS_ADDR", serves: []odd{
		{"$port", "$NAME=$port: write host:port, or :port; :$port is used"},
		{"localhost:0", ""},
		{"x", "the service runs without that port: correct PROMETHEUS_ADDR"},
		{"x.invalid:1", "the service runs without that port"},
		{":70000", "the service runs without that port"},
		{" ", "the service runs without that port"},
	}},
	{in: "prometheus", names: "PROMETHEUS_PATH", serves: []odd{
		{"", isEmpty},
		{"/", ""},
		{"/a/", ""},
		{"/{x}", "$NAME=/{x}: write a path such as /metrics; /metrics is used"},
		{"//x", "; /metrics is used"},
		{"/a/../b", "; /metrics is used"},
		{"/a?b", "; /metrics is used"},
		{"metrics", "; /metrics is used"},
	}},
	{
		in: "prometheus", names: "PROMETHEUS_MAPPER_YAML",
		serves: []odd{
			{"", ""},
			{"/none", "there is no such file; the built-in mapping is used"},
			{"$dir", "there is no such file"},
			{"$bad", "; the built-in mapping is used"},
		},
	},
	{in: "statsd", names: "STATS_FLUSH_INTERVAL", serves: tenMillis, ends: badDurations},
	{
		in: "statsd", names: "EXTRA_TAGS",
		serves: []odd{
			{"", ""},
			{"a:", ""},
			{"a:b,a:c", ""},
			{":b", "$NAME=:b: write a name before each colon; that tag is left out"},
			{":", "that tag is left out"},
		},
		ends: []odd{{"a", "write key:value"}, {"a:b:c", "write key:value"}, {"a:b,", "write key:value"}},
	},
	{
		in: "prometheus", names: "EXTRA_TAGS",
		serves: []odd{{"le:x,a-b:c", "$NAME=le:x: Prometheus uses a label of that name itself: choose another; that tag is " +
			"left out"}, {"é:b", ""}},
	},

	// Tracing.
	{
		in: "tracing", names: "TRACING_EXPORTER_PROTOCOL", serves: []odd{{"", isEmpty}, {"GRPC", ""}},
		ends: []odd{{"zipkin", "$NAME=zipkin: write one of http, grpc"}},
	},
	{
		in: "memory", names: "TRACING_EXPORTER_PROTOCOL",
		serves: []odd{{"zipkin", "$NAME=zipkin has no effect: TRACING_ENABLED is not true"}},
	},
	{in: "tracing", names: "TRACING_SERVICE_NAME TRACING_SERVICE_NAMESPACE TRACING_SERVICE_INSTANCE_ID", serves: anyText},
	{
		in: "tracing", names: "TRACING_SAMPLING_RATE",
		serves: []odd{{"", isEmpty}, {"0", ""}, {"2", "; 1 is used"}, {"-1", "; 0 is used"}, {"NaN", "; 1 is used"}},
		ends:   []odd{{"all", "$NAME=all: write a number"}},
	},
	{in: "memory", names: "TRACING_SAMPLING_RATE", serves: []odd{{"2", "; 1 is used"}}},
	{
		in: "tracing", names: "OTEL_EXPORTER_OTLP_ENDPOINT",
		serves: []odd{
			{"http://127.0.0.1:1", ""},
			{"127.0.0.1:4318", "$NAME=…: write a URL such as http://collector:4318, or https:// for TLS; it is ignored"},
			{"http://[", "it is ignored"},
		},
	},
	{
		in: "tracing", names: "OTEL_EXPORTER_OTLP_TIMEOUT",
		serves: []odd{{"5", ""}, {"1s", "it is ignored"}, {"-1", "it is ignored"}},
	},
	{
		in: "tracing", names: "OTEL_EXPORTER_OTLP_HEADERS",
		serves: []odd{{"a=b", ""}, {"s3cret", "it is ignored"}, {"a=%zz", "it is ignored"}},
	},
	{in: "tracing", names: "OTEL_EXPORTER_OTLP_CERTIFICATE", serves: []odd{{"$ca", ""}, {"/none", "it is ignored"}}},
	{
		in: "tracing", names: "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE OTEL_EXPORTER_OTLP_CLIENT_KEY",
		serves: []odd{{"", ""}, {"/none", "or neither; it is ignored"}},
	},
	{
		in: "tracing", names: "OTEL_EXPORTER_OTLP_INSECURE OTEL_EXPORTER_OTLP_COMPRESSION OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
		serves: []odd{{"", ""}, {"x", ""}},
	},
	{
		in: "tracing", names: "OTEL_EXPORTER_OTLP_PROTOCOL OTEL_METRICS_EXPORTER",
		serves: []odd{{"x", "$NAME=x: write one of "}, {"http/json", "is used"}},
	},
	{
		in: "tracing", names: "OTEL_METRIC_EXPORT_INTERVAL",
		serves: []odd{{"1m", "; 60000 is used"}, {"0", "; 60000 is used"}},
	},

	// Booleans. True would need another server in the second row of each store.
	{in: "memory", serves: oddTrue, ends: badBools, names: `FORCE_START_WITHOUT_INITIAL_CONFIG MERGE_DOMAIN_CONFIG RUNTIME_IGNOREDOTFILES
		RUNTIME_WATCH_ROOT HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT SHADOW_MODE QUOTA_MODE
		RESPONSE_DYNAMIC_METADATA LIMIT_RESPONSE_HEADERS_ENABLED USE_DOG_STATSD DISABLE_STATS TRACING_ENABLED
		SANITIZE_DESCRIPTOR_METRIC_DOTS`},
	{in: "memory", serves: oddFalse, ends: badBools, names: "USE_STATSD GRPC_SERVER_USE_TLS"},
	{in: "redis", serves: oddTrue, ends: badBools, names: "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION"},
	{in: "redis", serves: oddFalse, ends: badBools, names: "REDIS_TLS"},
	{in: "persecond", serves: oddTrue, ends: badBools, names: "REDIS_PERSECOND"},
	{in: "persecond", serves: oddFalse, ends: badBools, names: "REDIS_PERSECOND_TLS"},
	{in: "redistls", serves: oddTrue, ends: badBools, names: "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION"},
	{in: "memcache", serves: oddFalse, ends: badBools, names: "MEMCACHE_TLS"},
	{in: "memcachetls", serves: oddTrue, ends: badBools, names: "MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION"},
	{in: "prometheus", serves: oddTrue, ends: badBools, names: "USE_PROMETHEUS PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS"},
	{in: "xds", serves: oddTrue, ends: badBools, names: "XDS_CLIENT_BACKOFF_JITTER"},
	{in: "xds", serves: oddFalse, ends: badBools, names: "CONFIG_GRPC_XDS_SERVER_USE_TLS"},
}

// settingsLab has the surroundings of odd values, by name, and what stands for $redis and the like.
type settingsLab struct {
	surroundings map[string][]string
	replacer     *strings.Replacer
}

func newSettingsLab(t *testing.T) *settingsLab {
	t.Helper()
	certs := harness.NewCertificates(t)
	redis, memcached := redistest.Start(t, redistest.Options{}), memcachedtest.Start(t, memcachedtest.Options{})
	locked := redistest.Start(t, redistest.Options{Password: "s3cret"})
	secure := redistest.Start(t, redistest.Options{TLS: certs})
	secureMemcached := memcachedtest.Start(t, memcachedtest.Options{TLS: certs})
	cluster := redistest.StartCluster(t, redistest.ClusterOptions{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	management := xdstest.Start(t, l)
	for _, node := range []string{"default", "", "a b"} {
		management.Publish(t, node, "1", &configv3.RateLimitConfig{Name: "d", Domain: "d"})
	}
	freePort, err := harness.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	rules := newRuleDir(t)
	rules.put(t, "d.yaml", "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: year, requests_per_unit: 10}}\n")
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	if err := os.WriteFile(bad, []byte("mappings: 5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	onRedis := []string{"BACKEND_TYPE=redis", "REDIS_URL=" + redis.Addr}
	onMemcached := []string{"BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT=" + memcached.Addr}
	onDogStatsd := []string{"USE_DOG_STATSD=true", "STATSD_HOST=127.0.0.1"}
	lab := &settingsLab{surroundings: map[string][]string{
		"memory":    {"BACKEND_TYPE=memory"},
		"redis":     onRedis,
		"password":  {"BACKEND_TYPE=redis", "REDIS_URL=" + locked.Addr},
		"redistls":  {"BACKEND_TYPE=redis", "REDIS_TLS=true", "REDIS_URL=" + secure.Addr, "REDIS_TLS_CACERT=" + certs.CA},
		"persecond": append(slices.Clone(onRedis), "REDIS_PERSECOND=true", "REDIS_PERSECOND_URL="+redis.Addr),
		"cluster":   {"BACKEND_TYPE=redis", "REDIS_TYPE=cluster", "REDIS_URL=" + cluster.Addrs[0]},
		"memcache":  onMemcached,
		"memcachetls": {
			"BACKEND_TYPE=memcache", "MEMCACHE_TLS=true", "MEMCACHE_HOST_PORT=" + secureMemcached.Addr,
			"MEMCACHE_TLS_CACERT=" + certs.CA,
			"MEMCACHE_TLS_CLIENT_CERT=" + certs.Client.Cert, "MEMCACHE_TLS_CLIENT_KEY=" + certs.Client.Key,
		},
		"headers":   {"LIMIT_RESPONSE_HEADERS_ENABLED=true"},
		"statsd":    {"USE_STATSD=true", "STATSD_HOST=127.0.0.1"},
		"dogstatsd": onDogStatsd,
		"mogrifier": append(slices.Clone(onDogStatsd), "USE_DOG_STATSD_MOGRIFIERS=a", "DOG_STATSD_MOGRIFIER_A_PATTERN=x",
			"DOG_STATSD_MOGRIFIER_A_NAME=y"),
		"prometheus": {"USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0"},
		"tracing":    {"TRACING_ENABLED=true"},
		"xds":        {"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=" + l.Addr().String()},
		"tls": {
			"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=" + certs.Server.Cert,
			"GRPC_SERVER_TLS_KEY=" + certs.Server.Key,
		},
	}}
	for name, env := range lab.surroundings {
		lab.surroundings[name] = append(rules.env(), env...)
	}
	lab.replacer = strings.NewReplacer(
		"$redisport", portIn(t, redis.Addr), "$redis", redis.Addr, "$cluster", cluster.Addrs[0], "$memcachedport",
		portIn(t, memcached.Addr),
		"$memcached", memcached.Addr, "$xds", l.Addr().String(), "$port", fmt.Sprint(freePort), "$dir", dir, "$bad", bad,
		"$ca", certs.CA, "$root", rules.root, "$base", filepath.Base(rules.root),
	)
	return lab
}

// portIn returns the port of host:port.
func portIn(t *testing.T, addr string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// startOnce starts the service, stops it once it is ready, and returns its log.
func startOnce(t *testing.T, env []string) (ready bool, log string) {
	t.Helper()
	cmd := serviceCommand(t, env...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	tooLong := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer tooLong.Stop()
	var text strings.Builder
	lines := bufio.NewReader(stderr)
	for err == nil {
		var line string
		line, err = lines.ReadString('\n')
		text.WriteString(line)
		if strings.Contains(line, "msg=ready") && !ready {
			ready = true
			_ = cmd.Process.Signal(syscall.SIGTERM) // It fails if the process has ended, and then the status says so.
		}
	}
	if err != io.EOF {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil && (ready || err.(*exec.ExitError).ExitCode() != 1) {
		t.Errorf("%v", err)
	}
	return ready, text.String()
}

// try starts the service with one odd value.
func (lab *settingsLab) try(t *testing.T, in, name string, o odd, wantReady bool) {
	t.Helper()
	value := lab.replacer.Replace(o.value)
	words := strings.ReplaceAll(lab.replacer.Replace(o.words), "$NAME", name)
	ready, log := startOnce(t, append(slices.Clone(lab.surroundings[in]), name+"="+value))
	warned := strings.Contains(log, words)
	if words == "" && ready {
		for line := range strings.Lines(log) {
			warned = warned && !(strings.Contains(line, "level=warning") && strings.Contains(line, name))
		}
	}
	if ready != wantReady || !warned {
		t.Fatalf("%s, %s=%q: ready %t, want %t with %q, and in\n%s", in, name, value, ready, wantReady, words, log)
	}
	if strings.Contains(log, "s3cret") {
		t.Errorf("%s, %s=%q: the value is in\n%s", in, name, value, log)
	}
}

func TestUpstreamOddSettings(t *testing.T) {
	lab := newSettingsLab(t)
	tried := make(map[string]bool)
	for _, row := range oddTable {
		if lab.surroundings[row.in] == nil {
			t.Fatalf("there is no surrounding %q", row.in)
		}
		for name := range strings.FieldsSeq(row.names) {
			tried[name] = true
			t.Run(row.in+" "+name, func(t *testing.T) {
				t.Parallel()
				for _, o := range row.serves {
					lab.try(t, row.in, name, o, true)
				}
				for _, o := range row.ends {
					lab.try(t, row.in, name, o, false)
				}
			})
		}
	}
	own := strings.Fields(ownSettings)
	for _, v := range settings.Table() {
		isFamily := strings.Contains(v.Name, "<")
		if !tried[v.Name] && !isFamily &&
			!slices.ContainsFunc(own, func(start string) bool { return strings.HasPrefix(v.Name, start) }) {
			t.Errorf("%s has no row, and is no setting that envoyproxy/ratelimit does not have", v.Name)
		}
	}
}

// ownSettings lists the variables that envoyproxy/ratelimit does not have, or the starts of their names.
const ownSettings = `HEALTH_HOST HEALTH_PORT DEBUG_ALLOWED_HOSTS DEBUG_PPROF DEBUG_TOKEN DEBUG_TLS_ HTTP_ GRPC_MAX_CONNECTIONS GRPC_MAX_MESSAGE_BYTES
	GRPC_MAX_CONCURRENT_STREAMS GRPC_KEEPALIVE_ GRPC_ENGINE GRPC_REFLECTION QUOTA_MAX_ QUOTA_ABANDON_AFTER MAX_ DIVVY_ RESP_
	LOG_DENIALS RECENT_DENIALS TOP_SUBJECTS_RULES RUNTIME_CANDIDATE_ CANDIDATE_ RUNTIME_DEBOUNCE RUNTIME_POLL_INTERVAL RUNTIME_READ_TIMEOUT
	CONFIG_ALL_OR_NOTHING CONFIG_INITIAL_TIMEOUT CONFIG_GRPC_XDS2_ MEMORY_ CACHE_KEY_FORMAT REDIS_AUTH_FILE REDIS_SENTINEL_AUTH_FILE
	REDIS_PERSECOND_AUTH_FILE REDIS_PERSECOND_SENTINEL_AUTH_FILE MEMCACHE_HASH MEMCACHE_TIMEOUT MEMCACHE_HEALTH_CHECK_ STORE_ REPLICAS
	LIMIT_DEGRADED_HEADER LIMIT_RESPONSE_HEADERS_FORMAT STATS_MAX_SERIES OTEL_ SHUTDOWN_`

// Kubernetes describes each Service of the namespace in variables, and the names of some Services are the starts of our
// names.
func TestUpstreamServiceLinks(t *testing.T) {
	lab := newSettingsLab(t)
	for _, name := range []string{
		"DIVVY", "HEALTH", "RESP", "GRPC", "DEBUG", "STATSD", "MEMCACHE_HOST", "REDIS",
		"RATELIMIT",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const ip, port = "10.96.0.7", "8321"
			link := "tcp://" + ip + ":" + port
			env := []string{
				name + "_SERVICE_HOST=" + ip, name + "_SERVICE_PORT=" + port, name + "_SERVICE_PORT_TCP=" + port,
				name + "_PORT=" + link,
			}
			for _, end := range []string{"=" + link, "_PROTO=tcp", "_PORT=" + port, "_ADDR=" + ip} {
				env = append(env, name+"_PORT_"+port+"_TCP"+end)
			}
			ready, log := startOnce(t, slices.Concat(lab.surroundings["memory"], env))
			isOurs := name != "REDIS" && name != "RATELIMIT"
			if !ready || strings.Contains(log,
				name+"_PORT="+link+" has no effect: it is Kubernetes' link to a Service") != isOurs ||
				strings.Count(log, name+"_") != map[bool]int{true: 1}[isOurs] {
				t.Errorf("ready %t, with the log\n%s", ready, log)
			}
		})
	}
}
