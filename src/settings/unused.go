package settings

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"ratelimit/src/settings/nearest"
)

// warnUnused warns of variables of parts of the service that are off.
func (s *Settings) warnUnused(r *reader) {
	const fileRules = "CONFIG_TYPE is not " + ConfigXDS + " or " + ConfigXDSDelta
	const xdsCert, xdsKey = "CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY"
	xds, sink, store := len(s.XDS.Servers) > 0, s.Sink, s.BackendType
	otherStore := map[string]string{
		"memory": "the counters are in memory", "redis": "the counters are in Redis",
		"memcache": "the counters are in Memcached",
	}[store]
	parts := []optionalPart{
		{isOff: !xds, reason: fileRules, fix: "set CONFIG_TYPE=" + ConfigXDS, names: "CONFIG_GRPC_XDS_SERVER_URL"},
		{isOff: !xds, reason: fileRules, prefixes: "CONFIG_GRPC_XDS_ XDS_CLIENT_"},
		{
			isOff: len(s.XDS.Servers) < 2, reason: "CONFIG_TYPE names no second management server",
			names: "CONFIG_GRPC_XDS2_SERVER_URL", prefixes: "CONFIG_GRPC_XDS2_",
			fix: "write one, such as CONFIG_TYPE=" + ConfigXDS + "," + ConfigXDSDelta,
		},
		{
			isOff: !s.UsesFiles() && s.RuntimeCandidate == "", reason: "rules come from the management server",
			prefixes: "RUNTIME_",
		},
		{
			isOff: s.RuntimeCandidate == "", reason: "RUNTIME_CANDIDATE_SUBDIRECTORY is not set",
			prefixes: "CANDIDATE_MAX_LOAD",
		},
		{
			isOff: xds && r.isSet(xdsCert) && !r.isSet(xdsKey), reason: xdsKey + " is not set", fix: "set " + xdsKey,
			names: xdsCert,
		},
		{
			isOff: xds && r.isSet(xdsKey) && !r.isSet(xdsCert), reason: xdsCert + " is not set", fix: "set " + xdsCert,
			names: xdsKey,
		},
		{
			isOff: xds && !s.XDS.First.TLS, toggle: "CONFIG_GRPC_XDS_SERVER_USE_TLS",
			names: "CONFIG_GRPC_XDS_SERVER_TLS_CACERT CONFIG_GRPC_XDS_SERVER_TLS_SAN CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
		},

		{
			isOff: store == "memory", reason: otherStore, fix: "set BACKEND_TYPE=redis",
			names: "REDIS_URL REDIS_PERSECOND_URL LOCAL_CACHE_SIZE_IN_BYTES STORE_MAX_IN_FLIGHT " +
				"STORE_BREAKER_FAILURES STORE_FAILURE_MODE REPLICAS LIMIT_DEGRADED_HEADER COUNTING_MODE CONTENTION_MODE",
			prefixes: "REDIS_ LOCAL_CACHE_ STORE_ REPLICAS MEMCACHE_ COUNTING_MODE CONTENTION_MODE",
		},
		{
			isOff: store == "memcache", reason: otherStore, fix: "set BACKEND_TYPE=redis",
			names: "REDIS_URL REDIS_PERSECOND_URL REDIS_PERSECOND", prefixes: "REDIS_",
		},
		{isOff: store == "redis", reason: otherStore, prefixes: "MEMCACHE_"},
		{
			isOff: store != "memory", reason: otherStore, fix: "set BACKEND_TYPE=memory",
			names:    "MEMORY_SNAPSHOT OVERRIDES_FILE",
			prefixes: "MEMORY_SNAPSHOT MEMORY_COUNTER_NAMES OVERRIDES_FILE",
		},
		{
			isOff: store == "memory" && s.MemorySnapshot == "", reason: "MEMORY_SNAPSHOT is not set",
			prefixes: "MEMORY_SNAPSHOT_INTERVAL",
		},
		{isOff: store == "redis" && !s.RedisSplit, toggle: "REDIS_PERSECOND", prefixes: "REDIS_PERSECOND_"},
		{
			isOff: store == "redis" && !s.Redis.IAM.On, toggle: "REDIS_AWS_IAM_AUTH",
			names: "REDIS_AWS_IAM_CACHE_NAME REDIS_AWS_IAM_USER_ID REDIS_AWS_IAM_SERVERLESS",
		},
		{
			isOff: s.RedisSplit && !s.RedisPerSecond.IAM.On, toggle: "REDIS_PERSECOND_AWS_IAM_AUTH",
			names: "REDIS_PERSECOND_AWS_IAM_CACHE_NAME REDIS_PERSECOND_AWS_IAM_USER_ID REDIS_PERSECOND_AWS_IAM_SERVERLESS",
		},
		{
			isOff: !r.isSet("BACKEND_TYPE"), reason: "BACKEND_TYPE is not memcache", fix: "set BACKEND_TYPE=memcache",
			names: "MEMCACHE_HOST_PORT MEMCACHE_SRV",
		},
		{
			isOff: store == "redis" && !s.Redis.TLS && !(s.RedisSplit && s.RedisPerSecond.TLS), toggle: "REDIS_TLS",
			names: "REDIS_TLS_CACERT REDIS_TLS_CLIENT_CERT REDIS_TLS_CLIENT_KEY", prefixes: "REDIS_TLS_",
		},
		{
			isOff: store == "memcache" && !s.Memcache.TLS, toggle: "MEMCACHE_TLS",
			names: "MEMCACHE_TLS_CACERT MEMCACHE_TLS_CLIENT_CERT MEMCACHE_TLS_CLIENT_KEY", prefixes: "MEMCACHE_TLS_",
		},

		{
			isOff: s.DisableStats, reason: "DISABLE_STATS is true", fix: "set DISABLE_STATS=false",
			names: "USE_STATSD USE_DOG_STATSD USE_PROMETHEUS",
		},
		{
			isOff: s.DisableStats && s.OTLPMetrics.Exporter == "otlp", reason: "DISABLE_STATS is true",
			fix: "set DISABLE_STATS=false", names: "OTEL_METRICS_EXPORTER",
		},
		{isOff: sink != SinkDogStatsd, toggle: "USE_DOG_STATSD", names: "USE_DOG_STATSD_MOGRIFIERS"},
		{isOff: sink == SinkDogStatsd, reason: "DogStatsD is always udp", prefixes: "STATSD_PROTOCOL"},
		{isOff: sink != SinkDogStatsd && sink != SinkStatsd, reason: "nothing is sent to statsd", prefixes: "STATSD_"},
		{isOff: sink == SinkNone, reason: "nothing is sent", prefixes: "STATS_FLUSH_INTERVAL"},
		{isOff: sink == SinkNone && !s.OTLPMetrics.On, reason: "nothing is sent", prefixes: "EXTRA_TAGS"},
		{isOff: sink != SinkPrometheus, reason: "USE_PROMETHEUS is not true", prefixes: "PROMETHEUS_"},

		{isOff: !s.LimitHeaders, toggle: "LIMIT_RESPONSE_HEADERS_ENABLED", names: "LIMIT_RESPONSE_HEADERS_FORMAT"},
		{
			isOff:    s.LimitHeaders && s.LimitHeadersFormat == HeadersIETF,
			reason:   "LIMIT_RESPONSE_HEADERS_FORMAT is ietf, whose headers have fixed names",
			fix:      "set LIMIT_RESPONSE_HEADERS_FORMAT=" + HeadersSeparate,
			names:    "LIMIT_LIMIT_HEADER LIMIT_REMAINING_HEADER LIMIT_RESET_HEADER",
			prefixes: "LIMIT_LIMIT_HEADER LIMIT_REMAINING_HEADER LIMIT_RESET_HEADER",
		},

		{isOff: !s.Tracing.Enabled, toggle: "TRACING_ENABLED", prefixes: "TRACING_EXPORTER_PROTOCOL"},
		{
			isOff: len(s.DebugPeers) == 0, reason: "DEBUG_PEERS is not set", fix: "set it",
			names: "DEBUG_PEERS_TLS_CACERT DEBUG_PEERS_TLS_CERT DEBUG_PEERS_TLS_KEY",
		},
		{isOff: s.GRPCUDS != "", reason: "GRPC_UDS is set", prefixes: "GRPC_PORT"},
		{isOff: !s.Divvy.OpensAtStart && !s.Divvy.OpensWhenNeeded, reason: "DIVVY_PORT is off", prefixes: "DIVVY_"},
		{isOff: !s.RESP.Enabled, reason: "RESP_PORT is off", prefixes: "RESP_"},
		{
			isOff: !s.GRPCTLS.On, toggle: "GRPC_SERVER_USE_TLS",
			names: "GRPC_SERVER_TLS_CERT GRPC_SERVER_TLS_KEY GRPC_CLIENT_TLS_CACERT GRPC_CLIENT_TLS_SAN",
		},
	}
	for prefix, t := range map[string]*ServerTLS{
		"HTTP_": &s.HTTPTLS, "DEBUG_": &s.DebugTLS, "DIVVY_": &s.Divvy.TLS,
		"RESP_": &s.RESP.TLS,
	} {
		parts = append(parts, optionalPart{
			isOff: !t.On, reason: "that port speaks plain text", fix: "set " + prefix + "TLS_CERT and " + prefix + "TLS_KEY",
			names: prefix + "TLS_CLIENT_CACERT " + prefix + "TLS_CLIENT_SAN",
		})
	}
	r.warnUnused(parts)
}

// withoutEffect has advice for variables that have no effect here, by name. They come from envoyproxy/ratelimit, its
// documentation and projects that deploy it.
var withoutEffect = map[string]string{
	"DOG_STATSD_MOGRIFIERS": "envoyproxy/ratelimit never read it; its list is named " +
		"USE_DOG_STATSD_MOGRIFIERS",
	"REDIS_POOL_ON_EMPTY_WAIT_DURATION":           "envoyproxy/ratelimit no longer reads it",
	"REDIS_PERSECOND_POOL_ON_EMPTY_WAIT_DURATION": "envoyproxy/ratelimit no longer reads it",
	"GRPC_SERVER_TLS_CA_CERT": "envoyproxy/ratelimit never read it; with GRPC_CLIENT_TLS_CACERT clients need a " +
		"certificate, " +
		"without it they need none",
}

func (r *reader) warnWithoutEffect() {
	for _, name := range slices.Sorted(maps.Keys(withoutEffect)) {
		if r.isOn(name) {
			r.warn("%s has no effect: %s", name, withoutEffect[name])
		}
	}
}

// maxUnknownWarnings bounds the warnings about unknown variables.
const maxUnknownWarnings = 20

// Unknown returns warnings about variables whose names are probably mistyped names of table. Such a name differs in one
// or two letters or in a word, or starts with the same word as several variables. Warnings contain no values.
func (e Environment) Unknown(table []Variable) []string {
	known, firstWords := make([]string, 0, len(table)), make(map[string]int)
	for _, v := range table {
		word, _, _ := strings.Cut(v.Name, "_")
		known = append(known, v.Name)
		firstWords[word]++
	}
	var warnings []string
	for _, name := range slices.Sorted(maps.Keys(e)) {
		if slices.Contains(known, name) || e.isForeign(name) {
			continue
		}
		word, _, _ := strings.Cut(name, "_")
		isOurs := firstWords[word] >= minVariablesOfFirstWord && !slices.Contains(genericWords, word)
		if meant := meantVariables(name, known); len(meant) == 1 {
			warnings = append(warnings, fmt.Sprintf("%s is no setting; did you mean %s?", name, meant[0]))
		} else if isOurs || len(meant) > 1 {
			warnings = append(warnings, fmt.Sprintf("%s is no setting; `ratelimit serve --help` lists those that begin with %s_",
				name, word))
		}
	}
	if n := len(warnings) - maxUnknownWarnings; n > 0 {
		warnings = append(warnings[:maxUnknownWarnings], fmt.Sprintf("and %d more variables that are no settings", n))
	}
	return warnings
}

// minMistypedLength is the length of the shortest name that may be a mistyped one. Shorter names, such as POST and
// HOST, are too similar to each other.
const minMistypedLength = 6

// meantVariables returns those of known that the user may have meant by name.
func meantVariables(name string, known []string) []string {
	upper := strings.ToUpper(name)
	if slices.Contains(known, upper) && strings.Contains(upper, "_") {
		return []string{upper}
	}
	if meant := nearest.Word(name, known); len(name) >= minMistypedLength && meant != "" {
		return []string{meant}
	}
	longer := slices.DeleteFunc(slices.Clone(known), func(k string) bool { return !strings.HasPrefix(k, name+"_") })
	if len(longer) == 1 {
		return longer
	}
	return slices.DeleteFunc(slices.Clone(known), func(k string) bool { return !differInOneWord(name, k) })
}

// differInOneWord reports whether one of two names has a word that the other lacks (CACHE_PREFIX, CACHE_KEY_PREFIX), or
// has instead of another one. The first words must be the same and two in all: three if the first one is generic or if
// a word stands instead of another.
func differInOneWord(a, b string) bool {
	long, short := strings.Split(a, "_"), strings.Split(b, "_")
	if len(long) < len(short) {
		long, short = short, long
	}
	start := 0 // the number of words before the difference.
	for start < len(short) && long[start] == short[start] {
		start++
	}
	missing := len(long) - len(short)
	if start == 0 || missing > 1 || !slices.Equal(long[start+1:], short[start+1-missing:]) {
		return false
	}
	least := 2
	if missing == 0 || slices.Contains(genericWords, long[0]) {
		least = 3
	}
	return len(long)-1 >= least
}

// minVariablesOfFirstWord is how many variables must have the same first word, such as REDIS in REDIS_URL, so that it
// belongs to this program.
const minVariablesOfFirstWord = 3

// genericWords lists first words of names that variables of other programs have as well.
var genericWords = []string{"CONFIG", "DEBUG", "LOG", "USE"}

var (
	// foreignNames matches variables of libraries and of other programs, and mogrifiers' variables, which are found by
	// their prefix.
	foreignNames = regexp.MustCompile(
		`^(HTTP_PROXY|OTEL_.*|DOG_STATSD_MOGRIFIER_.*|GRPC_(GO|XDS|DEFAULT_SSL|SSL|POLL|ENABLE|BINARY|PYTHON|NODE|EXPERIMENTAL|ENFORCE|TRACE|VERBOSITY|DNS|PROXY|STACKTRACE|CLIENT_CHANNEL|ALTS)(_.*)?)$`)
	// serviceNames matches variables that Kubernetes and Docker set for each service.
	serviceNames = regexp.MustCompile(
		`^(.+?)_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)
)

// isForeign reports whether Unknown ignores name: it is not meant for this program, or warnWithoutEffect warns of it.
func (e Environment) isForeign(name string) bool {
	if foreignNames.MatchString(name) || strings.HasPrefix(name, NotifyURLPrefix) {
		return true
	}
	if m := serviceNames.FindStringSubmatch(name); m != nil {
		if _, isService := e[m[1]+"_SERVICE_HOST"]; isService {
			return true
		}
	}
	return withoutEffect[name] != ""
}
