package settings

import (
	"io/fs"
	"os"
	"slices"
	"strings"
)

// RedisSocket is where envoyproxy/ratelimit looks for Redis unless it is told otherwise.
const RedisSocket = "/var/run/nutcracker/ratelimit.sock"

// WithRedisSocket returns lookup with the Redis at socket as the store. It returns
// lookup as it is, and no warning, if there is no such socket, or a variable chooses
// a store: BACKEND_TYPE, or one of Redis.
func WithRedisSocket(socket string, lookup func(string) (string, bool)) (with func(string) (string, bool), warnings []string) {
	if info, err := os.Stat(socket); err != nil || info.Mode().Type() != fs.ModeSocket || isSet(lookup, "BACKEND_TYPE") || setsRedis(lookup) {
		return lookup, nil
	}
	with = func(name string) (string, bool) {
		switch name {
		case "BACKEND_TYPE":
			return "redis", true
		case "REDIS_URL":
			return socket, true
		}
		return lookup(name)
	}
	return with, []string{"the counters are in the Redis at " + socket +
		", which envoyproxy/ratelimit would use: no variable names a store, and the socket exists; set BACKEND_TYPE=redis, or BACKEND_TYPE=memory to count in this process"}
}

// setsRedis reports whether a variable of Redis is set.
func setsRedis(lookup func(string) (string, bool)) bool {
	return slices.ContainsFunc(Table(), func(v Variable) bool { return strings.HasPrefix(v.Name, "REDIS_") && isSet(lookup, v.Name) })
}

// validateStore decides on the store and checks what it needs.
func (s *Settings) validateStore(r *reader) {
	if s.BackendType == "" {
		defer r.warnUnused("BACKEND_TYPE is not memcache", "set BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT", "MEMCACHE_SRV")
		s.BackendType = "memory"
		if setsRedis(r.lookup) {
			s.BackendType = "redis"
		}
	}
	redis := []string{"REDIS_URL", "REDIS_PERSECOND_URL"}
	switch s.BackendType {
	case "memory":
		r.warnUnused("the counters are in memory", "set BACKEND_TYPE=redis", append(redis, "LOCAL_CACHE_SIZE_IN_BYTES", "STORE_MAX_IN_FLIGHT", "STORE_BREAKER_FAILURES", "STORE_FAILURE_MODE", "REPLICAS", "LIMIT_DEGRADED_HEADER")...)
	case "redis":
		s.Redis.validate(r, "REDIS_")
		if s.RedisSplit {
			s.RedisPerSecond.validate(r, "REDIS_PERSECOND_")
		}
		s.RedisTLS.validate(r, "REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY")
	case "memcache", "memcached":
		s.BackendType = "memcache"
		r.warnUnused("the counters are in Memcached", "set BACKEND_TYPE=redis", append(redis, "REDIS_PERSECOND")...)
		s.validateMemcache(r)
	default:
		r.problem("BACKEND_TYPE", s.BackendType, "write memory, redis or memcache")
	}
	if s.BackendType != "redis" {
		s.RedisSplit = false
	}
	s.forgiveStore(r)
}

// forgiveStore turns mistakes in variables of unused stores into warnings.
func (s *Settings) forgiveStore(r *reader) {
	where := map[string]string{"memory": "the counters are in memory", "redis": "the counters are in Redis", "memcache": "the counters are in Memcached"}[s.BackendType]
	if where == "" {
		return
	}
	switch {
	case s.BackendType != "redis":
		r.forgive(where, begins("REDIS_"))
	case !s.RedisSplit && !r.unreadable("REDIS_PERSECOND"):
		r.forgive("REDIS_PERSECOND is not true", begins("REDIS_PERSECOND_"))
	}
	if s.BackendType == "memory" {
		r.forgive(where, begins("LOCAL_CACHE_", "STORE_", "REPLICAS"))
	}
	if s.BackendType != "memcache" {
		r.forgive(where, begins("MEMCACHE_"))
	}
	if s.BackendType == "redis" && !s.Redis.TLS && !(s.RedisSplit && s.RedisPerSecond.TLS) {
		r.warnUnusedTLS("REDIS_TLS")
	}
	if s.BackendType == "memcache" && !s.Memcache.TLS {
		r.warnUnusedTLS("MEMCACHE_TLS")
	}
}

// warnUnusedTLS warns of the variables of TLS towards a store while flag, which turns it on,
// is not true.
func (r *reader) warnUnusedTLS(flag string) {
	if r.unreadable(flag) {
		return
	}
	why := flag + " is not true"
	r.warnUnused(why, "set "+flag+"=true", flag+"_CACERT", flag+"_CLIENT_CERT", flag+"_CLIENT_KEY")
	r.forgive(why, begins(flag+"_"))
}

// validate checks what belongs together; cert and key are the variables of the
// client's certificate.
func (f *TLSFiles) validate(r *reader, cert, key string) {
	if (f.ClientCert == "") != (f.ClientKey == "") {
		r.problem(cert, f.ClientCert, "it goes with "+key+": set both or neither")
	}
}
