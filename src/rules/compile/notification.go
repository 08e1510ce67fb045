package compile

import (
	"slices"

	"ratelimit/src/algorithm"
	"ratelimit/src/rules"
)

// notification returns what cfg says, with the parts of inherited that it does not set. It is nil if both are.
func (c *report) notification(inherited *rules.Notification, cfg *NotifyConfig) *rules.Notification {
	if cfg == nil {
		return inherited
	}
	n := new(rules.Notification)
	if inherited != nil {
		*n = *inherited
	}
	if cfg.At != nil {
		n.At = c.notifyThresholds(cfg.At)
	}
	if v := cfg.URL; v != nil {
		if why, fix := rules.WhyNoWebhook(v.Value); why != "" {
			c.problems.Add(v.Pos, fix, "url: %s", why)
		}
		n.URL = v.Value
	}
	n.Format = parseWord(c, n.Format, cfg.Format, &rules.NotifyFormats)
	return n
}

// notifyThresholds returns the percentages in list, in ascending order.
func (c *report) notifyThresholds(list *Positioned[[]Positioned[uint32]]) (at []uint32) {
	if len(list.Value) > rules.MaxNotifyThresholds {
		c.problems.Add(list.Pos, "leave some out", "at has %d percentages, and %d are the most", len(list.Value),
			rules.MaxNotifyThresholds)
		return nil
	}
	for _, v := range list.Value {
		switch {
		case v.Value < 1 || v.Value > 100:
			c.problems.Add(v.Pos, "write a percentage from 1 to 100, such as 80", "at: %d is no percentage of the limit", v.Value)
		case slices.Contains(at, v.Value):
			c.problems.Add(v.Pos, "remove one of them", "at has %d twice", v.Value)
		default:
			at = append(at, v.Value)
		}
	}
	slices.Sort(at)
	return at
}

// setNotification sets r.Notify, which is inherited or that of cfg.
func (c *limitCompiler) setNotification(r *rules.Rule, cfg *RateLimitConfig, inherited *rules.Notification) {
	n := c.notification(inherited, cfg.Notify)
	switch {
	case n != nil && len(n.At) > 0:
		r.Notify = n
		if v := cfg.Notify; v != nil && r.Limit.Kind == algorithm.GCRA && r.Limit.Max > 0 && r.Limit.Capacity() == 1 {
			c.warnings.Add(v.Pos, "add a burst, such as `burst: 10`",
				"each hit uses all of a gcra without a burst, so notify tells of every subject")
		}
	case cfg.Notify != nil && cfg.Notify.At == nil:
		c.problems.Add(cfg.Notify.Pos, "add `at: [80, 100]`, percentages of the limit", "notify has no at")
	}
}
