// Package denials prints the requests that a running service has denied lately, or denies now.
package denials

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"ratelimit/src/operator"
	"ratelimit/src/operator/debugport"
	"ratelimit/src/operator/output"
	"ratelimit/src/rules"
	"ratelimit/src/tools/command"
	"ratelimit/src/tools/reach"
)

//go:embed help.txt
var help string

const (
	// pollInterval is how often --follow asks for new denials.
	pollInterval = time.Second
	// maxPause is the longest pause of --follow after an error. Pauses begin with pollInterval, and double.
	maxPause = 30 * time.Second
	// maxFetched is how many denials the service lists at most.
	maxFetched = 1000
)

// options are the flags of `ratelimit denials`.
type options struct {
	service      reach.Service
	domain, rule string // empty for all
	limit        int
	follow       bool
	asJSON       bool
}

// Command returns `ratelimit denials`.
func Command() *cobra.Command {
	var opt options
	cmd := command.New(help, opt.service.Argument, func(cmd *cobra.Command, _ []string) error {
		return opt.service.AskAll(cmd, func(ctx context.Context, clients []*debugport.Client) error {
			f := newFollower(&opt, cmd.OutOrStdout(), cmd.ErrOrStderr())
			for _, client := range clients {
				f.add(client.Address, func(ctx context.Context, after uint64, limit int) (list []operator.Denial, err error) {
					query := url.Values{"after": {strconv.FormatUint(after, 10)}, "limit": {strconv.Itoa(limit)}}
					err = client.Get(ctx, "/api/denials", query, &list)
					return list, err
				})
			}
			return f.run(ctx)
		})
	})
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	f := cmd.Flags()
	f.BoolVar(&opt.follow, "follow", false, "go on with new denials until Ctrl-C")
	f.BoolVar(&opt.asJSON, "json", false, "print each denial as a JSON object on one line")
	f.StringVar(&opt.domain, "domain", "", "print only denials of this domain")
	f.StringVar(&opt.rule, "rule", "", "print only denials of the rule with this full name, as in the column RULE")
	command.Number(f, &opt.limit, "limit", 100, 1, maxFetched,
		"most of the recent denials to print, 1 to 1000; new ones of --follow are all printed")
	opt.service.AddReplicaFlags(f)
	return cmd
}

// follower prints the denials of one replica or several.
type follower struct {
	opt      *options
	replicas []*replica
	out      io.Writer
	errOut   io.Writer
	table    output.GrowingTable
}

// replica is a source of denials. Only the goroutine that polls it uses it.
type replica struct {
	address string
	// get returns the newest denials with an ID above after, at most limit, oldest first.
	get    func(ctx context.Context, after uint64, limit int) ([]operator.Denial, error)
	lastID uint64        // the ID of the newest denial that was received
	pause  time.Duration // after an error; 0 while the replica answers
	wait   time.Duration // until the next poll
	isGone bool          // set after an error that trying again does not change

	// newer are the denials that the last poll received, err is its error, and note says what it has changed.
	newer []operator.Denial
	err   error
	note  string
}

func newFollower(opt *options, out, errOut io.Writer) *follower {
	return &follower{opt: opt, out: out, errOut: errOut, table: output.GrowingTable{Columns: columns}}
}

// add adds a replica. With the second one, the table gets a column with the address.
func (f *follower) add(address string, get func(context.Context, uint64, int) ([]operator.Denial, error)) {
	f.replicas = append(f.replicas, &replica{address: address, get: get})
	if len(f.replicas) == 2 {
		f.table.Columns = slices.Insert(slices.Clone(columns), 1, output.Columns("REPLICA")...)
	}
}

// print prints those of list that the flags ask for, at most the newest limit.
func (f *follower) print(list []operator.Denial, limit int) error {
	var chosen []operator.Denial
	for _, d := range list {
		if (f.opt.domain == "" || d.Domain == f.opt.domain) && (f.opt.rule == "" || d.Rule == f.opt.rule) {
			chosen = append(chosen, d)
		}
	}
	chosen = chosen[max(0, len(chosen)-limit):]
	if f.opt.asJSON {
		for _, d := range chosen {
			if err := output.WriteJSONLine(f.out, d); err != nil {
				return err
			}
		}
		return nil
	}
	if len(chosen) == 0 {
		return nil
	}
	rows := make([][]string, len(chosen))
	for i := range chosen {
		rows[i] = cells(&chosen[i])
	}
	return output.WriteLines(f.out, f.table.Lines(rows))
}

// run prints the last denials, and with --follow new ones until ctx ends. The end of ctx is no error.
func (f *follower) run(ctx context.Context) error {
	limit := f.opt.limit
	for isFirst := true; isFirst || f.opt.follow && sleep(ctx, pollInterval); isFirst = false {
		list, err := f.poll(ctx, isFirst)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case isFirst && len(list) == 0 && !f.opt.follow && len(f.replicas) == 1:
			fmt.Fprintf(f.errOut, "%s has denied nothing since its start\n", f.replicas[0].address)
		case isFirst && len(list) == 0 && !f.opt.follow:
			fmt.Fprintln(f.errOut, "no replica that answers has denied anything since its start")
		}
		if err := f.print(list, limit); err != nil {
			return err
		}
		limit = maxFetched * len(f.replicas)
	}
	return nil
}

// poll returns the new denials of the replicas that are due, oldest first. It returns an error if no replica is left,
// or if none answers the first poll.
func (f *follower) poll(ctx context.Context, isFirst bool) (list []operator.Denial, err error) {
	debugport.Each(ctx, len(f.replicas), func(ctx context.Context, i int) error { return f.replicas[i].poll(ctx) })
	if ctx.Err() != nil {
		return nil, nil
	}
	var errs []error
	for _, r := range f.replicas {
		if r.isGone || isFirst && r.err != nil {
			errs = append(errs, r.err)
		}
	}
	if len(errs) == len(f.replicas) {
		return nil, errors.Join(errs...)
	}
	for _, r := range f.replicas {
		switch {
		case f.opt.follow && r.note != "":
			fmt.Fprintln(f.errOut, r.note)
		case !f.opt.follow && r.err != nil:
			fmt.Fprintln(f.errOut, r.err)
		}
		for _, d := range r.newer {
			if len(f.replicas) > 1 {
				d.Replica = r.address
			}
			list = append(list, d)
		}
	}
	slices.SortStableFunc(list, func(a, b operator.Denial) int { return a.At.Compare(b.At) })
	return list, nil
}

// poll asks for new denials, if the replica is due. It returns the error of the last time if not.
func (r *replica) poll(ctx context.Context) error {
	r.newer, r.note = nil, ""
	if r.wait -= pollInterval; r.isGone || r.wait > 0 {
		return r.err
	}
	var list []operator.Denial
	list, r.err = r.get(ctx, r.lastID, maxFetched)
	for _, d := range list {
		r.newer = append(r.newer, d)
		r.lastID = max(r.lastID, d.ID)
	}
	problem, _ := errors.AsType[*debugport.Error](r.err)
	switch {
	case r.err == nil && r.pause > 0:
		r.note, r.pause = r.address+" answers again", 0
	case r.err == nil:
	case problem != nil && problem.Temporary:
		r.pause = min(max(2*r.pause, pollInterval), maxPause)
		r.note = fmt.Sprintf("%v; trying again in %v", r.err, r.pause)
	default:
		r.isGone, r.note = true, r.err.Error()
	}
	r.wait = r.pause
	return r.err
}

// sleep waits for a time. It reports false if ctx ends.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// columns are those of a line. Subjects are last, since they have any length.
var columns = output.Columns("TIME", "PROTOCOL", "DOMAIN", "RULE", "WAIT", "SKIPPED", "REASON", "SUBJECT")

// cells returns the columns of d. An empty one is "-", so that scripts find the same number of columns.
func cells(d *operator.Denial) []string {
	list := []string{
		d.At.UTC().Format("2006-01-02T15:04:05.000Z"), d.Protocol, d.Domain, cmp.Or(d.Rule, "-"),
		waitText(d.RetryAfterSeconds),
		strconv.FormatUint(d.Skipped, 10), cmp.Or(d.Reason, "-"), d.Subject,
	}
	if d.Replica != "" {
		return slices.Insert(list, 1, d.Replica)
	}
	return list
}

// waitText returns a wait in milliseconds, or in whole seconds from 10 s on, rounded up: "250ms", "3m13s", or "never".
func waitText(seconds float64) string {
	switch {
	case seconds == operator.NeverRetry:
		return "never"
	case seconds < 10:
		seconds = math.Ceil(seconds*1000) / 1000
	default:
		seconds = math.Ceil(seconds)
	}
	return rules.FormatDuration(time.Duration(seconds * float64(time.Second)).Round(time.Millisecond))
}
