package settings

import (
	"net"
	"strconv"
	"strings"
	"time"
)

// Memcache is where Memcached is and how it is asked.
type Memcache struct {
	// Servers are host:port or paths of sockets. Either there are some, or a
	// record that knows them.
	Servers    []string
	SRV        string // as it was set
	SRVParts   SRV
	SRVRefresh time.Duration
	Conns      int
	Timeout    time.Duration
	Hash       string // modulo or rendezvous
	TLS        bool
	TLSFiles   TLSFiles
	// HealthCheck makes health depend on it for as long as the service runs.
	HealthCheck bool
}

// SRV are the parts of the name of such a record, _service._proto.name.
type SRV struct{ Service, Proto, Name string }

func (m *Memcache) declare(r *reader) {
	r.section("Memcached")
	r.list(&m.Servers, "MEMCACHE_HOST_PORT", "the servers, `host:port` or paths of sockets, separated by commas; the same list in the same order on every replica")
	r.text(&m.SRV, "MEMCACHE_SRV", "", "a DNS record that lists the servers, instead of the list: `_service._proto.name`")
	r.duration(&m.SRVRefresh, "MEMCACHE_SRV_REFRESH", 0, "how often it is resolved again; 0: never, once it was found").pauseOr0(minPause)
	r.oneOf(&m.Hash, "MEMCACHE_HASH", "modulo", "how the server of a key is chosen: `modulo` as in envoyproxy/ratelimit, `rendezvous` to move as few keys as possible when servers change. The same on every replica", "modulo", "rendezvous")
	r.integer(&m.Conns, "MEMCACHE_MAX_IDLE_CONNS", 2, "connections to each server, also when idle. Two are enough for most, since calls share them. Below 1: the default")
	r.duration(&m.Timeout, "MEMCACHE_TIMEOUT", 50*time.Millisecond, "longest time for a call; a shorter deadline of the caller takes precedence. Must be longer than a few round trips to the servers, since a new counter takes two. Connecting may take 1 s, or 10 times this value if that is more")
	r.flag(&m.TLS, "MEMCACHE_TLS", false, "use TLS")
	r.text(&m.TLSFiles.CACert, "MEMCACHE_TLS_CACERT", "", "PEM file of authorities to trust in addition to the system's; read for each connection, like all files of this section")
	r.text(&m.TLSFiles.ClientCert, "MEMCACHE_TLS_CLIENT_CERT", "", "PEM file of the client's certificate chain")
	r.text(&m.TLSFiles.ClientKey, "MEMCACHE_TLS_CLIENT_KEY", "", "PEM file of its key")
	r.flag(&m.TLSFiles.SkipHostname, "MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", false, "verify the server's certificate, but not the name in it")
	r.flag(&m.HealthCheck, "MEMCACHE_HEALTH_CHECK_ACTIVE_CONNECTION", false, "be unhealthy while no server answers; otherwise only until the first answer of one")
}

// validateMemcache checks what the store needs that has been chosen.
func (s *Settings) validateMemcache(r *reader) {
	m := &s.Memcache
	switch {
	case len(m.Servers) == 0 && m.SRV == "":
		r.problem("MEMCACHE_HOST_PORT", "", "write the servers, host:port,host:port, or set MEMCACHE_SRV")
	case len(m.Servers) > 0 && m.SRV != "":
		r.problem("MEMCACHE_SRV", m.SRV, "MEMCACHE_HOST_PORT is set as well: set one of them")
	case m.SRV != "" && !m.SRVParts.read(m.SRV):
		r.problem("MEMCACHE_SRV", m.SRV, "write _service._proto.name, such as _memcache._tcp.example.com")
	}
	for _, addr := range m.Servers {
		if !isServer(addr) {
			r.problem("MEMCACHE_HOST_PORT", addr, "write host:port, or the path of a socket, for each server")
		}
	}
	if m.Conns < 1 {
		m.Conns = 2
	}
	m.TLSFiles.validate(r, "MEMCACHE_TLS_CLIENT_CERT", "MEMCACHE_TLS_CLIENT_KEY")
	if s.StopIncrementWhenOver {
		r.problem("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true",
			"Memcached cannot charge several limits all or none: write false, or set BACKEND_TYPE to memory or redis")
	}
}

// isServer reports whether addr is host:port or a path.
func isServer(addr string) bool {
	if strings.Contains(addr, "/") {
		return true
	}
	host, port, err := net.SplitHostPort(addr)
	n, bad := strconv.ParseUint(port, 10, 16)
	return err == nil && host != "" && bad == nil && n > 0
}

// read takes a record's name apart, and reports whether it is one.
func (v *SRV) read(record string) bool {
	service, rest, _ := strings.Cut(record, ".")
	proto, name, _ := strings.Cut(rest, ".")
	var under, under2 bool
	v.Service, under = strings.CutPrefix(service, "_")
	v.Proto, under2 = strings.CutPrefix(proto, "_")
	v.Name = strings.TrimSuffix(name, ".")
	return under && under2 && v.Service != "" && v.Proto != "" && v.Name != ""
}
