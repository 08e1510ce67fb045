package settings

import (
	"io/fs"
	"os"
	"slices"
	"strings"
)

// RedisSocket is the default of REDIS_URL in envoyproxy/ratelimit.
const RedisSocket = "/var/run/nutcracker/ratelimit.sock"

// WithRedisSocket returns a lookup that chooses the Redis at the unix socket as the store, and a
// warning. If the socket does not exist, or if BACKEND_TYPE or a variable of Redis is set, it
// returns lookup and no warning.
func WithRedisSocket(socket string, lookup func(string) (string, bool)) (with func(string) (string, bool), warnings []string) {
	r := reader{lookup: lookup}
	if info, err := os.Stat(socket); err != nil || info.Mode().Type() != fs.ModeSocket || r.isSet("BACKEND_TYPE") || r.setsRedis() {
		return lookup, nil
	}
	return instead(lookup, map[string]string{"BACKEND_TYPE": "redis", "REDIS_URL": socket}), []string{"the counters are in the Redis at " + socket +
		", which envoyproxy/ratelimit would use: no variable names a store, and the socket exists; set BACKEND_TYPE=redis, or BACKEND_TYPE=memory to count in this process"}
}

// instead returns a lookup that finds the variables of values there, and all others in lookup.
func instead(lookup func(string) (string, bool), values map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		if v, ok := values[name]; ok {
			return v, true
		}
		return lookup(name)
	}
}

// setsRedis reports whether any variable that starts with REDIS_ is set.
func (r *reader) setsRedis() bool {
	return slices.ContainsFunc(Table(), func(v Variable) bool { return strings.HasPrefix(v.Name, "REDIS_") && r.isSet(v.Name) })
}

// validateStore chooses the store, if BACKEND_TYPE is not set, and checks its settings.
func (s *Settings) validateStore(r *reader) {
	if s.BackendType == "" {
		s.BackendType = "memory"
		if r.setsRedis() {
			s.BackendType = "redis"
		}
	}
	switch s.BackendType {
	case "memory":
	case "redis":
		s.Redis.validate(r, "REDIS_")
		if s.RedisSplit {
			s.RedisPerSecond.validate(r, "REDIS_PERSECOND_")
		}
		s.RedisTLS.validate(r, "REDIS_TLS_")
	case "memcache", "memcached":
		s.BackendType = "memcache"
		s.validateMemcache(r)
	default:
		r.problem("BACKEND_TYPE", s.BackendType, "write memory, redis or memcache")
	}
	if s.BackendType != "redis" {
		s.RedisSplit = false
	}
}
