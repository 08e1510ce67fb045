package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"ratelimit/src/files"
	"ratelimit/src/frontend/admin"
	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
	"ratelimit/src/metrics/denials"
	"ratelimit/src/metrics/divvystats"
	"ratelimit/src/metrics/prometheus"
	"ratelimit/src/metrics/statsd"
	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/loading"
	"ratelimit/src/settings"
)

func divvyCommand(std stdio) *cobra.Command {
	return &cobra.Command{
		Use:   "divvy CONFIG",
		Short: "Stand in for Button's divvy: its rule file, its environment, its port",
		Long: `divvy answers HITs as Button's divvy does, by the rules of CONFIG: one of its
*.ini or *.json files, or a *.yaml file with an ordered list. The file is read
before any port opens, and again when it changes, and at SIGHUP; rules that are
wrong end the start with status 1, and later leave those in force that there are. SIGTERM and SIGINT end
the service when what is under way has been answered.

At the start it warns of rules that divvy itself would read differently, as
` + "`ratelimit check`" + ` does.

` + tableText(settings.DivvyTable()) + `

The variables of ` + "`ratelimit serve`" + ` hold, too, but for those of its HTTP port, of
where rules are, and of statistics. Its gRPC port opens if GRPC_PORT or GRPC_UDS
is set, its debug port if DEBUG_PORT is.`,
		Example: `  ratelimit divvy examples/divvy/example-config.ini
  PORT=9321 REDIS_HOST=redis DEBUG=divvy ratelimit divvy rules.json
  HTTP_SERVICE_PORT=8080 PROMETHEUS_METRICS_PATH=/metrics ratelimit divvy rules.ini`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("divvy: name one file of rules: ratelimit divvy CONFIG")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			signals := make(chan os.Signal, 4)
			signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
			defer signal.Stop(signals)
			gc := tuneGC(os.LookupEnv)
			defer gc.stop()
			return serving(std, func(o *outputs) error {
				ownProcess(o)
				return serveDivvy(cmd.Context(), o, args[0], os.LookupEnv, signals, serveOptions{gc: gc, environ: os.Environ()})
			})
		},
	}
}

// serveDivvy stands in for divvy until a signal ends it. lookup is the
// environment.
func serveDivvy(ctx context.Context, o *outputs, config string, lookup func(string) (string, bool), signals <-chan os.Signal, opt serveOptions) error {
	switch strings.ToLower(filepath.Ext(config)) {
	case ".ini", ".json", ".yaml", ".yml":
	default:
		return fmt.Errorf("divvy: %s: the name of a file of rules ends in .ini or .json, or in .yaml", config)
	}
	cfg, warnings, err := settings.ReadDivvy(config, lookup)
	if err != nil {
		return fmt.Errorf("settings:\n%w", err)
	}
	warnings = append(warnings, opt.unknown(append(settings.Table(), settings.DivvyTable()...))...)
	s := &server{cfg: cfg, output: o, serveOptions: opt, refused: make(chan error, 1)}
	s.standIn = &standIn{cfg: cfg.StandIn, redis: cfg.BackendType == "redis", addrs: strings.Join(cfg.Redis.Addrs, ","), counts: divvystats.New()}
	if err := s.start(ctx, warnings, signals); err != nil {
		return fmt.Errorf("divvy: %w", err)
	}
	return nil
}

// checkStandIn reads the rules of `ratelimit divvy` before any port is open: a file
// that is refused ends the start, and no client finds the port meanwhile.
func (s *server) checkStandIn(ctx context.Context) error {
	if s.standIn == nil {
		return nil
	}
	reads := &files.Reads{Timeout: s.cfg.RuntimeReadTimeout}
	l, err := files.Read(ctx, reads, func() (load, error) {
		files, _, err := filerules.Read(s.cfg.StandIn.Config, false)
		l := load{facts: logrus.Fields{"files": len(files)}, err: err}
		if err == nil {
			l.set, _, l.err = loading.Load(files, s.ruleOptions())
		}
		return l, nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w", s.cfg.StandIn.Config, err)
	}
	s.standIn.judge(&l)
	if l.err == nil {
		return nil
	}
	s.logProblems(l)
	return errors.New(firstProblem(l.err))
}

// standIn is what `ratelimit divvy` has beyond `ratelimit serve`. A nil one does
// nothing.
type standIn struct {
	cfg    *settings.StandIn
	redis  bool   // counters are there, else in memory
	addrs  string // of Redis
	counts *divvystats.Counts
	timing func(time.Duration) // of each HIT; nil: there is no statsd
}

// announce prints that HITs are answered, in the words of divvy.
func (d *standIn) announce(to io.Writer, l net.Listener) {
	if d == nil {
		return
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		port = l.Addr().String()
	}
	store := "counters in memory"
	if d.redis {
		store = "Redis host " + d.addrs
	}
	fmt.Fprintf(to, "Listening on port TCP port %s, %s\n", port, store)
}

// judge refuses a good load that holds something else than one ordered list.
func (d *standIn) judge(l *load) {
	if d == nil || l.err != nil || l.set.OnlyList() != nil {
		return
	}
	l.set, l.err = nil, rules.Problems{{
		Pos: rules.Pos{File: d.cfg.Config}, What: "holds no ordered list", Fix: "write `rules`, or serve it with `ratelimit serve`",
	}}
}

// use prepares for the rules of set, and logs their comments.
func (d *standIn) use(set *rules.Set, log *logrus.Logger) {
	if d == nil {
		return
	}
	d.counts.Use(set)
	for _, r := range set.Rules() {
		if text, ok := r.Metadata["comment"].(string); ok {
			log.Debugf("rule %s (%v): %s", r.Key, r.Pos, text)
		}
	}
}

// recorder is who is told of decisions.
func (s *server) recorder() limiter.Recorder {
	list := recorders{s.counters}
	if s.standIn != nil {
		list = append(list, s.standIn.counts)
	}
	if n := s.cfg.LogDenials; n > 0 {
		list = append(list, denials.New(n, logDenial(s.denials)))
	}
	if len(list) == 1 {
		return s.counters
	}
	return list
}

// recorders are told one after the other.
type recorders []limiter.Recorder

// Record is that of a limiter.Recorder.
func (list recorders) Record(req *limiter.Request, a *limiter.Answer) {
	for _, r := range list {
		r.Record(req, a)
	}
}

// divvyPort is what divvy's port says of itself. The server is made after those who
// ask.
func (s *server) divvyPort() divvystats.Port {
	st := s.divvy.Stats()
	return divvystats.Port{Connections: st.Open, Errors: st.Errors}
}

// buildDivvyStatistics makes the sinks of `ratelimit divvy`, of which there may be
// two.
func (s *server) buildDivvyStatistics() error {
	d := s.standIn
	if d.cfg.HTTP {
		s.statistics.scrapes = s.boundedServer(s.divvyPages())
	}
	if !d.cfg.Statsd {
		return nil
	}
	cfg := statsd.Config{
		Stats:    func() []metrics.Stat { return d.counts.Stats(d.cfg.StatsdPrefix, s.divvyPort()) },
		Network:  "udp",
		Addr:     net.JoinHostPort(d.cfg.StatsdHost, strconv.Itoa(d.cfg.StatsdPort)),
		Interval: s.cfg.StatsFlushInterval,
		OnState:  s.statsdState("remove STATSD_HOST"),
	}
	if d.cfg.StatsdTCP {
		cfg.Network = "tcp"
	}
	out, err := statsd.New(cfg)
	if err != nil {
		return err
	}
	timer := d.cfg.StatsdPrefix + divvystats.Timer
	d.timing = func(took time.Duration) { out.Timing(timer, took) }
	s.statistics.run = out.Run
	return nil
}

// divvyPages are what HTTP_SERVICE_PORT answers: metrics, with or without a slash
// at the end, and health.
func (s *server) divvyPages() http.Handler {
	took := s.counters.Latency("divvy")
	scrapes := prometheus.Samples(
		func(add func(prometheus.Sample)) { s.standIn.counts.Samples(s.divvyPort(), took, add) },
		func(err error) { s.log.Warn(err) },
	)
	pages := map[string]http.Handler{
		"/healthcheck": admin.Healthcheck(func() string { return s.health.reason(callers) }),
		"/livez":       admin.Live(),
		"/readyz":      admin.Ready(func() []admin.Component { return s.health.components(callers) }),
	}
	pages[s.standIn.cfg.MetricsPath] = scrapes
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page := pages["/"+strings.Trim(r.URL.Path, "/")]
		if page == nil {
			http.NotFound(w, r)
			return
		}
		page.ServeHTTP(w, r)
	})
}
