package model

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// What a script may say. The model adds amounts up in 64 bits, and has no opinion
// on counters that stop growing.
const (
	maxAmount = 100_000
	maxMax    = 1_000_000
	maxPeriod = 1000 * time.Hour
	maxSteps  = 10_000
	maxAsks   = 8
)

// Parse reads a script. Its errors say which line is wrong, and why.
func Parse(name, text string) (*Script, error) {
	s := &Script{Store: Stores[0]}
	number, inRules := 0, false
	for line := range strings.Lines(text) {
		number++
		line, _, _ = strings.Cut(strings.TrimRight(line, "\r\n"), "#")
		if strings.TrimSpace(line) == "" {
			continue
		}
		var err error
		if strings.HasPrefix(line, " ") || strings.HasPrefix(line, "\t") {
			if !inRules {
				return nil, fmt.Errorf("%s:%d: an indented line that follows no rules", name, number)
			}
			err = s.rule(line)
		} else {
			inRules = strings.TrimSpace(line) == "rules"
			err = s.step(line)
		}
		if err == nil && len(s.Steps) > maxSteps {
			err = fmt.Errorf("more than %d steps", maxSteps)
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, number, err)
		}
	}
	return s, nil
}

func (s *Script) step(line string) error {
	words := strings.Fields(line)
	var step Step
	switch {
	case words[0] == "ask":
		asks, err := parseAsks(words[1:])
		if err != nil {
			return err
		}
		step.Asks = asks
	case words[0] == "rules" && len(words) == 1:
		step.Rules = Rules{}
	case len(words) != 2:
		return fmt.Errorf("%q is no step: want store, rules, at, ask or fault", line)
	case words[0] == "store":
		if !slices.Contains(Stores, words[1]) {
			return fmt.Errorf("the store %q is not one of %v", words[1], Stores)
		}
		s.Store = words[1]
		return nil
	case words[0] == "fault":
		step.Fault = Fault(words[1])
		if !slices.Contains(Faults, step.Fault) {
			return fmt.Errorf("the fault %q is not one of %v", words[1], Faults)
		}
	case words[0] == "at":
		at, err := parseDuration(words[1], 100_000*time.Hour)
		if err != nil {
			return err
		}
		step.Clock, step.At = true, at
	default:
		return fmt.Errorf("%q is no step: want store, rules, at, ask or fault", words[0])
	}
	s.Steps = append(s.Steps, step)
	return nil
}

// parseDuration takes whole microseconds, as no store need know a finer time.
func parseDuration(word string, most time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(word)
	if err != nil || d < 0 || d > most || d%time.Microsecond != 0 {
		return 0, fmt.Errorf("%q is not a duration of whole microseconds from 0s to %v", word, most)
	}
	return d, nil
}

var name = regexp.MustCompile(`^[a-z0-9]{1,20}$`)

func parseAsks(words []string) ([]Ask, error) {
	asks := []Ask{nil}
	for _, word := range words {
		if word == "|" {
			asks = append(asks, nil)
			continue
		}
		d := Descriptor{Amount: 1}
		entry, amount, has := strings.Cut(word, "*")
		if has {
			n, err := strconv.ParseInt(amount, 10, 64)
			if err != nil || n < -maxAmount || n > maxAmount {
				return nil, fmt.Errorf("%q is not an amount from -%d to %d", amount, maxAmount, maxAmount)
			}
			d.Amount = n
		}
		entry, held, isHeld := strings.Cut(entry, "@")
		action, hasAction := "", false
		d.Hold, action, hasAction = strings.Cut(held, ":")
		d.Action = Action(action)
		d.Key, d.Value, has = strings.Cut(entry, "=")
		if !has || !name.MatchString(d.Key) || !name.MatchString(d.Value) || isHeld && !name.MatchString(d.Hold) {
			return nil, fmt.Errorf("%q is no descriptor: want key=value, key=value@hold, key=value@hold:action, each also "+
				"with *amount, of a-z and 0-9", word)
		}
		if hasAction && d.Action != Settle && d.Action != Release || d.Action == Settle && d.Amount < 0 {
			return nil, fmt.Errorf("%q is neither %s of an amount from 0 on nor %s", word, Settle, Release)
		}
		asks[len(asks)-1] = append(asks[len(asks)-1], d)
	}
	if len(asks) > maxAsks {
		return nil, fmt.Errorf("more than %d requests at once", maxAsks)
	}
	for _, ask := range asks {
		if len(ask) == 0 || len(ask) > maxAsks {
			return nil, fmt.Errorf("a request of %d descriptors: want 1 to %d", len(ask), maxAsks)
		}
	}
	return asks, nil
}

var onFailures = []string{"error", "allow", "deny", "local"}

// rule reads a line of rules.
func (s *Script) rule(line string) error {
	head, tail, ok := strings.Cut(line, ":")
	words := strings.Fields(head)
	if !ok || len(words) == 0 || !name.MatchString(words[0]) || words[0] == Probe {
		return fmt.Errorf("%q is no rule: want key: limit, or key none shadow 50%%: limit + limit", strings.TrimSpace(line))
	}
	r := Rule{Key: words[0]}
	for _, word := range words[1:] {
		switch {
		case word == "none":
			r.None = true
		case word == "shadow":
			r.Shadow = true
		case strings.HasSuffix(word, "%"):
			percent, err := strconv.Atoi(strings.TrimSuffix(word, "%"))
			if err != nil || percent < 1 || percent > 99 || fmt.Sprintf("%d%%", percent) != word {
				return fmt.Errorf("%q is not 1%% to 99%%", word)
			}
			r.Percent = percent
		default:
			return fmt.Errorf("%q is not none, shadow or a percentage", word)
		}
	}
	for text := range strings.SplitSeq(tail, "+") {
		l, err := parseLimit(strings.Fields(text))
		if err != nil {
			return err
		}
		if l.Counting && !r.mayCount(&l) {
			return fmt.Errorf("a %s of a rule that is none cannot be counting", l.Kind)
		}
		for i := range r.Limits {
			if r.Limits[i].sharesCounter(&l) {
				return fmt.Errorf("the limits %v and %v would share a counter", &r.Limits[i], &l)
			}
		}
		r.Limits = append(r.Limits, l)
	}
	rules := &s.Steps[len(s.Steps)-1].Rules
	if rules.find(r.Key) != nil {
		return fmt.Errorf("the key %q has two rules", r.Key)
	}
	*rules = append(*rules, r)
	return nil
}

func parseLimit(words []string) (l Limit, err error) {
	if len(words) < 2 || !slices.Contains(Kinds(), Kind(words[0])) {
		return l, fmt.Errorf("%q is no limit: want an algorithm of %v and 3/1m", strings.Join(words, " "), Kinds())
	}
	l.Kind = Kind(words[0])
	count, period, _ := strings.Cut(words[1], "/")
	if l.Max, err = strconv.ParseInt(count, 10, 64); err != nil || l.Max < 0 || l.Max > maxMax {
		return l, fmt.Errorf("%q is not a limit from 0 to %d", count, maxMax)
	}
	if err := l.parsePeriod(period); err != nil {
		return l, err
	}
	l.Burst = max(l.Max-1, 0)
	if l.Kind != GCRA {
		l.Burst = 0
	}
	for i := 2; i < len(words); i++ {
		switch argument := i + 1; {
		case words[i] == "counting":
			l.Counting = true
		case slices.Contains(onFailures, words[i]):
			l.Fallback = words[i]
		case words[i] == "release" && l.Kind != Concurrency:
			l.Release = true
		case words[i] == "hold" && argument < len(words):
			i++
			if l.Hold, err = parseDuration(words[i], 24*time.Hour); err != nil {
				return l, err
			}
		case l.Calendar.Unit != "" && argument < len(words) &&
			slices.Contains([]string{"zone", "anchor", "starts"}, words[i]):
			i++
			if err := l.Calendar.parse(words[i-1], words[i]); err != nil {
				return l, err
			}
		case words[i] == "burst" && argument < len(words) && l.Kind == GCRA:
			i++
			if l.Burst, err = strconv.ParseInt(words[i], 10, 64); err != nil || l.Burst < 0 || l.Burst > maxMax {
				return l, fmt.Errorf("%q is not a burst from 0 to %d", words[i], maxMax)
			}
		case words[i] == "interval" && argument < len(words) && (l.Kind == Sliding || l.Kind == GCRA):
			i++
			if l.Interval, err = parseDuration(words[i], maxPeriod); err != nil {
				return l, err
			}
		default:
			return l, fmt.Errorf("%q is not counting, a hold, the burst of a gcra, the interval of a gcra or a "+
				"sliding_window, or one of %v", words[i], onFailures)
		}
	}
	return l, l.check()
}

// check refuses what the service does, too.
func (l *Limit) check() error {
	c := &l.Calendar
	switch {
	case l.Kind == Concurrency && l.Hold == 0, l.Release && l.Hold == 0:
		return fmt.Errorf("%v has no hold", l)
	case l.Hold > 0 && (l.Counting || l.Interval > 0 || l.Kind == GCRA && l.Max == 0 ||
		l.Kind == Concurrency && l.Max > 1000):
		return fmt.Errorf("%v: beside a hold there is no counting, no interval, no gcra of 0, and no concurrency above 1000",
			l)
	case c.Unit != "" && (c.Zone == "" || (c.Unit == "month") != (c.Anchor > 0) || (c.Unit == "week") != (c.Starts != "")):
		return fmt.Errorf("%v: a calendar has a zone, one of months an anchor, and one of weeks a day on which it starts", l)
	}
	return nil
}

var calendarWindow = regexp.MustCompile(`^([1-9][0-9]?)(day|week|month|year)$`)

// parsePeriod reads what is behind the slash.
func (l *Limit) parsePeriod(word string) (err error) {
	if found := calendarWindow.FindStringSubmatch(word); found != nil && l.Kind == Fixed {
		l.Calendar.Unit = found[2]
		l.Calendar.Units, err = strconv.Atoi(found[1])
		return err
	}
	if l.Kind == Concurrency && word == "" {
		return nil
	}
	if l.Period, err = parseDuration(word, maxPeriod); err != nil {
		return err
	}
	if l.Period == 0 || l.Kind == Concurrency || l.Kind == Fixed && l.Period%time.Second != 0 {
		return fmt.Errorf("%v is no window of %s", l.Period, l.Kind)
	}
	return nil
}

// parse reads a field and its value.
func (c *Calendar) parse(field, value string) (err error) {
	switch field {
	case "zone":
		c.Zone = value
		if _, err = time.LoadLocation(value); err != nil || value == "Local" {
			return fmt.Errorf("%q is no time zone", value)
		}
	case "anchor":
		if c.Anchor, err = strconv.Atoi(value); err != nil || c.Anchor < 1 || c.Anchor > 28 {
			return fmt.Errorf("%q is no anchor from 1 to 28", value)
		}
	case "starts":
		if c.Starts = value; !slices.Contains(weekdays, value) {
			return fmt.Errorf("%q is not one of %v", value, weekdays)
		}
	}
	return nil
}
