package service

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/files"
	"ratelimit/src/files/certs"
	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/loading"
	"ratelimit/src/rules/reload"
	"ratelimit/src/rules/xdsrules"
	"ratelimit/src/settings"
)

// ruleSource loads the rules, from files or from a management server.
type ruleSource struct {
	source  interface{ Reload() }             // Reload reads the rules again, even if nothing changed; it never blocks
	noRules string                            // the log's explanation of a load without rules
	facts   func(reload.Result) logrus.Fields // fields of each log line about a load
	failed  chan error                        // receives why the first rules of OneList were refused
}

// ruleOptions returns the options for compiling rules of files and management servers.
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
	s.rules.facts = fileFacts
	reads := &files.Reads{Timeout: s.Settings.RuntimeReadTimeout}
	l, err := files.Read(context.Background(), reads, func() (l reload.Result, _ error) {
		list, _, err := filerules.Read(s.Rules, false)
		l.Parts, l.Err = len(list), err
		if err == nil {
			l.Set, _, l.Err = loading.Load(list, s.ruleOptions())
		}
		return l, nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w", s.Rules, err)
	}
	s.refuseUnlessList(&l)
	if l.Err == nil {
		return nil
	}
	s.logProblems(l)
	return errors.New(firstProblem(l.Err))
}

// refuseUnlessList refuses a good load that is not one ordered list, if OneList asks for that.
func (s *Service) refuseUnlessList(l *reload.Result) {
	if s.OneList && l.Err == nil && l.Set.OnlyList() == nil {
		l.Set, l.Err = nil, rules.Problems{{
			Pos: rules.Pos{File: s.Rules}, What: "holds no ordered list", Fix: "write `rules`, or serve it with `ratelimit serve`",
		}}
	}
}

func fileFacts(l reload.Result) logrus.Fields { return logrus.Fields{"files": l.Parts} }

// buildSource makes the source that the settings choose.
func (s *Service) buildSource() error {
	if s.Settings.ConfigType == settings.ConfigXDS {
		return s.buildXDS()
	}
	var good struct{ Parts atomic.Int64 } // how many files the last good load had
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
		OnLoad: func(l reload.Result) {
			s.counters.Counter("runtime.load_attempts").Add(1)
			if l.Err != nil {
				s.counters.Counter("runtime.load_failures").Add(1)
			} else {
				good.Parts.Store(int64(l.Parts))
			}
			s.onLoad(l)
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
	w := filerules.New(cfg)
	s.rules.source, s.rules.facts = w, fileFacts
	s.runs = append(s.runs, w.Run)
	s.counters.Add(figures("files", "", func() any { return &good }))
	s.counters.Add(figures("file reads", "", func() any { return w }))
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
		OnUpdate:     s.onLoad,
		OnConnect: func() {
			s.log.Infof("connected to the xds server %s as node %q", x.Server, x.NodeID)
			s.health.update(func(h *health) { h.rules.stream = nil })
		},
		OnTrouble: s.xdsTrouble,
		OnSilence: func() {
			s.log.Warnf("the xds server %s is there, but has no rules for us yet: does it know the node %q (CONFIG_GRPC_XDS_NODE_ID)?", x.Server, x.NodeID)
		},
	}
	if x.TLS {
		cfg.TLS = (&certs.Client{
			CA: x.CACert, Cert: x.ClientCert, Key: x.ClientKey,
			CAName: "CONFIG_GRPC_XDS_SERVER_TLS_CACERT", PairName: "CONFIG_GRPC_XDS_CLIENT_TLS_CERT and CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
			ServerName: x.SAN,
		}).Reader()
	}
	s.rules.facts = func(u reload.Result) logrus.Fields {
		return logrus.Fields{"xds": x.Server, "resources": u.Parts, "version": u.Version}
	}
	s.rules.noRules = fmt.Sprintf("the xds server %s has none for the node %q (CONFIG_GRPC_XDS_NODE_ID)", x.Server, x.NodeID)
	w, err := xdsrules.New(cfg)
	if err != nil {
		return fmt.Errorf("CONFIG_GRPC_XDS_SERVER_URL: %w", err)
	}
	s.rules.source = w
	s.runs = append(s.runs, w.Run)
	s.counters.Add(figures("xds", "", w.Stats))
	return nil
}

// xdsTrouble logs that there is no stream to the management server, and why.
func (s *Service) xdsTrouble(reason error, pause time.Duration) {
	state := "there are no rules yet"
	if s.limiter.Rules() != nil {
		state = "the rules stay as they are"
	}
	s.log.Warnf("%v (%s, next attempt in %v)", reason, state, pause.Round(time.Millisecond))
	s.health.update(func(h *health) { h.rules.stream = reason })
}
