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

// deepest is how many levels of descriptors are read: one more than rules.Compile allows, so that it reports the problem.
const deepest = 101

// reader turns messages into configuration and records problems. A message that is nil means the same as an empty one; the
// compiler reports what is missing.
type reader struct {
	problems rules.Problems
	left     int // bytes that places may still have
}

func (r *reader) problem(place, fix, format string, args ...any) {
	r.problems.Add(rules.Pos{File: place}, fix, format, args...)
}

// at returns the place of a part of what is at outer. When all places together become too long it records that, once, and returns
// outer.
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

// list reads the elements of a list, each with its place.
func list[M, T any](r *reader, outer, part string, elements []M, read func(place string, m M) T) []T {
	if len(elements) == 0 {
		return nil
	}
	all := make([]T, 0, len(elements))
	for i, m := range elements {
		place := r.at(outer, part, "[", strconv.Itoa(i), "]")
		if r.left < 0 {
			break
		}
		all = append(all, read(place, m))
	}
	return all
}

func (r *reader) domain(place string, m *configv3.RateLimitConfig) rules.DomainConfig {
	cfg := rules.DomainConfig{
		Pos:         rules.Pos{File: place},
		Domain:      m.GetDomain(),
		Descriptors: r.descriptors(place, ": descriptors", m.GetDescriptors(), 1),
		Charge:      placed(r, place, ": charge", word(m.GetCharge(), configv3.Charge_CHARGE_INHERITED)),
		OnReject:    placed(r, place, ": on_reject", word(m.GetOnReject(), configv3.OnReject_ON_REJECT_INHERITED)),
		Fallback:    placed(r, place, ": on_store_failure", word(m.GetOnStoreFailure(), configv3.OnStoreFailure_ON_STORE_FAILURE_INHERITED)),
	}
	if ordered := list(r, place, ": rules", m.GetRules(), r.rule); ordered != nil {
		cfg.Rules = placed(r, place, ": rules", &ordered)
	}
	return cfg
}

func (r *reader) descriptors(outer, part string, messages []*configv3.RateLimitDescriptor, level int) []rules.DescriptorConfig {
	if level > deepest {
		return nil
	}
	return list(r, outer, part, messages, func(place string, m *configv3.RateLimitDescriptor) rules.DescriptorConfig {
		cfg := rules.DescriptorConfig{
			LimitsConfig:   r.limits(place, m),
			Key:            m.GetKey(),
			Value:          m.GetValue(),
			Charge:         placed(r, place, ".charge", word(m.GetCharge(), configv3.Charge_CHARGE_INHERITED)),
			ValueToMetric:  m.GetValueToMetric(),
			ShareThreshold: m.GetShareThreshold(),
			Descriptors:    r.descriptors(place, ".descriptors", m.GetDescriptors(), level+1),
		}
		cfg.DetailedMetric = m.GetDetailedMetric()
		return cfg
	})
}

func (r *reader) rule(place string, m *configv3.RateLimitRule) rules.RuleConfig {
	pos := rules.Pos{File: place}
	cfg := rules.RuleConfig{
		LimitsConfig: r.limits(place, m),
		Match:        &rules.Placed[[]rules.PairConfig]{Pos: pos},
		Per: list(r, place, ".per", m.GetPer(), func(place, key string) rules.Placed[string] {
			return rules.Placed[string]{Pos: rules.Pos{File: place}, Value: key}
		}),
	}
	for _, key := range slices.Sorted(maps.Keys(m.GetMatch())) {
		cfg.Match.Value = append(cfg.Match.Value, rules.PairConfig{Pos: pos, Key: key, Pattern: m.GetMatch()[key]})
	}
	return cfg
}

// limited is a message that has limits: a descriptor or a rule.
type limited interface {
	GetRateLimit() *configv3.RateLimitPolicy
	GetRateLimits() []*configv3.RateLimitPolicy
	GetOnReject() configv3.OnReject
	GetShadowMode() bool
	GetQuotaMode() bool
	GetMetadata() *structpb.Struct
}

func (r *reader) limits(place string, m limited) rules.LimitsConfig {
	cfg := rules.LimitsConfig{
		Pos:        rules.Pos{File: place},
		OnReject:   placed(r, place, ".on_reject", word(m.GetOnReject(), configv3.OnReject_ON_REJECT_INHERITED)),
		ShadowMode: m.GetShadowMode(),
		QuotaMode:  m.GetQuotaMode(),
		Metadata:   r.metadata(place, m.GetMetadata()),
	}
	if m.GetRateLimit() != nil {
		cfg.RateLimit = new(r.limit(r.at(place, ".rate_limit"), m.GetRateLimit()))
	}
	if limits := list(r, place, ".rate_limits", m.GetRateLimits(), r.limit); limits != nil {
		cfg.RateLimits = placed(r, place, ".rate_limits", &limits)
	}
	return cfg
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
		Replaces: list(r, place, ".replaces", m.GetReplaces(), func(place string, m *configv3.RateLimitReplace) rules.Placed[string] {
			return rules.Placed[string]{Pos: rules.Pos{File: place}, Value: m.GetName()}
		}),
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
	return cfg
}

// word returns the value of an enum as rule files write it, nil for nothing. The compiler refuses a number without a name like
// any other unknown word.
func word[E interface {
	comparable
	fmt.Stringer
}](e, nothing E) *string {
	if e == nothing {
		return nil
	}
	return new(strings.ToLower(e.String()))
}

// placed returns *v with its place; nil for nil.
func placed[T any](r *reader, outer, part string, v *T) *rules.Placed[T] {
	if v == nil {
		return nil
	}
	return &rules.Placed[T]{Pos: rules.Pos{File: r.at(outer, part)}, Value: *v}
}

// duration reads a duration. One beyond 292 years becomes 292 years, which the compiler refuses.
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

// metadata reads a map of any form.
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

// infinite returns whether v holds NaN or an infinite number, which AsMap turns into text.
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
