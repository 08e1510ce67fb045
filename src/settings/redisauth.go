package settings

import (
	"cmp"
	"strings"
)

// AWSIAM describes a cache of ElastiCache or MemoryDB that authenticates users of IAM.
type AWSIAM struct {
	On         bool   `env:"AUTH"`
	CacheName  string `env:"CACHE_NAME"`
	UserID     string `env:"USER_ID"`
	Region     string `env:"REGION"`
	Service    string `env:"SERVICE"` // elasticache or memorydb.
	Serverless bool   `env:"SERVERLESS"`
}

// validateAuth checks the variables that say how connections authenticate, after the URL was read.
func (c *Redis) validateAuth(r *reader, prefix string) {
	given := func(name, value string) {
		if value != "" {
			r.problem(prefix+name, "…", "several variables give credentials: leave only one of "+prefix+"AUTH (or a "+
				"password in "+prefix+"URL), "+prefix+"AUTH_FILE, "+prefix+"AUTH_COMMAND and "+prefix+"AWS_IAM_AUTH")
		}
	}
	if c.AuthCommand != "" || c.IAM.On {
		given("AUTH", c.Auth)
		given("AUTH_FILE", c.AuthFile)
	}
	if c.IAM.On {
		given("AUTH_COMMAND", c.AuthCommand)
		c.IAM.validate(r, prefix, c.TLS)
	}
	if c.AuthUser != "" && c.AuthCommand == "" {
		r.warnNoEffect(prefix+"AUTH_USER", c.AuthUser, prefix+"AUTH_COMMAND is not set", "set it")
	}
	if c.SentinelAuthCommand != "" && (c.SentinelAuth != "" || c.SentinelAuthFile != "") {
		r.problem(prefix+"SENTINEL_AUTH_COMMAND", "…", "several variables give credentials for the sentinels: leave one")
	}
}

// validate checks the variables of IAM, and sets the region. tls says whether connections to the cache use TLS.
func (a *AWSIAM) validate(r *reader, prefix string, tls bool) {
	a.Region = cmp.Or(a.Region, r.env["REDIS_AWS_IAM_REGION"], r.env["AWS_REGION"], r.env["AWS_DEFAULT_REGION"])
	switch {
	case a.CacheName == "":
		r.problem(prefix+"AWS_IAM_CACHE_NAME", "", "write the name of the cache: of the replication group, the serverless "+
			"cache or the cluster of MemoryDB")
	case strings.ContainsAny(a.CacheName, ".:/"):
		r.problem(prefix+"AWS_IAM_CACHE_NAME", a.CacheName, "write the name of the cache, not its address")
	}
	if a.UserID == "" {
		r.problem(prefix+"AWS_IAM_USER_ID", "", "write the user of the cache whose authentication mode is IAM")
	}
	if a.Region == "" {
		r.problem(prefix+"AWS_IAM_REGION", "", "write the region of the cache, such as eu-central-1, or set AWS_REGION")
	}
	if a.Serverless && a.Service == "memorydb" {
		r.problem(prefix+"AWS_IAM_SERVERLESS", "true", "MemoryDB has no serverless caches: remove it, or write "+
			prefix+"AWS_IAM_SERVICE=elasticache")
	}
	if !tls {
		r.warn("%sAWS_IAM_AUTH=true without %sTLS=true: AWS requires TLS, and without it others can read the tokens", prefix,
			prefix)
	}
}
