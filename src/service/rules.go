package service

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
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

// ruleSource loads the rules, from files or from a management server.
type ruleSource struct {
	reloader        interface{ Reload() }             // Reload reads the rules again, even if nothing changed. It never blocks.
	whyNoRules      string                            // whyNoRules is logged after a load without rules.
	logFields       func(reload.Result) logrus.Fields // logFields returns the fields of each log line about a load.
	firstLoadFailed chan error                        // firstLoadFailed receives why the first rules were refused, if RequireOrderedList is set.

	AcceptedLoads, RefusedLoads metrics.Counter
	FilesInForce                atomic.Int64
}

func (s *Service) ruleOptions() rules.Options {
	return rules.Options{
		MergeDomains:        s.Settings.MergeDomainConfig,
		ChargesAllOrNothing: s.Settings.StopIncrementWhenOver,
		Store:               StoreLimits(s.Settings.BackendType),
		Fallback:            defaultFallback(s.Settings),
	}
}

// requireOrderedList reads the rules before any port is open, if they must be one ordered list.
func (s *Service) requireOrderedList() error {
	if !s.RequireOrderedList {
		return nil
	}
	s.rules.firstLoadFailed = make(chan error, 1)
	s.rules.logFields = fileLogFields
	reads := &files.Reads{Timeout: s.Settings.RuntimeReadTimeout}
	l, err := files.Read(context.Background(), reads, func() (l reload.Result, _ error) {
		list, _, err := filerules.Read(s.RulesPath)
		l.PartCount, l.Err = len(list), err
		if err == nil {
			l.Set, _, l.Err = loading.Load(list, s.ruleOptions())
		}
		return l, nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w", s.RulesPath, err)
	}
	s.refuseUnlessOrderedList(&l)
	if l.Err == nil {
		return nil
	}
	s.logProblems(l)
	return errors.New(firstProblem(l.Err))
}

// refuseUnlessOrderedList refuses a good load that is not one ordered list, if RequireOrderedList is set.
func (s *Service) refuseUnlessOrderedList(l *reload.Result) {
	if s.RequireOrderedList && l.Err == nil && l.Set.OnlyOrderedListDomain() == nil {
		l.Set, l.Err = nil, rules.Problems{{
			Pos: rules.Pos{File: s.RulesPath}, Message: "holds no ordered list", Fix: "write `rules`, or serve it with `ratelimit serve`",
		}}
	}
}

func fileLogFields(l reload.Result) logrus.Fields { return logrus.Fields{"files": l.PartCount} }

func (s *Service) buildSource() error {
	if s.Settings.UsesXDS() {
		return s.buildXDS()
	}
	cfg := filerules.Config{
		Path:            filepath.Join(s.Settings.RuntimeRoot, s.Settings.RuntimeSubdirectory, s.Settings.RuntimeAppDirectory),
		ElsewhereAdvice: "set RUNTIME_ROOT, RUNTIME_SUBDIRECTORY and RUNTIME_APPDIRECTORY to the directory of the rules",
		IgnoreDotFiles:  s.Settings.RuntimeIgnoreDotFiles,
		Debounce:        s.Settings.RuntimeDebounce,
		PollInterval:    s.Settings.RuntimePollInterval,
		ReadTimeout:     s.Settings.RuntimeReadTimeout,
		Config: reload.Config{Options: s.ruleOptions(), AllOrNothing: s.Settings.ConfigAllOrNothing, OnLoad: func(l reload.Result) {
			s.counters.Counter("runtime.load_attempts").Add(1)
			if l.Err != nil {
				s.counters.Counter("runtime.load_failures").Add(1)
			} else {
				s.rules.FilesInForce.Store(int64(l.PartCount))
			}
			s.onLoad(l)
		}},
		OnMissingEvents: func(err error) { s.log.Warn(err) },
	}
	if s.RulesPath != "" {
		cfg.Path, cfg.AllowFile, cfg.ElsewhereAdvice = s.RulesPath, true, "name another one with --config"
	}
	if s.RequireOrderedList {
		cfg.OnlyFile, cfg.ElsewhereAdvice = true, "name another file"
	}
	s.rules.whyNoRules = filepath.Clean(cfg.Path) + " holds no rule files"
	w := filerules.New(cfg)
	s.rules.reloader, s.rules.logFields = w, fileLogFields
	s.runners = append(s.runners, w.Run)
	s.counters.ShowFigures("files", "", &s.rules)
	s.counters.ShowFigures("file reads", "", w)
	return nil
}

func (s *Service) buildXDS() error {
	x := s.Settings.XDS
	cfg := xdsrules.Config{
		Server:          x.Server,
		Delta:           s.Settings.ConfigType == settings.ConfigXDSDelta,
		NodeID:          x.NodeID,
		NodeMetadata:    x.NodeMetadata,
		Headers:         x.Headers,
		MaxMessageBytes: int(x.MaxMessageBytes),
		Pauses: xdsrules.Pauses{
			First: x.RetryInterval, Initial: x.BackoffInitial, Growth: x.BackoffGrowth, Max: x.BackoffMax, Jitter: x.BackoffJitter,
		},
		Config: reload.Config{Options: s.ruleOptions(), AllOrNothing: s.Settings.ConfigAllOrNothing, OnLoad: s.onLoad},
		OnConnect: func() {
			s.log.Infof("connected to the xds server %s as node %q", x.Server, x.NodeID)
			s.health.update(func(h *health) { h.rules.streamErr = nil })
		},
		OnTrouble: s.logXDSTrouble,
		OnSilence: func() {
			s.log.Warnf("the xds server %s is there, but has no rules for us yet: does it know the node %q (CONFIG_GRPC_XDS_NODE_ID)?", x.Server, x.NodeID)
		},
	}
	if x.TLS {
		cfg.TLS = (&certs.Client{
			CA: x.CACert, Cert: x.ClientCert, Key: x.ClientKey,
			CAName: "CONFIG_GRPC_XDS_SERVER_TLS_CACERT", PairName: "CONFIG_GRPC_XDS_CLIENT_TLS_CERT and CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
			ServerName: x.ServerName,
		}).TLS
		s.showClientCert("xds", x.ClientCert)
	}
	s.rules.logFields = func(u reload.Result) logrus.Fields {
		return logrus.Fields{"xds": x.Server, "resources": u.PartCount, "version": u.Version}
	}
	s.rules.whyNoRules = fmt.Sprintf("the xds server %s has none for the node %q (CONFIG_GRPC_XDS_NODE_ID)", x.Server, x.NodeID)
	w, err := xdsrules.New(cfg)
	if err != nil {
		return fmt.Errorf("CONFIG_GRPC_XDS_SERVER_URL: %w", err)
	}
	s.rules.reloader = w
	s.runners = append(s.runners, w.Run)
	s.counters.ShowFigures("xds", "", w.Stats)
	return nil
}

// logXDSTrouble logs that there is no stream to the management server, and why.
func (s *Service) logXDSTrouble(reason error, pause time.Duration) {
	state := "there are no rules yet"
	if s.limiter.Rules() != nil {
		state = "the rules stay as they are"
	}
	s.log.Warnf("%v (%s, next attempt in %v)", reason, state, pause.Round(time.Millisecond))
	s.health.update(func(h *health) { h.rules.streamErr = reason })
}
