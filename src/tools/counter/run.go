package counter

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/operator"
	"ratelimit/src/operator/output"
	"ratelimit/src/rules"
	"ratelimit/src/tools/command"
	"ratelimit/src/tools/reach"
)

// run performs one change.
type run struct {
	opt         *options
	client      *reach.Client
	in          io.Reader
	out, errOut io.Writer
}

// perform sends c, and prints the report. Before it resets the counters of a pattern, it asks.
func (r *run) perform(ctx context.Context, c *operator.CounterChange) error {
	if c.IsPattern() && c.Changes() && !r.opt.yes {
		if err := r.confirm(ctx, c); err != nil {
			return err
		}
	}
	report, err := r.send(ctx, c)
	if err != nil {
		return err
	}
	if r.opt.asJSON {
		err = output.WriteJSON(r.out, report)
	} else {
		err = r.print(report)
	}
	if err == nil && report.Warning != "" {
		return errors.New(report.Warning)
	}
	return err
}

// confirm asks whether the counters of a pattern shall be reset. The error says why they shall not.
func (r *run) confirm(ctx context.Context, c *operator.CounterChange) error {
	if !r.opt.isTerminal(r.in) {
		return command.InvalidInput(errors.New("a pattern resets many counters: look at them with --dry-run, and then add " +
			"--yes"))
	}
	look := *c
	look.DryRun = true
	report, err := r.send(ctx, &look)
	if err != nil {
		return err
	}
	fmt.Fprint(r.errOut, matchingText(report))
	if report.Matching == 0 {
		return nil
	}
	fmt.Fprintf(r.errOut, "Reset %s? [y/N] ", output.Plural(report.Matching, "counter"))
	answer, _ := bufio.NewReader(r.in).ReadString('\n') // At the end of the input the answer is no.
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
	progress := command.ProgressLine(r.errOut)
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

var columns = []output.Column{
	{Title: "RULE"},
	{Title: "USED"},
	{Title: "LIMIT"},
	{Title: "REMAINING"},
	{Title: "RESET"},
	{Title: "REQUEST"},
	{Title: "ALGORITHM"},
	{Title: "COUNTER"},
}

// print writes the report as text for people.
func (r *run) print(report *operator.CounterReport) error {
	if report.IsPattern() {
		text := matchingText(report)
		if report.Changes() {
			text = fmt.Sprintf("%s reset\n", output.Plural(report.Matching, "counter"))
		}
		_, err := io.WriteString(r.out, text)
		return err
	}
	var rows [][]string
	for i := range report.Counters {
		c := &report.Counters[i]
		used := fmt.Sprint(c.Used)
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
	_, err := io.WriteString(r.out, strings.Join(lines, "\n")+"\n")
	return err
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

func limitText(c *operator.Counter) string {
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
