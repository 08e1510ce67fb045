package push

import (
	"strconv"
	"strings"
	"time"
)

// kind is what a line reports.
type kind uint8

const (
	counter kind = iota // what was added
	gauge
	timer // milliseconds
)

// format writes lines, each with its line feed.
type format interface {
	// line appends the line of one figure. Several goroutines may call it.
	line(b []byte, name string, value int64, k kind) []byte
	// end appends what follows the last line of a flush.
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

// appendValue appends a colon and the value. A gauge with a sign would mean "change by".
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

// jsonLines have the keys and values of envoyproxy/ratelimit.
type jsonLines struct{ tags []Tag }

func (j jsonLines) line(b []byte, name string, value int64, k kind) []byte {
	b = appendJSONStart(b, jsonKinds[k])
	b = append(b, `"name":"`...)
	from := len(b)
	b = escapeJSON(appendName(b, name, j.tags), from)
	return appendJSONEnd(append(b, `",`...), jsonKinds[k], value)
}

func (jsonLines) end(b []byte) []byte {
	return appendJSONEnd(appendJSONStart(b, "all stats"), "all stats", 0)
}

func appendJSONStart(b []byte, kind string) []byte {
	b = append(b, `{"level":"debug","ts":`...)
	now := time.Now().UnixMicro()
	b = append(strconv.AppendInt(b, now/1e6, 10), '.')
	for digit := int64(1e5); digit > 0; digit /= 10 {
		b = append(b, byte('0'+now/digit%10))
	}
	b = append(b, `,"logger":"gostats.loggingsink","msg":"flushing `...)
	b = append(b, kind...)
	return append(b, `","json":{`...)
}

func appendJSONEnd(b []byte, kind string, value int64) []byte {
	b = append(b, `"type":"`...)
	b = append(b, kind...)
	b = append(b, `","value":"`...)
	b = strconv.AppendInt(b, value, 10)
	return append(b, `.000000"}}`+"\n"...)
}

// escapeJSON makes b fit for a JSON string from an index on. Few names need it.
func escapeJSON(b []byte, from int) []byte {
	plain := true
	for _, c := range b[from:] {
		plain = plain && c >= ' ' && c != '"' && c != '\\' && c < 0x80
	}
	if plain {
		return b
	}
	name := strings.ToValidUTF8(string(b[from:]), "\uFFFD")
	b = b[:from]
	for i := range len(name) {
		if c := name[i]; c < ' ' || c == '"' || c == '\\' {
			const hex = "0123456789abcdef"
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			continue
		}
		b = append(b, name[i])
	}
	return b
}
