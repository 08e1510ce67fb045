// Package limit changes the limits of subjects in a running service, and shows the changes.
package limit

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"ratelimit/src/operator"
	"ratelimit/src/operator/debugport"
	"ratelimit/src/operator/output"
	"ratelimit/src/overrides"
	"ratelimit/src/rules"
	"ratelimit/src/tools/reach"
)

//go:embed help.txt
var help string

// options are the flags of `ratelimit limit`.
type options struct {
	service  reach.Service
	rate     string
	burst    uint64
	duration string
	until    string
	reason   string
	who      string
	rule     string
	allRules bool
	dryRun   bool
	asJSON   bool

	action string // one of actions; set by check
	domain string // set by check; it may be empty if the action is a list
	change *operator.LimitChange
	now    func() time.Time
}

// The words behind `ratelimit limit`.
const (
	actionSet     = "set"
	actionBan     = "ban"
	actionUnset   = "unset"
	actionList    = "list"
	actionHistory = "history"
	actionExport  = "export"
)

var actions = []string{actionSet, actionBan, actionUnset, actionList, actionHistory, actionExport}

// Command returns `ratelimit limit`.
func Command() *cobra.Command { return (&options{now: time.Now}).command() }

func (opt *options) command() *cobra.Command {
	cmd := opt.service.NewActionCommand(help, actions, opt.check, "its changed limits",
		func(ctx context.Context, cmd *cobra.Command, client *debugport.Client) error {
			return (&run{cmd, opt, client}).perform(ctx)
		})
	f := cmd.Flags()
	f.StringVar(&opt.rate, "rate", "", "with set, the limit: 1000/minute, 1000 in the window of the rule, or x10")
	f.Uint64Var(&opt.burst, "burst", 0, "with --rate, the burst of a gcra")
	f.StringVar(&opt.duration, "for", "", "how long the change lasts, such as 2h or 7d")
	f.StringVar(&opt.until, "until", "", "when the change ends: a date (its end), a time of day, or 2027-01-08T18:00:00Z")
	f.StringVar(&opt.reason, "reason", "", "why, for those who see the change later; required for set and ban")
	f.StringVar(&opt.who, "who", "", "who makes the change (default: your user and host)")
	f.StringVar(&opt.rule, "rule", "", "the rule, or one of its limits, if the subject is that of several")
	f.BoolVar(&opt.allRules, "all-rules", false, "change all rules of the domain that count the subject")
	f.BoolVar(&opt.dryRun, "dry-run", false, "change nothing, and print what would be changed")
	f.BoolVar(&opt.asJSON, "json", false, "print one object")
	opt.service.AddAnyReplicaFlags(f)
	return cmd
}

// check sets the change that the arguments and flags ask for.
func (opt *options) check(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("say what to do: %s", rules.JoinWithOr(actions))
	}
	opt.action = args[0]
	switch opt.action {
	case actionSet, actionBan, actionUnset:
	case actionList, actionHistory, actionExport:
		return opt.checkList(cmd, args[1:])
	default:
		return fmt.Errorf("%q is not known; write %s", opt.action, rules.JoinWithOr(actions))
	}
	if len(args) < 3 {
		return fmt.Errorf("name a domain and a subject: ratelimit limit %s DOMAIN KEY=VALUE,KEY=VALUE", opt.action)
	}
	c := &operator.LimitChange{
		Action: overrides.ActionSet, Domain: args[1], Subject: joinSubject(args[2:]), Rule: opt.rule, AllRules: opt.allRules,
		DryRun: opt.dryRun, Reason: opt.reason, Who: opt.who, For: opt.duration, Limit: opt.rate,
	}
	switch isSet := opt.action == actionSet; {
	case opt.rule != "" && opt.allRules:
		return errors.New("--rule and --all-rules exclude each other")
	case isSet && opt.rate == "":
		return errors.New("set needs --rate: 1000/minute, 1000 or x10")
	case !isSet && (opt.rate != "" || cmd.Flags().Changed("burst")):
		return fmt.Errorf("--rate and --burst belong to set, not to %s", opt.action)
	case opt.duration != "" && opt.until != "":
		return errors.New("--for and --until exclude each other")
	case opt.action == actionBan:
		c.Limit = overrides.Ban.String()
	case opt.action == actionUnset:
		c.Action = overrides.ActionUnset
		if opt.duration != "" || opt.until != "" {
			return errors.New("--for and --until belong to set and ban, not to unset")
		}
	case cmd.Flags().Changed("burst"):
		c.Limit += " burst " + strconv.FormatUint(opt.burst, 10)
	}
	if opt.action != actionUnset && !opt.dryRun && strings.TrimSpace(opt.reason) == "" {
		return fmt.Errorf("%s needs --reason: say why, for those who see the change later", opt.action)
	}
	if opt.until != "" {
		until, err := parseUntil(opt.until, opt.now())
		if err != nil {
			return err
		}
		c.Until = until
	}
	if _, err := overrides.ParsePattern(c.Subject); err != nil {
		return fmt.Errorf("the subject: %w", err)
	}
	if c.Action == overrides.ActionSet {
		if _, err := overrides.ParseChange(c.Limit); err != nil {
			return fmt.Errorf("--rate: %w", err)
		}
	}
	if c.Who == "" {
		c.Who = whoAmI()
	}
	opt.change = c
	return nil
}

// checkList checks the arguments behind an action that changes nothing.
func (opt *options) checkList(cmd *cobra.Command, args []string) error {
	for _, name := range []string{"rate", "burst", "for", "until", "reason", "who", "rule", "all-rules", "dry-run"} {
		if cmd.Flags().Changed(name) {
			return fmt.Errorf("--%s does not belong to %s, which changes nothing", name, opt.action)
		}
	}
	switch {
	case opt.action == actionExport && len(args) != 1:
		return errors.New("export takes a domain: ratelimit limit export DOMAIN")
	case opt.action == actionExport && opt.asJSON:
		return errors.New("--json does not belong to export, which writes YAML")
	case len(args) > 1:
		return fmt.Errorf("%s takes at most a domain", opt.action)
	case len(args) == 1:
		opt.domain = args[0]
	}
	return nil
}

// joinSubject joins entries that are arguments of their own.
func joinSubject(args []string) string {
	for i, arg := range args {
		args[i] = strings.TrimSuffix(arg, ",")
	}
	return strings.Join(args, ",")
}

// parseUntil returns the instant that text means at the time now, in its time zone.
func parseUntil(text string, now time.Time) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	for _, layout := range []string{"2006-01-02 15:04", "2006-01-02T15:04"} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, nil
		}
	}
	if t, err := time.ParseInLocation(time.DateOnly, text, now.Location()); err == nil {
		return t.AddDate(0, 0, 1), nil
	}
	if t, err := time.ParseInLocation("15:04", text, now.Location()); err == nil {
		at := time.Date(now.Year(), now.Month(), now.Day(), t.Hour(), t.Minute(), 0, 0, now.Location())
		if !at.After(now) {
			at = at.AddDate(0, 0, 1)
		}
		return at, nil
	}
	return time.Time{}, fmt.Errorf("--until %.100q: write a date (2027-01-08), a time of day (18:00), or 2027-01-08T18:00:00Z",
		text)
}

// whoAmI returns the name of the user and of the host.
func whoAmI() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	const most = 100
	return name[:min(len(name), most)]
}

type run struct {
	*cobra.Command
	opt    *options
	client *debugport.Client
}

func (r *run) perform(ctx context.Context) error {
	switch r.opt.action {
	case actionList:
		return r.list(ctx)
	case actionHistory:
		return r.history(ctx)
	case actionExport:
		return r.export(ctx)
	}
	report := new(operator.LimitReport)
	c := r.opt.change
	err := r.client.Do(ctx, http.MethodPost, "/api/limits", nil, c, report)
	if problem, ok := errors.AsType[*debugport.Error](err); ok && problem.Status == http.StatusUnprocessableEntity &&
		!strings.HasSuffix(c.Subject, "*") {
		return fmt.Errorf("%w; see `ratelimit explain --domain %s --descriptors %s --address %s`", err, output.ShellWord(c.Domain),
			output.ShellWord(c.Subject), r.client.Address)
	}
	if err != nil {
		return err
	}
	if r.opt.asJSON {
		return output.WriteJSON(r.OutOrStdout(), report)
	}
	lines := reportLines(report)
	if c.Action == overrides.ActionSet && !report.DryRun {
		lines = append(lines, "to unset it: "+r.unsetting(&report.Override))
	}
	return output.WriteLines(r.OutOrStdout(), lines)
}

func (r *run) unsetting(o *overrides.Override) string {
	text := "ratelimit limit unset " + output.ShellWord(o.Domain) + " " + output.ShellWord(o.Subject)
	switch {
	case o.Rule != "":
		text += " --rule " + output.ShellWord(strings.TrimPrefix(o.Rule, o.Domain+"."))
	case r.opt.allRules:
		text += " --all-rules"
	}
	return text + " --address " + r.client.Address
}

func reportLines(report *operator.LimitReport) []string {
	columns := output.Columns("RULE", "LIMIT", "USED", "REMAINING")
	var rows [][]string
	for _, l := range report.Limits {
		limit := l.After
		if l.Before != l.After {
			limit = l.Before + " -> " + l.After
		}
		rows = append(rows, []string{l.Rule, limit, number(l.Used), number(l.Remaining)})
	}
	lines := output.Table(0, columns, rows)
	if report.Subjects != nil {
		lines = append(lines, subjectsText(*report.Subjects, report.SubjectsAtLeast))
	}
	if report.Before != nil && report.Action == overrides.ActionSet {
		lines = append(lines, "replaces "+report.Before.Note())
	}
	if report.Action == overrides.ActionSet {
		lines = append(lines, endText(report.Override.Until))
	} else if report.Before != nil {
		lines = append(lines, "removes "+report.Before.Note())
	}
	for _, w := range report.Warnings {
		lines = append(lines, "warning: "+w)
	}
	if report.DryRun {
		lines = append(lines, "dry run: nothing was changed")
	}
	return lines
}

func subjectsText(n int, isLeast bool) string {
	text, verb := output.Plural(n, "subject"), "have"
	if n == 1 {
		verb = "has"
	}
	if isLeast {
		text = "at least " + text
	}
	return text + " " + verb + " a counter now"
}

func number(n *uint64) string {
	if n == nil {
		return "?"
	}
	return strconv.FormatUint(*n, 10)
}

func endText(until time.Time) string {
	if until.IsZero() {
		return "until it is unset"
	}
	return "until " + until.Local().Format("2006-01-02 15:04:05 MST")
}

func (r *run) get(ctx context.Context, history bool) (a operator.LimitList, err error) {
	query := url.Values{"limit": {"100000"}}
	if r.opt.domain != "" {
		query.Set("domain", r.opt.domain)
	}
	if history {
		query.Set("history", "true")
	}
	return a, r.client.Get(ctx, "/api/limits", query, &a)
}

var (
	listColumns    = output.Columns("DOMAIN", "RULE", "SUBJECT", "LIMIT", "LEFT", "WHO", "REASON")
	historyColumns = output.Columns("TIME", "ACTION", "DOMAIN", "RULE", "SUBJECT", "BEFORE", "AFTER", "WHO", "REASON")
)

func (r *run) list(ctx context.Context) error {
	a, err := r.get(ctx, false)
	if err != nil {
		return err
	}
	if r.opt.asJSON {
		return output.WriteJSON(r.OutOrStdout(), a)
	}
	if a.Count == 0 {
		return output.WriteLines(r.OutOrStdout(), []string{"no limit is changed"})
	}
	now := r.opt.now()
	var rows [][]string
	for _, o := range a.Limits {
		rows = append(rows, []string{o.Domain, ruleText(&o), o.Subject, o.Limit, leftText(o.Until, now), o.Who, o.Reason})
	}
	return output.WriteLines(r.OutOrStdout(), output.Table(0, listColumns, rows))
}

func (r *run) history(ctx context.Context) error {
	a, err := r.get(ctx, true)
	if err != nil {
		return err
	}
	if r.opt.asJSON {
		return output.WriteJSON(r.OutOrStdout(), a.History)
	}
	if len(a.History) == 0 {
		return output.WriteLines(r.OutOrStdout(), []string{"no limit was changed"})
	}
	var rows [][]string
	for _, h := range a.History {
		before, after := "", h.Limit
		if h.Before != nil {
			before = h.Before.Limit
		}
		if h.Action == overrides.ActionUnset {
			after = ""
		}
		rows = append(rows, []string{
			h.At.Local().Format(time.DateTime), h.Action, h.Domain, ruleText(&h.Override), h.Subject, before, after, h.Who,
			h.Reason,
		})
	}
	return output.WriteLines(r.OutOrStdout(), output.Table(0, historyColumns, rows))
}

func (r *run) export(ctx context.Context) error {
	query := url.Values{"domain": {r.opt.domain}, "format": {"yaml"}}
	return r.client.Open(ctx, "/api/limits", query, "application/yaml", func(resp *http.Response) error {
		_, err := io.Copy(r.OutOrStdout(), io.LimitReader(resp.Body, maxExportBytes))
		return err
	})
}

// maxExportBytes is more than a service answers.
const maxExportBytes = 64 << 20

func ruleText(o *overrides.Override) string {
	if o.Rule == "" {
		return "all"
	}
	return strings.TrimPrefix(o.Rule, o.Domain+".")
}

// leftText returns the time until an end, rounded up.
func leftText(until, now time.Time) string {
	if until.IsZero() {
		return "no end"
	}
	left := until.Sub(now)
	for _, unit := range []struct {
		length time.Duration
		name   string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}} {
		if left > 2*unit.length {
			return strconv.Itoa(int((left+unit.length-1)/unit.length)) + unit.name
		}
	}
	return strconv.Itoa(max(0, int((left+time.Second-1)/time.Second))) + "s"
}
