package push

import (
	"encoding/json"
	"fmt"
	"strconv"
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
	text, _ := json.Marshal(string(appendName(nil, name, j.tags))) // a string is never an error
	return appendJSON(b, jsonKinds[k], fmt.Sprintf(`"name":%s,`, text), value)
}

func (jsonLines) end(b []byte) []byte { return appendJSON(b, "all stats", "", 0) }

// appendJSON appends a line; name is "", or the member of the object with a comma.
func appendJSON(b []byte, kind, name string, value int64) []byte {
	now := time.Now().UnixMicro()
	return fmt.Appendf(b, `{"level":"debug","ts":%d.%06d,"logger":"gostats.loggingsink","msg":"flushing %s","json":{%s"type":"%s","value":"%d.000000"}}`+"\n",
		now/1e6, now%1e6, kind, name, kind, value)
}
