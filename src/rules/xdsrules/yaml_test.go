package xdsrules

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	configv3 "ratelimit/api/ratelimit/config/ratelimit/v3"
	"ratelimit/src/algorithm"
)

// inYAML writes a resource as a rule file: each field under its name. It knows nothing of how the resource is read.
func inYAML(m *configv3.RateLimitConfig) []byte { return []byte(messageYAML(m.ProtoReflect()) + "\n") }

func messageYAML(m protoreflect.Message) string {
	switch m := m.Interface().(type) {
	case *durationpb.Duration:
		return text(m.AsDuration().String())
	case *wrapperspb.BoolValue:
		return strconv.FormatBool(m.Value)
	case *wrapperspb.UInt64Value:
		return strconv.FormatUint(m.Value, 10)
	case *wrapperspb.DoubleValue:
		return strconv.FormatFloat(m.Value, 'f', -1, 64)
	case *structpb.Struct:
		return freeYAML(structpb.NewStructValue(m))
	}
	var fields []string
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		if limit, ok := m.Interface().(*configv3.RateLimitPolicy); ok && limit.LargeRequestsPerUnit > 0 {
			switch f.Name() {
			case "requests_per_unit":
				continue
			case "large_requests_per_unit":
				fields = append(fields, fmt.Sprintf("requests_per_unit: %d", limit.LargeRequestsPerUnit))
				continue
			}
		}
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
		case *configv3.RateLimitPolicy: // So does it for numbers above 2^48.
			found = found || m.LargeRequestsPerUnit > algorithm.MaxCapacity
		case *wrapperspb.UInt64Value:
			found = found || m.Value >= algorithm.MaxCapacity
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
