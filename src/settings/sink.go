package settings

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Sink is the destination of statistics.
type Sink uint8

// The destinations of statistics.
const (
	SinkLog Sink = iota // the log, as JSON lines; the default
	SinkNone
	SinkStatsd
	SinkDogStatsd
	SinkPrometheus
	SinkDivvy // with divvy's names; StandIn.Statsd and StandIn.HTTP choose the destinations
)

// sink returns the destination of statistics. It is statsd unless USE_STATSD is false or
// another sink is on.
func (s *Settings) sink(r *reader) Sink {
	if s.DisableStats {
		return SinkNone
	}
	statsd := s.UseStatsd && (r.isSet("USE_STATSD") || !s.UseDogStatsd && !s.UsePrometheus)
	chosen := SinkLog
	for sink, on := range map[Sink]bool{SinkStatsd: statsd, SinkDogStatsd: s.UseDogStatsd, SinkPrometheus: s.UsePrometheus} {
		if on && chosen != SinkLog {
			r.problem("", "", "more than one of USE_STATSD, USE_DOG_STATSD and USE_PROMETHEUS is true: choose one")
			return SinkNone
		}
		if on {
			chosen = sink
		}
	}
	return chosen
}

// Mogrifier renames statistics that match Pattern and adds DogStatsD tags. Name and the values
// of Tags may refer to groups of Pattern as $1.
type Mogrifier struct {
	Pattern *regexp.Regexp
	Name    string
	Tags    map[string]string
}

// mogrifier reads the variables of the mogrifier id, such as DOG_STATSD_MOGRIFIER_ID_PATTERN.
func (r *reader) mogrifier(id string) (m Mogrifier) {
	prefix := "DOG_STATSD_MOGRIFIER_" + strings.ToUpper(id) // in upper case, as in envoyproxy/ratelimit
	pattern, _ := r.lookup(prefix + "_PATTERN")
	var err error
	if m.Pattern, err = regexp.Compile(pattern); err != nil || pattern == "" {
		r.problem(prefix+"_PATTERN", pattern, "write a regular expression that matches the names to change")
	}
	if m.Name, _ = r.lookup(prefix + "_NAME"); m.Name == "" {
		r.problem(prefix+"_NAME", "", "write the new name; $1 is the first group of the pattern")
	}
	tags, _ := r.lookup(prefix + "_TAGS")
	if tags == "" {
		return m
	}
	if m.Tags, err = pairs(tags); err != nil {
		r.problem(prefix+"_TAGS", tags, pairsFix)
	} else if slices.Contains(slices.Collect(maps.Values(m.Tags)), "") {
		r.problem(prefix+"_TAGS", tags, "write a value behind each colon")
	}
	return m
}
