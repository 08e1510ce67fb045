package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/files"
	"ratelimit/src/files/certs"
	"ratelimit/src/metrics"
	"ratelimit/src/metrics/prometheus"
	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/reload"
	"ratelimit/src/rules/xdsrules"
	"ratelimit/src/settings"
)

// source is where the rules come from: files, or a management server.
type source interface {
	Run(context.Context) error
	Reload() // fetch them again, even if nothing changed; never blocks
}

// load is one load of the rules, good or refused, wherever from.
type load struct {
	set      *rules.Set // nil: refused; with an err: in force in part
	warnings rules.Problems
	err      error
	hash     string
	version  string // the management server's
	at       time.Time
	facts    logrus.Fields // for the log
}

// ruleOptions are what rules are compiled with, wherever from.
func (s *server) ruleOptions() rules.Options {
	return rules.Options{MergeDomains: s.cfg.MergeDomainConfig, AllOrNothing: s.cfg.StopIncrementWhenOver, Store: storeCan(s.cfg.BackendType), Fallback: onFailure(s.cfg)}
}

// buildSource makes the source that the settings choose.
func (s *server) buildSource() error {
	if s.cfg.ConfigType == settings.ConfigXDS {
		return s.buildXDS()
	}
	var files atomic.Int64 // of the last good load
	s.counters.Source(func(add func(metrics.Stat)) {
		add(metrics.Stat{Name: "runtime.num_values", Kind: metrics.KindGauge, Value: files.Load()})
	})
	cfg := filerules.Config{
		Root:           s.cfg.RuntimeRoot,
		Subdirectory:   s.cfg.RuntimeSubdirectory,
		AppDirectory:   s.cfg.RuntimeAppDirectory,
		IgnoreDotFiles: s.cfg.RuntimeIgnoreDotFiles,
		Options:        s.ruleOptions(),
		Debounce:       max(s.cfg.RuntimeDebounce, 1), // 0 would be the default
		Poll:           pollInterval(s.cfg.RuntimePollInterval),
		ReadTimeout:    s.cfg.RuntimeReadTimeout,
		AllOrNothing:   s.cfg.ConfigAllOrNothing,
		OnLoad: func(l reload.Outcome) {
			s.counters.Counter("runtime.load_attempts").Add(1)
			if l.Err != nil {
				s.counters.Counter("runtime.load_failures").Add(1)
			} else {
				files.Store(int64(l.Parts))
			}
			s.loaded(load{
				set: l.Set, warnings: l.Warnings, err: l.Err, hash: l.Hash, at: l.At,
				facts: logrus.Fields{"files": l.Parts},
			})
		},
		OnWarn: func(err error) { s.log.Warn(err) },
	}
	if path := s.serveOptions.config; path != "" {
		cfg.Root, cfg.Subdirectory, cfg.AppDirectory = path, "", ""
		cfg.AllowFile, cfg.Elsewhere = true, "name another one with --config"
	}
	if own := s.cfg.StandIn; own != nil {
		cfg.Root, cfg.Subdirectory, cfg.AppDirectory, cfg.File = own.Config, "", "", true
	}
	s.noRules = cfg.Dir() + " holds no rule files"
	s.source = filerules.New(cfg)
	return nil
}

func pollInterval(d time.Duration) time.Duration {
	if d == 0 {
		return -1 // never
	}
	return d
}

func (s *server) buildXDS() error {
	x := s.cfg.XDS
	cfg := xdsrules.Config{
		Server:       x.Server,
		NodeID:       x.NodeID,
		NodeMetadata: x.NodeMetadata,
		Headers:      x.Headers,
		MaxMessage:   int(x.MaxMessage),
		Pauses: xdsrules.Pauses{
			First: x.RetryInterval, Initial: x.BackoffInitial, Growth: x.BackoffGrowth, Max: x.BackoffMax, Jitter: x.BackoffJitter,
		},
		Options:      s.ruleOptions(),
		AllOrNothing: s.cfg.ConfigAllOrNothing,
		OnUpdate: func(u reload.Outcome) {
			s.loaded(load{
				set: u.Set, warnings: u.Warnings, err: u.Err, hash: u.Hash, version: u.Version, at: u.At,
				facts: logrus.Fields{"xds": x.Server, "resources": u.Parts, "version": u.Version},
			})
		},
		OnConnect: func() {
			s.log.Infof("connected to the xds server %s as node %q", x.Server, x.NodeID)
			s.health.update(func(h *health) { h.apart = nil })
		},
		OnTrouble: s.xdsTrouble,
		OnSilence: func() {
			s.log.Warnf("the xds server %s is there, but has no rules for us yet: does it know the node %q (CONFIG_GRPC_XDS_NODE_ID)?", x.Server, x.NodeID)
		},
	}
	if x.TLS {
		reads := new(files.Reads)
		cfg.TLS = func() (*tls.Config, error) {
			cfg, err := files.Read(context.Background(), reads, func() (*tls.Config, error) { return xdsTLS(x) })
			return cfg, hangingFile("CONFIG_GRPC_XDS_SERVER_TLS_CACERT, CONFIG_GRPC_XDS_CLIENT_TLS_CERT", err)
		}
	}
	s.noRules = fmt.Sprintf("the xds server %s has none for the node %q (CONFIG_GRPC_XDS_NODE_ID)", x.Server, x.NodeID)
	w, err := xdsrules.New(cfg)
	if err != nil {
		return fmt.Errorf("CONFIG_GRPC_XDS_SERVER_URL: %w", err)
	}
	s.source = w
	s.counters.Source(xdsStats(w))
	return nil
}

// xdsTrouble says that there is no stream to the management server.
func (s *server) xdsTrouble(reason *xdsrules.Trouble, pause time.Duration) {
	state := "there are no rules yet"
	if s.limiter.Rules() != nil {
		state = "the rules stay as they are"
	}
	s.log.Warnf("%v (%s, next attempt in %v)", reason, state, pause.Round(time.Millisecond))
	s.health.update(func(h *health) { h.apart = reason })
}

// xdsTLS reads the files of the settings. A certificate that is missing today may
// be there tomorrow, so this is no reason to end the process.
func xdsTLS(x settings.XDS) (*tls.Config, error) {
	c := certs.Client{
		CA: x.CACert, Cert: x.ClientCert, Key: x.ClientKey,
		CAName: "CONFIG_GRPC_XDS_SERVER_TLS_CACERT", PairName: "CONFIG_GRPC_XDS_CLIENT_TLS_CERT and CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
	}
	cfg, err := c.TLS()
	if err != nil {
		return nil, err
	}
	cfg.ServerName = x.SAN
	return cfg, nil
}

// xdsSamples say, where a management server is asked, whether there is a stream to it.
func (s *server) xdsSamples(add func(prometheus.Sample)) {
	w, ok := s.source.(*xdsrules.Watcher)
	if !ok {
		return
	}
	connected := 0.0
	if w.Stats().Connected {
		connected = 1
	}
	add(prometheus.Sample{
		Name: "ratelimit_xds_connected", Help: "1 while there is a stream to the management server.",
		Kind: metrics.KindGauge, Value: connected,
	})
}

// xdsStats are the figures of the connection to the management server.
func xdsStats(w *xdsrules.Watcher) func(func(metrics.Stat)) {
	return func(add func(metrics.Stat)) {
		st := w.Stats()
		active := int64(0)
		if st.Connected {
			active = 1
		}
		add(metrics.Stat{Name: "ratelimit.xds.cx_active", Kind: metrics.KindGauge, Value: active})
		add(metrics.Stat{Name: "ratelimit.xds.cx_total", Kind: metrics.KindCounter, Value: st.Streams})
		add(metrics.Stat{Name: "ratelimit.xds.cx_failed", Kind: metrics.KindCounter, Value: st.Failures})
		add(metrics.Stat{Name: "ratelimit.xds.acks", Kind: metrics.KindCounter, Value: st.Acks})
		add(metrics.Stat{Name: "ratelimit.xds.nacks", Kind: metrics.KindCounter, Value: st.Nacks})
	}
}
