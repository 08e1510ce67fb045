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
	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/reload"
	"ratelimit/src/rules/xdsrules"
	"ratelimit/src/settings"
)

// ruleSources load the rules. There are several if CONFIG_TYPE names several.
type ruleSources struct {
	*foundation
	servers   *servers
	store     *store
	candidate *candidateSource
	// users learn the rules of a load, in this order. Each must know them before those behind it decide by them.
	users    []func(*rules.Set)
	getRules func() *rules.Set // nil before the first rules
	list     []*ruleSource
	joined   *reload.Sources // nil if there is only one source.
	// firstLoadFailed receives why the first rules cannot be used, which ends the process: they were refused and
	// RequireOrderedList is set, or a port cannot be opened.
	firstLoadFailed chan error

	AcceptedLoads, RefusedLoads metrics.Counter
	FilesInForce                atomic.Int64
}

// ruleSource loads rules from files or from a management server.
type ruleSource struct {
	name       string                            // "files", "xds" or "xds2".
	reloader   interface{ Reload() }             // Reload reads the rules again, even if nothing changed. It never blocks.
	whyNoRules string                            // logged after a load without rules.
	logFields  func(reload.Result) logrus.Fields // returns the fields of each log line about a load.
	health     *sourceHealth
	joined     *reload.Source // nil if this is the only source.
}

// Reload makes all sources load their rules again, even if nothing changed. It never blocks.
func (s *ruleSources) Reload() {
	for _, source := range s.list {
		source.reloader.Reload()
	}
}

// addSource adds a source, which messages call by its description. The caller sets the rest of its fields.
func (s *ruleSources) addSource(name, description string) *ruleSource {
	source := &ruleSource{name: name, health: &sourceHealth{name: name}}
	if s.joined != nil {
		source.joined = s.joined.Add(description)
		s.counters.ShowFigures("source", name, source.health.figures(s.health))
	}
	s.list = append(s.list, source)
	s.health.rules.sources = append(s.health.rules.sources, source.health)
	return source
}

// reloadConfig returns the configuration that all loads share.
func (f *foundation) reloadConfig(onLoad func(reload.Result)) reload.Config {
	return reload.Config{Options: f.ruleOptions(), AllOrNothing: f.Settings.ConfigAllOrNothing, OnLoad: onLoad}
}

// sourceConfig returns the reloadConfig of a source, which may be one of several.
func (s *ruleSources) sourceConfig(source *ruleSource, onLoad func(reload.Result)) reload.Config {
	cfg := s.reloadConfig(onLoad)
	if source.joined != nil {
		cfg.Source = source.joined
		source.joined.Reload = func() { source.reloader.Reload() }
	}
	return cfg
}

func (f *foundation) ruleOptions() compile.Options {
	return compile.Options{
		MergeDomains:        f.Settings.MergeDomainConfig,
		ChargesAllOrNothing: f.Settings.StopIncrementWhenOver,
		Store:               StoreLimits(f.Settings.BackendType),
		Fallback:            defaultFallback(f.Settings),
	}
}

// requireOrderedList reads the rules before any port is open, if they must be one ordered list.
func (f *foundation) requireOrderedList() error {
	if !f.RequireOrderedList {
		return nil
	}
	reads := &files.Reads{Timeout: f.Settings.RuntimeReadTimeout}
	l, err := files.Read(context.Background(), reads, func() (l reload.Result, _ error) {
		list, _, err := filerules.Read(f.RulesPath)
		l.PartCount, l.Err = len(list), err
		if err == nil {
			l.Set, _, l.Err = filerules.Load(list, f.ruleOptions())
		}
		return l, nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w", f.RulesPath, err)
	}
	f.refuseUnlessOrderedList(&l)
	if l.Err == nil {
		return nil
	}
	f.logProblems(&ruleSource{logFields: fileLogFields, health: new(sourceHealth)}, l)
	return errors.New(firstProblem(l.Err))
}

// refuseUnlessOrderedList refuses a good load that is not one ordered list, if RequireOrderedList is set.
func (f *foundation) refuseUnlessOrderedList(l *reload.Result) {
	if f.RequireOrderedList && l.Err == nil && l.Set.OnlyOrderedListDomain() == nil {
		l.Set, l.Err = nil, rules.Problems{{
			Pos: rules.Pos{File: f.RulesPath}, Message: "holds no ordered list",
			Fix: "write `rules`, or serve it with `ratelimit serve`",
		}}
	}
}

func fileLogFields(l reload.Result) logrus.Fields { return logrus.Fields{"files": l.PartCount} }

// newRuleSources makes the sources of rules that CONFIG_TYPE names, in its order. All users learn the rules of a load,
// in their order.
func newRuleSources(s *servers, store *store, c *candidateSource, l *limiter.Limiter,
	users ...func(*rules.Set),
) (*ruleSources, error) {
	r := &ruleSources{foundation: s.foundation, servers: s, store: store, candidate: c, users: users, getRules: l.Rules}
	r.firstLoadFailed = make(chan error, 1)
	r.counters.ShowFigures("config", "", r)
	return r, r.build()
}

// build builds the sources of rules in the order of CONFIG_TYPE.
func (s *ruleSources) build() error {
	sources, servers := s.Settings.RuleSources(), s.Settings.XDS.Servers
	if len(sources) > 1 {
		s.joined = new(reload.Sources)
	}
	for _, source := range sources {
		if source == settings.ConfigFile {
			s.buildFiles()
			continue
		}
		if err := s.buildXDS(servers[0]); err != nil {
			return err
		}
		servers = servers[1:]
	}
	return nil
}

// filesConfig returns how the rule files in a directory are watched. advice completes messages about a missing one.
func (f *foundation) filesConfig(path, advice string) filerules.Config {
	return filerules.Config{
		Path:            path,
		ReadSiblings:    f.Settings.ReadsSiblings(),
		ElsewhereAdvice: advice,
		IgnoreDotFiles:  f.Settings.RuntimeIgnoreDotFiles,
		Debounce:        f.Settings.RuntimeDebounce,
		PollInterval:    f.Settings.RuntimePollInterval,
		ReadTimeout:     f.Settings.RuntimeReadTimeout,
		OnMissingEvents: func(err error) { f.log.Warn(err) },
	}
}

func (s *ruleSources) buildFiles() {
	cfg := s.filesConfig(s.Settings.RulesPath(),
		"set RUNTIME_ROOT, RUNTIME_SUBDIRECTORY and RUNTIME_APPDIRECTORY to the directory of the rules")
	if s.RulesPath != "" {
		cfg.Path, cfg.AllowFile, cfg.ReadSiblings, cfg.ElsewhereAdvice = s.RulesPath, true, false,
			"name another one with --config"
	}
	if s.RequireOrderedList {
		cfg.OnlyFile, cfg.ElsewhereAdvice = true, "name another file"
	}
	source := s.addSource("files", "the files in "+filepath.Clean(cfg.Path))
	cfg.Config = s.sourceConfig(source, func(l reload.Result) {
		s.counters.Counter("runtime.load_attempts").Add(1)
		if l.Err != nil {
			s.counters.Counter("runtime.load_failures").Add(1)
		} else {
			s.FilesInForce.Store(int64(l.PartCount))
		}
		s.onLoad(source, l)
	})
	w := filerules.New(cfg)
	source.reloader, source.logFields, source.whyNoRules = w, fileLogFields,
		filepath.Clean(cfg.Path)+" holds no rule files"
	s.run(w.Run)
	s.counters.ShowFigures("files", "", s)
	s.counters.ShowFigures("file reads", "", w)
}

func (s *ruleSources) buildXDS(x *settings.XDSServer) error {
	all := &s.Settings.XDS
	source := s.addSource(x.Name, "the xds server "+x.Server)
	cfg := xdsrules.Config{
		Server:          x.Server,
		Delta:           x.Delta,
		NodeID:          x.NodeID,
		NodeMetadata:    x.NodeMetadata,
		Headers:         x.Headers,
		MaxMessageBytes: int(all.MaxMessageBytes),
		Pauses: xdsrules.Pauses{
			First: all.RetryInterval, Initial: all.BackoffInitial, Growth: all.BackoffGrowth, Max: all.BackoffMax,
			Jitter: all.BackoffJitter,
		},
		Config: s.sourceConfig(source, func(l reload.Result) { s.onLoad(source, l) }),
		OnConnect: func() {
			s.log.Infof("connected to the xds server %s as node %q", x.Server, x.NodeID)
			s.health.update(func(*health) { source.health.streamErr = nil })
		},
		OnTrouble: func(reason error, pause time.Duration) { s.logXDSTrouble(source, reason, pause) },
		OnSilence: func() {
			s.log.Warnf("the xds server %s is there, but has no rules for us yet: does it know the node %q (%sNODE_ID)?",
				x.Server, x.NodeID, x.Prefix)
		},
	}
	if x.TLS {
		cfg.TLS = (&certs.Client{
			CA: x.CACert, Cert: x.ClientCert, Key: x.ClientKey,
			CAName: x.Prefix + "SERVER_TLS_CACERT", PairName: x.Prefix + "CLIENT_TLS_CERT and " + x.Prefix + "CLIENT_TLS_KEY",
			ServerName: x.ServerName,
		}).TLS
		s.showClientCert(x.Name, x.ClientCert)
	}
	source.logFields = func(u reload.Result) logrus.Fields {
		return logrus.Fields{"xds": x.Server, "resources": u.PartCount, "version": u.Version}
	}
	source.whyNoRules = fmt.Sprintf("the xds server %s has none for the node %q (%sNODE_ID)", x.Server, x.NodeID, x.Prefix)
	w, err := xdsrules.New(cfg)
	if err != nil {
		return fmt.Errorf("%sSERVER_URL: %w", x.Prefix, err)
	}
	source.reloader = w
	s.run(w.Run)
	s.counters.ShowFigures(x.Name, "", w.Stats)
	return nil
}

// logXDSTrouble logs that there is no stream to a management server, and why.
func (s *ruleSources) logXDSTrouble(source *ruleSource, reason error, pause time.Duration) {
	state := "there are no rules yet" + s.closedPortsNote()
	if source.health.isLoaded(s.health) {
		state = "the rules stay as they are"
	}
	s.log.Warnf("%v (%s, next attempt in %v)", reason, state, pause.Round(time.Millisecond))
	s.health.update(func(*health) { source.health.streamErr = reason })
}
