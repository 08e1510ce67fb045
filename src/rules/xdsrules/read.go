package xdsrules

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	configv3 "ratelimit/api/ratelimit/config/ratelimit/v3"
	"ratelimit/src/rules"
)

// deepest is how many levels of descriptors are read: one more than
// rules.Compile takes, for it to say so.
const deepest = 101

// reader turns messages into configuration and notes what has none. A message
// that is nil means what an empty one means: most getters, and the compiler,
// then say what is missing.
type reader struct {
	problems rules.Problems
	left     int // bytes that places may still have
}

func (r *reader) problem(place, mend, format string, args ...any) {
	r.problems = append(r.problems, rules.Problem{
		Pos: rules.Pos{File: place}, What: fmt.Sprintf(format, args...), Fix: mend,
	})
}

// at is the place of a part of what is at outer. When all places are too long
// together it says so, once, and stays where it is.
func (r *reader) at(outer string, part ...string) string {
	if r.left < 0 {
		return outer
	}
	place := outer + strings.Join(part, "")
	if r.left -= len(place); r.left < 0 {
		r.problem("xds response", "use fewer levels, or fewer descriptors", "the set is too large: the paths of its parts are longer than %d MB together", maxPlaces>>20)
	}
	return place
}

func (r *reader) domain(place string, m *configv3.RateLimitConfig) rules.DomainConfig {
	return rules.DomainConfig{
		Pos:         rules.Pos{File: place},
		Domain:      m.GetDomain(),
		Rules:       r.rules(place, m.GetRules()),
		Descriptors: r.descriptors(place, ": descriptors[", m.GetDescriptors(), 1),
		Charge:      placed(r, place, ": charge", word(m.GetCharge(), configv3.Charge_CHARGE_INHERITED)),
		OnReject:    placed(r, place, ": on_reject", word(m.GetOnReject(), configv3.OnReject_ON_REJECT_INHERITED)),
		Fallback:    placed(r, place, ": on_store_failure", word(m.GetOnStoreFailure(), configv3.OnStoreFailure_ON_STORE_FAILURE_INHERITED)),
	}
}

// descriptors reads those of one level, with part between the place of what they
// belong to and their number.
func (r *reader) descriptors(outer, part string, list []*configv3.RateLimitDescriptor, level int) []rules.DescriptorConfig {
	if len(list) == 0 || level > deepest {
		return nil
	}
	configs := make([]rules.DescriptorConfig, 0, len(list))
	for i, m := range list {
		place := r.at(outer, part, strconv.Itoa(i), "]")
		if r.left < 0 {
			return configs
		}
		configs = append(configs, r.descriptor(place, m, level))
	}
	return configs
}

func (r *reader) descriptor(place string, m *configv3.RateLimitDescriptor, level int) rules.DescriptorConfig {
	cfg := rules.DescriptorConfig{
		Pos:            rules.Pos{File: place},
		Key:            m.GetKey(),
		Value:          m.GetValue(),
		Charge:         placed(r, place, ".charge", word(m.GetCharge(), configv3.Charge_CHARGE_INHERITED)),
		OnReject:       placed(r, place, ".on_reject", word(m.GetOnReject(), configv3.OnReject_ON_REJECT_INHERITED)),
		ShadowMode:     m.GetShadowMode(),
		QuotaMode:      m.GetQuotaMode(),
		DetailedMetric: m.GetDetailedMetric(),
		ValueToMetric:  m.GetValueToMetric(),
		ShareThreshold: m.GetShareThreshold(),
		Metadata:       r.metadata(place, m.GetMetadata()),
	}
	cfg.RateLimit, cfg.RateLimits = r.limits(place, m)
	cfg.Descriptors = r.descriptors(place, ".descriptors[", m.GetDescriptors(), level+1)
	return cfg
}

// rules reads an ordered list; nil for none.
func (r *reader) rules(outer string, list []*configv3.RateLimitRule) *rules.Placed[[]rules.RuleConfig] {
	if len(list) == 0 {
		return nil
	}
	configs := make([]rules.RuleConfig, 0, len(list))
	for i, m := range list {
		place := r.at(outer, ": rules[", strconv.Itoa(i), "]")
		if r.left < 0 {
			break
		}
		configs = append(configs, r.rule(place, m))
	}
	return placed(r, outer, ": rules", &configs)
}

func (r *reader) rule(place string, m *configv3.RateLimitRule) rules.RuleConfig {
	cfg := rules.RuleConfig{
		Pos:        rules.Pos{File: place},
		Match:      &rules.Placed[[]rules.PairConfig]{Pos: rules.Pos{File: place}},
		OnReject:   placed(r, place, ".on_reject", word(m.GetOnReject(), configv3.OnReject_ON_REJECT_INHERITED)),
		ShadowMode: m.GetShadowMode(),
		QuotaMode:  m.GetQuotaMode(),
		Metadata:   r.metadata(place, m.GetMetadata()),
	}
	for _, key := range slices.Sorted(maps.Keys(m.GetMatch())) {
		cfg.Match.Value = append(cfg.Match.Value, rules.PairConfig{Pos: cfg.Pos, Key: key, Pattern: m.GetMatch()[key]})
	}
	for i, key := range m.GetPer() {
		cfg.Per = append(cfg.Per, rules.Placed[string]{Pos: rules.Pos{File: r.at(place, ".per[", strconv.Itoa(i), "]")}, Value: key})
	}
	cfg.RateLimit, cfg.RateLimits = r.limits(place, m)
	return cfg
}

// limited is a message that has limits.
type limited interface {
	GetRateLimit() *configv3.RateLimitPolicy
	GetRateLimits() []*configv3.RateLimitPolicy
}

func (r *reader) limits(place string, m limited) (one *rules.RateLimitConfig, several *rules.Placed[[]rules.RateLimitConfig]) {
	if m.GetRateLimit() != nil {
		one = new(r.limit(r.at(place, ".rate_limit"), m.GetRateLimit()))
	}
	if list := m.GetRateLimits(); len(list) > 0 {
		limits := make([]rules.RateLimitConfig, 0, len(list))
		for i, limit := range list {
			limits = append(limits, r.limit(r.at(place, ".rate_limits[", strconv.Itoa(i), "]"), limit))
		}
		several = placed(r, place, ".rate_limits", &limits)
	}
	return one, several
}

func (r *reader) limit(place string, m *configv3.RateLimitPolicy) rules.RateLimitConfig {
	cfg := rules.RateLimitConfig{
		Pos:             rules.Pos{File: place},
		UnitPos:         rules.Pos{File: place},
		RequestsPerUnit: m.GetRequestsPerUnit(),
		Unlimited:       m.GetUnlimited(),
		Name:            m.GetName(),
		Algorithm:       placed(r, place, ".algorithm", word(m.GetAlgorithm(), configv3.Algorithm_FIXED_WINDOW)),
		Period:          r.duration(place, "period", m.GetPeriod()),
		MinInterval:     r.duration(place, "min_interval", m.GetMinInterval()),
		Fallback:        placed(r, place, ".on_store_failure", word(m.GetOnStoreFailure(), configv3.OnStoreFailure_ON_STORE_FAILURE_INHERITED)),
	}
	if unit := word(m.GetUnit(), configv3.RateLimitUnit_UNKNOWN); unit != nil {
		cfg.Unit, cfg.UnitPos.File = *unit, r.at(place, ".unit")
	}
	if n := m.GetUnitMultiplier(); n != 0 {
		cfg.UnitMultiplier = &n
	}
	if v := m.GetBurst(); v != nil {
		cfg.Burst = placed(r, place, ".burst", &v.Value)
	}
	if v := m.GetCountBlocked(); v != nil {
		cfg.CountBlocked = placed(r, place, ".count_blocked", &v.Value)
	}
	for i, one := range m.GetReplaces() {
		cfg.Replaces = append(cfg.Replaces, rules.ReplacesConfig{
			Pos:  rules.Pos{File: r.at(place, ".replaces[", strconv.Itoa(i), "]")},
			Name: one.GetName(),
		})
	}
	return cfg
}

// word is the value of an enum as rule files write it, nil for that which
// stands for nothing. A number that has no name is the number: the compiler
// refuses it as it does any other word.
func word[E interface {
	comparable
	fmt.Stringer
}](e, nothing E) *string {
	if e == nothing {
		return nil
	}
	return new(strings.ToLower(e.String()))
}

// placed is a value that is there, with its place; nil where there is none.
func placed[T any](r *reader, outer, part string, v *T) *rules.Placed[T] {
	if v == nil {
		return nil
	}
	return &rules.Placed[T]{Pos: rules.Pos{File: r.at(outer, part)}, Value: *v}
}

// duration is a length of time. One beyond 292 years is 292 years, which is too
// long anyway.
func (r *reader) duration(outer, name string, d *durationpb.Duration) *rules.Placed[time.Duration] {
	if d == nil {
		return nil
	}
	length := d.AsDuration()
	if n, s := d.GetNanos(), d.GetSeconds(); n <= -1e9 || n >= 1e9 || n < 0 && s > 0 || n > 0 && s < 0 {
		r.problem(r.at(outer, ".", name), "send less than a second as nanos, with the sign of seconds",
			"%s is no duration: %d seconds and %d nanos", name, s, n)
	}
	return placed(r, outer, "."+name, &length)
}

// metadata is a map of free form.
func (r *reader) metadata(outer string, m *structpb.Struct) map[string]any {
	if m == nil {
		return nil
	}
	if infinite(structpb.NewStructValue(m)) {
		r.problem(r.at(outer, ".metadata"), "send finite numbers, or text",
			"metadata holds NaN or an infinite number, which cannot be sent in an answer")
	}
	return m.AsMap()
}

// infinite finds a number that is none, or has no end. AsMap makes text of it.
func infinite(v *structpb.Value) bool {
	switch v := v.GetKind().(type) {
	case *structpb.Value_NumberValue:
		return math.IsInf(v.NumberValue, 0) || math.IsNaN(v.NumberValue)
	case *structpb.Value_ListValue:
		return slices.ContainsFunc(v.ListValue.GetValues(), infinite)
	case *structpb.Value_StructValue:
		for _, item := range v.StructValue.GetFields() {
			if infinite(item) {
				return true
			}
		}
	}
	return false
}
