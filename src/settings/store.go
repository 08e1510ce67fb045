package settings

import (
	"cmp"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

// UpstreamSocket is the default of REDIS_URL in envoyproxy/ratelimit.
const UpstreamSocket = "/var/run/nutcracker/ratelimit.sock"

// UseUpstreamSocket chooses the Redis at the unix socket as the store, and returns a warning. If the socket does not
// exist, or if BACKEND_TYPE or a variable of Redis is set, it changes nothing and returns no warning.
func (e Environment) UseUpstreamSocket(socket string) (warnings []string) {
	if info, err := os.Stat(socket); err != nil || info.Mode().Type() != fs.ModeSocket || e["BACKEND_TYPE"] != "" ||
		e.setsRedis() {
		return nil
	}
	e["BACKEND_TYPE"], e["REDIS_URL"] = "redis", socket
	return []string{"the counters are in the Redis at " + socket +
		", which envoyproxy/ratelimit would use: no variable names a store, and the socket exists; set BACKEND_TYPE=redis, " +
		"or BACKEND_TYPE=memory to count in this process"}
}

func (e Environment) setsRedis() bool {
	return slices.ContainsFunc(Table(),
		func(v Variable) bool { return strings.HasPrefix(v.Name, "REDIS_") && e[v.Name] != "" })
}

// validateStore checks the settings of the store. It chooses the store if BACKEND_TYPE is not set.
func (s *Settings) validateStore(r *reader) {
	if s.BackendType == "" {
		s.BackendType = "memory"
		if r.env.setsRedis() {
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

// Memcache describes the Memcached servers and the connections to them. Either Servers is set, or SRV names a DNS
// record that lists the servers.
type Memcache struct {
	Servers     []string      `env:"HOST_PORT"` // addresses as host:port, or paths of sockets.
	SRV         string        `env:"SRV"`       // the name of the DNS record, such as _memcache._tcp.example.com.
	SRVParts    SRV           // the parts of the name SRV.
	SRVRefresh  time.Duration `env:"SRV_REFRESH"`
	Conns       int           `env:"MAX_IDLE_CONNS"`
	Timeout     time.Duration `env:"TIMEOUT"`
	Hash        string        `env:"HASH"`
	TLS         bool          `env:"TLS"`
	TLSFiles    TLSFiles      `env:"TLS_"`
	HealthCheck bool          `env:"HEALTH_CHECK_ACTIVE_CONNECTION"`
}

// SRV has the parts of the name of an SRV record, _service._proto.name.
type SRV struct{ Service, Proto, Name string }

// srvName matches a name of an SRV record, and its parts.
var srvName = regexp.MustCompile(`^_([^.]+)\._([^.]+)\.(.*[^.])\.?$`)

func (s *Settings) validateMemcache(r *reader) {
	r.warnLongTimeout("MEMCACHE_TIMEOUT", s.Memcache.Timeout)
	m := &s.Memcache
	record := srvName.FindStringSubmatch(m.SRV)
	switch {
	case len(m.Servers) == 0 && m.SRV == "":
		r.problem("MEMCACHE_HOST_PORT", "", "write the servers, host:port,host:port, or set MEMCACHE_SRV")
	case len(m.Servers) > 0 && m.SRV != "":
		r.problem("MEMCACHE_SRV", m.SRV, "MEMCACHE_HOST_PORT is set as well: set one of them")
	case record != nil:
		m.SRVParts = SRV{record[1], record[2], record[3]}
	case m.SRV != "":
		r.problem("MEMCACHE_SRV", m.SRV, "write _service._proto.name, such as _memcache._tcp.example.com")
	}
	for i, addr := range m.Servers {
		m.Servers[i] = r.memcacheServer(addr)
	}
	m.TLSFiles.validate(r, "MEMCACHE_TLS_")
	if s.StopIncrementWhenOver {
		r.forgive("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true",
			"Memcached cannot charge several limits all or none: write false, or set BACKEND_TYPE to memory or redis",
			"false is used")
		s.StopIncrementWhenOver = false
	}
}

// memcacheServer returns an item of MEMCACHE_HOST_PORT, with the usual port or the host localhost if it has none.
func (r *reader) memcacheServer(addr string) string {
	const fix = "write host:port, or the path of a socket, for each server"
	completed := addr
	switch {
	case strings.Contains(addr, "/"):
		return addr
	case !strings.Contains(addr, ":"):
		completed += ":11211"
	case strings.HasPrefix(addr, ":"):
		completed = "localhost" + addr
	}
	if !isHostPort(completed) {
		r.problem("MEMCACHE_HOST_PORT", addr, fix)
	} else if completed != addr {
		r.forgive("MEMCACHE_HOST_PORT", addr, fix, completed+" is used")
	}
	return completed
}

// ServerTLS is the TLS configuration of one port. All files are PEM files.
type ServerTLS struct {
	On   bool   // set if the port speaks TLS.
	Cert string `env:"TLS_CERT"` // the path of the file with the certificate chain.
	Key  string `env:"TLS_KEY"`  // the path of the file with the key of the certificate.
	// the path of the authorities of client certificates; empty if clients need none.
	ClientCA   string `env:"TLS_CLIENT_CACERT"`
	ClientName string `env:"TLS_CLIENT_SAN"` // the DNS name that client certificates must have; empty for any.
}

// validate checks the variables of a port that depend on each other. prefix is the start of their names.
func (t *ServerTLS) validate(r *reader, prefix string) {
	nameOf := func(name string) string { return cmp.Or(upstreamNames[prefix+name], prefix+name) }
	cert, key := nameOf("TLS_CERT"), nameOf("TLS_KEY")
	switch {
	case !t.On:
	case t.Cert == "":
		r.problem(cert, "", "write the path of a PEM file with the certificate chain, and that of its key in "+key)
	case t.Key == "":
		r.problem(key, "", "write the path of a PEM file with the key of "+cert)
	case t.ClientName != "" && t.ClientCA == "":
		fix := "clients need no certificate: set " + nameOf("TLS_CLIENT_CACERT") + ", too"
		if prefix == "GRPC_" { // envoyproxy/ratelimit has only this one
			r.forgive(nameOf("TLS_CLIENT_SAN"), t.ClientName, fix, "all clients may connect")
			t.ClientName = ""
		} else {
			r.problem(nameOf("TLS_CLIENT_SAN"), t.ClientName, fix)
		}
	}
}

// TLSFiles has the paths of the PEM files for TLS connections to a store.
type TLSFiles struct {
	ClientCert   string `env:"CLIENT_CERT"`
	ClientKey    string `env:"CLIENT_KEY"`
	CACert       string `env:"CACERT"`
	SkipHostname bool   `env:"SKIP_HOSTNAME_VERIFICATION"` // set to accept any name in the certificate of the store.
}

// validate removes a certificate without a key, or a key without a certificate. prefix is the start of the names of the
// variables.
func (f *TLSFiles) validate(r *reader, prefix string) {
	if (f.ClientCert == "") != (f.ClientKey == "") {
		r.forgive(prefix+"CLIENT_CERT", f.ClientCert, "it goes with "+prefix+"CLIENT_KEY: set both or neither",
			"no client certificate is sent")
		f.ClientCert, f.ClientKey = "", ""
	}
}
