package settings

import (
	"errors"
	"math"
	"net"
	"strconv"
	"strings"
)

// StandIn has the values of divvy's own variables, for `ratelimit divvy`.
type StandIn struct {
	Config string // the path of the rule file
	// Statsd says that statistics are sent there, over TCP if StatsdTCP. Their
	// names begin with StatsdPrefix, which is empty or ends in a dot.
	Statsd, StatsdTCP bool
	StatsdHost        string
	StatsdPort        int
	StatsdPrefix      string
	// HTTP says that there is a port for scrapes. MetricsPath begins with a slash
	// and ends with none, unless it is "/".
	HTTP        bool
	HTTPPort    int
	MetricsPath string

	port      int
	redisHost string
	redisPort int
	useTCP    string
	debug     string
}

// ReadDivvy reads the settings of `ratelimit divvy`, whose rules are in the file
// config: divvy's own variables, and beside them those of Read that mean
// something there, see isElsewhere. Error and warnings are as those of Read.
func ReadDivvy(config string, lookup func(string) (string, bool)) (*Settings, []string, error) {
	own := &StandIn{Config: config}
	r := &reader{lookup: lookup}
	own.declare(r)
	own.validate(r)
	s, warnings, err := Read(own.translate(lookup))
	s.StandIn = own
	s.NoHTTP = true
	s.NoGRPC = !isSet(lookup, "GRPC_PORT") && !isSet(lookup, "GRPC_UDS")
	s.NoDebug = !isSet(lookup, "DEBUG_PORT")
	s.Sink = SinkDivvy
	return s, append(r.warnings, warnings...), errors.Join(r.err(), err)
}

// DivvyTable lists divvy's own variables.
func DivvyTable() []Variable {
	r := &reader{lookup: func(string) (string, bool) { return "", false }}
	new(StandIn).declare(r)
	return r.table
}

// declare names divvy's own variables.
func (d *StandIn) declare(r *reader) {
	r.section("divvy")
	r.port(&d.port, "PORT", DivvyPort, "port of the line protocol; 0 picks a free one")
	r.text(&d.redisHost, "REDIS_HOST", "localhost", "host of Redis. Without this and `REDIS_PORT` counters are in memory")
	r.port(&d.redisPort, "REDIS_PORT", 6379, "its port")
	r.text(&d.StatsdHost, "STATSD_HOST", "", "host of statsd; with `STATSD_PORT`")
	r.optionalPort(&d.StatsdPort, "STATSD_PORT", 0, "its port")
	r.text(&d.StatsdPrefix, "STATSD_PREFIX", "", "stands before every name, with a dot behind it")
	r.text(&d.useTCP, "STATSD_USE_TCP", "", "TCP instead of UDP, whatever the text")
	r.optionalPort(&d.HTTPPort, "HTTP_SERVICE_PORT", 0, "HTTP port of Prometheus metrics, and of `/healthcheck`; with `PROMETHEUS_METRICS_PATH`. 0 picks a free one")
	r.text(&d.MetricsPath, "PROMETHEUS_METRICS_PATH", "", "their path")
	r.text(&d.debug, "DEBUG", "", "`divvy` logs more, among it the comment of each rule, as `LOG_LEVEL=debug` does")
}

// validate checks what one variable alone cannot.
func (d *StandIn) validate(r *reader) {
	if isSet(r.lookup, "REDIS_URL") && (isSet(r.lookup, "REDIS_HOST") || isSet(r.lookup, "REDIS_PORT")) {
		r.problem("REDIS_URL", "…", "leave it out, or REDIS_HOST and REDIS_PORT: both say where Redis is")
	}
	hasHTTP := isSet(r.lookup, "HTTP_SERVICE_PORT")
	switch statsd := [2]bool{d.StatsdHost != "", d.StatsdPort != 0}; {
	case statsd[0] && statsd[1]:
		d.Statsd = true
	case statsd[0]:
		r.warnings = append(r.warnings, "nothing is sent to statsd: STATSD_HOST needs STATSD_PORT")
	case statsd[1]:
		r.warnings = append(r.warnings, "nothing is sent to statsd: STATSD_PORT needs STATSD_HOST")
	}
	if d.StatsdPrefix != "" && !strings.HasSuffix(d.StatsdPrefix, ".") {
		d.StatsdPrefix += "."
	}
	d.StatsdTCP = d.useTCP != ""
	switch path := d.MetricsPath; {
	case hasHTTP && path != "":
		d.HTTP, d.MetricsPath = true, "/"+strings.Trim(path, "/")
	case hasHTTP:
		r.warnings = append(r.warnings, "there is no HTTP port: HTTP_SERVICE_PORT needs PROMETHEUS_METRICS_PATH")
	case path != "":
		r.warnings = append(r.warnings, "there is no HTTP port: PROMETHEUS_METRICS_PATH needs HTTP_SERVICE_PORT")
	}
}

// isElsewhere reports whether a variable of Read means nothing to `ratelimit divvy`:
// those of the HTTP port, of where rules are, and of statistics.
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

// translate returns lookup for Read, in its own words.
func (d *StandIn) translate(lookup func(string) (string, bool)) func(string) (string, bool) {
	said := map[string]string{"DISABLE_STATS": "true", "DIVVY_PORT": strconv.Itoa(d.port & math.MaxUint16)} // a larger one was noted
	if !isSet(lookup, "STATS_FLUSH_INTERVAL") {
		said["STATS_FLUSH_INTERVAL"] = "1s"
	}
	redis := net.JoinHostPort(d.redisHost, strconv.Itoa(d.redisPort&math.MaxUint16))
	switch named := isSet(lookup, "REDIS_HOST") || isSet(lookup, "REDIS_PORT"); {
	case named:
		said["REDIS_URL"], said["REDIS_TYPE"], said["REDIS_SOCKET_TYPE"] = redis, "SINGLE", "tcp"
		if !isSet(lookup, "BACKEND_TYPE") {
			said["BACKEND_TYPE"] = "redis"
		}
	case isSet(lookup, "REDIS_URL"):
	case isSet(lookup, "BACKEND_TYPE"):
		if v, _ := lookup("BACKEND_TYPE"); v == "redis" {
			said["REDIS_URL"] = redis
		}
	default:
		said["BACKEND_TYPE"] = "memory"
	}
	if !isSet(lookup, "LOG_LEVEL") && debugs(d.debug, "divvy") {
		said["LOG_LEVEL"] = "debug"
	}
	elsewhere := make(map[string]bool)
	for _, v := range Table() {
		elsewhere[v.Name] = isElsewhere(v)
	}
	return func(name string) (string, bool) {
		if v, ok := said[name]; ok {
			return v, true
		}
		if elsewhere[name] {
			return "", false
		}
		return lookup(name)
	}
}

// debugs reports whether a list of patterns, as Node's debug library has them,
// asks for the lines of name: `divvy`, `*`, `express:*,divvy`, but not
// `*,-divvy`.
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

func isSet(lookup func(string) (string, bool), name string) bool {
	v, _ := lookup(name)
	return v != ""
}
