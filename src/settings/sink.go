package settings

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Sink is where statistics go.
type Sink uint8

// The sinks. Without any, statistics are logged as JSON lines.
const (
	SinkLog Sink = iota
	SinkNone
	SinkStatsd
	SinkDogStatsd
	SinkPrometheus
	SinkDivvy // divvy's own names, to statsd, to scrapes, to both or to neither; see StandIn
)

// sink returns where statistics go. statsd is on unless USE_STATSD is false or another
// sink is on.
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

// Mogrifier turns parts of a statistic's name into DogStatsD tags.
type Mogrifier struct {
	Pattern *regexp.Regexp
	Name    string
	Tags    map[string]string
}

// mogrifier reads the variables of one mogrifier.
func (r *reader) mogrifier(id string) (m Mogrifier) {
	prefix := "DOG_STATSD_MOGRIFIER_" + strings.ToUpper(id) // as upstream's library has it
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
