package settings

import (
	"net/url"
	"strings"
	"time"
)

// declareRedis names the variables of Redis, those of the second one for limits
// by the second included.
func (s *Settings) declareRedis(r *reader) {
	r.section("Redis")
	s.Redis.declare(r, "REDIS_", "/var/run/nutcracker/ratelimit.sock", "")
	r.text(&s.RedisTLS.CACert, "REDIS_TLS_CACERT", "", "PEM file of authorities to trust besides the system's; read anew for each connection, as all files of this section")
	r.text(&s.RedisTLS.ClientCert, "REDIS_TLS_CLIENT_CERT", "", "PEM file of the client's certificate chain")
	r.text(&s.RedisTLS.ClientKey, "REDIS_TLS_CLIENT_KEY", "", "PEM file of its key")
	r.flag(&s.RedisTLS.SkipHostname, "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", false, "verify the server's certificate, but not the name in it")
	r.flag(&s.RedisHealthCheck, "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", false, "be unhealthy while Redis does not answer; without it only until it answered for the first time")
	r.duration(&s.RedisStartupInitial, "REDIS_STARTUP_INITIAL_INTERVAL", time.Second, "pause after the first attempt to reach Redis at the start; it doubles")
	r.duration(&s.RedisStartupMax, "REDIS_STARTUP_MAX_INTERVAL", 30*time.Second, "up to this")
	r.duration(&s.RedisStartupElapsed, "REDIS_STARTUP_MAX_ELAPSED_TIME", 0, "exit with status 1 when Redis did not answer by then; 0: wait for ever, not ready")
	r.flag(&s.RedisSplit, "REDIS_PERSECOND", false, "count limits by the second in a Redis of their own")
	s.RedisPerSecond.declare(r, "REDIS_PERSECOND_", "/var/run/nutcracker/ratelimitpersecond.sock", "as for the first")
}

// declare names the variables of one Redis. meaning, if not empty, stands for
// what the others say.
func (c *Redis) declare(r *reader, prefix, url, meaning string) {
	say := func(text string) string {
		if meaning != "" {
			return meaning
		}
		return text
	}
	r.text(&c.SocketType, prefix+"SOCKET_TYPE", "", say("`tcp` or `unix`; by the form of the URL if it is not set"))
	var kind string
	r.oneOf(&kind, prefix+"TYPE", "SINGLE", say("one server"), "SINGLE")
	r.text(&c.URL, prefix+"URL", url, say("`host:port`, the path of a socket, `redis://user:password@host:port/db`, or `rediss://` for TLS"))
	r.count(&c.PoolSize, prefix+"POOL_SIZE", 10, say("the most connections; two serve most, as calls share them in batches"))
	r.text(&c.Auth, prefix+"AUTH", "", say("`password` or `user:password`"))
	r.text(&c.AuthFile, prefix+"AUTH_FILE", "", say("a file with the same, read anew for each connection; wins over the variable"))
	r.flag(&c.TLS, prefix+"TLS", false, say("use TLS"))
	r.duration(&c.Timeout, prefix+"TIMEOUT", 50*time.Millisecond, say("bound on every call; the caller's own deadline wins if it is shorter"))
	r.duration(&c.PipelineWindow, prefix+"PIPELINE_WINDOW", 0, say("wait so long for more before each batch; 0: batches form by themselves while others are under way"))
	r.integer(&c.PipelineLimit, prefix+"PIPELINE_LIMIT", 0, say("the most hits in a batch; 0: no limit"))
}

// validateRedis decides on the store and checks what it needs.
func (s *Settings) validateRedis(r *reader) {
	if s.BackendType == "" {
		s.BackendType = "memory"
		for _, v := range r.table {
			if value, _ := r.lookup(v.Name); strings.HasPrefix(v.Name, "REDIS_") && value != "" {
				s.BackendType = "redis"
			}
		}
	}
	switch s.BackendType {
	case "memory":
		for _, name := range []string{"REDIS_URL", "REDIS_PERSECOND_URL", "LOCAL_CACHE_SIZE_IN_BYTES"} {
			if value, _ := r.lookup(name); value != "" {
				r.warnings = append(r.warnings, name+" has no effect: the counters are in memory")
			}
		}
	case "redis":
		s.Redis.validate(r, "REDIS_")
		if s.RedisSplit {
			s.RedisPerSecond.validate(r, "REDIS_PERSECOND_")
		}
		if (s.RedisTLS.ClientCert == "") != (s.RedisTLS.ClientKey == "") {
			r.problem("REDIS_TLS_CLIENT_CERT", s.RedisTLS.ClientCert, "it goes with REDIS_TLS_CLIENT_KEY: set both or neither")
		}
	default:
		r.problem("BACKEND_TYPE", s.BackendType, "write memory or redis")
	}
	if s.BackendType != "redis" {
		s.RedisSplit = false
	}
}

// validate completes what depends on the form of the URL. The URL may hold a
// password and is never shown.
func (c *Redis) validate(r *reader, prefix string) {
	if c.URL == "" {
		r.problem(prefix+"URL", "", "write host:port, the path of a socket, or redis://host:port")
		return
	}
	if c.PipelineLimit < 0 {
		r.problem(prefix+"PIPELINE_LIMIT", "below 0", "write 0 or more")
	}
	if strings.Contains(c.URL, "://") {
		u, err := url.Parse(c.URL)
		if err != nil || u.Scheme != "redis" && u.Scheme != "rediss" || u.Host == "" {
			r.problem(prefix+"URL", "…", "it begins like a URL: write redis://user:password@host:port/db, or rediss://")
		}
		c.SocketType = "tcp"
		return
	}
	switch c.SocketType {
	case "":
		c.SocketType = "tcp"
		if strings.Contains(c.URL, "/") {
			c.SocketType = "unix"
		}
	case "tcp", "unix":
	default:
		r.problem(prefix+"SOCKET_TYPE", c.SocketType, "write tcp or unix")
	}
}
