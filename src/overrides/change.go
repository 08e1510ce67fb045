package overrides

import (
	"fmt"
	"strconv"
	"strings"

	"ratelimit/src/algorithm"
	"ratelimit/src/rules"
)

// Change replaces the limit of a rule. It is comparable. Its zero value is not valid.
type Change struct {
	kind changeKind
	// requests may pass in unit. With rules.UnitUnknown the window of the rule stays.
	requests uint64
	unit     rules.Unit
	// factor multiplies the limit of the rule.
	factor float64
	// burst replaces that of a gcra, if hasBurst.
	burst    uint64
	hasBurst bool
}

type changeKind uint8

const (
	changeRate   changeKind = iota + 1 // "1000/minute", or "1000" for the window of the rule
	changeFactor                       // "x10"
	changeBan                          // "ban"
)

// maxFactor bounds a relative change.
const maxFactor = 1e6

const banText = "ban"

// Ban refuses all requests.
var Ban = Change{kind: changeBan}

// ParseChange parses what String returns: "1000/minute", "1000", "x2.5" or "ban". A rate may have a burst, as in
// "1000/minute burst 50".
func ParseChange(text string) (c Change, err error) {
	rate, burst, hasBurst := strings.Cut(strings.TrimSpace(text), " burst ")
	if hasBurst {
		n, err := strconv.ParseUint(strings.TrimSpace(burst), 10, 64)
		if err != nil || n >= algorithm.MaxCapacity {
			return c, fmt.Errorf("the burst %.100q is not a number between 0 and %d", burst, uint64(algorithm.MaxCapacity-1))
		}
		c.burst, c.hasBurst = n, true
	}
	switch factor, isFactor := strings.CutPrefix(rate, "x"); {
	case rate == banText && !hasBurst:
		return Ban, nil
	case isFactor:
		c.kind = changeFactor
		c.factor, err = strconv.ParseFloat(factor, 64)
		if err != nil || !(c.factor > 0 && c.factor <= maxFactor) {
			return c, fmt.Errorf("the factor %.100q is not a number above 0 and up to %d: write x10 or x0.5", rate, int(maxFactor))
		}
		return c, nil
	}
	c.kind = changeRate
	number, unit, hasUnit := strings.Cut(rate, "/")
	n, err := strconv.ParseUint(strings.TrimSpace(number), 10, 64)
	if err != nil || n > algorithm.MaxCapacity {
		return c, fmt.Errorf("the limit %.100q is not a number of at most %d, as in 1000/minute, nor a factor, as in x10",
			rate, uint64(algorithm.MaxCapacity))
	}
	c.requests = n
	if hasUnit {
		if c.unit = rules.ParseUnit(strings.TrimSpace(unit)); c.unit == rules.UnitUnknown {
			return c, fmt.Errorf("the unit %.100q is not second, minute, hour, day, week, month or year", unit)
		}
	}
	return c, nil
}

// String returns the change in the form that ParseChange parses.
func (c Change) String() string {
	text := ""
	switch c.kind {
	case changeBan:
		return banText
	case changeFactor:
		text = "x" + strconv.FormatFloat(c.factor, 'f', -1, 64)
	case changeRate:
		text = strconv.FormatUint(c.requests, 10)
		if c.unit != rules.UnitUnknown {
			text += "/" + strings.ToLower(c.unit.String())
		}
	}
	if c.hasBurst {
		text += " burst " + strconv.FormatUint(c.burst, 10)
	}
	return text
}

// IsAbsolute reports whether the change names a limit, which does not depend on that of the rule.
func (c Change) IsAbsolute() bool { return c.kind == changeRate }

// Of returns a copy of r with the changed limit. The error says why r cannot have it.
func (c Change) Of(r *rules.Rule) (changed *rules.Rule, err error) {
	n := rules.NewLimit{Requests: c.requests, Unit: c.unit}
	if c.hasBurst {
		n.Burst = &c.burst
	}
	switch {
	case c.kind == changeFactor:
		changed, err = r.Times(c.factor, n.Burst)
	case c.kind == changeBan && r.Unlimited:
		changed, err = r.WithLimit(rules.NewLimit{Unit: rules.UnitSecond})
	default:
		changed, err = r.WithLimit(n)
	}
	if err != nil {
		return nil, fmt.Errorf("%s cannot have the limit %v: %w", r.FullName, c, err)
	}
	changed.Overridden = true
	return changed, nil
}
