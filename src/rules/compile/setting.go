package compile

import (
	"reflect"
	"strings"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/rules"
)

// FieldsByKey returns the field of a configuration for each key of rule files, as an index for reflect.
func FieldsByKey[T any]() map[string][]int {
	fields := make(map[string][]int)
	for _, f := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		if key := f.Tag.Get("yaml"); key != "" {
			fields[key] = f.Index
		}
	}
	return fields
}

// limitFields has the field of RateLimitConfig for each setting.
var limitFields = FieldsByKey[RateLimitConfig]()

// position returns the position of a setting that is not the default; ok is false if the setting is missing.
func (cfg *RateLimitConfig) position(setting string) (at rules.Pos, ok bool) {
	switch setting {
	case "unit":
		return cfg.UnitPos, cfg.Unit != ""
	case "unit_multiplier":
		return cfg.Pos, cfg.UnitMultiplier != nil
	}
	v := reflect.ValueOf(cfg).Elem().FieldByIndex(limitFields[setting])
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return at, false
	}
	return v.Elem().FieldByName("Pos").Interface().(rules.Pos), true
}

// refuseBesideUnlimited reports the settings that exclude `unlimited: true`.
func (c *limitCompiler) refuseBesideUnlimited(cfg *RateLimitConfig) {
	for i := range rules.Settings {
		s := &rules.Settings[i]
		if at, written := cfg.position(s.Name); written && s.ExcludesUnlimited {
			c.problems.Add(at, "remove one of them", "unlimited and %s exclude each other", s.Name)
		}
	}
}

// checkSettings reports the settings that mean nothing to an algorithm, or without or beside other settings. counting
// is the default of the domain.
func (c *limitCompiler) checkSettings(cfg *RateLimitConfig, kind algorithm.Kind, counting backend.Counting) {
	if v := cfg.Counting; v != nil {
		counting, _ = backend.Countings.Parse(v.Value)
	}
	on := map[string]bool{
		"":                 true,
		"calendar: true":   cfg.Calendar != nil && cfg.Calendar.Value,
		"counting: leased": counting == backend.Leased,
		"hold":             cfg.Hold != nil || kind == algorithm.Concurrency,
	}
	for i := range rules.Settings {
		s := &rules.Settings[i]
		at, written := cfg.position(s.Name)
		if !written || s.Name == "calendar" && !cfg.Calendar.Value {
			continue
		}
		if !on[s.Needs] {
			c.problems.Add(at, "add `"+s.NeedsFix+"`, or remove it", "%s means nothing without %s", s.Name, s.Needs)
		}
		for _, other := range []string{"hold", "reserve_on_check"} {
			_, hasOther := cfg.position(other)
			if s.ExcludesHold && hasOther && kind != algorithm.Concurrency {
				c.problems.Add(at, "remove one of them", "%s and %s exclude each other", other, s.Name)
			}
		}
		if !s.IsFor(kind) {
			c.problems.Add(at, fixAlgorithm(s), "%s means nothing to the algorithm %v%s", s.Name, kind, s.WhyOthersLack)
		}
	}
}

// fixAlgorithm returns how to fix a setting that means nothing to the algorithm.
func fixAlgorithm(s *rules.Setting) string {
	if s.OthersFix != "" {
		return s.OthersFix
	}
	var names []string
	for _, kind := range s.Algorithms {
		names = append(names, kind.String())
	}
	names[0] = "`algorithm: " + names[0] + "`"
	return "write " + strings.Join(names, " or ") + ", or remove it"
}
