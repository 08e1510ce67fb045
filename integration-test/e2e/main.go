// Command e2e measures this service beside an empty gRPC server, in turns: what
// a call costs in CPU time, and how the two compare.
//
// On a machine that does other things besides, a figure of its own says little.
// The ratio of two that were taken seconds apart says more, and the median of
// several such ratios is what is reported.
//
// It builds the `ratelimit` binary and the generator of load: the service, the
// empty server and the generator are processes of their own, so each has its own
// collector and its own account of CPU time.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"ratelimit/src/frontend/rls"
	"ratelimit/testbed/measured"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	rounds      int
	duration    time.Duration
	warmup      time.Duration
	gogc        int
	nullWorkers uint32
	engines     []string
	crowd       int
	crowdRate   int
	only        string
	jsonFile    string
	write       bool
}

const usage = `Measures this service beside an empty gRPC server (ratelimit bench --null), in
turns, and prints for each case the CPU time of a call as a multiple of the empty
server's: the median over the rounds, the lowest and the highest. Redis' CPU time
counts as ours. Then it measures how long calls take at half load, and what many
connections cost. Servers are started on free ports of the loopback interface and
stopped at the end. Without redis-server on the PATH its cases are left out.

Exit status: 0, or 1 if a case went wrong (a call failed, or an answer was not
the one the case is about) or the run was interrupted. A target that was missed
is shown and no error: other programs on the machine can cause it.

  go run ./integration-test/e2e [flags]
  make bench-e2e E2E='--rounds 5 --write'

`

func (opt *options) parse(args []string, help io.Writer) error {
	f := pflag.NewFlagSet("e2e", pflag.ContinueOnError)
	f.SortFlags = false
	f.SetOutput(help)
	f.Usage = func() { fmt.Fprint(help, usage+f.FlagUsages()) }
	f.IntVar(&opt.rounds, "rounds", 9, "how often each case is measured")
	f.DurationVar(&opt.duration, "duration", 2*time.Second, "how long a server is measured each time")
	f.DurationVar(&opt.warmup, "warmup", 500*time.Millisecond, "how long it gets calls before that")
	f.IntVar(&opt.gogc, "gogc", 400, "GOGC of the service and of the empty server")
	f.Uint32Var(&opt.nullWorkers, "null-workers", rls.StreamWorkerCount(),
		"stream workers of the empty server; the default is what the service has here")
	f.StringSliceVar(&opt.engines, "engines", []string{h2, grpcGo},
		"values of GRPC_ENGINE to measure the service with; the targets are those of h2")
	f.IntVar(&opt.crowd, "crowd", 10_000, "connections of the case with many")
	f.IntVar(&opt.crowdRate, "crowd-rate", 10_000, "calls due a second on all of them")
	f.StringVar(&opt.only, "only", "",
		"regular expression: measure only cases whose name it matches, such as 'Redis', '2 x 1$', 'half load' or "+
			"'connections'")
	f.StringVar(&opt.jsonFile, "json", "", "file to write everything that was measured to")
	f.BoolVar(&opt.write, "write", false, "write "+docFile+" and "+plotFile+" anew")
	if err := f.Parse(args); err != nil {
		return err
	}
	switch {
	case f.NArg() > 0:
		return fmt.Errorf("%s: there are flags only, see --help", f.Arg(0))
	case opt.rounds < 1:
		return fmt.Errorf("--rounds %d: must be 1 or more", opt.rounds)
	case opt.duration < minDuration:
		return fmt.Errorf("--duration %v: must be %v or more, since CPU time is counted in steps of 10 ms", opt.duration,
			minDuration)
	case opt.warmup < 0:
		return fmt.Errorf("--warmup %v: must not be below 0", opt.warmup)
	case len(opt.engines) == 0:
		return errors.New("--engines: name one or more")
	case opt.crowd < 1 || opt.crowdRate < 1:
		return fmt.Errorf("--crowd %d, --crowd-rate %d: must be 1 or more", opt.crowd, opt.crowdRate)
	case opt.gogc < 1:
		return fmt.Errorf("--gogc %d: must be 1 or more", opt.gogc)
	case opt.write && opt.only != "":
		return errors.New("--write and --only: the document holds every case, so measure every case")
	}
	return nil
}

const minDuration = 100 * time.Millisecond

// command is how to do the same again.
func (opt *options) command() string {
	return fmt.Sprintf("go run ./integration-test/e2e --rounds %d --duration %v --warmup %v --gogc %d --null-workers %d "+
		"--engines %s --crowd %d --crowd-rate %d --write",
		opt.rounds, opt.duration, opt.warmup, opt.gogc, opt.nullWorkers, strings.Join(opt.engines, ","), opt.crowd,
		opt.crowdRate)
}

const (
	docFile  = "docs/performance.md"
	plotFile = "docs/performance.svg"
)

var (
	errInterrupted = errors.New("interrupted")
	errProblems    = errors.New("not every case was measured as it should have been: see the last column")
)

func run(ctx context.Context, args []string, out, progress io.Writer) (err error) {
	var opt options
	if err := opt.parse(args, progress); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return nil
		}
		return err
	}
	picked, err := pick(&opt)
	if err != nil {
		return err
	}
	redis, lookErr := exec.LookPath("redis-server")
	if lookErr != nil {
		if opt.write {
			return errors.New("--write: there is no redis-server on the PATH, and the document holds its cases too: install it")
		}
		fmt.Fprintln(progress, "There is no redis-server on the PATH: its cases are left out.")
		if picked.withoutRedis(); picked.empty() {
			return errors.New("no case is left")
		}
	}
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}

	fmt.Fprintln(progress, "Building, and starting the servers.")
	l := &lab{opt: &opt, redisServer: redis, progress: progress}
	defer func() { err = errors.Join(err, l.close()) }()
	if err := l.open(ctx, picked.services(opt.engines)); err != nil {
		if ctx.Err() != nil {
			return errInterrupted
		}
		return err
	}
	r := newReport(&opt, measured.ThisMachine(root), picked)
	r.Redis = l.redisVersion
	l.measure(ctx, r)
	r.Interrupted = ctx.Err() != nil

	if err := r.writeTables(out); err != nil {
		return err
	}
	if opt.jsonFile != "" {
		data, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(opt.jsonFile, append(data, '\n'), 0o644); err != nil {
			return err
		}
	}
	switch {
	case r.Interrupted:
		return errInterrupted
	case r.wentWrong():
		return errProblems
	case opt.write:
		return r.writeDocs(root)
	}
	return nil
}

// selection is what to measure.
type selection struct {
	cases  []testCase
	tails  []store
	crowds []string // engines
}

// pick returns what --only matches.
func pick(opt *options) (*selection, error) {
	re, err := regexp.Compile(opt.only)
	if err != nil {
		return nil, fmt.Errorf("--only: %w", err)
	}
	var names []string
	matches := func(name string) bool {
		names = append(names, name)
		return re.MatchString(name)
	}
	var s selection
	for _, c := range cases {
		if matches(c.title()) {
			s.cases = append(s.cases, ofEngines([]testCase{c}, opt.engines)...)
		}
	}
	for _, t := range tailStores {
		if matches(tailTitle(t)) {
			s.tails = append(s.tails, t)
		}
	}
	if matches(crowdTitle) {
		s.crowds = opt.engines
	}
	if s.empty() {
		return nil, fmt.Errorf("--only %s: no case has such a name; there are\n  %s", opt.only, strings.Join(names, "\n  "))
	}
	return &s, nil
}

func (s *selection) empty() bool { return len(s.cases)+len(s.tails)+len(s.crowds) == 0 }

func (s *selection) withoutRedis() {
	s.cases = withoutRedis(s.cases)
	s.tails = slices.DeleteFunc(s.tails, func(t store) bool { return t != inMemory })
}

// services returns the services that all rounds share.
func (s *selection) services(engines []string) (list []serviceKey) {
	for _, c := range s.cases {
		list = append(list, serviceKey{c.Store, c.Engine})
	}
	for _, t := range s.tails {
		for _, e := range engines {
			list = append(list, serviceKey{t, e})
		}
	}
	return list
}

func moduleRoot(ctx context.Context) (string, error) {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("go list -m: %w (run it inside the project)", err)
	}
	return strings.TrimSpace(string(root)), nil
}

// writeDocs writes the document and its plot.
func (r *report) writeDocs(root string) error {
	text, err := measured.Document(docFile, document, r)
	if err != nil {
		return err
	}
	plot, err := r.plot()
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(root, docFile), text, 0o644),
		os.WriteFile(filepath.Join(root, plotFile), plot, 0o644))
}
