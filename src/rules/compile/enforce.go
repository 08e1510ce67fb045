package compile

import (
	"ratelimit/src/rules"
)

// setEnforcement sets r.Enforcement from enforce_percent.
func (c *limitCompiler) setEnforcement(r *rules.Rule, cfg *RateLimitConfig) {
	v := cfg.EnforcePercent
	switch {
	case v == nil:
		return
	case !(v.Value >= 0 && v.Value <= 100): // It is also true for NaN.
		c.problems.Add(v.Pos, "write 0 to 100", "enforce_percent is out of range: %s",
			rules.Quote(rules.FormatPercent(v.Value)))
		return
	case r.ShadowMode:
		c.warnings.Add(v.Pos, "remove enforce_percent, or shadow_mode",
			"enforce_percent has no effect beside shadow_mode, which enforces nothing")
	}
	r.Enforcement = rules.NewEnforcement(v.Value)
	if len(r.Path) > 0 && r.HasOneCounter() {
		warnOneCounter(&c.warnings, r, v.Pos)
	}
}

// warnOneCounter warns of enforce_percent, which is at a position, where all requests share one counter of r.
func warnOneCounter(warnings *rules.Problems, r *rules.Rule, at rules.Pos) {
	if e := r.Enforcement; e != nil && e.Percent > 0 && !r.ShadowMode {
		warnings.Add(at, "remove it, or count by a value that differs, such as the user",
			"enforce_percent chooses among counters, and this limit has only one, which is enforced for all requests or for none")
	}
}
