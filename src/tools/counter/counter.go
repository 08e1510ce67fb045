// Package counter shows and changes the counters of a running service.
package counter

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"ratelimit/src/algorithm"
	"ratelimit/src/operator"
	"ratelimit/src/operator/callertext"
	"ratelimit/src/operator/debugport"
	"ratelimit/src/operator/output"
	"ratelimit/src/rules"
	"ratelimit/src/tools/command"
	"ratelimit/src/tools/reach"
)

//go:embed help.txt
var help string

// options are the flags of `ratelimit counter`.
type options struct {
	service reach.Service
	path    string // a descriptor of a tree of limits, user/alex/trade
	used    uint64
	literal bool // takes a * at the end of a value as it is
	dryRun  bool
	yes     bool // resets the counters of a pattern without a question
	asJSON  bool

	change     *operator.CounterChange // set by check
	isTerminal func(io.Reader) bool
}

// Command returns `ratelimit counter`.
func Command() *cobra.Command {
	opt := options{isTerminal: func(r io.Reader) bool {
		f, ok := r.(*os.File)
		return ok && output.IsTerminal(f)
	}}
	return opt.command()
}

func (opt *options) command() *cobra.Command {
	cmd := opt.service.NewActionCommand(help, actions, opt.check, "its counters",
		func(ctx context.Context, cmd *cobra.Command, client *debugport.Client) error {
			return (&run{cmd, opt, client}).perform(ctx, opt.change)
		})
	f := cmd.Flags()
	f.StringVar(&opt.path, "path", "", "the descriptor as a path of words, user/alex/trade, for trees of limits")
	f.Uint64Var(&opt.used, "used", 0, "with set, how many units the counters shall hold")
	f.BoolVar(&opt.dryRun, "dry-run", false, "change nothing, and print what would be changed")
	f.BoolVar(&opt.yes, "yes", false, "reset the counters of a pattern without a question")
	f.BoolVar(&opt.literal, "literal", false, "take each argument as one KEY=VALUE: *, commas and quotes mean nothing")
	f.BoolVar(&opt.asJSON, "json", false, "print one object")
	opt.service.AddAnyReplicaFlags(f)
	return cmd
}

var actions = []string{operator.ActionGet, operator.ActionReset, operator.ActionSet}

// check sets the change that the arguments and flags ask for.
func (opt *options) check(cmd *cobra.Command, args []string) (err error) {
	switch {
	case len(args) == 0:
		return errors.New("say what to do: get, reset or set")
	case !slices.Contains(actions, args[0]):
		return fmt.Errorf("%q is not known; write get, reset or set", args[0])
	case len(args) == 1:
		return fmt.Errorf("name a domain and a descriptor: ratelimit counter %s DOMAIN KEY=VALUE,KEY=VALUE", args[0])
	case opt.path != "" && len(args) > 2:
		return errors.New("--path is the whole descriptor; leave out KEY=VALUE")
	}
	c := &operator.CounterChange{Action: args[0], Domain: args[1], DryRun: opt.dryRun}
	if opt.path != "" {
		c.Descriptor, err = opt.pathEntries()
	} else {
		c.Descriptor, err = opt.entries(args[2:])
	}
	switch isSet, hasUsed := c.Action == operator.ActionSet, cmd.Flags().Changed("used"); {
	case err != nil:
		return err
	case isSet && !hasUsed:
		return errors.New("set needs --used, the number of units that the counters shall hold")
	case isSet && c.IsPattern():
		return errors.New("set takes no pattern; name one descriptor, or add --literal if the value ends with *")
	case isSet:
		c.Used = &opt.used
	case hasUsed:
		return fmt.Errorf("--used belongs to set, not to %s", c.Action)
	}
	opt.change = c
	return nil
}

// entries returns the entries of a descriptor, of which each argument has one or more.
func (opt *options) entries(args []string) (entries []operator.CounterEntry, err error) {
	if len(args) == 0 {
		return nil, errors.New("name a descriptor: KEY=VALUE,KEY=VALUE, in the order of the rules, or --path word/word")
	}
	for _, arg := range args {
		if opt.literal {
			key, value, _ := strings.Cut(arg, "=")
			entries = append(entries, operator.CounterEntry{Key: key, Value: value})
			continue
		}
		parsed, err := callertext.ParseEntries(strings.TrimSuffix(arg, ",")) // As explain prints it.
		if err != nil {
			return nil, err
		}
		for _, e := range parsed {
			entry := operator.CounterEntry{Key: e.Key, Value: e.Value}
			if prefix, isPattern := strings.CutSuffix(e.Value, "*"); isPattern && !e.IsQuoted {
				entry.Value, entry.Prefix = "", &prefix
			}
			entries = append(entries, entry)
		}
	}
	for _, e := range entries[:len(entries)-1] {
		if e.Prefix != nil {
			return nil, fmt.Errorf(`%s=%s*: only the last value may end with *; %s="%s*" in quotes takes it as it is`,
				e.Key, *e.Prefix, e.Key, *e.Prefix)
		}
	}
	return entries, nil
}

// pathEntries returns the entries that --path stands for. A pattern becomes the value of the word before it.
func (opt *options) pathEntries() (entries []operator.CounterEntry, err error) {
	words := strings.Split(opt.path, "/")
	for i, word := range words {
		prefix, isPattern := strings.CutSuffix(word, "*")
		isPattern = isPattern && !opt.literal
		switch {
		case word == "":
			return nil, fmt.Errorf("--path %s: write words, with a slash between each two", opt.path)
		case isPattern && i < len(words)-1:
			return nil, fmt.Errorf("--path %s: only the last word may end with *; --literal takes it as it is", opt.path)
		case isPattern && i == 0:
			return nil, fmt.Errorf("--path %s: name at least one word before the pattern", opt.path)
		case isPattern:
			entries[i-1].Prefix = &prefix
		default:
			entries = append(entries, operator.CounterEntry{Key: word})
		}
	}
	return entries, nil
}

type run struct {
	*cobra.Command
	opt    *options
	client *debugport.Client
}

// perform sends c, and prints the report. Before it resets the counters of a pattern, it asks.
func (r *run) perform(ctx context.Context, c *operator.CounterChange) error {
	if c.IsPattern() && c.Changes() && !r.opt.yes {
		if err := r.confirm(ctx, c); err != nil {
			return err
		}
	}
	report, err := r.send(ctx, c)
	if problem, ok := errors.AsType[*debugport.Error](err); ok && problem.Status == http.StatusUnprocessableEntity {
		return fmt.Errorf("%w: `ratelimit explain --domain %s --descriptors %s --address %s`", err,
			output.ShellWord(c.Domain), output.ShellWord(c.DescriptorText()), r.client.Address)
	} else if err != nil {
		return err
	}
	if r.opt.asJSON {
		err = output.WriteJSON(r.OutOrStdout(), report)
	} else {
		err = r.print(report)
	}
	switch {
	case err != nil:
		return err
	case report.Warning != "":
		return errors.New(report.Warning)
	case report.Action == operator.ActionReset && isEmpty(report):
		return fmt.Errorf("found no counter of %s for %s: nothing was counted, or the time is over; "+
			"`ratelimit denials` and `ratelimit top` print the subjects", output.Printable(c.Domain), c.DescriptorText())
	}
	return nil
}

func isEmpty(report *operator.CounterReport) bool {
	if report.IsPattern() {
		return report.Matching == 0
	}
	found := report.Counters
	if len(report.Before) > 0 {
		found = report.Before
	}
	return !slices.ContainsFunc(found, func(c operator.Counter) bool {
		return c.Used > 0 || c.RetryAfterSeconds > 0 || c.Fallback != ""
	})
}

// confirm asks whether the counters of a pattern shall be reset. The error says why they shall not.
func (r *run) confirm(ctx context.Context, c *operator.CounterChange) error {
	if !r.opt.isTerminal(r.InOrStdin()) {
		return command.InvalidInput(errors.New("a pattern resets many counters: look at them with --dry-run, and then add " +
			"--yes"))
	}
	look := *c
	look.DryRun = true
	report, err := r.send(ctx, &look)
	if err != nil {
		return err
	}
	fmt.Fprint(r.ErrOrStderr(), matchingText(report))
	if report.Matching == 0 {
		return nil // send finds none, too, and says so.
	}
	fmt.Fprintf(r.ErrOrStderr(), "Reset %s? [y/N] ", output.Plural(report.Matching, "counter"))
	answer, _ := bufio.NewReader(r.InOrStdin()).ReadString('\n') // At the end of the input the answer is no.
	if word := strings.ToLower(strings.TrimSpace(answer)); word != "y" && word != "yes" {
		return errors.New("nothing was changed")
	}
	return nil
}

// send sends c, and returns the report. It shows the progress of a pattern on a terminal.
func (r *run) send(ctx context.Context, c *operator.CounterChange) (*operator.CounterReport, error) {
	report := new(operator.CounterReport)
	if !c.IsPattern() {
		return report, r.client.Do(ctx, http.MethodPost, "/api/counters", nil, c, report)
	}
	progress := command.ProgressLine(r.ErrOrStderr())
	defer progress("")
	done := false
	err := r.client.Stream(ctx, http.MethodPost, "/api/counters", c, func(text []byte) error {
		var line struct {
			Progress *int    `json:"progress"`
			Error    *string `json:"error"`
		}
		if err := json.Unmarshal(text, &line); err != nil {
			return fmt.Errorf("%s does not answer with lines of JSON: %w", r.client.Address, err)
		}
		switch {
		case line.Error != nil:
			return fmt.Errorf("%s: %s", r.client.Address, *line.Error)
		case line.Progress != nil:
			progress("%s so far", output.Plural(*line.Progress, "counter"))
			return nil
		}
		done = true
		return json.Unmarshal(text, report)
	})
	if err == nil && !done {
		err = fmt.Errorf("%s: the answer has no report; send the change again", r.client.Address)
	}
	return report, err
}

var columns = output.Columns("RULE", "USED", "LIMIT", "REMAINING", "RESET", "REQUEST", "ALGORITHM", "COUNTER")

func (r *run) print(report *operator.CounterReport) error {
	if report.IsPattern() {
		text := matchingText(report)
		if report.Changes() {
			text = fmt.Sprintf("%s reset\n", output.Plural(report.Matching, "counter"))
		}
		_, err := io.WriteString(r.OutOrStdout(), text)
		return err
	}
	var rows [][]string
	for i := range report.Counters {
		c := &report.Counters[i]
		used := fmt.Sprint(c.Used)
		if c.Held > 0 {
			used += fmt.Sprintf(" (%d held)", c.Held)
		}
		if i < len(report.Before) {
			used = fmt.Sprintf("%d -> %d", report.Before[i].Used, c.Used)
		}
		rows = append(rows, []string{
			c.Rule, used, limitText(c), fmt.Sprint(c.Remaining), secondsText(c.ResetAfterSeconds), requestText(c),
			c.Algorithm, c.Key,
		})
	}
	lines := output.Table(0, columns, rows)
	if report.DryRun {
		lines = append(lines, "dry run: nothing was changed")
	}
	return output.WriteLines(r.OutOrStdout(), lines)
}

// matchingText says how many counters a pattern matches, and names some.
func matchingText(report *operator.CounterReport) string {
	var b strings.Builder
	verb := "match"
	if report.Matching == 1 {
		verb = "matches"
	}
	fmt.Fprintf(&b, "%s %s\n", output.Plural(report.Matching, "counter"), verb)
	for _, name := range report.Names {
		fmt.Fprintf(&b, "  %s\n", output.Printable(name))
	}
	if more := report.Matching - len(report.Names); more > 0 {
		fmt.Fprintf(&b, "  and %d more\n", more)
	}
	return b.String()
}

// limitText returns the limit for people: "60 in 1m", or "30 of 60 in 1m" if only this replica's share counts.
func limitText(c *operator.Counter) string {
	text := wholeLimitText(c)
	if c.Share > 0 && c.Share != c.Limit {
		text = fmt.Sprintf("%d of %s", c.Share, text)
	}
	return text
}

func wholeLimitText(c *operator.Counter) string {
	switch c.Algorithm {
	case algorithm.GCRA.String():
		return fmt.Sprintf("%d at once", c.Limit)
	case algorithm.Concurrency.String():
		return fmt.Sprintf("%d at a time", c.Limit)
	}
	if c.CalendarWindow != "" {
		return fmt.Sprintf("%d per %s", c.Limit, c.CalendarWindow)
	}
	return fmt.Sprintf("%d in %s", c.Limit, secondsText(c.PeriodSeconds))
}

// requestText says what a request for one unit gets.
func requestText(c *operator.Counter) string {
	text := "passes"
	switch {
	case c.Refuses && c.RetryAfterSeconds < 0:
		text = "is refused"
	case c.Refuses:
		text = "is refused for " + secondsText(c.RetryAfterSeconds)
	}
	if c.Refuses && c.Shadow {
		text += " (shadow)"
	}
	if c.Fallback != "" {
		text += " (store does not answer: " + c.Fallback + ")"
	}
	return text
}

// secondsText returns seconds as a duration such as 1m30s.
func secondsText(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	if d >= time.Second {
		d = d.Round(time.Second / 10)
	}
	return rules.FormatDuration(d)
}
