package settings

import (
	"regexp"
	"strings"
	"time"
)

// Memcache describes the Memcached servers and the connections to them. Either Servers is set,
// or SRV names a DNS record that lists the servers.
type Memcache struct {
	Servers     []string      `env:"HOST_PORT"` // host:port or paths of sockets
	SRV         string        `env:"SRV"`       // such as _memcache._tcp.example.com
	SRVParts    SRV           // the parts of SRV
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

var srvName = regexp.MustCompile(`^_([^.]+)\._([^.]+)\.(.*[^.])\.?$`)

// validateMemcache checks the settings of Memcached and sets SRVParts.
func (s *Settings) validateMemcache(r *reader) {
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
	for _, addr := range m.Servers {
		if !strings.Contains(addr, "/") && !isHostPort(addr) {
			r.problem("MEMCACHE_HOST_PORT", addr, "write host:port, or the path of a socket, for each server")
		}
	}
	m.TLSFiles.validate(r, "MEMCACHE_TLS_")
	if s.StopIncrementWhenOver {
		r.problem("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true",
			"Memcached cannot charge several limits all or none: write false, or set BACKEND_TYPE to memory or redis")
	}
}
