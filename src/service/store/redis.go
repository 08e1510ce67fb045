package store

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/redis"
	"ratelimit/src/backend/redis/credentials"
	"ratelimit/src/backend/remote"
	"ratelimit/src/backend/split"
	"ratelimit/src/files"
	"ratelimit/src/files/certs"
	"ratelimit/src/operator/throttle"
	"ratelimit/src/settings"
)

// openRedis makes the store of one Redis, or of two if limits per second have their own.
func (s *Store) openRedis() (backend.Backend, error) {
	cfg := s.cfg
	if file := cfg.RedisTLS.ClientCert; file != "" && (cfg.Redis.TLS || cfg.RedisSplit && cfg.RedisPerSecond.TLS) {
		cfg.Figures.ShowFigures("client certificate", "redis", certs.ClientStats(file))
	}
	main, err := s.openOneRedis("redis_pool", "Redis", "REDIS_", cfg.Redis, "pipeline length")
	if err != nil || !cfg.RedisSplit {
		return main, err
	}
	perSecond, err := s.openOneRedis("redis_per_second_pool", "the Redis of limits by the second", "REDIS_PERSECOND_",
		cfg.RedisPerSecond, "perSecondPipeline length")
	if err != nil {
		return nil, err
	}
	return split.New(perSecond, main), nil
}

// openOneRedis makes the store of one Redis. The names of its settings begin with prefix. hits is the attribute of a
// span that has the number of hits.
func (s *Store) openOneRedis(name, label, prefix string, from settings.Redis, hits string) (*redis.Store, error) {
	cfg := s.cfg
	p := &Pool{
		name: name, productName: "Redis", labelInMessages: label, timeoutSetting: prefix + "TIMEOUT",
		alwaysPing: cfg.RedisHealthCheck, firstPingPause: cfg.RedisStartupInitial, maxPingPause: cfg.RedisStartupMax,
		startTimeout: cfg.RedisStartupElapsed,
	}
	foreign := throttle.New(1, time.Minute)
	rc := redis.Config{
		Config:        s.remoteConfig(p, from.PoolSize, from.Timeout),
		PipelineLimit: from.PipelineLimit,
		OnForeignValue: func(algorithm, addr string) {
			if _, ok := foreign.Pass(time.Now()); ok {
				cfg.Log.Errorf("Redis at %s holds what is no counter under the key of a %s limit, so requests to it fail: "+
					"another program writes to keys of this service. "+
					"Give the service its own database (REDIS_URL) or its own CACHE_KEY_PREFIX, or delete the key", addr, algorithm)
			}
		},
	}
	rc.PipelineWindow, rc.StartSpan = from.PipelineWindow, cfg.Spans("Redis Pipeline Execution", "redis", hits)
	if err := ReachRedis(&rc, from, cfg.RedisTLS); err != nil {
		return nil, err
	}
	if err := s.mintTokens(p, &rc, from, prefix); err != nil {
		return nil, err
	}
	p.tlsCheck = storeTLSCheck{cmp.Or(rc.Network, "tcp"), from.Addrs[0], from.TLS, prefix + "TLS"}
	out, err := redis.New(rc)
	if err != nil {
		return nil, err
	}
	s.addPool(p, out)
	cfg.Figures.ShowFigures("redis", name, p)
	return out, nil
}

// ReachRedis sets in rc the address of a Redis, and its password from a variable or file.
func ReachRedis(rc *redis.Config, at settings.Redis, files settings.TLSFiles) error {
	rc.Credentials = redisCredentials(at.Auth, at.AuthFile)
	rc.DB = at.DB
	switch at.Type {
	case "SENTINEL":
		rc.Sentinel = &redis.Sentinel{
			Primary: at.Primary, Addrs: at.Addrs, Credentials: redisCredentials(at.SentinelAuth, at.SentinelAuthFile),
		}
	case "CLUSTER":
		rc.Cluster = at.Addrs
	default:
		rc.Network, rc.Addr = at.SocketType, at.Addrs[0]
	}
	if !at.TLS {
		return nil
	}
	rc.TLS = clientTLS("REDIS_TLS_", files).TLS
	_, err := rc.TLS()
	return err
}

// redisCredentials reads auth, which is "user:password" or "password", or a file with the same text, for each
// connection.
func redisCredentials(auth, file string) credentials.PerConnection {
	reads := new(files.Reads)
	return func() (string, string, error) {
		text := auth
		if file != "" {
			data, err := reads.File(context.Background(), file)
			if err != nil {
				return "", "", fmt.Errorf("the file with the password: %w", err)
			}
			text = strings.TrimRight(string(data), "\r\n")
		}
		user, password, both := strings.Cut(text, ":")
		if !both {
			return "", text, nil
		}
		return user, password, nil
	}
}

// HitTime returns the candidate.Config.HitTime of the store; nil for memory.
func (s *Store) HitTime() func(*backend.Hit) time.Duration {
	switch s.cfg.BackendType {
	case "memory":
		return nil
	case "redis":
		return redis.HitTime
	default:
		return func(*backend.Hit) time.Duration { return 2 * remote.CommandCost }
	}
}

// TakesCommands reports whether Command can be called: whether the store is Redis.
func (s *Store) TakesCommands() bool { return s.cfg.BackendType == "redis" }

// Command sends a rare command to the Redis that has the key, and returns the reply; see redis.Command. It is the Redis
// of all limits but those per second, if these have another one.
func (s *Store) Command(ctx context.Context, key string, words ...string) (any, error) {
	return redis.Command(ctx, s.Pools[0].client.(*redis.Store), key, words...)
}
