package xdsrules

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	configv3 "ratelimit/api/ratelimit/config/ratelimit/v3"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
)

// maxLevel bounds the levels of descriptors that are read. It is one more than compile.Compile allows, so that it
// reports the problem.
const maxLevel = rules.MaxTreeDepth + 1

// reader turns messages into configuration and records problems. A message that is nil means the same as an empty one;
// the compiler reports what is missing.
type reader struct {
	problems       rules.Problems
	placeBytesLeft int // how many bytes further places may have together. If it is negative, nothing more is read
}

func (r *reader) addProblem(place, fix, format string, args ...any) {
	r.problems.Add(rules.Pos{File: place}, fix, format, args...)
}

// placeOfPart returns the place of a part of a message, which is at the place outer. When all places together become
// too long it returns outer.
func (r *reader) placeOfPart(outer string, part ...string) string {
	if r.placeBytesLeft < 0 {
		return outer
	}
	place := outer + strings.Join(part, "")
	r.placeBytesLeft -= len(place)
	return place
}

func readList[M, T any](r *reader, outer, part string, elements []M, read func(place string, m M) T) []T {
	if len(elements) == 0 {
		return nil
	}
	all := make([]T, 0, len(elements))
	for i, m := range elements {
		place := r.placeOfPart(outer, part, "[", strconv.Itoa(i), "]")
		if r.placeBytesLeft < 0 {
			break
		}
		all = append(all, read(place, m))
	}
	return all
}

func (r *reader) readDomain(place string, m *configv3.RateLimitConfig) compile.DomainConfig {
	cfg := compile.DomainConfig{
		Pos:         rules.Pos{File: place},
		Domain:      m.GetDomain(),
		Descriptors: r.readDescriptors(place, ": descriptors", m.GetDescriptors(), 1),
		ChargeMode:  r.enumWord(place, ": charge", m.GetCharge()),
		OnReject:    r.enumWord(place, ": on_reject", m.GetOnReject()),
		Fallback:    r.enumWord(place, ": on_store_failure", m.GetOnStoreFailure()),
	}
	if m.GetQuotaBuckets() {
		cfg.QuotaBuckets = positioned(r, place, ": quota_buckets", true)
	}
	if ordered := readList(r, place, ": rules", m.GetRules(), r.readRule); ordered != nil {
		cfg.Rules = positioned(r, place, ": rules", ordered)
	}
	return cfg
}

func (r *reader) readDescriptors(outer, part string, messages []*configv3.RateLimitDescriptor,
	level int,
) []compile.DescriptorConfig {
	if level > maxLevel {
		return nil
	}
	return readList(r, outer, part, messages,
		func(place string, m *configv3.RateLimitDescriptor) compile.DescriptorConfig {
			cfg := compile.DescriptorConfig{
				LimitsConfig:   r.readLimits(place, m),
				Key:            m.GetKey(),
				Value:          m.GetValue(),
				ChargeMode:     r.enumWord(place, ".charge", m.GetCharge()),
				ValueToMetric:  m.GetValueToMetric(),
				ShareThreshold: m.GetShareThreshold(),
				Descriptors:    r.readDescriptors(place, ".descriptors", m.GetDescriptors(), level+1),
			}
			cfg.DetailedMetric = m.GetDetailedMetric()
			r.readValueMatch(place, m, &cfg)
			return cfg
		})
}

// readValueMatch reads exact, cidr, regex, values_from, limits_from and count_by_prefix of a descriptor.
func (r *reader) readValueMatch(place string, m *configv3.RateLimitDescriptor, cfg *compile.DescriptorConfig) {
	networks := readList(r, place, ".cidr", m.GetCidr(), func(place, network string) compile.Positioned[string] {
		return compile.Positioned[string]{Pos: rules.Pos{File: place}, Value: network}
	})
	if networks != nil {
		cfg.CIDR = positioned(r, place, ".cidr", networks)
	}
	if m != nil && m.Exact != nil {
		cfg.Exact = positioned(r, place, ".exact", m.GetExact())
	}
	if v := m.GetRegex(); v != "" {
		cfg.Regex = positioned(r, place, ".regex", v)
	}
	if v := m.GetValuesFrom(); v != "" {
		cfg.ValuesFrom = positioned(r, place, ".values_from", v)
	}
	if v := m.GetLimitsFrom(); v != "" {
		cfg.LimitsFrom = positioned(r, place, ".limits_from", v)
	}
	lengths := m.GetCountByPrefix()
	if lengths == nil {
		return
	}
	by := &compile.PrefixLengthsConfig{Pos: rules.Pos{File: r.placeOfPart(place, ".count_by_prefix")}}
	if v := lengths.GetV4(); v != 0 {
		by.V4 = positioned(r, by.File, ".v4", v)
	}
	if v := lengths.GetV6(); v != 0 {
		by.V6 = positioned(r, by.File, ".v6", v)
	}
	cfg.CountByPrefix = by
}

func (r *reader) readRule(place string, m *configv3.RateLimitRule) compile.RuleConfig {
	pos := rules.Pos{File: place}
	cfg := compile.RuleConfig{
		LimitsConfig: r.readLimits(place, m),
		Match:        &compile.Positioned[[]compile.MatchPairConfig]{Pos: pos},
		PerKeys: readList(r, place, ".per", m.GetPer(), func(place, key string) compile.Positioned[string] {
			return compile.Positioned[string]{Pos: rules.Pos{File: place}, Value: key}
		}),
	}
	for _, key := range slices.Sorted(maps.Keys(m.GetMatch())) {
		cfg.Match.Value = append(cfg.Match.Value, compile.MatchPairConfig{Pos: pos, Key: key, Pattern: m.GetMatch()[key]})
	}
	return cfg
}

// limitedMessage is a message that has limits: a descriptor, or a rule of an ordered list.
type limitedMessage interface {
	GetRateLimit() *configv3.RateLimitPolicy
	GetRateLimits() []*configv3.RateLimitPolicy
	GetOnReject() configv3.OnReject
	GetShadowMode() bool
	GetQuotaMode() bool
	GetMetadata() *structpb.Struct
}

func (r *reader) readLimits(place string, m limitedMessage) compile.LimitsConfig {
	cfg := compile.LimitsConfig{
		Pos:            rules.Pos{File: place},
		OnReject:       r.enumWord(place, ".on_reject", m.GetOnReject()),
		ShadowMode:     m.GetShadowMode(),
		QuotaMode:      m.GetQuotaMode(),
		AnswerMetadata: r.readMetadata(place, m.GetMetadata()),
	}
	if m.GetRateLimit() != nil {
		cfg.RateLimit = new(r.readLimit(r.placeOfPart(place, ".rate_limit"), m.GetRateLimit()))
	}
	if limits := readList(r, place, ".rate_limits", m.GetRateLimits(), r.readLimit); limits != nil {
		cfg.RateLimits = positioned(r, place, ".rate_limits", limits)
	}
	return cfg
}

// readLimit reads a limit. Each setting is in the field of the message that has its name.
func (r *reader) readLimit(place string, m *configv3.RateLimitPolicy) compile.RateLimitConfig {
	cfg := compile.RateLimitConfig{Pos: rules.Pos{File: place}, UnitPos: rules.Pos{File: place}}
	message := m.ProtoReflect()
	for i := range rules.Settings {
		name := rules.Settings[i].Name
		field := message.Descriptor().Fields().ByName(protoreflect.Name(name))
		r.readSetting(place, cfg.Field(name), message, field)
	}
	if m.GetUnit() != 0 {
		cfg.UnitPos = rules.Pos{File: r.placeOfPart(place, ".unit")}
	}
	return cfg
}

// readSetting reads a field of a message into the variable that target points to. A field without presence is missing
// if it is 0, false or empty.
func (r *reader) readSetting(outer string, target any, m protoreflect.Message, field protoreflect.FieldDescriptor) {
	if !m.Has(field) {
		return
	}
	value, part := m.Get(field), "."+field.TextName()
	switch target := target.(type) {
	case *string:
		*target = textOf(value, field)
	case *bool:
		*target = value.Bool()
	case *uint32:
		*target = uint32(value.Uint())
	case **uint32:
		*target = new(uint32(value.Uint()))
	case **compile.Positioned[string]:
		*target = positioned(r, outer, part, textOf(value, field))
	case **compile.Positioned[bool]:
		if field.Message() != nil {
			*target = positioned(r, outer, part, value.Message().Interface().(*wrapperspb.BoolValue).GetValue())
		} else {
			*target = positioned(r, outer, part, value.Bool())
		}
	case **compile.Positioned[uint32]:
		if field.Message() != nil {
			*target = positioned(r, outer, part, value.Message().Interface().(*wrapperspb.UInt32Value).GetValue())
		} else {
			*target = positioned(r, outer, part, uint32(value.Uint()))
		}
	case **compile.Positioned[float64]:
		*target = positioned(r, outer, part, value.Message().Interface().(*wrapperspb.DoubleValue).GetValue())
	case **compile.Positioned[time.Duration]:
		*target = r.readDuration(outer, field.TextName(), value.Message().Interface().(*durationpb.Duration))
	case *[]compile.Positioned[string]:
		for i := range value.List().Len() {
			at := rules.Pos{File: r.placeOfPart(outer, part, "[", strconv.Itoa(i), "]")}
			if r.placeBytesLeft < 0 {
				return
			}
			name := value.List().Get(i).Message().Interface().(*configv3.RateLimitReplace).GetName()
			*target = append(*target, compile.Positioned[string]{Pos: at, Value: name})
		}
	}
}

// textOf returns the text of a value, or the word of an enum value as rule files write it. The compiler refuses a
// number without a name like any other unknown word.
func textOf(v protoreflect.Value, field protoreflect.FieldDescriptor) string {
	if field.Enum() == nil {
		return v.String()
	}
	if name := field.Enum().Values().ByNumber(v.Enum()); name != nil {
		return strings.ToLower(string(name.Name()))
	}
	return strconv.Itoa(int(v.Enum()))
}

// protoEnum is a generated type of enum values, of which 0 means that none was sent.
type protoEnum interface {
	fmt.Stringer
	Number() protoreflect.EnumNumber
}

// enumWord returns an enum value as rule files write it, with its place; nil if none was sent. See textOf.
func (r *reader) enumWord(outer, part string, value protoEnum) *compile.Positioned[string] {
	if value.Number() == 0 {
		return nil
	}
	return positioned(r, outer, part, strings.ToLower(value.String()))
}

// positioned returns a value with its place.
func positioned[T any](r *reader, outer, part string, value T) *compile.Positioned[T] {
	return &compile.Positioned[T]{Pos: rules.Pos{File: r.placeOfPart(outer, part)}, Value: value}
}

// readDuration reads a duration. It turns one beyond 292 years into 292 years, which the compiler refuses.
func (r *reader) readDuration(outer, name string, d *durationpb.Duration) *compile.Positioned[time.Duration] {
	if d == nil {
		return nil
	}
	length := d.AsDuration()
	if n, s := d.GetNanos(), d.GetSeconds(); n <= -1e9 || n >= 1e9 || n < 0 && s > 0 || n > 0 && s < 0 {
		r.addProblem(r.placeOfPart(outer, ".", name), "send less than a second as nanos, with the sign of seconds",
			"%s is no duration: %d seconds and %d nanos", name, s, n)
	}
	return positioned(r, outer, "."+name, length)
}

// readMetadata reads a map of values of any type.
func (r *reader) readMetadata(outer string, m *structpb.Struct) map[string]any {
	if m == nil {
		return nil
	}
	if hasInfinite(structpb.NewStructValue(m)) {
		r.addProblem(r.placeOfPart(outer, ".metadata"), "send finite numbers, or text",
			"metadata holds NaN or an infinite number, which cannot be sent in an answer")
	}
	return m.AsMap()
}

// hasInfinite returns whether a value holds NaN or an infinite number, which AsMap turns into text.
func hasInfinite(v *structpb.Value) bool {
	switch v := v.GetKind().(type) {
	case *structpb.Value_NumberValue:
		return math.IsInf(v.NumberValue, 0) || math.IsNaN(v.NumberValue)
	case *structpb.Value_ListValue:
		return slices.ContainsFunc(v.ListValue.GetValues(), hasInfinite)
	case *structpb.Value_StructValue:
		return slices.ContainsFunc(slices.Collect(maps.Values(v.StructValue.GetFields())), hasInfinite)
	}
	return false
}
