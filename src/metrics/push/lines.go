package push

import (
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"ratelimit/src/metrics"
)

// lineKind is the kind of number on a line.
type lineKind uint8

const (
	kindCounter lineKind = iota // the number is an increase.
	kindGauge
	kindTimer // kindTimer: the number is milliseconds.
)

// spelledName is the name of a figure as a format writes it. The zero value is not known yet.
type spelledName struct {
	name      string
	tagSuffix string // ends a line of DogStatsD, as "|#key:value,key:value". Other formats leave it empty.
}

// lineFormat writes lines, each with a line feed at its end. The methods are safe for concurrent use.
type lineFormat interface {
	// spellName returns the spelling of a name, which may have tags at its end.
	spellName(name string) spelledName
	// appendLine appends the line of one figure.
	appendLine(b []byte, n spelledName, value int64, k lineKind) []byte
	// appendFlushEnd appends the line that ends a flush, or nothing.
	appendFlushEnd(b []byte) []byte
}

func newFormat(cfg *Config) lineFormat {
	tags := sortedTags(cfg.Tags)
	switch cfg.Format {
	case DogStatsD:
		// Datadog's own client writes timings as fractions.
		return dogStatsDFormat{
			statsdFormat{tags, [...]string{kindCounter: "|c", kindGauge: "|g", kindTimer: ".000000|ms"}},
			cfg.Mogrifiers,
		}
	case JSONLines:
		return jsonLinesFormat{tags}
	default:
		return statsdFormat{tags, [...]string{kindCounter: "|c", kindGauge: "|g", kindTimer: "|ms"}}
	}
}

type statsdFormat struct {
	tags         []Tag
	kindSuffixes [3]string // follow the value of a counter, a gauge and a timing.
}

func (s statsdFormat) spellName(name string) spelledName {
	return spelledName{name: withTags(name, s.tags)}
}

// appendLine writes 0 for a negative gauge, because statsd reads a gauge with a sign as a change.
func (s statsdFormat) appendLine(b []byte, n spelledName, value int64, k lineKind) []byte {
	if k == kindGauge {
		value = max(0, value)
	}
	b = strconv.AppendInt(append(append(b, n.name...), ':'), value, 10)
	return append(append(append(b, s.kindSuffixes[k]...), n.tagSuffix...), '\n')
}

func (statsdFormat) appendFlushEnd(b []byte) []byte { return b }

type dogStatsDFormat struct {
	statsdFormat
	mogrifiers []Mogrifier
}

func (d dogStatsDFormat) spellName(name string) spelledName {
	name, own := splitTags(name)
	tags := joinTags(d.tags, own)
	for i := range d.mogrifiers {
		if renamed, more, ok := d.mogrifiers[i].renameFigure(name); ok {
			name, tags = renamed, append(slices.Clip(tags), more...)
			break
		}
	}
	list, before := "", "|#"
	for _, t := range tags {
		list += before + metrics.CleanText(t.Key, ":|,") + ":" + metrics.CleanText(t.Value, "|,")
		before = ","
	}
	return spelledName{metrics.CleanText(name, ":|"), list}
}

var jsonKindNames = [...]string{kindCounter: "counter", kindGauge: "gauge", kindTimer: "timer"}

// jsonLinesFormat writes JSON lines with the keys of envoyproxy/ratelimit.
type jsonLinesFormat struct{ tags []Tag }

func (j jsonLinesFormat) spellName(name string) spelledName {
	text, _ := json.Marshal(withTags(name, j.tags)) // Marshal never fails for a string.
	return spelledName{name: `"name":` + string(text) + ","}
}

func (jsonLinesFormat) appendLine(b []byte, n spelledName, value int64, k lineKind) []byte {
	return appendJSONLine(b, jsonKindNames[k], n.name, value)
}

func (jsonLinesFormat) appendFlushEnd(b []byte) []byte { return appendJSONLine(b, "all stats", "", 0) }

// appendJSONLine appends a line. name is the key and the value of the name with a comma, or empty.
func appendJSONLine(b []byte, kind, name string, value int64) []byte {
	now := time.Now()
	b = strconv.AppendInt(append(b, `{"level":"debug","ts":`...), now.Unix(), 10)
	b = append(now.AppendFormat(b, ".000000"), `,"logger":"gostats.loggingsink","msg":"flushing `...)
	b = append(append(append(b, kind...), `","json":{`...), name...)
	b = append(append(append(b, `"type":"`...), kind...), `","value":"`...)
	return append(strconv.AppendInt(b, value, 10), `.000000"}}`+"\n"...)
}
