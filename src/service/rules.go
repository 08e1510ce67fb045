package service

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/files"
	"ratelimit/src/files/certs"
	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/divvyrules"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/reload"
	"ratelimit/src/rules/xdsrules"
	"ratelimit/src/service/candidates"
	"ratelimit/src/service/health"
	"ratelimit/src/service/store"
	"ratelimit/src/settings"
)

// ruleSources load the rules. There are several if CONFIG_TYPE names several.
type ruleSources struct {
	*foundation
	servers    *servers
	candidates *candidates.Source
	use        func(*rules.Set)  // puts the rules of a load in force in all parts.
	inForce    func() *rules.Set // returns nil before the first rules.
	list       []*ruleSource
	joined     *reload.Sources // nil if there is only one source.
	// firstLoadFailed receives why the first rules cannot be used, which ends the process: they were refused and
	// RequireOrderedList is set, or a port cannot be opened.
	firstLoadFailed chan error

	AcceptedLoads, RefusedLoads metrics.Counter
	FilesInForce                atomic.Int64
}

// ruleSource loads rules from files or from a management server.
type ruleSource struct {
	name       string                            // "files", "xds" or "xds2".
	reload     func()                            // reads the rules again, even if nothing changed. It never blocks.
	whyNoRules string                            // logged after a load without rules.
	logFields  func(reload.Result) logrus.Fields // returns the fields of each log line about a load.
	health     *health.Source
	joined     *reload.Source // nil if this is the only source.
}

// newRuleSources makes the sources of rules that CONFIG_TYPE names, in its order. They load when Run runs, and call use
// for the rules of each load.
func newRuleSources(s *servers, c *candidates.Source, l *limiter.Limiter, use func(*rules.Set),
) (*ruleSources, error) {
	r := &ruleSources{
		foundation: s.foundation, servers: s, candidates: c, use: use, inForce: l.Rules,
		firstLoadFailed: make(chan error, 1),
	}
	r.counters.ShowFigures("config", "", r)
	sources, management := r.Settings.RuleSources(), r.Settings.XDS.Servers
	if len(sources) > 1 {
		r.joined = new(reload.Sources)
	}
	for _, source := range sources {
		if source == settings.ConfigFile {
			r.addFiles()
			continue
		}
		if err := r.addXDS(management[0]); err != nil {
			return nil, err
		}
		management = management[1:]
	}
	return r, nil
}

// reload makes all sources load their rules again, even if nothing changed. It never blocks.
func (s *ruleSources) reload() {
	for _, source := range s.list {
		source.reload()
	}
}

// addSource adds a source, which messages call by its description, and returns it with what all sources share of their
// configuration. onLoad is called after each load. The caller sets the rest of its fields.
func (s *ruleSources) addSource(name, description string, onLoad func(reload.Result)) (*ruleSource, reload.Config) {
	source := &ruleSource{name: name, health: s.health.AddSource(name)}
	cfg := s.reloadConfig(func(l reload.Result) {
		onLoad(l)
		s.onLoad(source, l)
	})
	if s.joined != nil {
		source.joined = s.joined.Add(description)
		cfg.Source = source.joined
		source.joined.Reload = func() { source.reload() }
		s.counters.ShowFigures("source", name, source.health.Figures)
	}
	s.list = append(s.list, source)
	return source, cfg
}

// reloadConfig returns the configuration of all loads, of live and of candidate rules.
func (f *foundation) reloadConfig(onLoad func(reload.Result)) reload.Config {
	return reload.Config{Options: f.ruleOptions(), AllOrNothing: f.Settings.ConfigAllOrNothing, OnLoad: onLoad}
}

func (f *foundation) ruleOptions() compile.Options {
	opt := compile.Options{
		MergeDomains:        f.Settings.MergeDomainConfig,
		ChargesAllOrNothing: f.Settings.StopIncrementWhenOver,
		Store:               store.Limits(f.Settings.BackendType),
		Fallback:            store.DefaultFallback(f.Settings),
		Counting:            store.DefaultCounting(f.Settings),
		OnContention:        store.DefaultContention(f.Settings),
	}
	if f.Settings.Divvy.KeyFormat == "upstream" {
		opt.PeerKey = divvyrules.PeerKey
	}
	return opt
}

// fileConfig returns the configuration of rules in the files of a directory.
func (f *foundation) fileConfig(path, elsewhereAdvice string) filerules.Config {
	return filerules.Config{
		Path:            path,
		ReadSiblings:    f.Settings.ReadsSiblings(),
		ElsewhereAdvice: elsewhereAdvice,
		IgnoreDotFiles:  f.Settings.RuntimeIgnoreDotFiles,
		Debounce:        f.Settings.RuntimeDebounce,
		PollInterval:    f.Settings.RuntimePollInterval,
		ReadTimeout:     f.Settings.RuntimeReadTimeout,
		OnMissingEvents: func(err error) { f.log.Warn(err) },
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
	f.logProblems(l, false, fileLogFields(l))
	return errors.New(rules.FirstProblem(l.Err))
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

func (s *ruleSources) addFiles() {
	cfg := s.fileConfig(s.Settings.RulesPath(),
		"set RUNTIME_ROOT, RUNTIME_SUBDIRECTORY and RUNTIME_APPDIRECTORY to the directory of the rules")
	if s.RulesPath != "" {
		cfg.Path, cfg.AllowFile, cfg.ReadSiblings = s.RulesPath, true, false
		cfg.ElsewhereAdvice = "name another one with --config"
	}
	if s.RequireOrderedList {
		cfg.OnlyFile, cfg.ElsewhereAdvice = true, "name another file"
	}
	path := filepath.Clean(cfg.Path)
	source, shared := s.addSource("files", "the files in "+path, func(l reload.Result) {
		s.counters.Counter("runtime.load_attempts").Add(1)
		if l.Err != nil {
			s.counters.Counter("runtime.load_failures").Add(1)
		} else {
			s.FilesInForce.Store(int64(l.PartCount))
		}
	})
	cfg.Config = shared
	w := filerules.New(cfg)
	source.reload, source.logFields, source.whyNoRules = w.Reload, fileLogFields, path+" holds no rule files"
	s.run(w.Run)
	s.counters.ShowFigures("files", "", s)
	s.counters.ShowFigures("file reads", "", w)
}

// xdsHeaders returns a function that returns the headers of x, and reads those in a file for each stream.
func xdsHeaders(x *settings.XDSServer) func() (map[string]string, error) {
	reads := new(files.Reads)
	return func() (map[string]string, error) {
		if x.HeaderFile == "" {
			return x.Headers, nil
		}
		text, err := reads.File(context.Background(), x.HeaderFile)
		var headers map[string]string
		if err == nil {
			headers, err = settings.ParseHeaders(strings.TrimRight(string(text), "\r\n"), "\n")
		}
		if err != nil {
			return nil, fmt.Errorf("%sCLIENT_ADDITIONAL_HEADERS_FILE: %w", x.Prefix, err)
		}
		for name, value := range x.Headers {
			if _, isInFile := headers[name]; !isInFile {
				headers[name] = value
			}
		}
		return headers, nil
	}
}

func (s *ruleSources) addXDS(x *settings.XDSServer) error {
	if _, err := xdsHeaders(x)(); err != nil {
		return err
	}
	source, shared := s.addSource(x.Name, "the xds server "+x.Server, func(reload.Result) {})
	all := &s.Settings.XDS
	cfg := xdsrules.Config{
		Server:          x.Server,
		Delta:           x.Delta,
		NodeID:          x.NodeID,
		NodeMetadata:    x.NodeMetadata,
		Headers:         xdsHeaders(x),
		MaxMessageBytes: int(all.MaxMessageBytes),
		Pauses: xdsrules.Pauses{
			First: all.RetryInterval, Initial: all.BackoffInitial, Growth: all.BackoffGrowth, Max: all.BackoffMax,
			Jitter: all.BackoffJitter,
		},
		Config: shared,
		OnConnect: func() {
			if source.health.SetStream(nil) { // The end of a warning is told at its level.
				s.log.Warnf("connected to the xds server %s again as node %q", x.Server, x.NodeID)
			} else {
				s.log.Infof("connected to the xds server %s as node %q", x.Server, x.NodeID)
			}
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
		if x.ClientCert != "" {
			s.counters.ShowFigures("client certificate", x.Name, certs.ClientStats(x.ClientCert))
		}
	}
	w, err := xdsrules.New(cfg)
	if err != nil {
		return fmt.Errorf("%sSERVER_URL: %w", x.Prefix, err)
	}
	source.reload = w.Reload
	source.logFields = func(u reload.Result) logrus.Fields {
		return logrus.Fields{"xds": x.Server, "resources": u.PartCount, "version": u.Version}
	}
	source.whyNoRules = fmt.Sprintf("the xds server %s has none for the node %q (%sNODE_ID)", x.Server, x.NodeID, x.Prefix)
	s.run(w.Run)
	s.counters.ShowFigures(x.Name, "", w.Stats)
	return nil
}

// logXDSTrouble logs that there is no stream to a management server, and why.
func (s *ruleSources) logXDSTrouble(source *ruleSource, reason error, pause time.Duration) {
	state := "there are no rules yet" + s.closedPortsNote()
	if source.health.IsLoaded() {
		state = "the rules stay as they are"
	}
	s.log.Warnf("%v (%s, next attempt in %v)", reason, state, pause.Round(time.Millisecond))
	source.health.SetStream(reason)
}
