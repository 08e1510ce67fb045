package xdsrules

import (
	"cmp"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

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
	level          int // counts the descriptors around the message that is read
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

// These have the fields of each configuration by the names of fields of messages, which are the keys of rule files.
var (
	domainFields     = compile.FieldsByKey[compile.DomainConfig]()
	descriptorFields = compile.FieldsByKey[compile.DescriptorConfig]()
	ruleFields       = compile.FieldsByKey[compile.RuleConfig]()
	limitFields      = compile.FieldsByKey[compile.RateLimitConfig]()
	reserveFields    = compile.FieldsByKey[compile.ReserveConfig]()
	notifyFields     = compile.FieldsByKey[compile.NotifyConfig]()
	prefixFields     = compile.FieldsByKey[compile.PrefixLengthsConfig]()
)

func (r *reader) readDomain(place string, m *configv3.RateLimitConfig) compile.DomainConfig {
	cfg := compile.DomainConfig{Pos: rules.Pos{File: place}}
	r.readMessage(place+": ", m.ProtoReflect(), domainFields, &cfg)
	return cfg
}

func (r *reader) readDescriptor(place string, v protoreflect.Value) (cfg compile.DescriptorConfig) {
	cfg.Pos.File = place
	r.level++
	r.readMessage(place+".", v.Message(), descriptorFields, &cfg)
	r.level--
	return cfg
}

func (r *reader) readRule(place string, v protoreflect.Value) (cfg compile.RuleConfig) {
	cfg.Pos.File = place
	cfg.Match = &compile.Positioned[[]compile.MatchPairConfig]{Pos: cfg.Pos}
	r.readMessage(place+".", v.Message(), ruleFields, &cfg)
	return cfg
}

func (r *reader) readLimit(place string, v protoreflect.Value) (cfg compile.RateLimitConfig) {
	cfg.Pos.File, cfg.UnitPos.File = place, place
	r.readMessage(place+".", v.Message(), limitFields, &cfg)
	if n := v.Message().Interface().(*configv3.RateLimitPolicy).GetLargeRequestsPerUnit(); n > 0 {
		cfg.RequestsPerUnit = n
	}
	if cfg.Unit != "" {
		cfg.UnitPos.File = r.placeOfPart(place, ".unit")
	}
	return cfg
}

// readMessage reads each field that the server sent into the field of config, a pointer to a configuration, with the
// same name. Their places begin with prefix.
func (r *reader) readMessage(prefix string, m protoreflect.Message, fields map[string][]int, config any) {
	target := reflect.ValueOf(config).Elem()
	m.Range(func(f protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		if index, known := fields[string(f.Name())]; known {
			r.readField(&sentField{f, value, prefix}, target.FieldByIndex(index).Addr().Interface())
		}
		return r.placeBytesLeft >= 0
	})
}

// sentField is a field of a message that the server sent. A field without presence was not sent if it is 0, false or
// empty.
type sentField struct {
	protoreflect.FieldDescriptor
	value  protoreflect.Value
	prefix string // that of the place, which the name completes
}

// readField reads f into the variable that target points to. The type of the variable tells what f is.
func (r *reader) readField(f *sentField, target any) {
	switch target := target.(type) {
	case *string:
		*target = f.text()
	case *bool:
		*target = f.value.Bool()
	case *uint64:
		*target = f.value.Uint()
	case **uint32:
		*target = new(uint32(f.value.Uint()))
	case **compile.Positioned[string]:
		*target = positioned(r, f, f.text())
	case **compile.Positioned[bool]:
		*target = positioned(r, f, f.unwrapped().Bool())
	case **compile.Positioned[uint32]:
		*target = positioned(r, f, uint32(f.unwrapped().Uint()))
	case **compile.Positioned[uint64]:
		*target = positioned(r, f, f.unwrapped().Uint())
	case **compile.Positioned[float64]:
		*target = positioned(r, f, f.unwrapped().Float())
	case **compile.Positioned[time.Duration]:
		*target = positioned(r, f, r.readDuration(f))
	case *map[string]any:
		*target = r.readMetadata(f)
	case *[]compile.DescriptorConfig:
		if r.level < maxLevel {
			*target = readList(r, f, r.readDescriptor)
		}
	case **compile.Positioned[[]compile.RuleConfig]:
		*target = positioned(r, f, readList(r, f, r.readRule))
	case **compile.RateLimitConfig:
		*target = new(r.readLimit(r.placeOf(f), f.value))
	case **compile.Positioned[[]compile.RateLimitConfig]:
		*target = positioned(r, f, readList(r, f, r.readLimit))
	case **compile.Positioned[[]compile.Positioned[string]]:
		*target = positioned(r, f, readList(r, f, positionedText))
	case *[]compile.Positioned[string]:
		*target = readList(r, f, positionedText)
	case **compile.PrefixLengthsConfig:
		*target = &compile.PrefixLengthsConfig{Pos: rules.Pos{File: r.placeOf(f)}}
		r.readMessage((*target).File+".", f.value.Message(), prefixFields, *target)
	case **compile.ReserveConfig:
		*target = &compile.ReserveConfig{Pos: rules.Pos{File: r.placeOf(f)}}
		r.readMessage((*target).File+".", f.value.Message(), reserveFields, *target)
	case **compile.Positioned[compile.Estimate]:
		*target = positioned(r, f, compile.Estimate(f.value.Uint()))
	case **compile.NotifyConfig:
		*target = &compile.NotifyConfig{Pos: rules.Pos{File: r.placeOf(f)}}
		r.readMessage((*target).File+".", f.value.Message(), notifyFields, *target)
	case **compile.Positioned[[]compile.Positioned[uint32]]:
		*target = positioned(r, f, readList(r, f, positionedNumber))
	case **compile.Positioned[[]compile.MatchPairConfig]:
		(*target).Value = matchPairs(f, (*target).Pos)
	}
}

func (r *reader) placeOf(f *sentField) string { return r.placeOfPart(f.prefix, f.TextName()) }

// positioned returns a value of f with its place.
func positioned[T any](r *reader, f *sentField, value T) *compile.Positioned[T] {
	return &compile.Positioned[T]{Pos: rules.Pos{File: r.placeOf(f)}, Value: value}
}

// readList reads a list. read reads an element, which is at the place.
func readList[T any](r *reader, f *sentField, read func(place string, element protoreflect.Value) T) []T {
	sent := f.value.List()
	list := make([]T, 0, sent.Len())
	for i := range sent.Len() {
		place := r.placeOfPart(f.prefix, f.TextName(), "[", strconv.Itoa(i), "]")
		if r.placeBytesLeft < 0 {
			break
		}
		list = append(list, read(place, sent.Get(i)))
	}
	return list
}

// positionedText returns an element of a list of texts, or the name of an element of `replaces`, with its place.
func positionedText(place string, element protoreflect.Value) compile.Positioned[string] {
	text, isText := element.Interface().(string)
	if !isText {
		text = element.Message().Interface().(*configv3.RateLimitReplace).GetName()
	}
	return compile.Positioned[string]{Pos: rules.Pos{File: place}, Value: text}
}

// positionedNumber returns an element of a list of numbers with its place.
func positionedNumber(place string, element protoreflect.Value) compile.Positioned[uint32] {
	return compile.Positioned[uint32]{Pos: rules.Pos{File: place}, Value: uint32(element.Uint())}
}

// matchPairs returns the pairs of a map, sorted by key. All are at one place.
func matchPairs(f *sentField, at rules.Pos) (pairs []compile.MatchPairConfig) {
	for key, pattern := range f.value.Map().Range {
		pairs = append(pairs, compile.MatchPairConfig{Pos: at, Key: key.String(), Pattern: pattern.String()})
	}
	slices.SortFunc(pairs, func(a, b compile.MatchPairConfig) int { return cmp.Compare(a.Key, b.Key) })
	return pairs
}

// text returns a text, or the word of an enum value as rule files write it. The compiler refuses a number without a
// name like any other unknown word.
func (f *sentField) text() string {
	if f.Enum() == nil {
		return f.value.String()
	}
	if name := f.Enum().Values().ByNumber(f.value.Enum()); name != nil {
		return strings.ToLower(string(name.Name()))
	}
	return strconv.Itoa(int(f.value.Enum()))
}

// unwrapped returns the scalar that f is, or that its message wraps.
func (f *sentField) unwrapped() protoreflect.Value {
	if f.Message() == nil {
		return f.value
	}
	return f.value.Message().Get(f.Message().Fields().ByName("value"))
}

// readDuration reads a duration. It turns one beyond 292 years into 292 years, which the compiler refuses.
func (r *reader) readDuration(f *sentField) time.Duration {
	d := f.value.Message().Interface().(*durationpb.Duration)
	if n, s := d.GetNanos(), d.GetSeconds(); n <= -1e9 || n >= 1e9 || n < 0 && s > 0 || n > 0 && s < 0 {
		r.addProblem(r.placeOf(f), "send less than a second as nanos, with the sign of seconds",
			"%s is no duration: %d seconds and %d nanos", f.TextName(), s, n)
	}
	return d.AsDuration()
}

// readMetadata reads a map of values of any type.
func (r *reader) readMetadata(f *sentField) map[string]any {
	m := f.value.Message().Interface().(*structpb.Struct)
	if hasInfinite(structpb.NewStructValue(m)) {
		r.addProblem(r.placeOf(f), "send finite numbers, or text",
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
