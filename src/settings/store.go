package settings

import "strings"

// validateStore decides on the store and checks what it needs.
func (s *Settings) validateStore(r *reader) {
	if s.BackendType == "" {
		r.idle("that needs BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT", "MEMCACHE_SRV") // who says where the counters live knows
		s.BackendType = "memory"
		for _, v := range r.table {
			if value, _ := r.lookup(v.Name); strings.HasPrefix(v.Name, "REDIS_") && value != "" {
				s.BackendType = "redis"
			}
		}
	}
	redis := []string{"REDIS_URL", "REDIS_PERSECOND_URL"}
	switch s.BackendType {
	case "memory":
		r.idle("the counters are in memory", append(redis, "LOCAL_CACHE_SIZE_IN_BYTES", "STORE_MAX_IN_FLIGHT", "STORE_BREAKER_FAILURES", "STORE_FAILURE_MODE", "REPLICAS", "LIMIT_DEGRADED_HEADER")...)
	case "redis":
		s.Redis.validate(r, "REDIS_")
		if s.RedisSplit {
			s.RedisPerSecond.validate(r, "REDIS_PERSECOND_")
		}
		s.RedisTLS.validate(r, "REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY")
	case "memcache", "memcached":
		s.BackendType = "memcache"
		r.idle("the counters are in Memcached", append(redis, "REDIS_PERSECOND")...)
		s.validateMemcache(r)
	default:
		r.problem("BACKEND_TYPE", s.BackendType, "write memory, redis or memcache")
	}
	if s.BackendType != "redis" {
		s.RedisSplit = false
	}
}

// idle warns of variables that are set and have no effect, as why says.
func (r *reader) idle(why string, names ...string) {
	for _, name := range names {
		if value, _ := r.lookup(name); value != "" {
			r.warnings = append(r.warnings, name+" has no effect: "+why)
		}
	}
}

// validate checks what belongs together; cert and key are the variables of the
// client's certificate.
func (f *TLSFiles) validate(r *reader, cert, key string) {
	if (f.ClientCert == "") != (f.ClientKey == "") {
		r.problem(cert, f.ClientCert, "it goes with "+key+": set both or neither")
	}
}
