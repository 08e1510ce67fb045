package xdsrules

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"ratelimit/api"
	configv3 "ratelimit/api/ratelimit/config/ratelimit/v3"
	"ratelimit/src/rules/compile"
)

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
		{"a rate_limit", schema.Definitions["rate_limit"], &configv3.RateLimitPolicy{}, "large_requests_per_unit"},
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
				case field.Kind() == protoreflect.Uint64Kind:
					m.Set(field, protoreflect.ValueOfUint64(5))
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
