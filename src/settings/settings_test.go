package settings

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func env(pairs ...string) Environment { return NewEnvironment(pairs) }

func TestDefaults(t *testing.T) {
	s, warnings, err := Read(env())
	if err != nil || len(warnings) > 0 {
		t.Fatalf("%v, %q", err, warnings)
	}
	if s.Host != "0.0.0.0" || s.Port != 8080 || s.GRPCPort != 8081 || s.DebugPort != 6070 || s.LogLevel != "warn" ||
		s.RuntimeRoot != "/srv/runtime_data/current" || s.RuntimeAppDirectory != "config" || !s.RuntimeWatchRoot ||
		s.GRPCMaxConnectionAge != 24*time.Hour || s.NearLimitRatio != 0.8 || s.BackendType != "memory" ||
		s.MemoryMaxBytes != 256<<20 ||
		s.Tracing != (Tracing{Protocol: "http", ServiceName: "RateLimit", SamplingRate: 1}) ||
		s.Divvy != (Divvy{
			PipelinedPort{"0.0.0.0", 8321, 10_000, 128, 10 * time.Minute, ServerTLS{}},
			false, true, "divvy", "", true, "own", "nearest", 1 << 20,
		}) {
		t.Errorf("got %+v", s)
	}
}

func TestValues(t *testing.T) {
	s, warnings, err := Read(env(
		"HOST=::", "PORT=0x1F90", "GRPC_PORT=0", "DEBUG_PPROF=F", "LOG_LEVEL=Info", "RUNTIME_ROOT=/data",
		"RUNTIME_APPDIRECTORY=",
		"SHUTDOWN_DRAIN=0", "SHUTDOWN_TIMEOUT=1m30s", "NEAR_LIMIT_RATIO=0.5", "MEMORY_MAX_BYTES=1048576", "SHADOW_MODE=TRUE",
		"BACKEND_TYPE=memory", "REDIS_URL=", "USE_STATSD=false", "UNHEARD_OF=x",
		"TRACING_ENABLED=1", "TRACING_EXPORTER_PROTOCOL=GRPC", "TRACING_SERVICE_NAME=limits",
		"TRACING_SERVICE_NAMESPACE=edge",
		"TRACING_SERVICE_INSTANCE_ID=pod-1", "TRACING_SAMPLING_RATE=0.25",
		"DIVVY_PORT=0", "DIVVY_DOMAIN=", "DIVVY_DOMAIN_KEY=shop", "DIVVY_KEYS=Upstream", "DIVVY_ROUND=UP",
		"DIVVY_IDLE_TIMEOUT=0", "DIVVY_TLS_CERT=c", "DIVVY_TLS_KEY=k", "DIVVY_TLS_CLIENT_CACERT=a", "DIVVY_TLS_CLIENT_SAN=n",
	))
	if err != nil || len(warnings) > 0 {
		t.Fatalf("%v, %q", err, warnings)
	}
	if s.Host != "::" || s.Port != 8080 || s.GRPCPort != 0 || s.DebugPprof || s.LogLevel != "info" ||
		s.RuntimeRoot != "/data" ||
		s.RuntimeAppDirectory != "" || s.ShutdownDrain != 0 || s.ShutdownTimeout != 90*time.Second ||
		s.NearLimitRatio != 0.5 ||
		s.MemoryMaxBytes != 1<<20 || !s.ShadowMode ||
		s.Tracing != (Tracing{true, "grpc", "limits", "edge", "pod-1", 0.25}) ||
		s.Divvy != (Divvy{
			PipelinedPort{"0.0.0.0", 0, 10_000, 128, 0, ServerTLS{true, "c", "k", "a", "n"}},
			true, false, "", "shop", false, "upstream", "up", 1 << 20,
		}) {
		t.Errorf("got %+v", s)
	}
}

func TestProblemsAreReportedTogether(t *testing.T) {
	_, _, err := Read(env(
		"PORT=80800", "GRPC_PORT=-1", "DEBUG_PORT=x", "DEBUG_PPROF=yes", "LOG_LEVEL=loud", "SHUTDOWN_TIMEOUT=5",
		"SHUTDOWN_DRAIN=-1s",
		"MEMORY_MAX_BYTES=1000", "CONFIG_TYPE=file", "BACKEND_TYPE=disk", "GRPC_SERVER_USE_TLS=true",
		"DIVVY_PORT=x", "DIVVY_DOMAIN=", "LIMIT_RESPONSE_HEADERS_FORMAT=draft", "DIVVY_ROUND=down",
		"DIVVY_MAX_LINE_BYTES=16777217", "DIVVY_MAX_PIPELINED=1001", "DIVVY_MAX_CONNECTIONS=0", "DIVVY_TLS_KEY=k",
		"TRACING_ENABLED=on", "TRACING_EXPORTER_PROTOCOL=zipkin", "TRACING_SAMPLING_RATE=half",
	))
	want := []string{
		"PORT=80800: write a port number, 0 to 65535",
		"GRPC_PORT=-1: write a port number, 0 to 65535",
		"DEBUG_PORT=x: write a port number, 0 to 65535",
		"DEBUG_PPROF=yes: write true or false",
		"LOG_LEVEL=loud: write one of panic, fatal, error, warn, warning, info, debug, trace",
		"MEMORY_MAX_BYTES=1000: write a number of bytes, 128KiB or more, such as 1000KiB",
		"SHUTDOWN_DRAIN=-1s: write a duration, 0s or more",
		"SHUTDOWN_TIMEOUT=5: write a duration with its unit, such as 5s",
		"CONFIG_TYPE=file: write FILE, GRPC_XDS_SOTW or GRPC_XDS_DELTA, or several, separated by commas",
		"BACKEND_TYPE=disk: write memory, redis or memcache",
		"GRPC_SERVER_TLS_CERT=: write the path of a PEM file with the certificate chain, and that of its key in " +
			"GRPC_SERVER_TLS_KEY",
		"DIVVY_PORT=x: write a port number, 0 to 65535",
		"DIVVY_DOMAIN=: write the domain that `HIT` asks, or set DIVVY_DOMAIN_KEY",
		"LIMIT_RESPONSE_HEADERS_FORMAT=draft: write one of separate, ietf",
		"DIVVY_ROUND=down: write one of nearest, up",
		"DIVVY_MAX_LINE_BYTES=16777217: write a number of bytes, 1 to 16MiB",
		"DIVVY_MAX_PIPELINED=1001: write a whole number, 1 to 1000",
		"DIVVY_MAX_CONNECTIONS=0: write a whole number above 0",
		"DIVVY_TLS_CERT=: write the path of a PEM file with the certificate chain, and that of its key in DIVVY_TLS_KEY",
		"TRACING_ENABLED=on: write true or false",
		"TRACING_EXPORTER_PROTOCOL=zipkin: write one of http, grpc",
		"TRACING_SAMPLING_RATE=half: write a number, 0 to 1",
	}
	if err == nil {
		t.Fatal("no error")
	}
	got := strings.Split(err.Error(), "\n")
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
}

func TestStore(t *testing.T) {
	for _, tt := range []struct {
		env     string
		backend string
		err     string
	}{
		{"", "memory", ""},
		{"REDIS_URL=redis:6379", "redis", ""},
		{"REDIS_TIMEOUT=1s", "redis", ""}, // the socket that upstream has by default
		{"REDIS_URL= BACKEND_TYPE=", "memory", ""},
		{"REDIS_URL=redis:6379 BACKEND_TYPE=memory", "memory", ""},
		{"REDIS_URL=redis:6379 BACKEND_TYPE=", "redis", ""},
		{"BACKEND_TYPE=redis REDIS_URL=http://x", "redis", "REDIS_URL=…: it begins like a URL"},
		{"BACKEND_TYPE=redis REDIS_URL=redis://:secret@", "redis", "REDIS_URL=…: it begins like a URL"},
		{"BACKEND_TYPE=redis REDIS_TYPE=ring", "redis", "REDIS_TYPE=ring: write one of SINGLE, SENTINEL, CLUSTER"},
		{"REDIS_TYPE=cluster REDIS_URL=a:1,redis://:secret@b:2/0", "redis", ""},
		{"REDIS_TYPE=cluster REDIS_URL=redis://:secret@b:2/1", "redis", "REDIS_URL=…: a cluster has no databases"},
		{"REDIS_TYPE=cluster REDIS_URL=a:1,secret", "redis", "REDIS_URL=…: a node is not host:port"},
		{"REDIS_TYPE=cluster REDIS_URL=,", "redis", "REDIS_URL=: write some nodes of the cluster"},
		{
			"REDIS_TYPE=cluster REDIS_URL=a:1 REDIS_CLUSTER_PIPELINE_PARALLELISM=-1", "redis",
			"REDIS_CLUSTER_PIPELINE_PARALLELISM=-1",
		},
		{"REDIS_TYPE=Sentinel REDIS_URL=mymaster,a:1", "redis", ""},
		{"REDIS_TYPE=sentinel REDIS_URL=mymaster", "redis", "write the primary's name and the sentinels"},
		{"REDIS_TYPE=sentinel REDIS_URL=a:1,b:2", "redis", "write the primary's name and the sentinels"},
		{"REDIS_TYPE=sentinel REDIS_URL=mymaster,secret", "redis", "REDIS_URL=…: a sentinel is not host:port"},
		{"REDIS_URL=a:1,b:2", "redis", "set REDIS_TYPE to SENTINEL or CLUSTER"},
		{"REDIS_URL=redis://a:1/secret", "redis", "it begins like a URL"},
		{"REDIS_URL=localhost:26379/0", "redis", "this is no path of a socket: write redis://host:port/db"},
		{"REDIS_URL=redis:localhost:26379", "redis", "this is no host:port: write host:port, the path of a socket, or redis://"},
		{"REDIS_URL=localhost", "redis", "this is no host:port"},
		{"REDIS_URL=run/redis:1.sock", "redis", ""},
		{"REDIS_URL=a:1 REDIS_POOL_SIZE=0 REDIS_POOL_ON_EMPTY_BEHAVIOR=CREATE", "redis", ""},
		{"BACKEND_TYPE=redis REDIS_SOCKET_TYPE=udp", "redis", "REDIS_SOCKET_TYPE=udp: write tcp, tcp4, tcp6 or unix"},
		{
			"BACKEND_TYPE=redis REDIS_PERSECOND=true REDIS_PERSECOND_SOCKET_TYPE=x", "redis",
			"REDIS_PERSECOND_SOCKET_TYPE=x: write tcp, tcp4, tcp6 or unix",
		},
		{"BACKEND_TYPE=redis REDIS_POOL_SIZE=-1", "redis", "REDIS_POOL_SIZE"},
		{
			"BACKEND_TYPE=redis STORE_BREAKER_FAILURES=-1", "redis",
			"STORE_BREAKER_FAILURES=-1: write a whole number, 0 or more",
		},
		{"BACKEND_TYPE=redis STORE_BREAKER_FAILURES=0 STORE_MAX_IN_FLIGHT=1", "redis", ""},
		{"BACKEND_TYPE=redis STORE_MAX_IN_FLIGHT=0", "redis", "STORE_MAX_IN_FLIGHT=0: write a whole number above 0"},
		{"MEMCACHE_HOST_PORT=a:1", "memory", ""}, // upstream wants to be told, too
		{"BACKEND_TYPE=memcache MEMCACHE_HOST_PORT=a:1,[::1]:2,/run/m.sock", "memcache", ""},
		{"BACKEND_TYPE=memcached MEMCACHE_SRV=_memcache._tcp.example.com.", "memcache", ""},
		{"BACKEND_TYPE=memcache REDIS_URL=http://x MEMCACHE_HOST_PORT=a:1", "memcache", ""},
		{"BACKEND_TYPE=memcache", "memcache", "MEMCACHE_HOST_PORT=: write the servers"},
		{"BACKEND_TYPE=memcache MEMCACHE_HOST_PORT=,", "memcache", "MEMCACHE_HOST_PORT=: write the servers"},
		{"BACKEND_TYPE=memcache MEMCACHE_HOST_PORT=a:0", "memcache", "MEMCACHE_HOST_PORT=a:0: write host:port"},
		{"BACKEND_TYPE=memcache MEMCACHE_HOST_PORT=a:1 MEMCACHE_SRV=_m._tcp.x", "memcache", "set one of them"},
		{"BACKEND_TYPE=memcache MEMCACHE_SRV=_m._tcp", "memcache", "write _service._proto.name"},
		{"BACKEND_TYPE=memcache MEMCACHE_SRV=m._tcp.x", "memcache", "write _service._proto.name"},
		{"BACKEND_TYPE=memcache MEMCACHE_SRV=_m.tcp.x", "memcache", "write _service._proto.name"},
		{"BACKEND_TYPE=memcache MEMCACHE_SRV=__._tcp.x", "memcache", ""},
		{"BACKEND_TYPE=memcache MEMCACHE_SRV=_._tcp.x", "memcache", "write _service._proto.name"},
		{
			"BACKEND_TYPE=memcache MEMCACHE_HOST_PORT=a:1 MEMCACHE_HASH=ketama", "memcache",
			"MEMCACHE_HASH=ketama: write one of modulo, rendezvous",
		},
		{
			"BACKEND_TYPE=memcache MEMCACHE_HOST_PORT=a:1 MEMCACHE_MAX_IDLE_CONNS=few", "memcache",
			"MEMCACHE_MAX_IDLE_CONNS=few",
		},
	} {
		s, _, err := Read(env(strings.Fields(tt.env)...))
		if s.BackendType != tt.backend || (err == nil) != (tt.err == "") ||
			err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %s, %v", tt.env, s.BackendType, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: a password is shown: %v", tt.env, err)
		}
	}
}

func TestMemcache(t *testing.T) {
	s, warnings, err := Read(env("BACKEND_TYPE=memcache", "MEMCACHE_SRV=_memcache._tcp.m.example.com.",
		"MEMCACHE_MAX_IDLE_CONNS=0",
		"MEMCACHE_HASH=Rendezvous", "REDIS_PERSECOND=true"))
	if err != nil || len(warnings) != 1 ||
		warnings[0] != "REDIS_PERSECOND=true has no effect: the counters are in Memcached; remove it, or set "+
			"BACKEND_TYPE=redis" {
		t.Error(warnings, err)
	}
	if m := s.Memcache; m.SRVParts != (SRV{"memcache", "tcp", "m.example.com"}) || m.Conns != 2 ||
		m.Hash != "rendezvous" || s.RedisSplit {
		t.Errorf("got %+v", m)
	}
	s, warnings, err = Read(env("BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT=a:1, b:2,/c"))
	if got := s.Memcache.Servers; err != nil || len(warnings) > 0 || !slices.Equal(got, []string{"a:1", "b:2", "/c"}) {
		t.Error(got, warnings, err)
	}
	if _, warnings, _ := Read(env("MEMCACHE_HOST_PORT=a:1")); len(warnings) != 1 ||
		warnings[0] != "MEMCACHE_HOST_PORT=a:1 has no effect: BACKEND_TYPE is not memcache; remove it, or set "+
			"BACKEND_TYPE=memcache" {
		t.Error(warnings)
	}
}

func TestCacheKeyFormat(t *testing.T) {
	for _, tt := range []struct {
		env    string
		format string
		err    string
	}{
		{"", "v1", ""},
		{"CACHE_KEY_FORMAT=v1 CACHE_KEY_PREFIX={a}", "v1", ""},
		{"CACHE_KEY_FORMAT=V2 CACHE_KEY_PREFIX=a|b:c_%", "v2", ""},
		{"CACHE_KEY_FORMAT=v3", "v1", "CACHE_KEY_FORMAT=v3: write one of v1, v2"},
		{
			"CACHE_KEY_FORMAT=v2 CACHE_KEY_PREFIX=a{", "v2",
			"CACHE_KEY_PREFIX=a{: leave out { and }, which CACHE_KEY_FORMAT=v2 puts around what belongs on one server",
		},
		{
			"CACHE_KEY_FORMAT=v2 CACHE_KEY_PREFIX=}", "v2",
			"CACHE_KEY_PREFIX=}: leave out { and }, which CACHE_KEY_FORMAT=v2 puts around what belongs on one server",
		},
	} {
		s, _, err := Read(env(strings.Fields(tt.env)...))
		if s.CacheKeyFormat != tt.format || (err == nil) != (tt.err == "") || err != nil && err.Error() != tt.err {
			t.Errorf("%s: %s, %v", tt.env, s.CacheKeyFormat, err)
		}
	}
}

func TestRedisURL(t *testing.T) {
	for _, tt := range []struct {
		env  string
		want Redis
	}{
		{"REDIS_URL=redis:6379", Redis{SocketType: "tcp", Addrs: []string{"redis:6379"}}},
		{"REDIS_URL=/run/redis.sock", Redis{SocketType: "unix", Addrs: []string{"/run/redis.sock"}}},
		{"REDIS_URL=redis://redis", Redis{SocketType: "tcp", Addrs: []string{"redis:6379"}}},
		{"REDIS_URL=redis://redis:7/1", Redis{SocketType: "tcp", Addrs: []string{"redis:7"}, DB: "1"}},
		{
			"REDIS_URL=redis://redis?db=2&username=me&password=p:w",
			Redis{SocketType: "tcp", Addrs: []string{"redis:6379"}, DB: "2", Auth: "me:p:w"},
		},
		{"REDIS_URL=redis:6379 REDIS_SOCKET_TYPE=tcp4", Redis{SocketType: "tcp4", Addrs: []string{"redis:6379"}}},
		{"REDIS_URL=redis://redis REDIS_SOCKET_TYPE=tcp6", Redis{SocketType: "tcp6", Addrs: []string{"redis:6379"}}},
		{"REDIS_URL=redis://redis REDIS_SOCKET_TYPE=unix", Redis{SocketType: "tcp", Addrs: []string{"redis:6379"}}},
		{"REDIS_URL=rediss://:p@[::1]:7", Redis{SocketType: "tcp", Addrs: []string{"[::1]:7"}, Auth: ":p", TLS: true}},
		{"REDIS_URL=redis://:p@redis REDIS_AUTH=q", Redis{SocketType: "tcp", Addrs: []string{"redis:6379"}, Auth: "q"}},
		{"REDIS_TYPE=sentinel REDIS_URL=main,a:1,redis://me:p@b REDIS_AUTH=q", Redis{
			Primary: "main", Addrs: []string{"a:1", "b:26379"}, Auth: "q", SentinelAuth: "me:p",
		}},
		{"REDIS_TYPE=CLUSTER REDIS_URL=a:1,rediss://:p@b", Redis{Addrs: []string{"a:1", "b:6379"}, Auth: ":p", TLS: true}},
	} {
		s, _, err := Read(env(strings.Fields(tt.env)...))
		got := Redis{
			SocketType: s.Redis.SocketType, Primary: s.Redis.Primary, Addrs: s.Redis.Addrs, DB: s.Redis.DB,
			Auth: s.Redis.Auth, SentinelAuth: s.Redis.SentinelAuth, TLS: s.Redis.TLS,
		}
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s:\n got %+v, %v\nwant %+v", tt.env, got, err, tt.want)
		}
	}
}

// Credentials have one source, and errors show none.
func TestRedisAuth(t *testing.T) {
	const iam = "REDIS_URL=rediss://c REDIS_AWS_IAM_AUTH=true REDIS_AWS_IAM_CACHE_NAME=limits REDIS_AWS_IAM_USER_ID=me "
	const several = "several variables give credentials"
	for _, tt := range []struct{ env, problem, warning string }{
		{"REDIS_URL=c:1 REDIS_AUTH_COMMAND=mint REDIS_AUTH_USER=me", "", ""},
		{"REDIS_URL=c:1 REDIS_AUTH_COMMAND=mint REDIS_AUTH=secret", "REDIS_AUTH=…: " + several, ""},
		{"REDIS_URL=redis://:secret@c REDIS_AUTH_COMMAND=mint", "REDIS_AUTH=…: " + several, ""},
		{"REDIS_URL=c:1 REDIS_AUTH_COMMAND=mint REDIS_AUTH_FILE=/secret", "REDIS_AUTH_FILE=…: " + several, ""},
		{"REDIS_URL=c:1 REDIS_AUTH_USER=me", "", "REDIS_AUTH_USER=me has no effect: REDIS_AUTH_COMMAND is not set"},
		{
			"REDIS_TYPE=sentinel REDIS_URL=m,c:1 REDIS_SENTINEL_AUTH_COMMAND=mint REDIS_SENTINEL_AUTH=secret",
			"REDIS_SENTINEL_AUTH_COMMAND=…: several variables", "",
		},
		{iam + "AWS_REGION=eu-central-1", "", ""},
		{iam + "REDIS_AWS_IAM_REGION=eu-central-1 REDIS_AUTH_COMMAND=mint", "REDIS_AUTH_COMMAND=…: " + several, ""},
		{iam, "REDIS_AWS_IAM_REGION=: write the region", ""},
		{iam + "AWS_REGION=r REDIS_URL=c:1", "", "REDIS_AWS_IAM_AUTH=true without REDIS_TLS=true"},
		{
			iam + "AWS_REGION=r REDIS_AWS_IAM_CACHE_NAME=master.limits.euc1.cache.amazonaws.com",
			"write the name of the cache, not its address", "",
		},
		{iam + "AWS_REGION=r REDIS_AWS_IAM_USER_ID=", "REDIS_AWS_IAM_USER_ID=: write the user", ""},
		{iam + "AWS_REGION=r REDIS_AWS_IAM_SERVICE=dynamodb", "write one of elasticache, memorydb", ""},
		{
			iam + "AWS_REGION=r REDIS_AWS_IAM_SERVICE=memorydb REDIS_AWS_IAM_SERVERLESS=true",
			"MemoryDB has no serverless caches", "",
		},
		{
			"REDIS_URL=c:1 REDIS_AWS_IAM_CACHE_NAME=limits", "",
			"REDIS_AWS_IAM_CACHE_NAME=limits has no effect: REDIS_AWS_IAM_AUTH is not true",
		},
		{
			iam + "REDIS_AWS_IAM_REGION=r REDIS_PERSECOND=true REDIS_PERSECOND_URL=c:2 REDIS_PERSECOND_AWS_IAM_AUTH=true",
			"REDIS_PERSECOND_AWS_IAM_CACHE_NAME=: write the name", "REDIS_PERSECOND_AWS_IAM_AUTH=true without",
		},
	} {
		_, warnings, err := Read(env(strings.Fields(tt.env)...))
		problem, warning := fmt.Sprint(err), strings.Join(warnings, "\n")
		if (err != nil) != (tt.problem != "") || !strings.Contains(problem, tt.problem) ||
			strings.Contains(problem, "secret") ||
			(warning != "") != (tt.warning != "") || !strings.Contains(warning, tt.warning) {
			t.Errorf("%s:\n%s\n%s", tt.env, problem, warning)
		}
	}
	s, _, err := Read(env(strings.Fields(iam + "REDIS_AWS_IAM_REGION=r REDIS_PERSECOND=true " +
		"REDIS_PERSECOND_URL=rediss://d REDIS_PERSECOND_AWS_IAM_AUTH=true " +
		"REDIS_PERSECOND_AWS_IAM_CACHE_NAME=d REDIS_PERSECOND_AWS_IAM_USER_ID=u")...))
	want := AWSIAM{On: true, CacheName: "d", UserID: "u", Region: "r", Service: "elasticache"}
	if err != nil || s.RedisPerSecond.IAM != want {
		t.Errorf("%+v, %v", s.RedisPerSecond.IAM, err)
	}
}

// Flags say the same as the variables, in words of their own.
func TestParseRedis(t *testing.T) {
	called := func(word string) string { return "--redis-" + strings.ToLower(word) }
	for _, tt := range []struct {
		kind, url string
		want      Redis
		err       string
	}{
		{
			"single", "rediss://:p@redis/1",
			Redis{SocketType: "tcp", Addrs: []string{"redis:6379"}, Auth: ":p", DB: "1", TLS: true},
			"",
		},
		{"Single", "/run/redis.sock", Redis{SocketType: "unix", Addrs: []string{"/run/redis.sock"}}, ""},
		{"sentinel", "main,a:1", Redis{Primary: "main", Addrs: []string{"a:1"}}, ""},
		{"CLUSTER", "a:1,b:2", Redis{Addrs: []string{"a:1", "b:2"}}, ""},
		{"single", "", Redis{}, "--redis-url=: write host:port"},
		{"single", "http://secret", Redis{}, "--redis-url=…: it begins like a URL"},
		{"single", "a:1,b:2", Redis{}, "set --redis-type to SENTINEL or CLUSTER"},
		{"sentinel", "main", Redis{}, "--redis-url=…: with --redis-type=SENTINEL write the primary's name"},
		{"cluster", "secret", Redis{}, "--redis-url=…: a node is not host:port"},
		{"ring", "a:1", Redis{}, "--redis-type=ring: write single, sentinel or cluster"},
	} {
		got, err := ParseRedis(tt.kind, tt.url, called)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s %s: %v", tt.kind, tt.url, err)
			}
			continue
		}
		tt.want.Type, tt.want.URL = strings.ToUpper(tt.kind), tt.url
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s %s:\n got %+v, %v\nwant %+v", tt.kind, tt.url, got, err, tt.want)
		}
	}
}

func TestWarnings(t *testing.T) {
	s, warnings, err := Read(env("PORT=", "SHADOW_MODE=", "DOG_STATSD_MOGRIFIERS=a",
		"GRPC_SERVER_TLS_CA_CERT=/certs/ca.crt", "USE_PROMETHEUS=true", "TRACING_ENABLED=1"))
	want := []string{
		"PORT is set but empty; its default 8080 is used",
		"SHADOW_MODE is set but empty; its default false is used",
		"DOG_STATSD_MOGRIFIERS has no effect: envoyproxy/ratelimit never read it; its list is named USE_DOG_STATSD_MOGRIFIERS",
		"GRPC_SERVER_TLS_CA_CERT has no effect: envoyproxy/ratelimit never read it; with GRPC_CLIENT_TLS_CACERT clients " +
			"need a certificate, without it they need none",
	}
	if err != nil || !slices.Equal(warnings, want) || s.Port != 8080 {
		t.Errorf("%v\n got %q\nwant %q", err, warnings, want)
	}
}

func TestTable(t *testing.T) {
	seen := make(map[string]bool)
	for _, v := range Table() {
		if v.Section == "" || v.Name != strings.ToUpper(v.Name) || v.Type == "" || v.Meaning == "" || seen[v.Name] {
			t.Errorf("%+v", v)
		}
		seen[v.Name] = true
		if strings.Contains(v.Meaning, "|") {
			t.Errorf("%s: a bar would end the cell of a table", v.Name)
		}
	}
	if len(seen) < 30 {
		t.Errorf("only %d variables", len(seen))
	}
}

// Each field has a line in the table, and each default can be read. Lines without a field
// are of names with a part that varies, and of variables that are accepted without effect.
func TestTableHasFields(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		to      any
		table   []Variable
		without []string
	}{
		{new(Settings), Table(), []string{
			"REDIS_POOL_ON_EMPTY_BEHAVIOR", "REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", "DOG_STATSD_MOGRIFIER_<NAME>_PATTERN",
			"DOG_STATSD_MOGRIFIER_<NAME>_NAME", "DOG_STATSD_MOGRIFIER_<NAME>_TAGS", "OTEL_EXPORTER_OTLP_<NAME>",
		}},
		{new(DivvyVariables), DivvyTable(), nil},
	} {
		fields := make(map[string]reflect.Value)
		addFields(fields, reflect.ValueOf(tt.to).Elem(), "")
		var without []string
		for _, v := range tt.table {
			field, ok := fields[v.Name]
			if !ok {
				without = append(without, v.Name)
				continue
			}
			delete(fields, v.Name)
			texts := []string{v.Default}
			if v.instead != "" {
				texts = append(texts, v.replacement("-1", field.Interface()), v.replacement("-1s", field.Interface()),
					v.replacement("99999999999", field.Interface()), v.replacement("NaN", field.Interface()))
			}
			for _, text := range slices.DeleteFunc(texts, func(text string) bool { return text == "" }) {
				if err := v.assign(field, text); err != nil {
					t.Errorf("%s: the default or replacement %s: %v", v.Name, text, err)
				}
			}
		}
		if !slices.Equal(without, tt.without) || len(fields) > 0 {
			t.Errorf("%T: no fields for %q, no lines for %v", tt.to, without, fields)
		}
	}
}

func TestSinks(t *testing.T) {
	for _, tt := range []struct {
		env  string
		want Sink
		err  bool
	}{
		{"", SinkStatsd, false},
		{"USE_STATSD=false", SinkLog, false},
		{"USE_PROMETHEUS=true", SinkPrometheus, false},
		{"USE_STATSD= USE_PROMETHEUS=true", SinkPrometheus, false},
		{"USE_DOG_STATSD=true", SinkDogStatsd, false},
		{"USE_STATSD=false USE_PROMETHEUS=true", SinkPrometheus, false},
		{"USE_STATSD=true USE_PROMETHEUS=true", SinkNone, true},
		{"USE_DOG_STATSD=true USE_PROMETHEUS=true", SinkNone, true},
		{"DISABLE_STATS=true USE_DOG_STATSD=true USE_PROMETHEUS=true", SinkNone, false},
		{"OTEL_METRICS_EXPORTER=otlp", SinkNone, false},
		{"OTEL_METRICS_EXPORTER=otlp USE_STATSD=true", SinkStatsd, false},
		{"OTEL_METRICS_EXPORTER=otlp USE_PROMETHEUS=true", SinkPrometheus, false},
		{"OTEL_METRICS_EXPORTER=prometheus", SinkStatsd, false},
	} {
		s, _, err := Read(env(strings.Fields(tt.env)...))
		if s.Sink != tt.want || (err != nil) != tt.err {
			t.Errorf("%s: sink %d, %v", tt.env, s.Sink, err)
		}
	}
}

func TestOTLPMetrics(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		env      string
		on       bool
		protocol string
	}{
		{"", false, "http"},
		{"OTEL_METRICS_EXPORTER=none", false, "http"},
		{"OTEL_METRICS_EXPORTER=otlp", true, "http"},
		{"OTEL_METRICS_EXPORTER=otlp DISABLE_STATS=true", false, "http"},
		{"OTEL_METRICS_EXPORTER=otlp OTEL_EXPORTER_OTLP_PROTOCOL=grpc", true, "grpc"},
		{
			"OTEL_METRICS_EXPORTER=otlp OTEL_EXPORTER_OTLP_PROTOCOL=grpc OTEL_EXPORTER_OTLP_METRICS_PROTOCOL=http/protobuf",
			true, "http",
		},
	} {
		s, warnings, err := Read(env(strings.Fields(tt.env)...))
		got := s.OTLPMetrics
		if isIgnored := s.DisableStats; err != nil || (len(warnings) > 0) != isIgnored ||
			got.On != tt.on || got.Protocol != tt.protocol ||
			got.IntervalMilliseconds != 60_000 || got.TimeoutMilliseconds != 30_000 {
			t.Errorf("%s: %+v, %q, %v", tt.env, got, warnings, err)
		}
	}
	if s, _, err := ReadDivvy(env("OTEL_METRICS_EXPORTER=otlp")); !s.OTLPMetrics.On || err != nil {
		t.Errorf("divvy: %+v, %v", s.OTLPMetrics, err)
	}
}

func TestTagsAndMogrifiers(t *testing.T) {
	s, _, err := Read(env("EXTRA_TAGS=env:prod,zone:", "USE_DOG_STATSD=true", "USE_DOG_STATSD_MOGRIFIERS=A, b",
		"DOG_STATSD_MOGRIFIER_A_PATTERN=^a\\.(.*)", "DOG_STATSD_MOGRIFIER_A_NAME=a", "DOG_STATSD_MOGRIFIER_A_TAGS=t:$1",
		"DOG_STATSD_MOGRIFIER_B_PATTERN=b", "DOG_STATSD_MOGRIFIER_B_NAME=b"))
	if err != nil || len(s.ExtraTags) != 2 || s.ExtraTags["env"] != "prod" {
		t.Errorf("%v, %q", err, s.ExtraTags)
	}
	if len(s.Mogrifiers) != 2 || s.Mogrifiers[0].Name != "a" || s.Mogrifiers[0].Pattern.String() != `^a\.(.*)` ||
		s.Mogrifiers[0].Tags["t"] != "$1" || s.Mogrifiers[1].Name != "b" {
		t.Errorf("%+v", s.Mogrifiers)
	}
	_, _, err = Read(env("USE_DOG_STATSD=true", "USE_DOG_STATSD_MOGRIFIERS=X,Y", "DOG_STATSD_MOGRIFIER_X_TAGS=a:,b:c",
		"DOG_STATSD_MOGRIFIER_Y_PATTERN=(", "DOG_STATSD_MOGRIFIER_Y_NAME=y", "DOG_STATSD_MOGRIFIER_Y_TAGS=:v"))
	for _, want := range []string{
		"_X_PATTERN=:", "_X_NAME=:", "_X_TAGS=a:,b:c: write a value", "_Y_PATTERN=(:",
		"_Y_TAGS=:v: write key:value",
	} {
		if err == nil || !strings.Contains(err.Error(), "DOG_STATSD_MOGRIFIER"+want) {
			t.Errorf("no %s in %v", want, err)
		}
	}
	for _, bad := range []string{"EXTRA_TAGS=a", "EXTRA_TAGS=a:b:c", "EXTRA_TAGS=a:b,"} {
		if _, _, err := Read(env(bad)); err == nil || !strings.Contains(err.Error(), "write key:value") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// What Envoy Gateway sets, less what is about other things.
func TestXDS(t *testing.T) {
	s, warnings, err := Read(env(
		"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=envoy-gateway:18001",
		"CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit",
		"CONFIG_GRPC_XDS_SERVER_USE_TLS=true", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT=/certs/tls.crt",
		"CONFIG_GRPC_XDS_CLIENT_TLS_KEY=/certs/tls.key",
		"CONFIG_GRPC_XDS_SERVER_TLS_CACERT=/certs/ca.crt", "CONFIG_GRPC_XDS_SERVER_TLS_SAN=gateway",
		"CONFIG_GRPC_XDS_NODE_METADATA=zone=a,pod=p=1",
		"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=Authorization:Bearer a:b , x-t: 1",
		"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES=0x1000000", "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL=1s",
		"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=2s", "XDS_CLIENT_BACKOFF_MAX_INTERVAL=1m30s",
	))
	if err != nil || len(warnings) > 0 {
		t.Fatalf("%v, %q", err, warnings)
	}
	got := s.XDS
	if len(got.Servers) != 1 || got.Servers[0] != &s.XDS.First {
		t.Errorf("the servers are %v", got.Servers)
	}
	got.RandomFactor, got.JitterEnabled, got.First.HeaderText, got.First.MetadataText, got.Second, got.Servers = 0, false,
		"", "", XDSServer{}, nil
	want := XDS{
		First: XDSServer{
			Name: "xds", Prefix: "CONFIG_GRPC_XDS_", Server: "envoy-gateway:18001", NodeID: "envoy-ratelimit", TLS: true,
			ClientCert: "/certs/tls.crt", ClientKey: "/certs/tls.key",
			CACert: "/certs/ca.crt", ServerName: "gateway", NodeMetadata: map[string]string{"zone": "a", "pod": "p=1"},
			Headers: map[string]string{"authorization": "Bearer a:b", "x-t": "1"},
		}, MaxMessageBytes: 16 << 20,
		RetryInterval: time.Second, BackoffInitial: 2 * time.Second, BackoffMax: 90 * time.Second, BackoffGrowth: 2,
		BackoffJitter: 0.5,
	}
	if s.ConfigType != ConfigXDS || !reflect.DeepEqual(got, want) {
		t.Errorf("\n got %+v\nwant %+v", got, want)
	}
	s, warnings, err = Read(env("CONFIG_TYPE=GRPC_XDS_SOTW"))
	if err != nil || len(warnings) > 0 || s.XDS.First.Server != "localhost:18000" || s.XDS.First.NodeID != "default" ||
		s.XDS.RetryInterval != 3*time.Second ||
		s.XDS.BackoffInitial != 10*time.Second || s.XDS.BackoffMax != time.Minute || s.XDS.BackoffGrowth != 2 ||
		s.XDS.BackoffJitter != 0.5 {
		t.Errorf("%v, %q, %+v", err, warnings, s.XDS)
	}
}

func TestRuleSources(t *testing.T) {
	for _, tt := range []struct{ env, problem, warning, servers string }{
		{env: ""},
		{env: "CONFIG_TYPE=FILE"},
		{env: "CONFIG_TYPE=GRPC_XDS_DELTA", servers: "xds delta"},
		{env: "CONFIG_TYPE=FILE,GRPC_XDS_SOTW", servers: "xds"},
		{env: "CONFIG_TYPE=GRPC_XDS_SOTW, FILE, GRPC_XDS_DELTA|CONFIG_GRPC_XDS2_SERVER_URL=b:1", servers: "xds,xds2 delta"},
		{
			env: "CONFIG_TYPE=GRPC_XDS_SOTW,GRPC_XDS_SOTW", servers: "xds,xds2",
			problem: "CONFIG_GRPC_XDS2_SERVER_URL=: write host:port; TLS is a matter of CONFIG_GRPC_XDS2_SERVER_USE_TLS",
		},
		{env: "CONFIG_TYPE=FILE,FILE", problem: "CONFIG_TYPE=FILE,FILE: write FILE once, and at most two management servers"},
		{env: "CONFIG_TYPE=FILE,x", problem: "CONFIG_TYPE=FILE,x: write FILE, GRPC_XDS_SOTW or GRPC_XDS_DELTA, or several, " +
			"separated by commas", servers: "xds"},
		{
			env: "CONFIG_TYPE=FILE,GRPC_XDS_SOTW|CONFIG_GRPC_XDS2_SERVER_URL=b:1", servers: "xds",
			warning: "CONFIG_GRPC_XDS2_SERVER_URL=… has no effect: CONFIG_TYPE names no second management server; remove it, " +
				"or write one, such as CONFIG_TYPE=GRPC_XDS_SOTW,GRPC_XDS_DELTA",
		},
	} {
		s, warnings, err := Read(env(strings.Split(tt.env, "|")...))
		problem := ""
		if err != nil {
			problem = err.Error()
		}
		var servers []string
		if s != nil {
			for _, x := range s.XDS.Servers {
				servers = append(servers, x.Name)
				if x.Delta {
					servers[len(servers)-1] += " delta"
				}
			}
		}
		if err == nil && strings.Join(servers, ",") != tt.servers || problem != tt.problem ||
			strings.Join(warnings, "|") != tt.warning {
			t.Errorf("%s:\n got %s, %q, %s\nwant %s, %q, %s", tt.env, problem, warnings, servers, tt.problem, tt.warning,
				tt.servers)
		}
	}
}

func TestXDSBackoff(t *testing.T) {
	for _, tt := range []struct {
		env            string
		growth, jitter float64
	}{
		{"XDS_CLIENT_BACKOFF_RANDOM_FACTOR=0.25", 2, 0.25},
		{"XDS_CLIENT_BACKOFF_RANDOM_FACTOR=0", 2, 0},
		{"XDS_CLIENT_BACKOFF_RANDOM_FACTOR=1", 2, 1},
		{"XDS_CLIENT_BACKOFF_RANDOM_FACTOR=1.5", 1.5, 0.5},
		{"XDS_CLIENT_BACKOFF_RANDOM_FACTOR=3 XDS_CLIENT_BACKOFF_JITTER=false", 3, 0},
		{"XDS_CLIENT_BACKOFF_JITTER=false", 2, 0},
	} {
		s, _, err := Read(env(append(strings.Fields(tt.env), "CONFIG_TYPE=GRPC_XDS_SOTW")...))
		if err != nil || s.XDS.BackoffGrowth != tt.growth || s.XDS.BackoffJitter != tt.jitter {
			t.Errorf("%s: %v, %v, %v", tt.env, err, s.XDS.BackoffGrowth, s.XDS.BackoffJitter)
		}
	}
}

// A file of headers has one in each line, whose value may have commas.
func TestParseHeaders(t *testing.T) {
	got, err := ParseHeaders("Authorization: Bearer a,b\nx-t:1", "\n")
	if want := map[string]string{"authorization": "Bearer a,b", "x-t": "1"}; err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := ParseHeaders("secret", "\n"); err == nil || err.Error() != "write name:value in each line" {
		t.Error(err)
	}
}

func TestXDSProblems(t *testing.T) {
	const headers = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS"
	for _, tt := range []struct{ env, problem, warning string }{
		{
			env:     "CONFIG_TYPE=grpc_xds_sotw",
			problem: "CONFIG_TYPE=grpc_xds_sotw: write FILE, GRPC_XDS_SOTW or GRPC_XDS_DELTA, or several, separated by commas",
		},
		{
			env: "CONFIG_TYPE=FILE|CONFIG_GRPC_XDS_SERVER_URL=a:1",
			warning: "CONFIG_GRPC_XDS_SERVER_URL=… has no effect: CONFIG_TYPE is not GRPC_XDS_SOTW or GRPC_XDS_DELTA; remove " +
				"it, or set CONFIG_TYPE=GRPC_XDS_SOTW",
		},
		{env: "CONFIG_TYPE=FILE|" + headers + "=nonsense"},
		{
			env:     "CONFIG_GRPC_XDS_SERVER_URL=",
			problem: "CONFIG_GRPC_XDS_SERVER_URL=: write host:port; TLS is a matter of CONFIG_GRPC_XDS_SERVER_USE_TLS",
		},
		{
			env:     "CONFIG_GRPC_XDS_SERVER_URL=https://a:1",
			problem: "CONFIG_GRPC_XDS_SERVER_URL=https://a:1: write host:port; TLS is a matter of CONFIG_GRPC_XDS_SERVER_USE_TLS",
		},
		{env: headers + "=secret", problem: headers + "=…: write name:value, separated by commas"},
		{env: headers + "=x:1,grpc-timeout:secret"}, // gRPC leaves it out
		{env: headers + "=:secret", problem: headers + "=…: a name is none that gRPC sends: write letters, digits, dots, - and _"},
		{env: headers + "=x:sécret", problem: headers + "=…: the value of x is not printable ASCII"},
		{env: headers + "=x-bin:é"},
		{env: headers + "="},
		{
			env:     "CONFIG_GRPC_XDS_NODE_METADATA=a=1,b",
			warning: `CONFIG_GRPC_XDS_NODE_METADATA: "b" is left out: it is not key=value`,
		},
		{
			env:     "BACKEND_TYPE=redis|REDIS_URL=a:1|MEMORY_SNAPSHOT=/x",
			warning: "MEMORY_SNAPSHOT=/x has no effect: the counters are in Redis; remove it, or set BACKEND_TYPE=memory",
		},
		{
			env:     "BACKEND_TYPE=memory|COUNTING_MODE=leased",
			warning: "COUNTING_MODE=leased has no effect: the counters are in memory; remove it, or set BACKEND_TYPE=redis",
		},
		{
			env:     "BACKEND_TYPE=redis|REDIS_URL=a:1|COUNTING_MODE=lease",
			problem: "COUNTING_MODE=lease: write one of exact, leased",
		},
		{
			env: "CONFIG_GRPC_XDS_SERVER_USE_TLS=true|CONFIG_GRPC_XDS_CLIENT_TLS_CERT=c",
			warning: "CONFIG_GRPC_XDS_CLIENT_TLS_CERT=c has no effect: CONFIG_GRPC_XDS_CLIENT_TLS_KEY is not set; remove it, " +
				"or set CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
		},
		{
			env: "CONFIG_GRPC_XDS_SERVER_USE_TLS=true|CONFIG_GRPC_XDS_CLIENT_TLS_KEY=k",
			warning: "CONFIG_GRPC_XDS_CLIENT_TLS_KEY=k has no effect: CONFIG_GRPC_XDS_CLIENT_TLS_CERT is not set; remove it, " +
				"or set CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
		},
		{
			env: "CONFIG_GRPC_XDS_SERVER_TLS_CACERT=c",
			warning: "CONFIG_GRPC_XDS_SERVER_TLS_CACERT=c has no effect: CONFIG_GRPC_XDS_SERVER_USE_TLS is not true; remove " +
				"it, or set CONFIG_GRPC_XDS_SERVER_USE_TLS=true",
		},
		{
			env: "CONFIG_GRPC_XDS_SERVER_TLS_SAN=s",
			warning: "CONFIG_GRPC_XDS_SERVER_TLS_SAN=s has no effect: CONFIG_GRPC_XDS_SERVER_USE_TLS is not true; remove it, " +
				"or set CONFIG_GRPC_XDS_SERVER_USE_TLS=true",
		},
		{
			env:     "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES=2147483648",
			warning: "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES=2147483648: write a number of bytes, 0 to 2147483647; 2147483647 is used",
		},
		{
			env:     "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES=-1",
			warning: "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES=-1: write a number of bytes, 0 to 2147483647; 0 is used",
		},
		{
			env:     "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=0",
			warning: "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=0: write a duration, 10ms or more; 10ms is used",
		},
		{
			env:     "XDS_CLIENT_BACKOFF_RANDOM_FACTOR=-1",
			warning: "XDS_CLIENT_BACKOFF_RANDOM_FACTOR=-1: write a number, 0 or more; 0.5 is used",
		},
	} {
		_, warnings, err := Read(env(append([]string{"CONFIG_TYPE=GRPC_XDS_SOTW"}, strings.Split(tt.env, "|")...)...))
		problem := ""
		if err != nil {
			problem = err.Error()
		}
		if problem != tt.problem || strings.Join(warnings, "|") != tt.warning {
			t.Errorf("%s:\n got %s, %q\nwant %s, %q", tt.env, problem, warnings, tt.problem, tt.warning)
		}
	}
}

// A timeout that is longer than callers wait is a likely mistake, such as s for ms.
func TestLongStoreTimeout(t *testing.T) {
	for _, tt := range []struct{ store, name, value string }{
		{"redis", "REDIS_TIMEOUT", "50s"},
		{"redis", "REDIS_TIMEOUT", "1s"},
		{"memcache", "MEMCACHE_TIMEOUT", "50s"},
		{"memcache", "MEMCACHE_TIMEOUT", "50ms"},
	} {
		_, warnings, err := Read(env("BACKEND_TYPE="+tt.store, "REDIS_URL=a:1", "MEMCACHE_HOST_PORT=a:1",
			tt.name+"="+tt.value))
		warned := strings.Contains(strings.Join(warnings, "\n"), " is longer than callers wait (Envoy: 20ms)")
		if want := tt.value == "50s"; err != nil || warned != want {
			t.Errorf("%+v: warned: %t, %v", tt, warned, err)
		}
	}
}
