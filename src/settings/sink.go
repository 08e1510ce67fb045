package settings

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Sink is the destination of statistics.
type Sink uint8

// The destinations of statistics.
const (
	SinkLog Sink = iota // lines of JSON in the log, if LOG_LEVEL shows debug lines
	SinkNone
	SinkStatsd
	SinkDogStatsd
	SinkPrometheus
	SinkDivvy // with divvy's names; DivvyVariables.Statsd and DivvyVariables.HTTP say where
)

// sink returns the destination of statistics. It is statsd unless USE_STATSD is false, another sink is on, or metrics
// are sent over OTLP.
func (s *Settings) sink(r *reader) Sink {
	if s.DisableStats {
		return SinkNone
	}
	otlp := s.OTLPMetrics.Exporter == "otlp"
	statsd := s.UseStatsd && (r.isSet("USE_STATSD") || !s.UseDogStatsd && !s.UsePrometheus && !otlp)
	chosen, count := SinkLog, 0
	if otlp {
		chosen = SinkNone
	}
	for sink, isOn := range map[Sink]bool{
		SinkStatsd: statsd, SinkDogStatsd: s.UseDogStatsd, SinkPrometheus: s.UsePrometheus,
	} {
		if isOn {
			chosen, count = sink, count+1
		}
	}
	if count > 1 {
		r.problem("", "", "more than one of USE_STATSD, USE_DOG_STATSD and USE_PROMETHEUS is true: choose one")
		return SinkNone
	}
	return chosen
}

// urlPath matches a path without characters that are special in URLs or in http.ServeMux.
var urlPath = regexp.MustCompile(`^/[-A-Za-z0-9._~/]*$`)

func isURLPath(p string) bool {
	return urlPath.MatchString(p) && (p == "/" || path.Clean(p) == strings.TrimSuffix(p, "/"))
}

func (s *Settings) validateStatistics(r *reader) {
	if s.Sink == SinkStatsd || s.Sink == SinkDogStatsd {
		r.useDefaultUnless(func(host string) bool { return host != "" }, "STATSD_HOST", &s.StatsdHost, "")
	}
	r.useDefaultUnless(isURLPath, "PROMETHEUS_PATH", &s.PrometheusPath, "write a path such as /metrics")
	if _, err := strconv.ParseUint(s.PrometheusAddr, 10, 16); err == nil {
		r.forgive("PROMETHEUS_ADDR", s.PrometheusAddr, "write host:port, or :port", ":"+s.PrometheusAddr+" is used")
		s.PrometheusAddr = ":" + s.PrometheusAddr
	}
	for _, key := range slices.Sorted(maps.Keys(s.ExtraTags)) {
		fix := ""
		switch {
		case key == "":
			fix = "write a name before each colon"
		case s.Sink == SinkPrometheus && (key == "le" || key == "quantile"):
			fix = "Prometheus uses a label of that name itself: choose another"
		default:
			continue
		}
		r.forgive("EXTRA_TAGS", key+":"+s.ExtraTags[key], fix, "that tag is left out")
		delete(s.ExtraTags, key)
	}
}

// Mogrifier renames statistics that match Pattern and adds DogStatsD tags. Name and the values of Tags may refer to
// groups of Pattern as $1.
type Mogrifier struct {
	Pattern *regexp.Regexp
	Name    string
	Tags    map[string]string
}

// mogrifier reads the variables of the mogrifier id, such as DOG_STATSD_MOGRIFIER_ID_PATTERN.
func (r *reader) mogrifier(id string) (m Mogrifier) {
	prefix := "DOG_STATSD_MOGRIFIER_" + strings.ToUpper(id) // envoyproxy/ratelimit writes the id in upper case, too
	pattern, tags := r.env[prefix+"_PATTERN"], r.env[prefix+"_TAGS"]
	var err error
	if m.Pattern, err = regexp.Compile(pattern); err != nil || pattern == "" {
		r.problem(prefix+"_PATTERN", pattern, "write a regular expression that matches the names to change")
	}
	if m.Name = r.env[prefix+"_NAME"]; m.Name == "" {
		r.problem(prefix+"_NAME", "", "write the new name; $1 is the first group of the pattern")
	}
	if tags == "" {
		return m
	}
	m.Tags, err = pairs(tags)
	if _, isUnnamed := m.Tags[""]; err != nil || isUnnamed {
		r.problem(prefix+"_TAGS", tags, "write "+typeHints["map"].what)
	} else if slices.Contains(slices.Collect(maps.Values(m.Tags)), "") {
		r.problem(prefix+"_TAGS", tags, "write a value behind each colon")
	}
	return m
}
