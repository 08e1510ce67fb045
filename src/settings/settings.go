// Package settings reads the environment into one typed value, once. Names, types and defaults are those of
// envoyproxy/ratelimit where it has them.
//
// The table settings.txt has the type, bounds, default and meaning of each variable. The tag `env` of a field is the
// name of its variable. The tag of a field that is a struct is put before the names in the struct: Redis has the tag
// REDIS_ and its field URL reads REDIS_URL.
package settings

import (
	"cmp"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

// PeersTLS are paths of PEM files for the connections to the debug ports of other replicas; empty for none.
type PeersTLS struct {
	CACert string `env:"CACERT"`
	Cert   string `env:"CERT"`
	Key    string `env:"KEY"`
}

// Settings has the values of all environment variables. docs/settings.md explains each one.
type Settings struct {
	Host       string `env:"HOST"`
	Port       int    `env:"PORT"`
	Health     bool   // set if HEALTH_PORT names a port.
	HealthHost string `env:"HEALTH_HOST"`
	HealthPort int    `env:"HEALTH_PORT"`
	GRPCHost   string `env:"GRPC_HOST"`
	GRPCPort   int    `env:"GRPC_PORT"`
	// the path of a unix socket that replaces the port; empty for none.
	GRPCUDS                   string        `env:"GRPC_UDS"`
	DebugHost                 string        `env:"DEBUG_HOST"`
	DebugPort                 int           `env:"DEBUG_PORT"`
	DebugAllowedHosts         []string      `env:"DEBUG_ALLOWED_HOSTS"` // host names in lower case.
	DebugPprof                bool          `env:"DEBUG_PPROF"`
	DebugToken                string        `env:"DEBUG_TOKEN"`
	DebugTokenFile            string        `env:"DEBUG_TOKEN_FILE"`     // takes precedence over DebugToken.
	DebugPeers                []string      `env:"DEBUG_PEERS"`          // addresses of debug ports; empty for none.
	HTTPMaxConns              int           `env:"HTTP_MAX_CONNECTIONS"` // bounds the connections of each HTTP port.
	GRPCMaxConns              int           `env:"GRPC_MAX_CONNECTIONS"`
	MaxConnsSet               bool          // set if any variable *_MAX_CONNECTIONS is set.
	MemoryLimit               int64         // GOMEMLIMIT in bytes; math.MaxInt64 without a limit.
	QuotaMaxBuckets           int           `env:"QUOTA_MAX_BUCKETS"`
	QuotaAbandonAfter         time.Duration `env:"QUOTA_ABANDON_AFTER"`
	QuotaMaxReportBytes       int           `env:"QUOTA_MAX_REPORT_BYTES"`
	GRPCMaxConnectionAge      time.Duration `env:"GRPC_MAX_CONNECTION_AGE"`
	GRPCMaxConnectionAgeGrace time.Duration `env:"GRPC_MAX_CONNECTION_AGE_GRACE"`
	GRPCMaxMessage            int           `env:"GRPC_MAX_MESSAGE_BYTES"`
	MaxDescriptors            int           `env:"MAX_DESCRIPTORS"`
	GRPCMaxStreams            int           `env:"GRPC_MAX_CONCURRENT_STREAMS"` // bounds the streams of each connection.
	GRPCKeepaliveTime         time.Duration `env:"GRPC_KEEPALIVE_TIME"`
	GRPCKeepaliveMin          time.Duration `env:"GRPC_KEEPALIVE_MIN_INTERVAL"`
	GRPCReflection            bool          `env:"GRPC_REFLECTION"`
	GRPCEngine                string        `env:"GRPC_ENGINE"` // "h2" or EngineGRPCGo.
	// bounds the bytes that are held for all callers together.
	MaxBuffered             int64 `env:"MAX_BUFFERED_BYTES"`
	NoHTTP, NoGRPC, NoDebug bool  // set if that port is not opened

	GRPCUseTLS bool      `env:"GRPC_SERVER_USE_TLS"` // the same as GRPCTLS.On.
	GRPCTLS    ServerTLS `env:"GRPC_"`
	HTTPTLS    ServerTLS `env:"HTTP_"`
	DebugTLS   ServerTLS `env:"DEBUG_"`
	PeersTLS   PeersTLS  `env:"DEBUG_PEERS_TLS_"`
	Divvy      Divvy     `env:"DIVVY_"`
	RESP       RESP      `env:"RESP_"`
	// DivvyVariables are divvy's own variables. Nil unless ReadDivvy has set it.
	DivvyVariables *DivvyVariables

	LogLevel   string `env:"LOG_LEVEL"`
	LogFormat  string `env:"LOG_FORMAT"`
	LogDenials int    `env:"LOG_DENIALS"` // bounds the denied requests that are logged per second.

	// the number of sampled denials that the operator's page has; 0 for none.
	RecentDenials    int `env:"RECENT_DENIALS"`
	TopSubjectsRules int `env:"TOP_SUBJECTS_RULES"` // the number of rules whose subjects are ranked; 0 for none.

	ConfigType              string        `env:"CONFIG_TYPE"` // a list of ConfigFile, ConfigXDS and ConfigXDSDelta.
	RuntimeRoot             string        `env:"RUNTIME_ROOT"`
	RuntimeSubdirectory     string        `env:"RUNTIME_SUBDIRECTORY"`
	RuntimeAppDirectory     string        `env:"RUNTIME_APPDIRECTORY"`
	RuntimeCandidate        string        `env:"RUNTIME_CANDIDATE_SUBDIRECTORY"` // empty if there are no candidate rules.
	CandidateMaxLoad        float32       `env:"CANDIDATE_MAX_LOAD"`
	RuntimeIgnoreDotFiles   bool          `env:"RUNTIME_IGNOREDOTFILES"`
	RuntimeWatchRoot        bool          `env:"RUNTIME_WATCH_ROOT"`
	RuntimeDebounce         time.Duration `env:"RUNTIME_DEBOUNCE"`
	RuntimePollInterval     time.Duration `env:"RUNTIME_POLL_INTERVAL"`
	RuntimeReadTimeout      time.Duration `env:"RUNTIME_READ_TIMEOUT"`
	ConfigAllOrNothing      bool          `env:"CONFIG_ALL_OR_NOTHING"`
	MergeDomainConfig       bool          `env:"MERGE_DOMAIN_CONFIG"`
	ForceStartWithoutConfig bool          `env:"FORCE_START_WITHOUT_INITIAL_CONFIG"`
	ConfigInitialTimeout    time.Duration `env:"CONFIG_INITIAL_TIMEOUT"`
	HealthyWithAtLeastOne   bool          `env:"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED"`
	XDS                     XDS

	BackendType            string        `env:"BACKEND_TYPE"` // memory, redis or memcache.
	MemoryMaxBytes         int64         `env:"MEMORY_MAX_BYTES"`
	MemorySnapshot         string        `env:"MEMORY_SNAPSHOT"` // the path of the file with the counters; empty for none.
	MemorySnapshotInterval time.Duration `env:"MEMORY_SNAPSHOT_INTERVAL"`
	MemoryCounterNames     bool          `env:"MEMORY_COUNTER_NAMES"`
	OverridesFile          string        `env:"OVERRIDES_FILE"` // the path of the file with changed limits; empty for none.
	OverridesMax           int           `env:"OVERRIDES_MAX"`  // 0: limits cannot be changed at run time.
	CacheKeyPrefix         string        `env:"CACHE_KEY_PREFIX"`
	CacheKeyFormat         string        `env:"CACHE_KEY_FORMAT"`
	StopIncrementWhenOver  bool          `env:"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT"`
	CountingMode           string        `env:"COUNTING_MODE"`   // of limits whose rules have no counting.
	ContentionMode         string        `env:"CONTENTION_MODE"` // of limits whose rules have no on_contention.
	LeaseMaxBytes          int64         `env:"LEASE_MAX_BYTES"`
	NearLimitRatio         float32       `env:"NEAR_LIMIT_RATIO"`
	ShadowMode             bool          `env:"SHADOW_MODE"`
	QuotaMode              bool          `env:"QUOTA_MODE"`
	ExpirationJitter       int           `env:"EXPIRATION_JITTER_MAX_SECONDS"`
	LocalCacheBytes        int64         `env:"LOCAL_CACHE_SIZE_IN_BYTES"`

	NotifyURL    string `env:"NOTIFY_URL"`
	NotifySecret string `env:"NOTIFY_SECRET"`
	// NotifyURLs has the variables whose names begin with NotifyURLPrefix.
	NotifyURLs map[string]string

	Redis               Redis         `env:"REDIS_"`
	RedisTLS            TLSFiles      `env:"REDIS_TLS_"`
	RedisHealthCheck    bool          `env:"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION"`
	RedisStartupInitial time.Duration `env:"REDIS_STARTUP_INITIAL_INTERVAL"`
	RedisStartupMax     time.Duration `env:"REDIS_STARTUP_MAX_INTERVAL"`
	RedisStartupElapsed time.Duration `env:"REDIS_STARTUP_MAX_ELAPSED_TIME"`
	RedisSplit          bool          `env:"REDIS_PERSECOND"` // set if limits per second are stored in RedisPerSecond.
	RedisPerSecond      Redis         `env:"REDIS_PERSECOND_"`
	Memcache            Memcache      `env:"MEMCACHE_"`
	Failure             Failure

	LimitHeaders       bool   `env:"LIMIT_RESPONSE_HEADERS_ENABLED"`
	LimitHeadersFormat string `env:"LIMIT_RESPONSE_HEADERS_FORMAT"` // HeadersSeparate or HeadersIETF.
	LimitHeader        string `env:"LIMIT_LIMIT_HEADER"`
	RemainingHeader    string `env:"LIMIT_REMAINING_HEADER"`
	ResetHeader        string `env:"LIMIT_RESET_HEADER"`
	DynamicMetadata    bool   `env:"RESPONSE_DYNAMIC_METADATA"`

	Sink                  Sink              // the destination of statistics.
	UseStatsd             bool              `env:"USE_STATSD"`
	StatsdByDefault       bool              // set if no variable asks for statsd: it may not be there.
	UseDogStatsd          bool              `env:"USE_DOG_STATSD"`
	UsePrometheus         bool              `env:"USE_PROMETHEUS"`
	DisableStats          bool              `env:"DISABLE_STATS"`
	StatsdHost            string            `env:"STATSD_HOST"`
	StatsdPort            int               `env:"STATSD_PORT"`
	StatsdProtocol        string            `env:"STATSD_PROTOCOL"`
	MogrifierNames        []string          `env:"USE_DOG_STATSD_MOGRIFIERS"`
	Mogrifiers            []Mogrifier       // used if Sink is SinkDogStatsd.
	PrometheusAddr        string            `env:"PROMETHEUS_ADDR"`
	PrometheusPath        string            `env:"PROMETHEUS_PATH"`
	PrometheusMapper      string            `env:"PROMETHEUS_MAPPER_YAML"`
	PrometheusMillisecond bool              `env:"PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS"`
	StatsFlushInterval    time.Duration     `env:"STATS_FLUSH_INTERVAL"`
	ExtraTags             map[string]string `env:"EXTRA_TAGS"`
	StatsMaxSeries        int               `env:"STATS_MAX_SERIES"`
	SanitizeDots          bool              `env:"SANITIZE_DESCRIPTOR_METRIC_DOTS"`

	Tracing         Tracing       `env:"TRACING_"`
	OTLPMetrics     OTLPMetrics   `env:"OTEL_"`
	ShutdownDrain   time.Duration `env:"SHUTDOWN_DRAIN"`
	ShutdownTimeout time.Duration `env:"SHUTDOWN_TIMEOUT"`
}

// These are words that variables may have as values.
const (
	// The items of CONFIG_TYPE: rules come from files, or from a management server in one of the two variants of xDS.
	ConfigFile     = "FILE"
	ConfigXDS      = "GRPC_XDS_SOTW"
	ConfigXDSDelta = "GRPC_XDS_DELTA"

	// Settings.GRPCEngine
	EngineGRPCGo = "grpc-go"

	// Settings.LimitHeadersFormat
	HeadersSeparate = "separate"
	HeadersIETF     = "ietf"
)

// Tracing has the names of this process in spans, the share of traced requests, from 0 to 1, and the protocol of the
// collector.
type Tracing struct {
	Enabled      bool    `env:"ENABLED"`
	Protocol     string  `env:"EXPORTER_PROTOCOL"`
	ServiceName  string  `env:"SERVICE_NAME"`
	Namespace    string  `env:"SERVICE_NAMESPACE"`
	InstanceID   string  `env:"SERVICE_INSTANCE_ID"`
	SamplingRate float32 `env:"SAMPLING_RATE"`
}

// OTLPMetrics says how metrics are sent to an OpenTelemetry collector.
type OTLPMetrics struct {
	On                   bool   // set if metrics are sent.
	Protocol             string // "http" or "grpc".
	Exporter             string `env:"METRICS_EXPORTER"`
	ProtocolOfAllSignals string `env:"EXPORTER_OTLP_PROTOCOL"`
	ProtocolOfMetrics    string `env:"EXPORTER_OTLP_METRICS_PROTOCOL"`
	IntervalMilliseconds int    `env:"METRIC_EXPORT_INTERVAL"`
	TimeoutMilliseconds  int    `env:"METRIC_EXPORT_TIMEOUT"`
}

// Failure is the behaviour while the store does not answer.
type Failure struct {
	DefaultMode string `env:"STORE_FAILURE_MODE"` // decides for rules without a mode of their own.
	// the number of replicas that share a limit with the mode local; 0 if they count themselves.
	Replicas int `env:"REPLICAS"`
	// the number of failures in a row that open the breaker of a server; 0 for no breaker.
	BreakerFailures int `env:"STORE_BREAKER_FAILURES"`
	MaxInFlight     int `env:"STORE_MAX_IN_FLIGHT"` // bounds the calls that wait for a store at a time.
	// the name of a response header that is sent if the store did not answer; empty for none.
	DegradedHeader string `env:"LIMIT_DEGRADED_HEADER"`
}

// PipelinedPort describes a port whose clients may send many requests before they read a reply.
type PipelinedPort struct {
	Host         string        `env:"HOST"`
	Port         int           `env:"PORT"`
	MaxConns     int           `env:"MAX_CONNECTIONS"`
	MaxPipelined int           `env:"MAX_PIPELINED"`
	IdleTimeout  time.Duration `env:"IDLE_TIMEOUT"` // how long a connection may be idle; 0 for no limit.
	TLS          ServerTLS
}

// Divvy describes the port of divvy's line protocol.
type Divvy struct {
	PipelinedPort
	OpensAtStart    bool   // set if the port is opened at the start.
	OpensWhenNeeded bool   // set if the port is opened when a rule file of divvy is loaded.
	Domain          string `env:"DOMAIN"`
	DomainKey       string `env:"DOMAIN_KEY"`
	UseOnlyList     bool   // set if the domain of the only ordered list replaces Domain.
	KeyFormat       string `env:"KEYS"`
	Rounding        string `env:"ROUND"`
	MaxLineBytes    int64  `env:"MAX_LINE_BYTES"`
}

// RESP describes the port for clients of Redis.
type RESP struct {
	PipelinedPort
	Enabled         bool   // set if RESP_PORT names a port.
	Password        string `env:"PASSWORD"`      // empty if clients need none.
	PasswordFile    string `env:"PASSWORD_FILE"` // takes precedence over Password.
	MaxCommandBytes int64  `env:"MAX_COMMAND_BYTES"`
}

// DivvyPort is the default port of divvy.
const DivvyPort = 8321

// RuleSources returns the items of ConfigType. Without any, rules come from files.
func (s *Settings) RuleSources() []string {
	if sources := list(s.ConfigType); len(sources) > 0 {
		return sources
	}
	return []string{ConfigFile}
}

// UsesFiles reports whether rules come from files, at least some of them.
func (s *Settings) UsesFiles() bool { return slices.Contains(s.RuleSources(), ConfigFile) }

// RulesPath returns the path of the directory of the rules.
func (s *Settings) RulesPath() string {
	return filepath.Join(s.RuntimeRoot, s.RuntimeSubdirectory, s.RuntimeAppDirectory)
}

// ReadsSiblings reports whether rules are also in the files and directories beside RulesPath whose names begin with
// that of the directory and a dot, as for envoyproxy/ratelimit: config.yaml and config.d/ beside config/.
func (s *Settings) ReadsSiblings() bool {
	return s.RuntimeWatchRoot && s.RuntimeAppDirectory != "" &&
		filepath.Base(s.RuntimeAppDirectory) == s.RuntimeAppDirectory
}

// CandidatePath returns the path of the directory of the candidate rules; empty if there are none.
func (s *Settings) CandidatePath() string {
	if s.RuntimeCandidate == "" {
		return ""
	}
	return filepath.Join(s.RuntimeRoot, s.RuntimeCandidate, s.RuntimeAppDirectory)
}

// PutCandidateBeside makes RuntimeCandidate a directory beside path, the file or directory of the live rules. An
// absolute one stays.
func (s *Settings) PutCandidateBeside(path string) {
	s.RuntimeRoot, s.RuntimeAppDirectory = filepath.Dir(filepath.Clean(path)), ""
	if filepath.IsAbs(s.RuntimeCandidate) {
		s.RuntimeRoot = ""
	}
}

// Overlap reports whether one of two directories is the other, or is in it.
func Overlap(a, b string) bool {
	isIn := func(dir, path string) bool {
		relative, err := filepath.Rel(dir, path)
		return err == nil && relative != ".." && !strings.HasPrefix(relative, ".."+string(filepath.Separator))
	}
	return isIn(a, b) || isIn(b, a)
}

// overlapsWithCandidate reports whether the rules and the candidate rules are in one directory, or one of them is in
// what is read beside the directory of the others.
func (s *Settings) overlapsWithCandidate() bool {
	live, candidate := s.RulesPath(), s.CandidatePath()
	isBeside := func(dir, path string) bool {
		relative, err := filepath.Rel(filepath.Dir(dir), path)
		return err == nil && s.ReadsSiblings() && strings.HasPrefix(relative, filepath.Base(dir)+".")
	}
	return Overlap(live, candidate) || isBeside(live, candidate) || isBeside(candidate, live)
}

// validateSources checks CONFIG_TYPE and the settings of the management servers that it names.
func (s *Settings) validateSources(r *reader) {
	files, servers := 0, 0
	for _, source := range s.RuleSources() {
		switch source {
		case ConfigFile:
			files++
		case ConfigXDS, ConfigXDSDelta:
			servers++
		default:
			r.problem("CONFIG_TYPE", s.ConfigType,
				"write "+ConfigFile+", "+ConfigXDS+" or "+ConfigXDSDelta+", or several, separated by commas")
			return
		}
	}
	if files > 1 || servers > 2 {
		r.problem("CONFIG_TYPE", s.ConfigType, "write "+ConfigFile+" once, and at most two management servers")
	}
	for _, server := range s.XDS.Servers {
		server.validate(r)
	}
}

// Read reads all settings from env. The error has all problems. The warnings are about variables that are set and have
// no effect.
func Read(env Environment) (*Settings, []string, error) {
	table := Table()
	r := newReader(env, table)
	s := &Settings{MemoryLimit: env.memoryLimit()}
	r.fill(s, table)
	r.warnWithoutEffect()
	s.derive(r)
	s.validate(r)
	s.warnUnused(r)
	warnings, err := r.result()
	return s, warnings, err
}

// NotifyURLPrefix is the start of the names of variables that rules may name as the address of a webhook.
const NotifyURLPrefix = "NOTIFY_URL_"

// derive sets the fields that depend on several variables or on whether one is set.
func (s *Settings) derive(r *reader) {
	s.Health = r.isSet("HEALTH_PORT") && r.env["HEALTH_PORT"] != "off"
	s.RESP.Enabled = r.isSet("RESP_PORT") && r.env["RESP_PORT"] != "off"
	s.Divvy.OpensAtStart = r.isSet("DIVVY_PORT") && r.env["DIVVY_PORT"] != "off"
	if s.Divvy.OpensWhenNeeded = !r.isSet("DIVVY_PORT"); s.Divvy.OpensWhenNeeded {
		s.Divvy.Port = DivvyPort
	}
	s.NoDebug = r.isForgiven("DEBUG_PORT")
	_, isSet := r.env["DIVVY_DOMAIN"]
	s.Divvy.UseOnlyList = !isSet
	for i, host := range s.DebugAllowedHosts {
		s.DebugAllowedHosts[i] = strings.ToLower(host)
	}
	for _, port := range []string{"HTTP", "GRPC", "DIVVY", "RESP"} {
		_, isSet := r.env[port+"_MAX_CONNECTIONS"]
		s.MaxConnsSet = s.MaxConnsSet || isSet
	}
	s.GRPCTLS.On = s.GRPCUseTLS
	for _, t := range []*ServerTLS{&s.HTTPTLS, &s.DebugTLS, &s.Divvy.TLS, &s.RESP.TLS} {
		t.On = t.Cert != "" || t.Key != ""
	}
	s.NotifyURLs = maps.Clone(r.env)
	maps.DeleteFunc(s.NotifyURLs, func(name, _ string) bool { return !strings.HasPrefix(name, NotifyURLPrefix) })
	s.Sink = s.sink(r)
	s.StatsdByDefault = !slices.ContainsFunc([]string{"USE_STATSD", "STATSD_HOST", "STATSD_PORT", "STATSD_PROTOCOL"},
		r.isSet)
	otel := &s.OTLPMetrics
	otel.On = otel.Exporter == "otlp" && !s.DisableStats
	otel.Protocol = strings.TrimSuffix(cmp.Or(otel.ProtocolOfMetrics, otel.ProtocolOfAllSignals), "/protobuf")
	if s.Sink == SinkDogStatsd {
		for _, id := range s.MogrifierNames {
			s.Mogrifiers = append(s.Mogrifiers, r.mogrifier(id))
		}
	}
	s.Redis.PoolSize, s.RedisPerSecond.PoolSize = cmp.Or(s.Redis.PoolSize, 10), cmp.Or(s.RedisPerSecond.PoolSize, 10)
	if s.Memcache.Conns < 1 {
		s.Memcache.Conns = 2
	}
	s.XDS.derive(s.RuleSources())
}

// headerFix says what to write instead of a refused name of a header.
const headerFix = "write the name of an HTTP header"

// validate checks what the table cannot check, such as variables that depend on each other.
func (s *Settings) validate(r *reader) {
	s.validateSources(r)
	if s.CacheKeyFormat == "v2" && strings.ContainsAny(s.CacheKeyPrefix, "{}") {
		r.problem("CACHE_KEY_PREFIX", s.CacheKeyPrefix,
			"leave out { and }, which CACHE_KEY_FORMAT=v2 puts around what belongs on one server")
	}
	if path := s.CandidatePath(); path != "" && s.UsesFiles() && s.overlapsWithCandidate() {
		r.problem("RUNTIME_CANDIDATE_SUBDIRECTORY", s.RuntimeCandidate,
			"name a directory beside that of the rules: "+path+" and "+s.RulesPath()+" overlap")
	}
	s.validateStore(r)
	if s.Divvy.Domain == "" && s.Divvy.DomainKey == "" {
		r.problem("DIVVY_DOMAIN", "", "write the domain that `HIT` asks, or set DIVVY_DOMAIN_KEY")
	}
	s.validateStatistics(r)
	if name := s.Failure.DegradedHeader; name != "" && !httpguts.ValidHeaderFieldName(name) {
		r.problem("LIMIT_DEGRADED_HEADER", name, headerFix)
	}
	if s.LimitHeaders {
		r.useDefaultUnless(httpguts.ValidHeaderFieldName, "LIMIT_LIMIT_HEADER", &s.LimitHeader, headerFix)
		r.useDefaultUnless(httpguts.ValidHeaderFieldName, "LIMIT_REMAINING_HEADER", &s.RemainingHeader, headerFix)
		r.useDefaultUnless(httpguts.ValidHeaderFieldName, "LIMIT_RESET_HEADER", &s.ResetHeader, headerFix)
	}
	s.GRPCTLS.validate(r, "GRPC_")
	s.HTTPTLS.validate(r, "HTTP_")
	s.DebugTLS.validate(r, "DEBUG_")
	s.Divvy.TLS.validate(r, "DIVVY_")
	s.RESP.TLS.validate(r, "RESP_")
}
