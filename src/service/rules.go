package service

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/files"
	"ratelimit/src/files/certs"
	"ratelimit/src/metrics"
	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/loading"
	"ratelimit/src/rules/reload"
	"ratelimit/src/rules/xdsrules"
	"ratelimit/src/settings"
)

// ruleSource is where the rules come from.
type ruleSource struct {
	source
	noRules string     // why there may be none, for the log
	failed  chan error // receives why the first rules of OneList were refused
}

// source reads rules from files or from a management server.
type source interface {
	Run(context.Context) error
	Reload() // read them again, even if nothing changed; never blocks
}

// load is the result of reading the rules once.
type load struct {
	set      *rules.Set // nil: refused. With an err: a part of the rules takes effect
	warnings rules.Problems
	err      error
	hash     string
	version  string // set by the management server
	at       time.Time
	facts    logrus.Fields // for the log
}

// ruleOptions are those for compiling rules from any source.
func (s *Service) ruleOptions() rules.Options {
	return rules.Options{
		MergeDomains: s.Settings.MergeDomainConfig,
		AllOrNothing: s.Settings.StopIncrementWhenOver,
		Store:        StoreLimits(s.Settings.BackendType),
		Fallback:     onFailure(s.Settings),
	}
}

// requireList reads the rules before any port is open, if they must be one ordered list.
func (s *Service) requireList() error {
	if !s.OneList {
		return nil
	}
	s.rules.failed = make(chan error, 1)
	reads := &files.Reads{Timeout: s.Settings.RuntimeReadTimeout}
	l, err := files.Read(context.Background(), reads, func() (load, error) {
		list, _, err := filerules.Read(s.Rules, false)
		l := load{facts: logrus.Fields{"files": len(list)}, err: err}
		if err == nil {
			l.set, _, l.err = loading.Load(list, s.ruleOptions())
		}
		return l, nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w", s.Rules, err)
	}
	s.refuseOthers(&l)
	if l.err == nil {
		return nil
	}
	s.logProblems(l)
	return errors.New(firstProblem(l.err))
}

// refuseOthers refuses a good load that is not one ordered list, if OneList asks for that.
func (s *Service) refuseOthers(l *load) {
	if !s.OneList || l.err != nil || l.set.OnlyList() != nil {
		return
	}
	l.set, l.err = nil, rules.Problems{{
		Pos: rules.Pos{File: s.Rules}, What: "holds no ordered list", Fix: "write `rules`, or serve it with `ratelimit serve`",
	}}
}

// buildSource makes the source that the settings choose.
func (s *Service) buildSource() error {
	if s.Settings.ConfigType == settings.ConfigXDS {
		return s.buildXDS()
	}
	var count atomic.Int64 // of the last good load
	s.counters.Add(func() []metrics.Figure { return []metrics.Figure{metrics.Gauge("runtime.num_values", count.Load())} })
	cfg := filerules.Config{
		Root:           s.Settings.RuntimeRoot,
		Subdirectory:   s.Settings.RuntimeSubdirectory,
		AppDirectory:   s.Settings.RuntimeAppDirectory,
		IgnoreDotFiles: s.Settings.RuntimeIgnoreDotFiles,
		Options:        s.ruleOptions(),
		Debounce:       max(s.Settings.RuntimeDebounce, 1), // 0 would be the default
		Poll:           s.Settings.RuntimePollInterval,
		ReadTimeout:    s.Settings.RuntimeReadTimeout,
		AllOrNothing:   s.Settings.ConfigAllOrNothing,
		OnLoad: func(l reload.Outcome) {
			s.counters.Counter("runtime.load_attempts").Add(1)
			if l.Err != nil {
				s.counters.Counter("runtime.load_failures").Add(1)
			} else {
				count.Store(int64(l.Parts))
			}
			s.loaded(load{
				set: l.Set, warnings: l.Warnings, err: l.Err, hash: l.Hash, at: l.At,
				facts: logrus.Fields{"files": l.Parts},
			})
		},
		OnWarn: func(err error) { s.log.Warn(err) },
	}
	if cfg.Poll == 0 {
		cfg.Poll = -1 // never
	}
	if s.Rules != "" {
		cfg.Root, cfg.Subdirectory, cfg.AppDirectory = s.Rules, "", ""
		cfg.AllowFile, cfg.Elsewhere = true, "name another one with --config"
	}
	if s.OneList {
		cfg.File, cfg.AllowFile, cfg.Elsewhere = true, false, ""
	}
	s.rules.noRules = cfg.Dir() + " holds no rule files"
	s.rules.source = filerules.New(cfg)
	return nil
}

func (s *Service) buildXDS() error {
	x := s.Settings.XDS
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
		AllOrNothing: s.Settings.ConfigAllOrNothing,
		OnUpdate: func(u reload.Outcome) {
			s.loaded(load{
				set: u.Set, warnings: u.Warnings, err: u.Err, hash: u.Hash, version: u.Version, at: u.At,
				facts: logrus.Fields{"xds": x.Server, "resources": u.Parts, "version": u.Version},
			})
		},
		OnConnect: func() {
			s.log.Infof("connected to the xds server %s as node %q", x.Server, x.NodeID)
			s.health.update(func(h *health) { h.stream = nil })
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
	s.rules.noRules = fmt.Sprintf("the xds server %s has none for the node %q (CONFIG_GRPC_XDS_NODE_ID)", x.Server, x.NodeID)
	w, err := xdsrules.New(cfg)
	if err != nil {
		return fmt.Errorf("CONFIG_GRPC_XDS_SERVER_URL: %w", err)
	}
	s.rules.source = w
	s.counters.Add(xdsFigures(w))
	return nil
}

// xdsTrouble says that there is no stream to the management server.
func (s *Service) xdsTrouble(reason *xdsrules.Trouble, pause time.Duration) {
	state := "there are no rules yet"
	if s.limiter.Rules() != nil {
		state = "the rules stay as they are"
	}
	s.log.Warnf("%v (%s, next attempt in %v)", reason, state, pause.Round(time.Millisecond))
	s.health.update(func(h *health) { h.stream = reason })
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
