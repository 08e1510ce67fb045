package service

import (
	"context"
	_ "embed"
	"reflect"
	"strings"
	"sync"
	"time"

	"ratelimit/src/files"
	"ratelimit/src/files/certs"
	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/metrics"
	"ratelimit/src/settings"
)

//go:embed figures.txt
var figureTable string

// figureLine is one line of figures.txt.
type figureLine struct {
	path   []string // to the value, through fields and methods
	figure metrics.Figure
}

// figureLines are the lines of figures.txt by part.
var figureLines = sync.OnceValue(func() map[string][]figureLine {
	lines, part := make(map[string][]figureLine), ""
	for line := range strings.Lines(figureTable) {
		if name, isPart := strings.CutPrefix(strings.TrimSuffix(line, "]\n"), "["); isPart {
			part = name
		}
		columns := strings.Fields(line)
		if len(columns) < 4 || columns[0] == "#" {
			continue
		}
		f := metrics.Figure{Stat: strings.Trim(columns[2], "-"), Help: strings.Join(columns[4:], " ")}
		if columns[0] == "gauge" {
			f.Kind = metrics.KindGauge
		}
		metric, labels, _ := strings.Cut(strings.Trim(columns[3], "-}"), "{")
		f.Metric, f.Labels = metric, strings.FieldsFunc(labels, func(r rune) bool { return r == '=' || r == ',' })
		lines[part] = append(lines[part], figureLine{strings.Split(columns[1], "."), f})
	}
	return lines
})

// figures returns a function that reads the figures that figures.txt declares for part.
// name is that of the port or the store. values returns a value with the fields or methods in
// the table: numbers, switches, instants, histograms, counters, or maps with a number for each
// key.
func figures[T any](part, name string, values func() T) func() []metrics.Figure {
	return func() (list []metrics.Figure) {
		all := reflect.ValueOf(values())
		for _, line := range figureLines()[part] {
			v := all
			for _, name := range line.path {
				if method := v.MethodByName(name); method.IsValid() {
					v = method.Call(nil)[0]
				} else {
					v = reflect.Indirect(v).FieldByName(name)
				}
			}
			if v.Kind() != reflect.Map {
				list = append(list, line.read(name, "", v))
				continue
			}
			for key, n := range v.Seq2() {
				list = append(list, line.read(name, key.String(), n))
			}
		}
		return list
	}
}

// read returns the figure with the value v.
func (l *figureLine) read(name, key string, v reflect.Value) metrics.Figure {
	f, names := l.figure, strings.NewReplacer("$", name, "*", key)
	f.Stat = names.Replace(f.Stat)
	f.Labels = make([]string, len(l.figure.Labels))
	for i, label := range l.figure.Labels {
		f.Labels[i] = names.Replace(label)
	}
	if v.Kind() == reflect.Struct && v.CanAddr() {
		v = v.Addr() // of a counter
	}
	switch value := v.Interface().(type) {
	case interface{ Load() int64 }:
		f.Value = value.Load()
	case metrics.Distribution:
		f.Histogram = value
	case time.Time:
		f.Value = value.Unix()
	case bool:
		if value {
			f.Value = 1
		}
	case uint64:
		f.Value = int64(value)
	default:
		f.Value = v.Int()
	}
	return f
}

// addFigures adds the figures of the process, the log, the ports and health.
func (s *Service) addFigures() {
	s.counters.Add(metrics.RuntimeFigures)
	s.counters.Add(figures("log", "", s.Output.err.Stats))
	s.counters.Add(figures("buffered", "", func() any { return s.ports.budget }))
	s.counters.Add(figures("guard", "", func() any { return s.front.grpc.Guard }))
	s.counters.Add(figures("health", "", s.health.values))
	for _, p := range s.ports.all() {
		if l, ok := p.Listener.(*connlimit.Listener); ok {
			s.counters.Add(figures("port", p.name, l.Stats))
		}
	}
	s.addClientCertFigures()
}

// addClientCertFigures adds when the client certificates of this process expire. Each scrape
// reads the files, as each new connection does.
func (s *Service) addClientCertFigures() {
	cfg := s.Settings
	redisTLS := cfg.BackendType == "redis" && (cfg.Redis.TLS || cfg.RedisSplit && cfg.RedisPerSecond.TLS)
	reads := &files.Reads{Timeout: time.Second} // scrapes do not wait longer
	for _, cert := range []struct {
		server, file string
		on           bool
	}{
		{"xds", cfg.XDS.ClientCert, cfg.ConfigType == settings.ConfigXDS && cfg.XDS.TLS},
		{"redis", cfg.RedisTLS.ClientCert, redisTLS},
		{"memcache", cfg.Memcache.TLSFiles.ClientCert, cfg.BackendType == "memcache" && cfg.Memcache.TLS},
	} {
		if !cert.on || cert.file == "" {
			continue
		}
		s.counters.AddNative(figures("client certificate", cert.server, func() (st certs.Stats) {
			expiry, err := files.Read(context.Background(), reads, func() (time.Time, error) { return certs.NotAfter(cert.file) })
			if err != nil {
				expiry = time.Unix(0, 0) // as bad as a certificate that expired long ago
			}
			st.NotAfter = expiry
			return st
		}))
	}
}
