package push

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"
)

// kind is the kind of number on a line.
type kind uint8

const (
	counter kind = iota // an increase
	gauge
	timer // milliseconds
)

// format writes lines, each with a line feed at its end.
type format interface {
	// line appends the line of one figure. It is safe for concurrent use.
	line(b []byte, name string, value int64, k kind) []byte
	// end appends the line that ends a flush, or nothing.
	end(b []byte) []byte
}

func newFormat(cfg *Config) format {
	tags := sortedTags(cfg.Tags)
	switch cfg.Format {
	case DogStatsD:
		return &dogStatsD{mogrifiers: cfg.Mogrifiers, tags: tags}
	case JSONLines:
		return jsonLines{tags}
	default:
		return statsd{tags}
	}
}

var statsdKinds = [...]string{counter: "c", gauge: "g", timer: "ms"}

type statsd struct{ tags []Tag }

func (s statsd) line(b []byte, name string, value int64, k kind) []byte {
	b = appendName(b, name, s.tags)
	return append(appendValue(b, value, k), "|"+statsdKinds[k]+"\n"...)
}

func (statsd) end(b []byte) []byte { return b }

// appendValue appends a colon and the value. A negative gauge becomes 0, because statsd
// reads a gauge with a sign as a change.
func appendValue(b []byte, value int64, k kind) []byte {
	if k == gauge {
		value = max(0, value)
	}
	return strconv.AppendInt(append(b, ':'), value, 10)
}

func (d *dogStatsD) line(b []byte, name string, value int64, k kind) []byte {
	n := d.find(name)
	b = appendValue(append(b, n.name...), value, k)
	if k == timer {
		b = append(b, ".000000"...) // Datadog's own client writes timings as fractions
	}
	b = append(b, "|"+statsdKinds[k]...)
	return append(append(b, n.tags...), '\n')
}

var jsonKinds = [...]string{counter: "counter", gauge: "gauge", timer: "timer"}

// jsonLines writes JSON lines with the keys of envoyproxy/ratelimit.
type jsonLines struct{ tags []Tag }

func (j jsonLines) line(b []byte, name string, value int64, k kind) []byte {
	b = append(appendJSONStart(b, jsonKinds[k]), `"name":"`...)
	from := len(b)
	b = appendName(b, name, j.tags)
	if bytes.ContainsFunc(b[from:], func(c rune) bool { return c < ' ' || c == '"' || c == '\\' || c == utf8.RuneError }) {
		text, _ := json.Marshal(string(b[from:])) // never fails for a string
		b = append(b[:from], text[1:len(text)-1]...)
	}
	return appendJSONEnd(append(b, `",`...), jsonKinds[k], value)
}

func (jsonLines) end(b []byte) []byte {
	return appendJSONEnd(appendJSONStart(b, "all stats"), "all stats", 0)
}

func appendJSONStart(b []byte, kind string) []byte {
	now := time.Now()
	b = strconv.AppendInt(append(b, `{"level":"debug","ts":`...), now.Unix(), 10)
	b = append(now.AppendFormat(b, ".000000"), `,"logger":"gostats.loggingsink","msg":"flushing `...)
	return append(append(b, kind...), `","json":{`...)
}

func appendJSONEnd(b []byte, kind string, value int64) []byte {
	b = append(append(b, `"type":"`...), kind...)
	b = strconv.AppendInt(append(b, `","value":"`...), value, 10)
	return append(b, `.000000"}}`+"\n"...)
}
