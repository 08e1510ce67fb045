package settings

import (
	"cmp"
	"errors"
	"net"
	"strconv"
	"strings"
)

// StandIn has the values of divvy's own variables, for `ratelimit divvy`, see divvy.txt.
type StandIn struct {
	Config string // the path of the rule file

	Port         int    `env:"PORT"`
	RedisHost    string `env:"REDIS_HOST"`
	RedisPort    int    `env:"REDIS_PORT"`
	Statsd       bool   // statistics are sent to StatsdHost
	StatsdHost   string `env:"STATSD_HOST"`
	StatsdPort   int    `env:"STATSD_PORT"`
	StatsdPrefix string `env:"STATSD_PREFIX"`  // empty, or ends in a dot
	StatsdTCP    string `env:"STATSD_USE_TCP"` // not empty: TCP
	HTTP         bool   // there is a port for scrapes
	HTTPPort     int    `env:"HTTP_SERVICE_PORT"`
	MetricsPath  string `env:"PROMETHEUS_METRICS_PATH"` // with HTTP it begins with a slash and ends with none, unless it is "/"
	Debug        string `env:"DEBUG"`
}

// ReadDivvy reads the settings of `ratelimit divvy`, whose rules are in the file config:
// divvy's own variables, and those of Read that are in use there, see isElsewhere. Error and
// warnings are as those of Read.
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

// derive sets what no single variable says.
func (d *StandIn) derive(r *reader) {
	if r.isSet("REDIS_URL") && (r.isSet("REDIS_HOST") || r.isSet("REDIS_PORT")) {
		r.problem("REDIS_URL", "…", "leave it out, or REDIS_HOST and REDIS_PORT: both say where Redis is")
	}
	// both reports whether two variables are set that need each other.
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

// isElsewhere reports whether a variable of Read has another name or no effect in
// `ratelimit divvy`: those of the HTTP port, of where rules are, and of statistics.
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

// translate returns what Read looks up, in its own words.
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

// debugs reports whether a list of patterns, as Node's debug library has them, asks for the
// lines of name: `divvy`, `*`, `express:*,divvy`, but not `*,-divvy`.
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
