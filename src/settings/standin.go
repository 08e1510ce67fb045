package settings

import (
	"cmp"
	"errors"
	"net"
	"strconv"
	"strings"
)

// StandIn has the values of divvy's own variables, which `ratelimit divvy` reads. divvy.txt
// explains each one.
type StandIn struct {
	Config string // path of the rule file

	Port         int    `env:"PORT"`
	RedisHost    string `env:"REDIS_HOST"`
	RedisPort    int    `env:"REDIS_PORT"`
	Statsd       bool   // set if statistics are sent to StatsdHost
	StatsdHost   string `env:"STATSD_HOST"`
	StatsdPort   int    `env:"STATSD_PORT"`
	StatsdPrefix string `env:"STATSD_PREFIX"`  // empty, or with a dot at its end
	StatsdTCP    string `env:"STATSD_USE_TCP"` // any text: TCP; empty: UDP
	HTTP         bool   // set if a port answers scrapes
	HTTPPort     int    `env:"HTTP_SERVICE_PORT"`
	MetricsPath  string `env:"PROMETHEUS_METRICS_PATH"` // such as /metrics, if HTTP is set
	Debug        string `env:"DEBUG"`
}

// ReadDivvy reads the settings of `ratelimit divvy`: divvy's own variables, and those of Read
// that isElsewhere does not exclude. config is the path of the rule file. The warnings and the
// error are like those of Read.
func ReadDivvy(config string, lookup func(string) (string, bool)) (*Settings, []string, error) {
	own, r := &StandIn{Config: config}, newReader(lookup)
	r.fill(own, DivvyTable())
	own.derive(r)
	s, warnings, err := Read(own.translate(r))
	s.StandIn = own
	s.NoHTTP = true
	s.NoGRPC = !r.isSet("GRPC_PORT") && !r.isSet("GRPC_UDS")
	s.NoDebug = !r.isSet("DEBUG_PORT")
	s.Sink = SinkDivvy
	return s, append(r.warnings, warnings...), errors.Join(r.err(), err)
}

// derive sets the fields that depend on several variables.
func (d *StandIn) derive(r *reader) {
	if r.isSet("REDIS_URL") && (r.isSet("REDIS_HOST") || r.isSet("REDIS_PORT")) {
		r.problem("REDIS_URL", "…", "leave it out, or REDIS_HOST and REDIS_PORT: both say where Redis is")
	}
	// both reports whether both of two variables are set. If only one is, it warns that it
	// needs the other; without is the consequence.
	both := func(name string, set bool, name2 string, set2 bool, without string) bool {
		if set && !set2 {
			r.warn("%s: %s needs %s", without, name, name2)
		} else if set2 && !set {
			r.warn("%s: %s needs %s", without, name2, name)
		}
		return set && set2
	}
	d.Statsd = both("STATSD_HOST", d.StatsdHost != "", "STATSD_PORT", d.StatsdPort != 0, "nothing is sent to statsd")
	if d.StatsdPrefix != "" {
		d.StatsdPrefix = strings.TrimSuffix(d.StatsdPrefix, ".") + "."
	}
	d.HTTP = both("HTTP_SERVICE_PORT", r.isSet("HTTP_SERVICE_PORT"), "PROMETHEUS_METRICS_PATH", d.MetricsPath != "", "there is no HTTP port")
	if d.HTTP {
		d.MetricsPath = "/" + strings.Trim(d.MetricsPath, "/")
	}
}

// isElsewhere reports whether `ratelimit divvy` ignores a variable of Read. It ignores those of
// the HTTP port, of rule sources and of statistics, for which it has others or none.
func isElsewhere(v Variable) bool {
	switch v.Name {
	case "RUNTIME_DEBOUNCE", "RUNTIME_POLL_INTERVAL", "RUNTIME_READ_TIMEOUT", "STATS_FLUSH_INTERVAL":
		return false
	case "HOST", "PORT", "DIVVY_PORT", "DIVVY_DOMAIN":
		return true
	}
	switch v.Section {
	case "Rules", "Rules over xDS", "Statistics":
		return true
	}
	return strings.HasPrefix(v.Name, "HTTP_")
}

// translate returns a lookup for Read: it sets the variables of Read that divvy's variables
// imply, and hides those that isElsewhere excludes.
func (d *StandIn) translate(r *reader) func(string) (string, bool) {
	values := map[string]string{"DISABLE_STATS": "true", "DIVVY_PORT": strconv.Itoa(d.Port)}
	if !r.isSet("STATS_FLUSH_INTERVAL") {
		values["STATS_FLUSH_INTERVAL"] = "1s"
	}
	redis := net.JoinHostPort(d.RedisHost, strconv.Itoa(d.RedisPort))
	switch backend, _ := r.lookup("BACKEND_TYPE"); {
	case r.isSet("REDIS_HOST") || r.isSet("REDIS_PORT"):
		values["REDIS_URL"], values["REDIS_TYPE"], values["REDIS_SOCKET_TYPE"] = redis, "SINGLE", "tcp"
		values["BACKEND_TYPE"] = cmp.Or(backend, "redis")
	case r.isSet("REDIS_URL"):
	case backend == "redis":
		values["REDIS_URL"] = redis
	case backend == "":
		values["BACKEND_TYPE"] = "memory"
	}
	if !r.isSet("LOG_LEVEL") && debugs(d.Debug, "divvy") {
		values["LOG_LEVEL"] = "debug"
	}
	elsewhere := make(map[string]bool)
	for _, v := range Table() {
		elsewhere[v.Name] = isElsewhere(v)
	}
	return instead(func(name string) (string, bool) {
		if elsewhere[name] {
			return "", false
		}
		return r.lookup(name)
	}, values)
}

// debugs reports whether a list of patterns of Node's debug library includes name. The lists
// `divvy`, `*` and `express:*,divvy` include divvy; `*,-divvy` does not.
func debugs(list, name string) bool {
	on := false
	for _, p := range strings.FieldsFunc(list, func(c rune) bool { return c == ',' || c == ' ' }) {
		p, not := strings.CutPrefix(p, "-")
		before, after, star := strings.Cut(p, "*")
		match := p == name || star && len(before)+len(after) <= len(name) && strings.HasPrefix(name, before) && strings.HasSuffix(name, after)
		if match && not {
			return false
		}
		on = on || match
	}
	return on
}
