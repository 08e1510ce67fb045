// Package jsonlines writes the figures as lines of JSON, for those who chose no
// other sink.
package jsonlines

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"

	"ratelimit/src/metrics"
	"ratelimit/src/metrics/flush"
)

// Config says where the lines go.
type Config struct {
	// Stats reads all figures, sorted by name: (*metrics.Registry).Flush.
	Stats func() []metrics.Stat
	// Writer takes whole lines, many at a time. It may block: lines then wait,
	// up to 4 MiB.
	Writer io.Writer
	// Tags are added to all names, as .__key=value.
	Tags map[string]string
	// Interval is the time between two flushes. Defaults to 10 s.
	Interval time.Duration
}

// Sink writes figures. It does nothing before Run.
type Sink struct {
	cfg   Config
	tags  []flush.Tag
	queue *flush.Queue
}

// New returns a sink.
func New(cfg Config) (*Sink, error) {
	if cfg.Stats == nil || cfg.Writer == nil {
		return nil, errors.New("jsonlines: Stats and Writer are both needed")
	}
	return &Sink{cfg: cfg, tags: flush.Tags(cfg.Tags), queue: flush.NewQueue(flush.QueueConfig{})}, nil
}

// Dropped is how many lines found no room and will never be written.
func (s *Sink) Dropped() uint64 { return s.queue.Dropped() }

// Timing writes d, cut to whole milliseconds, within a moment. It never waits,
// and is safe for concurrent use.
func (s *Sink) Timing(name string, d time.Duration) {
	var scratch [512]byte
	s.queue.AddOrDrop(s.append(scratch[:0], name, "timer", d.Milliseconds()))
}

// Run writes until ctx ends, and then what was counted by then. A Writer that
// never returns does not hold it up.
func (s *Sink) Run(ctx context.Context) error {
	return flush.Run(ctx, flush.Config{
		Stats:    s.cfg.Stats,
		Interval: s.cfg.Interval,
		Queue:    s.queue,
		Send:     s.send,
		Done:     func() { s.queue.AddOrDrop(s.append(nil, "", "all stats", 0)) },
		Line: func(line []byte, st metrics.Stat) []byte {
			kind := "gauge"
			if st.Kind == metrics.KindCounter {
				kind = "counter"
			}
			return s.append(line, st.Name, kind, st.Value)
		},
	})
}

func (s *Sink) send(ctx context.Context) {
	var batch []byte
	for s.queue.Wait(ctx) {
		batch = s.queue.Peek(batch[:0])
		if _, err := s.cfg.Writer.Write(batch); err != nil { // and nobody to tell
			for range strings.Count(string(batch), "\n") {
				s.queue.Drop()
			}
		}
		s.queue.Discard(len(batch))
	}
}

// append appends one line, with keys and values as envoyproxy/ratelimit writes
// them.
func (s *Sink) append(b []byte, name, kind string, value int64) []byte {
	b = append(b, `{"level":"debug","ts":`...)
	now := time.Now().UnixMicro()
	b = strconv.AppendInt(b, now/1e6, 10)
	b = append(b, '.')
	for digit := int64(1e5); digit > 0; digit /= 10 {
		b = append(b, byte('0'+now/digit%10))
	}
	b = append(b, `,"logger":"gostats.loggingsink","msg":"flushing `...)
	b = append(b, kind...)
	b = append(b, `","json":{`...)
	if name != "" {
		b = append(b, `"name":"`...)
		from := len(b)
		b = flush.AppendName(b, name, s.tags)
		b = escape(b, from)
		b = append(b, `",`...)
	}
	b = append(b, `"type":"`...)
	b = append(b, kind...)
	b = append(b, `","value":"`...)
	b = strconv.AppendInt(b, value, 10)
	return append(b, `.000000"}}`+"\n"...)
}

// escape makes b fit for a JSON string from an index on. Names that need it are
// rare.
func escape(b []byte, from int) []byte {
	text := b[from:]
	plain := true
	for _, c := range text {
		plain = plain && c >= ' ' && c != '"' && c != '\\' && c < 0x80
	}
	if plain {
		return b
	}
	name := strings.ToValidUTF8(string(text), "\uFFFD")
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
