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
	"strings"
	"time"

	"github.com/spf13/cobra"

	"ratelimit/src/operator"
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
	cmd := opt.service.NewCommand(help, opt.service.Argument,
		func(ctx context.Context, cmd *cobra.Command, client *reach.Client) error {
			f := newFollower(&opt, cmd.OutOrStdout(), cmd.ErrOrStderr())
			f.address = client.Address
			f.get = func(ctx context.Context, after uint64, limit int) (list []operator.Denial, err error) {
				query := url.Values{"after": {strconv.FormatUint(after, 10)}, "limit": {strconv.Itoa(limit)}}
				err = client.Get(ctx, "/api/denials", query, &list)
				return list, err
			}
			return f.run(ctx)
		})
	f := cmd.Flags()
	f.BoolVar(&opt.follow, "follow", false, "go on with new denials until Ctrl-C")
	f.BoolVar(&opt.asJSON, "json", false, "print each denial as a JSON object on one line")
	f.StringVar(&opt.domain, "domain", "", "print only denials of this domain")
	f.StringVar(&opt.rule, "rule", "", "print only denials of the rule with this full name, as in the column RULE")
	command.Number(f, &opt.limit, "limit", 100, 1, maxFetched,
		"most of the recent denials to print, 1 to 1000; new ones of --follow are all printed")
	opt.service.AddDebugFlags(f)
	return cmd
}

// follower prints the denials of a service.
type follower struct {
	opt     *options
	address string // of the service, for messages
	// get returns the newest denials with an ID above after, at most limit, oldest first.
	get    func(ctx context.Context, after uint64, limit int) ([]operator.Denial, error)
	out    io.Writer
	errOut io.Writer
	lastID uint64 // the ID of the newest denial that was received
	table  output.GrowingTable
}

// newFollower returns a follower without address and get.
func newFollower(opt *options, out, errOut io.Writer) *follower {
	return &follower{opt: opt, out: out, errOut: errOut, table: output.GrowingTable{Columns: columns}}
}

// print prints those of list that the flags ask for, at most the newest limit.
func (f *follower) print(list []operator.Denial, limit int) error {
	for _, d := range list {
		f.lastID = max(f.lastID, d.ID)
	}
	chosen := slices.DeleteFunc(list, func(d operator.Denial) bool {
		return f.opt.domain != "" && d.Domain != f.opt.domain || f.opt.rule != "" && d.Rule != f.opt.rule
	})
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
	_, err := io.WriteString(f.out, strings.Join(f.table.Lines(rows), "\n")+"\n")
	return err
}

// run prints the last denials, and with --follow new ones until ctx ends. The end of ctx is no error.
func (f *follower) run(ctx context.Context) error {
	pause, failed, limit := pollInterval, false, f.opt.limit
	for isFirst := true; isFirst || f.opt.follow && sleep(ctx, pause); isFirst = false {
		list, err := f.get(ctx, f.lastID, maxFetched)
		problem, _ := errors.AsType[*reach.Error](err)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && (isFirst || problem == nil || !problem.Temporary):
			return err
		case err != nil:
			if failed {
				pause = min(2*pause, maxPause)
			}
			failed = true
			fmt.Fprintf(f.errOut, "%v; trying again in %v\n", err, pause)
			continue
		case failed:
			fmt.Fprintf(f.errOut, "%s answers again\n", f.address)
			pause, failed = pollInterval, false
		case isFirst && len(list) == 0 && !f.opt.follow:
			fmt.Fprintf(f.errOut, "%s has denied nothing since its start\n", f.address)
		}
		if err := f.print(list, limit); err != nil {
			return err
		}
		limit = maxFetched
	}
	return nil
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
var columns = output.Columns("TIME", "PROTOCOL", "DOMAIN", "RULE", "WAIT", "SKIPPED", "SUBJECT")

// cells returns the columns of d. An empty one is "-", so that scripts find the same number of columns.
func cells(d *operator.Denial) []string {
	return []string{
		d.At.UTC().Format("2006-01-02T15:04:05.000Z"), d.Protocol, d.Domain, cmp.Or(d.Rule, "-"),
		waitText(d.RetryAfterSeconds),
		strconv.FormatUint(d.Skipped, 10), d.Subject,
	}
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
