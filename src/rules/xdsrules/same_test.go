package xdsrules

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"ratelimit/api"
	configv3 "ratelimit/api/ratelimit/config/ratelimit/v3"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/yamlrules"
)

// inYAML writes a resource as a rule file: each field under its name. It knows nothing of how the resource is read.
func inYAML(m *configv3.RateLimitConfig) []byte { return []byte(messageYAML(m.ProtoReflect()) + "\n") }

func messageYAML(m protoreflect.Message) string {
	switch m := m.Interface().(type) {
	case *durationpb.Duration:
		return text(m.AsDuration().String())
	case *wrapperspb.BoolValue:
		return strconv.FormatBool(m.Value)
	case *wrapperspb.UInt32Value:
		return strconv.Itoa(int(m.Value))
	case *wrapperspb.DoubleValue:
		return strconv.FormatFloat(m.Value, 'f', -1, 64)
	case *structpb.Struct:
		return freeYAML(structpb.NewStructValue(m))
	}
	var fields []string
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		// A file must have these, even if they are 0 or empty.
		if m.Has(f) || f.Name() == "requests_per_unit" || f.Name() == "match" {
			fields = append(fields, string(f.Name())+": "+fieldYAML(f, m.Get(f)))
		}
	}
	return "{" + strings.Join(fields, ",\n") + "}"
}

func fieldYAML(f protoreflect.FieldDescriptor, v protoreflect.Value) string {
	var items []string
	switch {
	case f.IsMap():
		for key, value := range v.Map().Range {
			items = append(items, text(key.String())+": "+text(value.String()))
		}
		slices.Sort(items)
		return "{" + strings.Join(items, ", ") + "}"
	case f.IsList():
		for i := range v.List().Len() {
			items = append(items, valueYAML(f, v.List().Get(i)))
		}
		return "[" + strings.Join(items, ", ") + "]"
	}
	return valueYAML(f, v)
}

func valueYAML(f protoreflect.FieldDescriptor, v protoreflect.Value) string {
	switch {
	case f.Message() != nil:
		return messageYAML(v.Message())
	case f.Enum() != nil:
		if word := f.Enum().Values().ByNumber(v.Enum()); word != nil {
			return text(strings.ToLower(string(word.Name())))
		}
		return text(strconv.Itoa(int(v.Enum())))
	case f.Kind() == protoreflect.StringKind:
		return text(v.String())
	}
	return v.String() // a number, or true
}

func freeYAML(v *structpb.Value) string {
	switch v := v.GetKind().(type) {
	case *structpb.Value_BoolValue:
		return strconv.FormatBool(v.BoolValue)
	case *structpb.Value_NumberValue:
		return strconv.FormatFloat(v.NumberValue, 'e', -1, 64)
	case *structpb.Value_StringValue:
		return text(v.StringValue)
	case *structpb.Value_ListValue:
		var items []string
		for _, one := range v.ListValue.GetValues() {
			items = append(items, freeYAML(one))
		}
		return "[" + strings.Join(items, ", ") + "]"
	case *structpb.Value_StructValue:
		var items []string
		for key, one := range v.StructValue.GetFields() {
			items = append(items, "? "+text(key)+"\n: "+freeYAML(one)+"\n")
		}
		return "{" + strings.Join(items, ", ") + "}"
	default:
		return "null"
	}
}

// text is s in quotes, with all in escapes that is not plain ASCII.
func text(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case ' ' <= r && r <= '~' && r != '"' && r != '\\':
			b.WriteRune(r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// wireOnly reports whether m has what a rule file cannot: such a resource is
// refused, in words of its own.
func wireOnly(m proto.Message) (found bool) {
	var walk func(m protoreflect.Message)
	walk = func(m protoreflect.Message) {
		switch m := m.Interface().(type) {
		case *durationpb.Duration:
			n, s := m.GetNanos(), m.GetSeconds()
			found = found || n <= -1e9 || n >= 1e9 || n < 0 && s > 0 || n > 0 && s < 0
		case *wrapperspb.DoubleValue:
			found = found || !(m.Value >= 0 && m.Value <= 100) // The reader of files refuses it before the compiler can.
		case *structpb.Value:
			if v, ok := m.GetKind().(*structpb.Value_NumberValue); ok {
				found = found || math.IsNaN(v.NumberValue) || math.IsInf(v.NumberValue, 0)
			}
		}
		m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			switch {
			case f.Message() == nil:
			case f.IsList():
				for i := range v.List().Len() {
					walk(v.List().Get(i).Message())
				}
			case f.IsMap() && f.MapValue().Message() == nil:
			case f.IsMap():
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
					walk(v.Message())
					return true
				})
			default:
				walk(v.Message())
			}
			return true
		})
	}
	walk(m.ProtoReflect())
	return found
}

var places = regexp.MustCompile(`a\.yaml:\d+:\d+|xds resource 1(: [a-z_]+(\[\d+\])?(\.[a-z_]+(\[\d+\])?)*)?`)

// said are problems without their places, which differ.
func said(problems rules.Problems) (list []string) {
	for _, p := range problems {
		list = append(list, places.ReplaceAllString(p.Message+"; "+p.Fix, "@"))
	}
	slices.Sort(list)
	return list
}

var atLine = regexp.MustCompile(`(?m)^  at: .*$`)

// dump is a set as /rlconfig shows it, in both forms.
func dump(t testing.TB, set *rules.Set) string {
	t.Helper()
	var all bytes.Buffer
	if err := yamlrules.Write(&all, set); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.Write(atLine.ReplaceAll(all.Bytes(), nil))
	for _, r := range set.Rules() {
		fmt.Fprintln(&b, r)
	}
	for _, d := range set.Domains() {
		fmt.Fprintln(&b, d.Name, d.DescriptorNames)
	}
	return b.String()
}

// sameAsFile fails if a resource does not mean what the same rules mean in a
// file. It reports whether they are good.
func sameAsFile(t testing.TB, m *configv3.RateLimitConfig) bool {
	t.Helper()
	m.Name = "" // of no consequence, and in the way of comparing
	set, warnings, err := Load([]*anypb.Any{anyOf(t, m)}, compile.Options{})
	var problems rules.Problems
	errors.As(err, &problems)
	if wireOnly(m) {
		if err == nil {
			t.Fatalf("%v has no form in YAML, but was taken", m)
		}
		return false
	}
	file := inYAML(m)
	set2, warnings2, err2 := filerules.Load([]filerules.File{{Name: "a.yaml", Data: file}}, compile.Options{})
	var problems2 rules.Problems
	errors.As(err2, &problems2)
	if !slices.Equal(said(problems), said(problems2)) {
		t.Fatalf("%v is refused:\n%s\nbut as a file:\n%s\n%s", m, strings.Join(said(problems), "\n"),
			strings.Join(said(problems2), "\n"), file)
	}
	if err != nil {
		return false
	}
	if !slices.Equal(said(warnings), said(warnings2)) {
		t.Fatalf("%v is warned of:\n%s\nbut as a file:\n%s\n%s", m, strings.Join(said(warnings), "\n"),
			strings.Join(said(warnings2), "\n"), file)
	}
	if got, want := dump(t, set), dump(t, set2); got != want {
		t.Fatalf("%v becomes\n%s\nbut as a file\n%s\n%s", m, got, want, file)
	}
	return true
}

// TestSameAsFile builds resources at random, of parts that often fit together.
func TestSameAsFile(t *testing.T) {
	rounds, good := 3000, 0
	if testing.Short() {
		rounds = 1000
	}
	for i := range rounds {
		b := builder{rand.New(rand.NewPCG(1, uint64(i)))}
		if sameAsFile(t, b.anyOf()) {
			good++
		}
	}
	if good < rounds/20 || good > rounds*9/10 {
		t.Errorf("%d of %d were good: the test says little", good, rounds)
	}
}

type builder struct{ *rand.Rand }

// one in n.
func (b builder) one(n int) bool { return b.IntN(n) == 0 }

func pick[T any](b builder, list ...T) T { return list[b.IntN(len(list))] }

func (b builder) anyOf() *configv3.RateLimitConfig {
	m := &configv3.RateLimitConfig{Domain: "d", Descriptors: b.descriptors(3)}
	if b.one(30) {
		m.Domain = pick(b, "", "é\n\x00", "1.5")
	}
	if b.one(4) {
		m.Charge = configv3.Charge(b.IntN(3))
	}
	if b.one(4) {
		m.OnReject = configv3.OnReject(b.IntN(3))
	}
	if b.one(4) {
		m.OnStoreFailure = configv3.OnStoreFailure(b.IntN(5))
	}
	m.QuotaBuckets = b.one(10)
	if b.one(100) {
		m.Charge, m.OnReject, m.OnStoreFailure = -1, 77, configv3.OnStoreFailure(pick[int32](b, 1, 5))
	}
	if b.one(3) {
		m.Rules = b.rules()
		if !b.one(20) {
			m.Descriptors = nil
		}
	}
	return m
}

func (b builder) rules() (list []*configv3.RateLimitRule) {
	for range b.IntN(5) {
		m := &configv3.RateLimitRule{
			Match:      make(map[string]string),
			ShadowMode: b.one(3),
			QuotaMode:  b.one(5),
			OnReject:   configv3.OnReject(max(0, b.IntN(8)-5)),
		}
		for range 1 + b.IntN(3) {
			m.Match[pick(b, "a", "b", "c", "", "<<", "5")] = pick(b, "", "*", "v", "w", "v*", "*w", "5", "x y", "é\n", "true")
		}
		if b.one(10) {
			m.Match = nil
		}
		for range b.IntN(3) {
			m.Per = append(m.Per, pick(b, "a", "b", "d", "e", "f", "", "5"))
		}
		if b.one(6) {
			m.Metadata = b.metadata()
		}
		switch b.IntN(8) {
		case 0:
			m.RateLimits = append(m.RateLimits, b.limit(), b.limit())
		default:
			m.RateLimit = b.limit()
		}
		if b.one(50) {
			m.RateLimit = nil
		}
		list = append(list, m)
	}
	return list
}

func (b builder) descriptors(depth int) (list []*configv3.RateLimitDescriptor) {
	if depth == 0 {
		return nil
	}
	for range b.IntN(4) {
		m := &configv3.RateLimitDescriptor{
			Key:            pick(b, "a", "b", "c", "true", "x*"),
			Value:          pick(b, "", "", "v", "w", "5", "v*", "*", "😀"),
			ShadowMode:     b.one(5),
			QuotaMode:      b.one(5),
			DetailedMetric: b.one(5),
			ValueToMetric:  b.one(5),
			Charge:         configv3.Charge(max(0, b.IntN(8)-5)),
			OnReject:       configv3.OnReject(max(0, b.IntN(8)-5)),
			Descriptors:    b.descriptors(depth - 1),
		}
		if b.one(6) {
			b.valueMatch(m)
		}
		m.ShareThreshold = strings.Contains(m.Key+m.Value, "*") && b.one(3) || b.one(100)
		if b.one(100) {
			m.Key = ""
		}
		if b.one(200) {
			m.Charge, m.OnReject = 9, -9
		}
		if b.one(6) {
			m.Metadata = b.metadata()
		}
		switch b.IntN(4) {
		case 0:
		case 1:
			for range b.IntN(3) {
				m.RateLimits = append(m.RateLimits, b.limit())
			}
		default:
			m.RateLimit = b.limit()
		}
		if b.one(100) {
			m.RateLimits = append(m.RateLimits, b.limit())
		}
		list = append(list, m)
	}
	return list
}

// valueMatch gives m a cidr or a regex, which are mostly right, and counts by network.
func (b builder) valueMatch(m *configv3.RateLimitDescriptor) {
	m.Value = pick(b, "", "", "", "", "v")
	switch b.IntN(3) {
	case 0:
		m.Regex = pick(b, "^v", "[ab]+$", "v|w", "^v$", ".*", "(")
	case 1:
		m.Cidr = append(m.Cidr, pick(b, "10.0.0.0/8", "2001:db8::/32", "0.0.0.0/0", "10.0.0.1/8", "a"))
		if b.one(2) {
			m.Cidr = append(m.Cidr, pick(b, "10.1.0.0/16", "192.0.2.0/24", "::/0", ""))
		}
	}
	if b.one(5) {
		m.Exact = proto.String(pick(b, "", "v", "v*"))
	}
	if b.one(20) {
		m.ValuesFrom = "values.txt"
	}
	if b.one(20) {
		m.LimitsFrom = "limits.csv"
	}
	if m.Regex == "" && b.one(2) || b.one(10) {
		m.CountByPrefix = &configv3.PrefixLengths{V4: pick[uint32](b, 0, 24, 24, 7, 33), V6: pick[uint32](b, 0, 64, 64, 129)}
	}
}

func (b builder) metadata() *structpb.Struct {
	m := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for range b.IntN(3) {
		m.Fields[pick(b, "a", "b", "", "<<", "5", "é")] = pick(b,
			structpb.NewNullValue(), structpb.NewBoolValue(true), structpb.NewNumberValue(1.5), structpb.NewNumberValue(1e300),
			structpb.NewNumberValue(math.Copysign(0, -1)), structpb.NewStringValue("yes"), structpb.NewStringValue("\u2028\x7f"),
			structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{structpb.NewStructValue(&structpb.Struct{})}}),
			&structpb.Value{},
		)
	}
	if b.one(50) {
		m.Fields["x"] = structpb.NewNumberValue(math.Inf(1))
	}
	return m
}

func (b builder) limit() *configv3.RateLimitPolicy {
	if b.one(10) {
		m := &configv3.RateLimitPolicy{Unlimited: true, Name: pick(b, "", "n")}
		if b.one(8) {
			m.Unit, m.Burst, m.RequestsPerUnit = configv3.RateLimitUnit_DAY, wrapperspb.UInt32(1), 5
		}
		return m
	}
	m := &configv3.RateLimitPolicy{
		Unit:            configv3.RateLimitUnit(1 + b.IntN(7)),
		RequestsPerUnit: pick[uint32](b, 0, 1, 2, 10, 1000),
		Name:            pick(b, "", "", "n", "m"),
		Algorithm:       configv3.Algorithm(b.IntN(5)),
	}
	if b.one(4) {
		m.UnitMultiplier = pick[uint32](b, 1, 2, 50)
	}
	if b.one(4) {
		m.Unit, m.UnitMultiplier = 0, 0
		m.Period = durationpb.New(pick[time.Duration](b, 1, 1, 2, 90, 3600) * time.Second / pick[time.Duration](b, 1, 1,
			1, 1000))
	}
	if b.one(8) {
		b.calendar(m)
	}
	if b.one(6) {
		b.hold(m)
	}
	if m.Algorithm == configv3.Algorithm_GCRA && b.one(2) {
		m.Burst = wrapperspb.UInt32(pick[uint32](b, 0, 1, 9, math.MaxUint32-1))
	}
	if m.Algorithm == configv3.Algorithm_GCRA || m.Algorithm == configv3.Algorithm_SLIDING_WINDOW {
		if b.one(2) {
			m.MinInterval = durationpb.New(pick[time.Duration](b, 0, 1e3, 1e6, 1e9))
		}
	}
	if b.one(4) {
		m.CountBlocked = wrapperspb.Bool(b.one(2))
	}
	if b.one(4) {
		m.OnStoreFailure = configv3.OnStoreFailure(b.IntN(5))
	}
	if b.one(6) {
		m.EnforcePercent = wrapperspb.Double(pick(b, 0, 0.5, 10, 10, 99.9, 100))
	}
	if b.one(5) {
		m.Replaces = append(m.Replaces, &configv3.RateLimitReplace{Name: pick(b, "n", "m", "o")})
	}
	if b.one(40) { // something that is wrong
		switch b.IntN(10) {
		case 0:
			m.Unit = 0
		case 9:
			m.Unit, m.UnitMultiplier, m.Period = 0, 1, durationpb.New(time.Minute)
		case 1:
			m.Unit = 88
		case 2:
			m.Algorithm = 88
		case 3:
			m.UnitMultiplier = math.MaxUint32
		case 4:
			m.Period = &durationpb.Duration{Seconds: pick[int64](b, math.MaxInt64, math.MinInt64, -1, 0, 4e9)}
		case 5:
			m.Period = &durationpb.Duration{Seconds: 5, Nanos: pick[int32](b, -1, 1e9, math.MinInt32)}
		case 6:
			m.MinInterval = durationpb.New(pick[time.Duration](b, -1, 1, 4e18))
		case 7:
			m.Burst = wrapperspb.UInt32(7)
		case 8:
			m.Replaces = append(m.Replaces, &configv3.RateLimitReplace{Name: m.Name})
		}
	}
	return m
}

// calendar gives m a calendar, often with a setting that its unit does not have.
func (b builder) calendar(m *configv3.RateLimitPolicy) {
	m.Calendar = !b.one(10)
	m.TimeZone = pick(b, "", "", "UTC", "Europe/Berlin", "Asia/Gaza", "Europe/Berlni")
	if !b.one(5) {
		m.Unit, m.Period, m.Algorithm = pick(b, configv3.RateLimitUnit_DAY, configv3.RateLimitUnit_WEEK,
			configv3.RateLimitUnit_MONTH), nil, 0
	}
	if m.Unit == configv3.RateLimitUnit_MONTH || b.one(10) {
		m.AnchorDay = pick[uint32](b, 0, 1, 15, 28, 29)
	}
	if m.Unit == configv3.RateLimitUnit_WEEK || b.one(10) {
		m.WeekStarts = configv3.DayOfWeek(b.IntN(9))
	}
}

// hold gives m holds, often with a setting that they exclude.
func (b builder) hold(m *configv3.RateLimitPolicy) {
	if b.one(2) {
		m.Algorithm = configv3.Algorithm_CONCURRENCY
		if !b.one(10) {
			m.Unit, m.UnitMultiplier, m.Period = 0, 0, nil
		}
	}
	if !b.one(10) {
		m.Hold = durationpb.New(pick[time.Duration](b, 30, 30, 30, 0, -1, 100_000) * time.Second / pick[time.Duration](b, 1,
			1, 1, 7, 1000))
	}
	m.HoldId = pick(b, "id", "id", "id", "id", "call", "hold", "a", "")
	if m.Algorithm != configv3.Algorithm_CONCURRENCY || b.one(10) {
		m.Unsettled = configv3.Unsettled(b.IntN(4))
	}
}

// FuzzLoad reads whatever comes as a resource: nothing may panic, each problem
// has a place, the same bytes give the same result twice, and the result is that
// of the same rules in a file.
func FuzzLoad(f *testing.F) {
	for i := range 50 {
		b := builder{rand.New(rand.NewPCG(2, uint64(i)))}
		f.Add(wire(f, b.anyOf()))
	}
	f.Add(levels(101))
	f.Add([]byte("\x1a\x00\x1a\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		resources := []*anypb.Any{{TypeUrl: TypeURL, Value: data}}
		set, warnings, err := Load(resources, compile.Options{})
		set2, warnings2, err2 := Load(resources, compile.Options{})
		if fmt.Sprint(err) != fmt.Sprint(err2) || !reflect.DeepEqual(warnings, warnings2) || (set == nil) != (set2 == nil) ||
			(set == nil) != (err != nil) {
			t.Fatalf("two loads differ: %v, %v, %v, and %v, %v, %v", set, warnings, err, set2, warnings2, err2)
		}
		var problems rules.Problems
		if err != nil && !errors.As(err, &problems) {
			t.Fatal(err)
		}
		for _, p := range slices.Concat(problems, warnings) {
			if !strings.HasPrefix(p.File, "xds resource ") || p.Message == "" {
				t.Fatalf("the problem %q has no place or no words", p)
			}
		}
		var m configv3.RateLimitConfig
		if proto.Unmarshal(data, &m) != nil {
			return
		}
		if !hasWideBurst(&m) && len(data) < 10_000 {
			sameAsFile(t, &m)
		}
	})
}

// hasWideBurst looks for a burst that the reader of files refuses before the
// algorithm is known, and the compiler in other words.
func hasWideBurst(m *configv3.RateLimitConfig) bool {
	return strings.Contains(m.String(), "4294967295")
}

// Every key of the rule files has a field in the messages, and every field is a
// key; so with the words that they may have.
func TestEveryKeyHasAField(t *testing.T) {
	type value struct {
		Enum  []any
		AnyOf []struct{ Enum []any }
	}
	type object struct{ Properties map[string]value }
	var schema struct{ Definitions map[string]object }
	if err := json.Unmarshal(api.Schema, &schema); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		place   string
		object  object
		message proto.Message
		besides string
	}{
		{"the file", schema.Definitions["rules"], &configv3.RateLimitConfig{}, "name"}, // of the resource
		{"a descriptor", schema.Definitions["descriptor"], &configv3.RateLimitDescriptor{}, ""},
		{"a rule", schema.Definitions["rule"], &configv3.RateLimitRule{}, ""},
		{"a rate_limit", schema.Definitions["rate_limit"], &configv3.RateLimitPolicy{}, ""},
		{"replaces", schema.Definitions["replaces"], &configv3.RateLimitReplace{}, ""},
	}
	for _, test := range tests {
		fields := test.message.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			name := string(fields.Get(i).Name())
			if _, known := test.object.Properties[name]; !known && name != test.besides {
				t.Errorf("%s of the messages is no key of %s", name, test.place)
			}
		}
		for key, v := range test.object.Properties {
			field := fields.ByName(protoreflect.Name(key))
			if field == nil {
				t.Errorf("the key %s of %s has no field in %T", key, test.place, test.message)
				continue
			}
			words := v.Enum
			for _, choice := range v.AnyOf {
				words = append(words, choice.Enum...)
			}
			if (field.Enum() != nil) != (len(words) > 0) {
				t.Errorf("%s of %s is an enum in one of the two only", key, test.place)
			}
			for _, word := range words {
				if word != nil && field.Enum().Values().ByName(protoreflect.Name(strings.ToUpper(word.(string)))) == nil {
					t.Errorf("%s: %v has no value in the enum", key, word)
				}
			}
			if field.Enum() == nil {
				continue
			}
			for i := range field.Enum().Values().Len() {
				name := strings.ToLower(string(field.Enum().Values().Get(i).Name()))
				if i > 0 && !slices.Contains(words, any(name)) { // 0 may be what is not there
					t.Errorf("%s: %s of the enum is no word of the rule files", key, name)
				}
			}
		}
	}
}

// Every field of the messages makes a difference.
func TestEveryFieldIsRead(t *testing.T) {
	read := func(in func(d *configv3.RateLimitDescriptor, c *configv3.RateLimitConfig)) compile.DomainConfig {
		c := &configv3.RateLimitConfig{Descriptors: []*configv3.RateLimitDescriptor{{RateLimit: &configv3.RateLimitPolicy{
			Replaces: []*configv3.RateLimitReplace{{}},
		}}}}
		c.Rules = []*configv3.RateLimitRule{{RateLimit: &configv3.RateLimitPolicy{}}}
		in(c.Descriptors[0], c)
		r := reader{placeBytesLeft: maxPlaceBytes}
		return r.readDomain("a", c)
	}
	without := read(func(*configv3.RateLimitDescriptor, *configv3.RateLimitConfig) {})
	tests := []struct {
		message proto.Message
		of      func(d *configv3.RateLimitDescriptor, c *configv3.RateLimitConfig) proto.Message
		besides string
	}{
		{&configv3.RateLimitConfig{}, func(_ *configv3.RateLimitDescriptor,
			c *configv3.RateLimitConfig,
		) proto.Message {
			return c
		}, "name"},
		{
			&configv3.RateLimitDescriptor{},
			func(d *configv3.RateLimitDescriptor, _ *configv3.RateLimitConfig) proto.Message { return d }, "",
		},
		{&configv3.RateLimitPolicy{}, func(d *configv3.RateLimitDescriptor,
			_ *configv3.RateLimitConfig,
		) proto.Message {
			return d.RateLimit
		}, ""},
		{&configv3.RateLimitRule{}, func(_ *configv3.RateLimitDescriptor,
			c *configv3.RateLimitConfig,
		) proto.Message {
			return c.Rules[0]
		}, ""},
		{&configv3.RateLimitReplace{}, func(d *configv3.RateLimitDescriptor, _ *configv3.RateLimitConfig) proto.Message {
			return d.RateLimit.Replaces[0]
		}, ""},
	}
	for _, test := range tests {
		fields := test.message.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			field := fields.Get(i)
			with := read(func(d *configv3.RateLimitDescriptor, c *configv3.RateLimitConfig) {
				m := test.of(d, c).ProtoReflect()
				switch {
				case field.IsMap():
					m.Mutable(field).Map().Set(protoreflect.ValueOfString("x").MapKey(), protoreflect.ValueOfString("y"))
				case field.IsList() && field.Message() == nil:
					m.Mutable(field).List().Append(protoreflect.ValueOfString("x"))
				case field.IsList():
					m.Mutable(field).List().AppendMutable()
				case field.Message() != nil && m.Has(field):
					m.Clear(field)
				case field.Message() != nil:
					m.Mutable(field)
				case field.Enum() != nil:
					m.Set(field, protoreflect.ValueOfEnum(1))
				case field.Kind() == protoreflect.StringKind:
					m.Set(field, protoreflect.ValueOfString("x"))
				case field.Kind() == protoreflect.BoolKind:
					m.Set(field, protoreflect.ValueOfBool(true))
				case field.Kind() == protoreflect.Uint32Kind:
					m.Set(field, protoreflect.ValueOfUint32(5))
				default:
					t.Errorf("%s is of a kind that this test does not know", field.FullName())
				}
			})
			if reflect.DeepEqual(with, without) && string(field.Name()) != test.besides {
				t.Errorf("%s makes no difference", field.FullName())
			}
		}
	}
}
