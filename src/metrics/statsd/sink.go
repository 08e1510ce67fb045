// Package statsd sends the figures to a statsd or DogStatsD server.
package statsd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"ratelimit/src/metrics"
	"ratelimit/src/metrics/flush"
)

// Dialect is how lines are written.
type Dialect uint8

const (
	// Plain statsd has tags in the name: name.__key=value:1|c.
	Plain Dialect = iota
	// DogStatsD has them at the end: name:1|c|#key:value.
	DogStatsD
)

// Config says where the figures go.
type Config struct {
	// Stats reads all figures, sorted by name: (*metrics.Registry).Flush.
	Stats func() []metrics.Stat
	// Network is "tcp" or "udp". Defaults to "tcp", and to "udp" for DogStatsD.
	Network string
	// Addr is host:port. The name is looked up anew with each connection.
	Addr    string
	Dialect Dialect
	// Mogrifiers rename figures, DogStatsD only. The first that matches wins.
	Mogrifiers []Mogrifier
	// Tags are added to all figures.
	Tags map[string]string
	// Interval is the time between two flushes. Defaults to 10 s.
	Interval time.Duration
	// OnState, if set, is told why sending fails when it begins to, and nil
	// when it works again.
	OnState func(error)
	// MaxBuffer is how many bytes wait while they cannot be sent. Beyond it
	// timings and gauges are dropped and counted, while counters are sent later.
	// Defaults to 4 MiB.
	MaxBuffer int
	// RetryInterval is the least time between two connections. Defaults to 3 s.
	RetryInterval time.Duration
	// WriteTimeout bounds one write. Defaults to 1 s.
	WriteTimeout time.Duration
	// Grace bounds the last flush. Defaults to 1 s.
	Grace time.Duration
}

// maxPacket is what fits into an Ethernet frame, with room for tunnels.
const maxPacket = 1432

// Sink sends figures. It does nothing before Run.
type Sink struct {
	cfg   Config
	tags  []flush.Tag
	names names // DogStatsD only
	queue *flush.Queue
}

// New returns a sink. It does not connect yet, so a server that is away is no
// error.
func New(cfg Config) (*Sink, error) {
	if cfg.Stats == nil {
		return nil, errors.New("statsd: Stats is nil: give it a registry's")
	}
	if cfg.Addr == "" {
		return nil, errors.New("statsd: the address is empty: write host:port")
	}
	if cfg.Network == "" {
		cfg.Network = "tcp"
		if cfg.Dialect == DogStatsD {
			cfg.Network = "udp"
		}
	}
	if cfg.Network != "tcp" && cfg.Network != "udp" {
		return nil, fmt.Errorf("statsd: protocol %q is not tcp or udp", cfg.Network)
	}
	if cfg.Dialect != DogStatsD && len(cfg.Mogrifiers) > 0 {
		return nil, errors.New("statsd: mogrifiers work with DogStatsD only: remove them or use it")
	}
	if cfg.OnState == nil {
		cfg.OnState = func(error) {}
	}
	if cfg.RetryInterval == 0 {
		cfg.RetryInterval = 3 * time.Second
	}
	if cfg.WriteTimeout == 0 {
		cfg.WriteTimeout = time.Second
	}
	queue := flush.QueueConfig{Max: cfg.MaxBuffer}
	if cfg.Network == "udp" {
		queue.Batch = maxPacket
	}
	s := &Sink{cfg: cfg, tags: flush.Tags(cfg.Tags), queue: flush.NewQueue(queue)}
	s.names = names{mogrifiers: cfg.Mogrifiers, tags: s.tags}
	return s, nil
}

// Stats is what a Sink says of itself.
type Stats struct {
	Waiting int    // bytes that are not sent yet
	Dropped uint64 // lines that will never be
}

// Stats reads the sink's figures.
func (s *Sink) Stats() Stats { return Stats{s.queue.Len(), s.queue.Dropped()} }

// Timing sends d, cut to whole milliseconds, within a moment. It never waits,
// and is safe for concurrent use.
func (s *Sink) Timing(name string, d time.Duration) {
	var scratch [256]byte
	s.queue.AddOrDrop(s.append(scratch[:0], name, max(0, d.Milliseconds()), "ms"))
}

// Run sends until ctx ends, and then what was counted by then.
func (s *Sink) Run(ctx context.Context) error {
	return flush.Run(ctx, flush.Config{
		Stats:    s.cfg.Stats,
		Interval: s.cfg.Interval,
		Grace:    s.cfg.Grace,
		Queue:    s.queue,
		Send:     s.send,
		Done:     s.names.age,
		Line: func(line []byte, st metrics.Stat) []byte {
			if st.Kind == metrics.KindCounter {
				return s.append(line, st.Name, st.Value, "c")
			}
			return s.append(line, st.Name, max(0, st.Value), "g") // a sign would mean "change by"
		},
	})
}

// append appends one line.
func (s *Sink) append(b []byte, name string, value int64, kind string) []byte {
	if s.cfg.Dialect == Plain {
		b = flush.AppendName(b, name, s.tags)
		b = append(b, ':')
		b = strconv.AppendInt(b, value, 10)
		b = append(b, '|')
		b = append(b, kind...)
		return append(b, '\n')
	}
	n := s.names.find(name)
	b = append(b, n.name...)
	b = append(b, ':')
	b = strconv.AppendInt(b, value, 10)
	if kind == "ms" {
		b = append(b, ".000000"...) // Datadog's own client writes timings as fractions
	}
	b = append(b, '|')
	b = append(b, kind...)
	b = append(b, n.tags...)
	return append(b, '\n')
}
