package settings

import (
	"strconv"
	"time"
)

// declareRedis names the variables of Redis, those of the second one for limits
// by the second included.
func (s *Settings) declareRedis(r *reader) {
	r.section("Redis")
	s.Redis.declare(r, "REDIS_", RedisSocket, "")
	r.text(&s.RedisTLS.CACert, "REDIS_TLS_CACERT", "", "PEM file of authorities to trust in addition to the system's; read for each connection, like all files of this section")
	r.text(&s.RedisTLS.ClientCert, "REDIS_TLS_CLIENT_CERT", "", "PEM file of the client's certificate chain")
	r.text(&s.RedisTLS.ClientKey, "REDIS_TLS_CLIENT_KEY", "", "PEM file of its key")
	r.flag(&s.RedisTLS.SkipHostname, "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", false, "verify the server's certificate, but not the name in it")
	r.flag(&s.RedisHealthCheck, "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", false, "be unhealthy while Redis does not answer; otherwise only until its first answer")
	r.duration(&s.RedisStartupInitial, "REDIS_STARTUP_INITIAL_INTERVAL", time.Second, "pause after the first attempt to reach Redis at the start; it doubles").pause(minPause)
	r.duration(&s.RedisStartupMax, "REDIS_STARTUP_MAX_INTERVAL", 30*time.Second, "up to this").pause(minPause)
	r.duration(&s.RedisStartupElapsed, "REDIS_STARTUP_MAX_ELAPSED_TIME", 0, "exit with status 1 if Redis has not answered by then; 0: wait for ever, not ready")
	r.flag(&s.RedisSplit, "REDIS_PERSECOND", false, "count limits by the second in a second Redis")
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
	r.text(&c.SocketType, prefix+"SOCKET_TYPE", "", say("network of a single Redis: `tcp`, `tcp4` (IPv4 only), `tcp6` (IPv6 only) or `unix`. Not set: by the form of the URL"))
	r.oneOf(&c.Type, prefix+"TYPE", "SINGLE", say("kind of `…URL`"), "SINGLE", "SENTINEL", "CLUSTER")
	r.text(&c.URL, prefix+"URL", url, say("`host:port`, the path of a socket, `redis://user:password@host:port/db`, or `rediss://` for TLS; of sentinels `primary's name,host:port,host:port`; of a cluster some nodes, `host:port,host:port`"))
	r.integer(&c.PoolSize, prefix+"POOL_SIZE", 10, say("most connections to each server. Two are enough for most, since calls share them in batches. 0: the default")).atLeast(0)
	r.text(&c.Auth, prefix+"AUTH", "", say("`password` or `user:password`"))
	r.text(&c.AuthFile, prefix+"AUTH_FILE", "", say("a file with the same, read for each connection; takes precedence over the variable"))
	r.text(&c.SentinelAuth, prefix+"SENTINEL_AUTH", "", say("the same for the sentinels"))
	r.text(&c.SentinelAuthFile, prefix+"SENTINEL_AUTH_FILE", "", say("the same for the sentinels"))
	r.flag(&c.TLS, prefix+"TLS", false, say("use TLS, towards sentinels too"))
	r.duration(&c.Timeout, prefix+"TIMEOUT", 50*time.Millisecond, say("longest time for a call; a shorter deadline of the caller takes precedence. Must be longer than a few round trips to Redis. Connecting may take 1 s, or 10 times this value if that is more"))
	r.duration(&c.PipelineWindow, prefix+"PIPELINE_WINDOW", 0, say("time to wait for more hits before each batch; 0: batches form while others are in flight"))
	r.integer(&c.PipelineLimit, prefix+"PIPELINE_LIMIT", 0, say("most hits in a batch; 0: no limit")).atLeast(0)
	r.integer(&c.Parallelism, prefix+"CLUSTER_PIPELINE_PARALLELISM", 1, say("accepted, no effect: the nodes of a cluster are always asked at the same time"))
	var onEmpty string
	r.text(&onEmpty, prefix+"POOL_ON_EMPTY_BEHAVIOR", "WAIT", say("accepted with any value of envoyproxy/ratelimit, no effect: calls share connections, so none is ever missing"))
}

// validate checks what belongs together and takes the URL apart.
func (c *Redis) validate(r *reader, prefix string) {
	if c.PoolSize == 0 {
		c.PoolSize = 10
	}
	if c.Parallelism < 0 && c.Type == "CLUSTER" {
		r.problem(prefix+"CLUSTER_PIPELINE_PARALLELISM", strconv.Itoa(c.Parallelism), "write 0 or more; it has no effect")
	}
	if c.Timeout > 0 && c.PipelineWindow >= c.Timeout && !r.unreadable(prefix+"TIMEOUT") {
		r.problem(prefix+"PIPELINE_WINDOW", c.PipelineWindow.String(), "no call would be answered within "+prefix+"TIMEOUT, "+c.Timeout.String()+": write a shorter one")
	}
	if r.unreadable(prefix + "TYPE") {
		return
	}
	c.place(r, func(word string) string { return prefix + word })
}
