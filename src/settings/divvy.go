package settings

import (
	"cmp"
	"errors"
	"maps"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"
)

// DivvyVariables has the values of divvy's own variables, which `ratelimit divvy` reads. divvy.txt explains each one.
type DivvyVariables struct {
	Port         int    `env:"PORT"`
	RedisHost    string `env:"REDIS_HOST"`
	RedisPort    int    `env:"REDIS_PORT"`
	Statsd       bool   // set if statistics are sent to StatsdHost.
	StatsdHost   string `env:"STATSD_HOST"`
	StatsdPort   int    `env:"STATSD_PORT"`
	StatsdPrefix string `env:"STATSD_PREFIX"`  // the prefix of names with a dot at its end; may be empty.
	StatsdTCP    string `env:"STATSD_USE_TCP"` // selects TCP if it is not empty, and UDP otherwise.
	HTTP         bool   // set if a port answers scrapes.
	HTTPPort     int    `env:"HTTP_SERVICE_PORT"`
	MetricsPath  string `env:"PROMETHEUS_METRICS_PATH"` // the path of scrapes, such as /metrics.
	Debug        string `env:"DEBUG"`
}

// ReadDivvy reads the settings of `ratelimit divvy`: divvy's own variables, and those of Read that isReplaced does not
// exclude. The warnings and the error are like those of Read.
func ReadDivvy(env Environment) (*Settings, []string, error) {
	own, r := new(DivvyVariables), newReader(env, slices.Concat(Table(), DivvyTable()))
	r.fill(own, DivvyTable())
	own.derive(r)
	s, warnings, err := Read(own.translate(r))
	s.DivvyVariables = own
	s.NoHTTP = true
	s.NoGRPC = !r.isSet("GRPC_PORT") && !r.isSet("GRPC_UDS")
	s.NoDebug = s.NoDebug || !r.isSet("DEBUG_PORT")
	s.Sink = SinkDivvy
	ownWarnings, ownErr := r.result()
	return s, append(ownWarnings, warnings...), errors.Join(ownErr, err)
}

// DivvyAddr returns the port of a `ratelimit divvy` that was started with env.
func DivvyAddr(env Environment) (host string, port int) {
	s, _, _ := ReadDivvy(env) // It has not started if the settings are wrong.
	return s.Divvy.Host, s.Divvy.Port
}

func (d *DivvyVariables) derive(r *reader) {
	if r.isSet("REDIS_URL") && (r.isSet("REDIS_HOST") || r.isSet("REDIS_PORT")) {
		r.problem("REDIS_URL", "…", "leave it out, or REDIS_HOST and REDIS_PORT: both say where Redis is")
	}
	// both reports whether two variables are set that need each other. If only one is, it warns of the consequence.
	both := func(name string, isSet bool, name2 string, isSet2 bool, consequence string) bool {
		if isSet && !isSet2 {
			r.warn("%s: %s needs %s", consequence, name, name2)
		} else if isSet2 && !isSet {
			r.warn("%s: %s needs %s", consequence, name2, name)
		}
		return isSet && isSet2
	}
	d.Statsd = both("STATSD_HOST", d.StatsdHost != "", "STATSD_PORT", d.StatsdPort != 0, "nothing is sent to statsd")
	if d.StatsdPrefix != "" {
		d.StatsdPrefix = strings.TrimSuffix(d.StatsdPrefix, ".") + "."
	}
	d.HTTP = both("HTTP_SERVICE_PORT", r.isSet("HTTP_SERVICE_PORT"), "PROMETHEUS_METRICS_PATH", d.MetricsPath != "",
		"there is no HTTP port")
	if d.HTTP {
		d.MetricsPath = "/" + strings.Trim(d.MetricsPath, "/")
	}
}

// isReplaced reports whether `ratelimit divvy` ignores a variable of Read. It ignores those of the HTTP port, of rule
// sources and of statistics, for which it has others or none.
func isReplaced(v Variable) bool {
	switch v.Name {
	case "RUNTIME_DEBOUNCE", "RUNTIME_POLL_INTERVAL", "RUNTIME_READ_TIMEOUT", "STATS_FLUSH_INTERVAL":
		return false
	case "HOST", "PORT", "DIVVY_PORT", "DIVVY_DOMAIN":
		return true
	}
	return slices.Contains([]string{"Rules", "Rules over xDS", "Statistics"}, v.Section) ||
		strings.HasPrefix(v.Name, "HTTP_")
}

// translate returns the environment for Read. It sets the variables of Read that divvy's variables imply, and leaves
// out those that isReplaced excludes.
func (d *DivvyVariables) translate(r *reader) Environment {
	env := maps.Clone(r.env)
	for _, v := range Table() {
		if isReplaced(v) {
			delete(env, v.Name)
		}
	}
	env["USE_STATSD"], env["DIVVY_PORT"] = "false", strconv.Itoa(d.Port)
	env["STATS_FLUSH_INTERVAL"] = cmp.Or(env["STATS_FLUSH_INTERVAL"], "1s")
	redis := net.JoinHostPort(d.RedisHost, strconv.Itoa(d.RedisPort))
	switch backend := env["BACKEND_TYPE"]; {
	case r.isSet("REDIS_HOST") || r.isSet("REDIS_PORT"):
		env["REDIS_URL"], env["REDIS_TYPE"], env["REDIS_SOCKET_TYPE"] = redis, "SINGLE", "tcp"
		env["BACKEND_TYPE"] = cmp.Or(backend, "redis")
	case r.isSet("REDIS_URL"):
	case backend == "redis":
		env["REDIS_URL"] = redis
	case backend == "":
		env["BACKEND_TYPE"] = "memory"
	}
	if !r.isSet("LOG_LEVEL") && includesName(d.Debug, "divvy") {
		env["LOG_LEVEL"] = "debug"
	}
	return env
}

// includesName reports whether a list of patterns, as in the variable DEBUG of Node's debug library, includes name. The
// lists `divvy`, `*` and `express:*,divvy` include divvy; `*,-divvy` does not.
func includesName(list, name string) bool {
	included := false
	for _, p := range strings.FieldsFunc(list, func(c rune) bool { return c == ',' || c == ' ' }) {
		p, isExclusion := strings.CutPrefix(p, "-")
		matches, _ := path.Match(p, name)
		if matches && isExclusion {
			return false
		}
		included = included || matches
	}
	return included
}

// StoreText describes the store as divvy does at its start.
func (s *Settings) StoreText() string {
	if s.BackendType == "redis" {
		return "Redis host " + strings.Join(s.Redis.Addrs, ",")
	}
	return "counters in memory"
}
