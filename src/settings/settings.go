// Package settings reads the environment into one typed value, once. Names,
// types and defaults are those of envoyproxy/ratelimit where it has them.
package settings

import (
	"fmt"
	"path"
	"regexp"
	"strings"
	"time"
)

// maxDescriptors is the default and the largest value of MAX_DESCRIPTORS.
const maxDescriptors = 1000

// Settings has the values of all environment variables.
type Settings struct {
	Host, DebugHost, GRPCHost string
	Port, DebugPort, GRPCPort int
	// GRPCUDS is the path of a unix socket; empty: TCP.
	GRPCUDS                   string
	GRPCMaxConnectionAge      time.Duration
	GRPCMaxConnectionAgeGrace time.Duration
	// Health is whether probes have a port of their own, HealthHost and HealthPort.
	Health     bool
	HealthHost string
	HealthPort int
	// HTTPMaxConns and GRPCMaxConns are of a port.
	HTTPMaxConns, GRPCMaxConns int
	// MemoryLimit is GOMEMLIMIT in bytes; math.MaxInt64: none.
	MemoryLimit int64
	// MaxConnsSet is whether any of *_MAX_CONNECTIONS is set.
	MaxConnsSet bool
	// GRPCMaxMessage is in bytes, GRPCMaxStreams of each connection.
	GRPCMaxMessage, GRPCMaxStreams      int
	GRPCKeepaliveTime, GRPCKeepaliveMin time.Duration // 0: never; no limit
	// MaxDescriptors is of one request.
	MaxDescriptors int
	DebugPprof     bool
	DebugToken     string
	GRPCReflection bool
	// DebugAllowedHosts are in lower case.
	DebugAllowedHosts []string
	// MaxBuffered is in bytes, for all callers together; above 0.
	MaxBuffered int64

	// TLS of the ports; that of divvy's port is in Divvy.
	GRPCTLS, HTTPTLS, DebugTLS ServerTLS
	Divvy                      Divvy
	// StandIn is set for `ratelimit divvy`, see ReadDivvy.
	StandIn *StandIn
	// NoHTTP, NoGRPC and NoDebug keep a port closed.
	NoHTTP, NoGRPC, NoDebug bool

	LogLevel, LogFormat string
	// LogDenials is how many denials are logged in a second at most; 0: none.
	LogDenials int

	ConfigType              string // FILE or ConfigXDS
	XDS                     XDS
	ForceStartWithoutConfig bool
	ConfigInitialTimeout    time.Duration
	MergeDomainConfig       bool
	ConfigAllOrNothing      bool
	RuntimeRoot             string
	RuntimeSubdirectory     string
	RuntimeAppDirectory     string
	RuntimeIgnoreDotFiles   bool
	RuntimeWatchRoot        bool
	RuntimeDebounce         time.Duration
	RuntimePollInterval     time.Duration
	RuntimeReadTimeout      time.Duration
	HealthyWithAtLeastOne   bool
	BackendType             string // memory, redis or memcache
	MemoryMaxBytes          int64
	CacheKeyPrefix          string
	CacheKeyFormat          string // v1 or v2
	LocalCacheBytes         int64
	ExpirationJitter        int
	Redis, RedisPerSecond   Redis
	// RedisSplit counts limits by the second in RedisPerSecond.
	RedisSplit                                bool
	RedisHealthCheck                          bool
	RedisTLS                                  TLSFiles
	RedisStartupInitial                       time.Duration
	RedisStartupMax                           time.Duration
	RedisStartupElapsed                       time.Duration
	Memcache                                  Memcache
	Failure                                   Failure
	StopIncrementWhenOver                     bool
	NearLimitRatio                            float32
	ShadowMode, QuotaMode                     bool
	LimitHeaders                              bool
	LimitHeader, RemainingHeader, ResetHeader string
	DynamicMetadata                           bool
	// Sink is where statistics go.
	Sink                  Sink
	StatsdHost            string
	StatsdPort            int
	StatsdProtocol        string // tcp or udp
	Mogrifiers            []Mogrifier
	PrometheusAddr        string
	PrometheusPath        string
	PrometheusMapper      string
	PrometheusMillisecond bool
	StatsFlushInterval    time.Duration
	ExtraTags             map[string]string
	StatsMaxSeries        int
	Tracing               Tracing
	ShutdownDrain         time.Duration
	ShutdownTimeout       time.Duration
}

// ConfigXDS is the CONFIG_TYPE of rules from a management server.
const ConfigXDS = "GRPC_XDS_SOTW"

// Sink is where statistics go.
type Sink uint8

// The sinks. Without any, statistics are logged as JSON lines.
const (
	SinkLog Sink = iota
	SinkNone
	SinkStatsd
	SinkDogStatsd
	SinkPrometheus
	SinkDivvy // divvy's own names, to statsd, to scrapes, to both or to neither; see StandIn
)

// Mogrifier turns parts of a statistic's name into DogStatsD tags.
type Mogrifier struct {
	Pattern *regexp.Regexp
	Name    string
	Tags    map[string]string
}

// Tracing describes this process in spans, the share of traced requests and the protocol.
type Tracing struct {
	Enabled                            bool
	Protocol                           string // http or grpc
	ServiceName, Namespace, InstanceID string
	SamplingRate                       float32
}

// Divvy is the port of divvy's line protocol.
type Divvy struct {
	On bool
	// WhenNeeded opens the port when a rule file of divvy is loaded.
	WhenNeeded        bool
	Host              string
	Port              int
	Domain, DomainKey string
	// OnlyList asks the only ordered list, if there is just one, before Domain.
	OnlyList     bool
	Keys         string // own or upstream
	Round        string // nearest or up
	MaxLine      int64
	MaxConns     int
	MaxPipelined int
	Idle         time.Duration // 0: for ever
	TLS          ServerTLS
}

// Redis is one Redis: the only one, or the one for limits by the second.
type Redis struct {
	Type       string // SINGLE, SENTINEL or CLUSTER
	SocketType string // of a SINGLE: tcp or unix
	URL        string // as it was set
	// Primary is its name in the sentinels.
	Primary string
	// Addrs are host:port or the path of a socket: the one server, sentinels, or
	// nodes of a cluster.
	Addrs []string
	DB    string
	// Auth is "password" or "user:password", of the variable or the URL.
	Auth, AuthFile                 string
	SentinelAuth, SentinelAuthFile string
	PoolSize                       int
	TLS                            bool
	Timeout                        time.Duration
	PipelineWindow                 time.Duration
	PipelineLimit                  int
	Parallelism                    int
}

// TLSFiles are the files of TLS to a store, and whether to verify its name.
type TLSFiles struct {
	ClientCert, ClientKey, CACert string
	SkipHostname                  bool
}

// Read reads all settings from lookup (os.LookupEnv). The error joins all problems; the
// warnings name variables that are set and have no effect.
func Read(lookup func(string) (string, bool)) (*Settings, []string, error) {
	s := new(Settings)
	r := &reader{lookup: lookup}
	s.declare(r)
	r.parsed = len(r.problems)
	r.silent()
	s.validate(r)
	return s, r.warnings, r.err()
}

// Table lists every variable in the order of the documentation.
func Table() []Variable {
	r := &reader{lookup: func(string) (string, bool) { return "", false }}
	new(Settings).declare(r)
	return r.table
}

// declare is the table of all variables: field, name, default, meaning and bounds.
// docs/settings.md is made from it.
func (s *Settings) declare(r *reader) {
	r.section("Listeners")
	r.text(&s.Host, "HOST", "0.0.0.0", "address of the HTTP port")
	r.port(&s.Port, "PORT", 8080, "HTTP port: `/json`, `/healthcheck`, `/livez`, `/readyz`; 0 picks a free one")
	r.text(&s.HealthHost, "HEALTH_HOST", "0.0.0.0", "address of the health port")
	s.Health, _ = r.optionalPort(&s.HealthPort, "HEALTH_PORT", 0, "port for probes only: `/healthcheck`, `/livez`, `/readyz`, as on the HTTP port, and independent of callers there; 0 picks a free one. Not set, or `off`: none")
	r.text(&s.GRPCHost, "GRPC_HOST", "0.0.0.0", "address of the gRPC port")
	r.port(&s.GRPCPort, "GRPC_PORT", 8081, "gRPC port: `RateLimitService` v3, health")
	r.text(&s.GRPCUDS, "GRPC_UDS", "", "path of a unix socket on which gRPC listens instead of the port")
	r.text(&s.DebugHost, "DEBUG_HOST", "0.0.0.0", "address of the debug port")
	r.port(&s.DebugPort, "DEBUG_PORT", 6070, "debug port: `/rlconfig`, `/stats`, `/debug/pprof/`")
	r.list(&s.DebugAllowedHosts, "DEBUG_ALLOWED_HOSTS", "host names of the debug port, such as `ratelimit-debug.example`, beside IP addresses and `localhost`. Other names in the `Host` header are refused, so that a web page cannot read the port through a browser")
	for i, host := range s.DebugAllowedHosts {
		s.DebugAllowedHosts[i] = strings.ToLower(host)
	}
	r.flag(&s.DebugPprof, "DEBUG_PPROF", true, "offer Go's profiles on the debug port")
	r.text(&s.DebugToken, "DEBUG_TOKEN", "", "token that requests to the debug port must send, as `Authorization: Bearer <token>` or as the password of basic authentication; empty: none")
	r.count(&s.HTTPMaxConns, "HTTP_MAX_CONNECTIONS", 10_000, "most connections of the HTTP port. Beyond it the longest idle one is closed, or the new one if none is idle. Lowered if `ulimit -n` or half of `GOMEMLIMIT` do not allow as many; the log says so at the start")
	r.count(&s.GRPCMaxConns, "GRPC_MAX_CONNECTIONS", 20_000, "the same for the gRPC port. An idle connection takes some 21 KB")
	s.MemoryLimit = r.memoryLimit()
	for _, name := range []string{"HTTP_MAX_CONNECTIONS", "GRPC_MAX_CONNECTIONS", "DIVVY_MAX_CONNECTIONS"} {
		_, set := r.lookup(name)
		s.MaxConnsSet = s.MaxConnsSet || set
	}
	r.duration(&s.GRPCMaxConnectionAge, "GRPC_MAX_CONNECTION_AGE", 24*time.Hour, "age at which a gRPC connection is asked to close, plus or minus 10 %, so that load spreads over new replicas; 0: never")
	r.duration(&s.GRPCMaxConnectionAgeGrace, "GRPC_MAX_CONNECTION_AGE_GRACE", time.Hour, "time for running calls to finish then")
	r.count(&s.GRPCMaxMessage, "GRPC_MAX_MESSAGE_BYTES", 4<<20, "largest request; a larger one is answered RESOURCE_EXHAUSTED")
	r.count(&s.MaxDescriptors, "MAX_DESCRIPTORS", maxDescriptors, "most descriptors of a request, on every port; at most 1000. More are answered RESOURCE_EXHAUSTED, or 413 on `/json`").
		refuse(s.MaxDescriptors > maxDescriptors, fmt.Sprintf("a whole number from 1 to %d", maxDescriptors))
	r.count(&s.GRPCMaxStreams, "GRPC_MAX_CONCURRENT_STREAMS", 10_000, "most calls of one connection at a time; more wait in the client")
	r.duration(&s.GRPCKeepaliveTime, "GRPC_KEEPALIVE_TIME", 5*time.Minute, "a client is pinged after this time without traffic, and disconnected if it does not answer in 20s; 0: never").
		pauseOr0(time.Second) // gRPC would use 1s
	r.duration(&s.GRPCKeepaliveMin, "GRPC_KEEPALIVE_MIN_INTERVAL", 10*time.Second, "clients that ping more often than this are disconnected; 0: no limit")

	r.flag(&s.GRPCReflection, "GRPC_REFLECTION", false, "offer gRPC reflection, so that tools such as grpcurl need no .proto files")
	r.bytes(&s.MaxBuffered, "MAX_BUFFERED_BYTES", r.defaultBuffered(), "most memory for data of all callers: requests, unread replies, streams, HTTP bodies. Beyond it the connections that hold the most are closed. A quarter of `GOMEMLIMIT` if that is set").atLeast(minBuffered)

	r.section("TLS")
	s.GRPCTLS.declareGRPC(r)
	s.HTTPTLS.declare(r, "HTTP_", "the HTTP port")
	s.DebugTLS.declare(r, "DEBUG_", "the debug port")

	s.Divvy.declare(r)

	r.section("Logs")
	r.oneOf(&s.LogLevel, "LOG_LEVEL", "WARN", "how much is logged", "panic", "fatal", "error", "warn", "warning", "info", "debug", "trace")
	r.text(&s.LogFormat, "LOG_FORMAT", "text", "`json`, or anything else for text")

	r.integer(&s.LogDenials, "LOG_DENIALS", 0, "most denied requests to log per second, at any level: domain, rule, descriptor and wait. Values of descriptors, such as addresses and names of users, are then in the log; 0: none").
		refuse(s.LogDenials < 0 || s.LogDenials > maxLogDenials, fmt.Sprintf("a whole number from 0 to %d", maxLogDenials))

	r.section("Rules")
	r.text(&s.ConfigType, "CONFIG_TYPE", "FILE", "where rules come from: `FILE`, or `GRPC_XDS_SOTW` for a management server")
	r.text(&s.RuntimeRoot, "RUNTIME_ROOT", "/srv/runtime_data/current", "rule files are in `RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY`, at any depth: `*.yaml`, `*.yml`, `*.ini`, `*.json`, and files without a suffix that have a `domain`")
	r.text(&s.RuntimeSubdirectory, "RUNTIME_SUBDIRECTORY", "", "may be empty")
	r.text(&s.RuntimeAppDirectory, "RUNTIME_APPDIRECTORY", "config", "may be empty")
	r.flag(&s.RuntimeIgnoreDotFiles, "RUNTIME_IGNOREDOTFILES", false, "skip files and directories whose names begin with a dot; names that begin with two are always skipped")
	r.flag(&s.RuntimeWatchRoot, "RUNTIME_WATCH_ROOT", true, "accepted, no effect: a swapped root and a change inside are both always noticed")
	r.duration(&s.RuntimeDebounce, "RUNTIME_DEBOUNCE", 100*time.Millisecond, "time without further changes before rules are read")
	r.duration(&s.RuntimePollInterval, "RUNTIME_POLL_INTERVAL", 30*time.Second, "how often the contents of files are compared if the file system reports no changes; 0: never").pauseOr0(minPause)
	r.duration(&s.RuntimeReadTimeout, "RUNTIME_READ_TIMEOUT", 10*time.Second, "longest time to read the rule files before the change is refused; 0: the default").pauseOr0(minPause)
	r.flag(&s.ConfigAllOrNothing, "CONFIG_ALL_OR_NOTHING", false, "refuse all changes of rules while one file or xDS resource has a mistake; otherwise domains that it does not touch change")
	r.flag(&s.MergeDomainConfig, "MERGE_DOMAIN_CONFIG", false, "allow one domain in several files or xDS resources; their top-level descriptors are joined")
	r.flag(&s.ForceStartWithoutConfig, "FORCE_START_WITHOUT_INITIAL_CONFIG", false, "be healthy before the first rules are loaded")
	r.duration(&s.ConfigInitialTimeout, "CONFIG_INITIAL_TIMEOUT", 0, "exit with status 1 if no valid rules were loaded by then; 0: wait for ever, not ready")
	r.flag(&s.HealthyWithAtLeastOne, "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", false, "be healthy only while at least one domain is loaded")

	s.XDS.declare(r)

	r.section("Limiting")
	r.text(&s.BackendType, "BACKEND_TYPE", "", "where counters are: `memory` (this process), `redis` or `memcache`. Not set: redis if any `REDIS_` variable is set or the socket `"+RedisSocket+"` exists, else memory")
	r.bytes(&s.MemoryMaxBytes, "MEMORY_MAX_BYTES", r.defaultMemory(), "most memory for counters in this process; beyond it those that matter least are evicted. The default is at most half of `GOMEMLIMIT`").atLeast(minMemory)
	r.text(&s.CacheKeyPrefix, "CACHE_KEY_PREFIX", "", "prefix of every key in the store")
	r.oneOf(&s.CacheKeyFormat, "CACHE_KEY_FORMAT", "v1", "how keys are written: `v1` as in envoyproxy/ratelimit, `v2` so that different descriptors never share a counter. A change starts new counters, so change all replicas at once", "v1", "v2")
	r.flag(&s.StopIncrementWhenOver, "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", false, "charge a request only if none of its descriptors is over the limit")
	r.decimal(&s.NearLimitRatio, "NEAR_LIMIT_RATIO", 0.8, func(f float64) bool { return f > 0 && f <= 1 }, "write a number above 0, up to 1, such as 0.8",
		"share of a limit from which hits are counted as near it, above 0 and up to 1")
	r.flag(&s.ShadowMode, "SHADOW_MODE", false, "let every request pass; statuses and counters still show what would have been refused")
	r.flag(&s.QuotaMode, "QUOTA_MODE", false, "treat every descriptor as if its rule had `quota_mode`: a request is refused only if all are over")

	r.integer(&s.ExpirationJitter, "EXPIRATION_JITTER_MAX_SECONDS", 300, "a random time below this many seconds is added to the expiry of each key in Redis and Memcached; 0: none")
	r.size(&s.LocalCacheBytes, "LOCAL_CACHE_SIZE_IN_BYTES", 0, "size of the over-limit cache in front of Redis or Memcached, at least 512 KiB; 0: none").atMost(maxLocalCache)

	s.declareRedis(r)
	s.Memcache.declare(r)
	s.Failure.declare(r)

	r.section("Answers")
	r.flag(&s.LimitHeaders, "LIMIT_RESPONSE_HEADERS_ENABLED", false, "add response headers with the limit, what remains of it and the seconds to its reset, and `Retry-After` when over")
	r.text(&s.LimitHeader, "LIMIT_LIMIT_HEADER", "RateLimit-Limit", "name of the first")
	r.text(&s.RemainingHeader, "LIMIT_REMAINING_HEADER", "RateLimit-Remaining", "name of the second")
	r.text(&s.ResetHeader, "LIMIT_RESET_HEADER", "RateLimit-Reset", "name of the third")
	r.flag(&s.DynamicMetadata, "RESPONSE_DYNAMIC_METADATA", false, "return the request and the `metadata` of the rules that passed in `dynamic_metadata`")

	r.section("Statistics")
	var statsd, dogStatsd, prometheus, disable bool
	r.flag(&statsd, "USE_STATSD", true, "send counters to statsd; off by default if another sink is selected")
	r.text(&s.StatsdHost, "STATSD_HOST", "localhost", "host of statsd, or of the DogStatsD agent")
	r.port(&s.StatsdPort, "STATSD_PORT", 8125, "its port")
	r.oneOf(&s.StatsdProtocol, "STATSD_PROTOCOL", "tcp", "for statsd; DogStatsD is always udp", "tcp", "udp")
	r.flag(&dogStatsd, "USE_DOG_STATSD", false, "send counters to a DogStatsD agent")
	var mogrifiers []string
	r.list(&mogrifiers, "USE_DOG_STATSD_MOGRIFIERS", "names of mogrifiers, in the order they are tried")
	r.document("DOG_STATSD_MOGRIFIER_<NAME>_PATTERN", "regexp", "regular expression, not anchored; matching statistics are renamed; required")
	r.document("DOG_STATSD_MOGRIFIER_<NAME>_NAME", "text", "the new name; `$1` is the first group; required")
	r.document("DOG_STATSD_MOGRIFIER_<NAME>_TAGS", "map", "tags to add, `tag:$2,other:text`")
	r.flag(&prometheus, "USE_PROMETHEUS", false, "answer Prometheus' scrapes with counters under the names of the mapping, and with native metrics")
	r.text(&s.PrometheusAddr, "PROMETHEUS_ADDR", ":9090", "address for scrapes")
	r.text(&s.PrometheusPath, "PROMETHEUS_PATH", "/metrics", "path for scrapes")
	r.text(&s.PrometheusMapper, "PROMETHEUS_MAPPER_YAML", "", "statsd_exporter mapping file that replaces the built-in mapping; a missing file is a warning")
	r.flag(&s.PrometheusMillisecond, "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", false, "keep response times in milliseconds (built-in mapping only)")
	r.flag(&disable, "DISABLE_STATS", false, "send no statistics; takes precedence over all of the above")
	r.duration(&s.StatsFlushInterval, "STATS_FLUSH_INTERVAL", 10*time.Second, "how often counters are sent").
		refuse(s.StatsFlushInterval < minPause, minPause.String()+" or more; DISABLE_STATS=true sends nothing")
	r.tags(&s.ExtraTags, "EXTRA_TAGS", "tags on every statistic, `env:prod,zone:a`")
	r.count(&s.StatsMaxSeries, "STATS_MAX_SERIES", 10_000, "most counters with names from callers (`detailed_metric`, `value_to_metric`, request limits, unknown domains); the least recently used are dropped")
	s.Sink = r.sink(statsd, dogStatsd, prometheus, disable)
	if s.Mogrifiers = nil; s.Sink == SinkDogStatsd {
		for _, id := range mogrifiers {
			s.Mogrifiers = append(s.Mogrifiers, r.mogrifier(id))
		}
	}

	r.section("Tracing")
	r.flag(&s.Tracing.Enabled, "TRACING_ENABLED", false, "send spans of requests to an OpenTelemetry collector")
	r.oneOf(&s.Tracing.Protocol, "TRACING_EXPORTER_PROTOCOL", "http", "protocol", "http", "grpc")
	r.text(&s.Tracing.ServiceName, "TRACING_SERVICE_NAME", "RateLimit", "`service.name` of the spans")
	r.text(&s.Tracing.Namespace, "TRACING_SERVICE_NAMESPACE", "", "`service.namespace`; none if empty")
	r.text(&s.Tracing.InstanceID, "TRACING_SERVICE_INSTANCE_ID", "", "`service.instance.id`, such as the name of the pod; a random UUID if empty")
	r.decimal(&s.Tracing.SamplingRate, "TRACING_SAMPLING_RATE", 1, func(f float64) bool { return f >= 0 && f <= 1 }, "write a number from 0 to 1, such as 0.8",
		"share of requests that are traced if the caller has not decided; 1: all, 0: none")
	r.document("OTEL_EXPORTER_OTLP_<NAME>", "text", "the collector: `ENDPOINT` (`https://localhost:4318`, with grpc `:4317`), `HEADERS`, `TIMEOUT` in milliseconds, `INSECURE`, `CERTIFICATE`, `CLIENT_CERTIFICATE`, `CLIENT_KEY`, `COMPRESSION`, as OpenTelemetry documents them")

	r.section("Shutdown")
	r.duration(&s.ShutdownDrain, "SHUTDOWN_DRAIN", 0, "time between becoming unhealthy and closing the ports, for load balancers to notice")
	r.duration(&s.ShutdownTimeout, "SHUTDOWN_TIMEOUT", 30*time.Second, "time for running calls and open streams to finish then")
}

// promPath is a path without characters that mean something in URLs or Go's patterns.
var promPath = regexp.MustCompile(`^/[-A-Za-z0-9._~/]*$`)

// minMemory is the size of the empty tables of the memory store.
const minMemory = 128 << 10

// maxLocalCache keeps a mistyped size from ending the process, which allocates it at the
// start.
const maxLocalCache = 64 << 30

// maxLogDenials is the room of the log's queue, see package logging.
const maxLogDenials = 10_000

// minBuffered has room for the largest body of an HTTP request.
const minBuffered = 1 << 20

// headerName is a token of RFC 9110.
var headerName = regexp.MustCompile("^[-!#$%&'*+.^_`|~0-9A-Za-z]+$")

// validate checks what depends on several variables.
func (s *Settings) validate(r *reader) {
	if s.ConfigType != "FILE" && s.ConfigType != ConfigXDS {
		r.problem("CONFIG_TYPE", s.ConfigType, "write FILE or "+ConfigXDS)
	}
	s.XDS.validate(r, s.ConfigType == ConfigXDS)
	if s.CacheKeyFormat == "v2" && strings.ContainsAny(s.CacheKeyPrefix, "{}") {
		r.problem("CACHE_KEY_PREFIX", s.CacheKeyPrefix, "leave out { and }, which CACHE_KEY_FORMAT=v2 puts around what belongs on one server")
	}
	s.validateStore(r)
	s.Divvy.validate(r)
	if s.Sink == SinkStatsd || s.Sink == SinkDogStatsd {
		if s.StatsdHost == "" {
			r.problem("STATSD_HOST", "", "write the name of the host")
		}
		if s.StatsdPort == 0 {
			r.problem("STATSD_PORT", "0", "write the port")
		}
	}
	for key := range s.ExtraTags {
		if s.Sink == SinkPrometheus && (key == "le" || key == "quantile") {
			r.problem("EXTRA_TAGS", key, "Prometheus uses a label of that name itself: choose another")
		}
	}
	if s.PrometheusPath == "" {
		s.PrometheusPath = "/metrics"
		r.warnings = append(r.warnings, "PROMETHEUS_PATH is set but empty; its default /metrics is used")
	}
	if !promPath.MatchString(s.PrometheusPath) || s.PrometheusPath != "/" && path.Clean(s.PrometheusPath) != strings.TrimSuffix(s.PrometheusPath, "/") {
		r.problem("PROMETHEUS_PATH", s.PrometheusPath, "write a path such as /metrics")
	}
	for name, value := range map[string]*string{
		"LIMIT_LIMIT_HEADER": &s.LimitHeader, "LIMIT_REMAINING_HEADER": &s.RemainingHeader, "LIMIT_RESET_HEADER": &s.ResetHeader,
	} {
		if s.LimitHeaders && !headerName.MatchString(*value) {
			r.problem(name, *value, "write the name of an HTTP header")
		}
	}
	s.Failure.validate(r)
	s.validateTLS(r)
	s.forgive(r)
}

// forgive turns mistakes in variables of parts that are off into warnings. Those of
// stores are in forgiveStore.
func (s *Settings) forgive(r *reader) {
	if s.Sink != SinkDogStatsd && !r.unreadable("USE_DOG_STATSD") {
		r.warnUnused("USE_DOG_STATSD is not true", "set USE_DOG_STATSD=true", "USE_DOG_STATSD_MOGRIFIERS")
	}
	switch {
	case s.Sink == SinkDogStatsd:
		r.forgive("DogStatsD is always udp", begins("STATSD_PROTOCOL"))
	case s.Sink != SinkStatsd:
		r.forgive("nothing is sent to statsd", begins("STATSD_"))
	}
	if s.Sink == SinkNone {
		r.forgive("nothing is sent", begins("STATS_FLUSH_INTERVAL", "EXTRA_TAGS"))
	}
	if s.Sink != SinkPrometheus {
		r.forgive("USE_PROMETHEUS is not true", begins("PROMETHEUS_"))
	}
	if !s.Tracing.Enabled && !r.unreadable("TRACING_ENABLED") {
		r.forgive("TRACING_ENABLED is not true", begins("TRACING_EXPORTER_PROTOCOL"))
	}
	if s.GRPCUDS != "" {
		r.forgive("GRPC_UDS is set", begins("GRPC_PORT"))
	}
	switch s.ConfigType {
	case ConfigXDS:
		r.forgive("rules come from the management server", begins("RUNTIME_"))
	case "FILE":
		r.forgive("CONFIG_TYPE is not "+ConfigXDS, begins("CONFIG_GRPC_XDS_", "XDS_CLIENT_"))
	}
	if !s.Divvy.On && !s.Divvy.WhenNeeded {
		r.forgive("DIVVY_PORT is off", func(name string) bool { return name != "DIVVY_PORT" && strings.HasPrefix(name, "DIVVY_") })
	}
}
