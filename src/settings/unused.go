package settings

import (
	"maps"
	"slices"
)

// warnUnused warns of variables of parts of the service that are off.
func (s *Settings) warnUnused(r *reader) {
	const noXDS, xdsTLS = "CONFIG_TYPE is not " + ConfigXDS, "CONFIG_GRPC_XDS_SERVER_USE_TLS"
	const xdsCert, xdsKey = "CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY"
	xds, sink, store := s.ConfigType == ConfigXDS, s.Sink, s.BackendType
	where := map[string]string{"memory": "the counters are in memory", "redis": "the counters are in Redis", "memcache": "the counters are in Memcached"}[store]
	parts := []part{
		{off: !xds, why: noXDS, fix: "set CONFIG_TYPE=" + ConfigXDS, named: "CONFIG_GRPC_XDS_SERVER_URL"},
		{off: s.ConfigType == "FILE", why: noXDS, prefixes: "CONFIG_GRPC_XDS_ XDS_CLIENT_"},
		{off: xds, why: "rules come from the management server", prefixes: "RUNTIME_"},
		{off: xds && r.isSet(xdsCert) && !r.isSet(xdsKey), why: xdsKey + " is not set", fix: "set " + xdsKey, named: xdsCert},
		{off: xds && r.isSet(xdsKey) && !r.isSet(xdsCert), why: xdsCert + " is not set", fix: "set " + xdsCert, named: xdsKey},
		{
			off: xds && !s.XDS.TLS, flag: xdsTLS, why: xdsTLS + " is not true", fix: "set " + xdsTLS + "=true",
			named: "CONFIG_GRPC_XDS_SERVER_TLS_CACERT CONFIG_GRPC_XDS_SERVER_TLS_SAN CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
		},

		{
			off: store == "memory", why: where, fix: "set BACKEND_TYPE=redis",
			named:    "REDIS_URL REDIS_PERSECOND_URL LOCAL_CACHE_SIZE_IN_BYTES STORE_MAX_IN_FLIGHT STORE_BREAKER_FAILURES STORE_FAILURE_MODE REPLICAS LIMIT_DEGRADED_HEADER",
			prefixes: "REDIS_ LOCAL_CACHE_ STORE_ REPLICAS MEMCACHE_",
		},
		{off: store == "memcache", why: where, fix: "set BACKEND_TYPE=redis", named: "REDIS_URL REDIS_PERSECOND_URL REDIS_PERSECOND", prefixes: "REDIS_"},
		{off: store == "redis", why: where, prefixes: "MEMCACHE_"},
		{off: store == "redis" && !s.RedisSplit, flag: "REDIS_PERSECOND", why: "REDIS_PERSECOND is not true", prefixes: "REDIS_PERSECOND_"},
		{off: !r.isSet("BACKEND_TYPE"), why: "BACKEND_TYPE is not memcache", fix: "set BACKEND_TYPE=memcache", named: "MEMCACHE_HOST_PORT MEMCACHE_SRV"},
		unusedTLS(store == "redis" && !s.Redis.TLS && !(s.RedisSplit && s.RedisPerSecond.TLS), "REDIS_TLS"),
		unusedTLS(store == "memcache" && !s.Memcache.TLS, "MEMCACHE_TLS"),

		{off: sink != SinkDogStatsd, flag: "USE_DOG_STATSD", why: "USE_DOG_STATSD is not true", fix: "set USE_DOG_STATSD=true", named: "USE_DOG_STATSD_MOGRIFIERS"},
		{off: sink == SinkDogStatsd, why: "DogStatsD is always udp", prefixes: "STATSD_PROTOCOL"},
		{off: sink != SinkDogStatsd && sink != SinkStatsd, why: "nothing is sent to statsd", prefixes: "STATSD_"},
		{off: sink == SinkNone, why: "nothing is sent", prefixes: "STATS_FLUSH_INTERVAL EXTRA_TAGS"},
		{off: sink != SinkPrometheus, why: "USE_PROMETHEUS is not true", prefixes: "PROMETHEUS_"},

		{off: !s.Tracing.Enabled, flag: "TRACING_ENABLED", why: "TRACING_ENABLED is not true", prefixes: "TRACING_EXPORTER_PROTOCOL"},
		{off: s.GRPCUDS != "", why: "GRPC_UDS is set", prefixes: "GRPC_PORT"},
		{off: !s.Divvy.On && !s.Divvy.WhenNeeded, why: "DIVVY_PORT is off", prefixes: "DIVVY_"},
		{
			off: !s.GRPCUseTLS, flag: "GRPC_SERVER_USE_TLS", why: "GRPC_SERVER_USE_TLS is not true", fix: "set GRPC_SERVER_USE_TLS=true",
			named: "GRPC_SERVER_TLS_CERT GRPC_SERVER_TLS_KEY GRPC_CLIENT_TLS_CACERT GRPC_CLIENT_TLS_SAN",
		},
	}
	for prefix, t := range map[string]*ServerTLS{"HTTP_": &s.HTTPTLS, "DEBUG_": &s.DebugTLS, "DIVVY_": &s.Divvy.TLS} {
		parts = append(parts, part{
			off: !t.On, why: "that port speaks plain text", fix: "set " + prefix + "TLS_CERT and " + prefix + "TLS_KEY",
			named: prefix + "TLS_CLIENT_CACERT " + prefix + "TLS_CLIENT_SAN",
		})
	}
	r.warnUnused(parts)
}

// unusedTLS returns the part for TLS connections to a store. flag turns TLS on.
func unusedTLS(off bool, flag string) part {
	return part{
		off: off, flag: flag, why: flag + " is not true", fix: "set " + flag + "=true",
		named: flag + "_CACERT " + flag + "_CLIENT_CERT " + flag + "_CLIENT_KEY", prefixes: flag + "_",
	}
}

// silent has advice for variables that have no effect here. They come from envoyproxy/ratelimit,
// its documentation and projects that deploy it.
var silent = map[string]string{
	"DOG_STATSD_MOGRIFIERS":                       "envoyproxy/ratelimit never read it; its list is named USE_DOG_STATSD_MOGRIFIERS",
	"REDIS_POOL_ON_EMPTY_WAIT_DURATION":           "envoyproxy/ratelimit no longer reads it",
	"REDIS_PERSECOND_POOL_ON_EMPTY_WAIT_DURATION": "envoyproxy/ratelimit no longer reads it",
	"GRPC_SERVER_TLS_CA_CERT": "envoyproxy/ratelimit never read it; with GRPC_CLIENT_TLS_CACERT clients need a certificate, " +
		"without it they need none",
}

// warnSilent warns of each variable of silent that is on.
func (r *reader) warnSilent() {
	for _, name := range slices.Sorted(maps.Keys(silent)) {
		if r.isOn(name) {
			r.warn("%s has no effect: %s", name, silent[name])
		}
	}
}
