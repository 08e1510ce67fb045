package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"gopkg.in/yaml.v3"

	configv3 "ratelimit/api/ratelimit/config/ratelimit/v3"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
)

// domains are the messages that say what rule files say, one a file, named for
// it. A file is checked before, so what is read here is known to make sense.
func domains(files []filerules.File, opt compile.Options) ([]*configv3.RateLimitConfig, error) {
	if _, _, err := filerules.Load(files, opt); err != nil {
		return nil, err
	}
	var list []*configv3.RateLimitConfig
	for _, f := range files {
		var doc yaml.Node
		if err := yaml.Unmarshal(f.Data, &doc); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
		if keys, err := mapping(&doc); err == nil && keys["domain"] == nil {
			continue // tests of rules may stand among them
		}
		config := new(configv3.RateLimitConfig)
		if err := fill(config.ProtoReflect(), &doc); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
		config.Name = f.Name
		list = append(list, config)
	}
	return list, nil
}

// fill sets the fields of a message from a mapping: their names are the keys.
func fill(m protoreflect.Message, node *yaml.Node) error {
	keys, err := mapping(node)
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		value := keys[key]
		if value.Tag == "!!null" {
			continue
		}
		if isLarge(key, value) { // requests_per_unit has 32 bits
			key = "large_requests_per_unit"
		}
		field := m.Descriptor().Fields().ByName(protoreflect.Name(key))
		if field == nil {
			return fmt.Errorf("line %d: the messages have no field %s", value.Line, key)
		}
		if err := set(m, field, value); err != nil {
			return fmt.Errorf("line %d: %s: %w", value.Line, key, err)
		}
	}
	return nil
}

// isLarge reports whether a number needs the field for large limits.
func isLarge(key string, value *yaml.Node) bool {
	var n uint64
	return key == "requests_per_unit" && value.Decode(&n) == nil && n > math.MaxUint32
}

// set sets one field.
func set(m protoreflect.Message, field protoreflect.FieldDescriptor, value *yaml.Node) error {
	switch {
	case field.IsMap(): // of texts, if there are any
		entries, err := mapping(value)
		if err != nil {
			return err
		}
		texts := m.Mutable(field).Map()
		for key, node := range entries {
			v, err := convert(field.MapValue(), texts.NewValue(), node)
			if err != nil {
				return err
			}
			texts.Set(protoreflect.ValueOfString(key).MapKey(), v)
		}
	case field.IsList():
		list, items := m.Mutable(field).List(), value.Content
		if value.Kind == yaml.ScalarNode { // a list of one, as of `cidr`
			items = []*yaml.Node{value}
		}
		for _, item := range items {
			v, err := convert(field, list.NewElement(), resolve(item))
			if err != nil {
				return err
			}
			list.Append(v)
		}
	default:
		v, err := convert(field, m.NewField(field), value)
		if err != nil {
			return err
		}
		m.Set(field, v)
	}
	return nil
}

// convert makes one value. empty is one of its kind.
func convert(field protoreflect.FieldDescriptor, empty protoreflect.Value, node *yaml.Node) (protoreflect.Value, error) {
	switch field.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(node.Value), nil
	case protoreflect.BoolKind:
		var b bool
		err := node.Decode(&b)
		return protoreflect.ValueOfBool(b), err
	case protoreflect.Uint32Kind:
		var n uint32
		err := node.Decode(&n)
		return protoreflect.ValueOfUint32(n), err
	case protoreflect.Uint64Kind:
		var n uint64
		err := node.Decode(&n)
		return protoreflect.ValueOfUint64(n), err
	case protoreflect.EnumKind:
		word := field.Enum().Values().ByName(protoreflect.Name(strings.ToUpper(node.Value)))
		if word == nil {
			return protoreflect.Value{}, fmt.Errorf("the messages do not know %s", node.Value)
		}
		return protoreflect.ValueOfEnum(word.Number()), nil
	case protoreflect.MessageKind:
		m, err := message(empty.Message(), node)
		return protoreflect.ValueOfMessage(m), err
	}
	return protoreflect.Value{}, fmt.Errorf("it is a %v in the messages", field.Kind())
}

// message makes a message that is no list: one of ours from a mapping, one of
// protobuf's own from what stands for it.
func message(m protoreflect.Message, node *yaml.Node) (protoreflect.Message, error) {
	switch m.Descriptor().FullName() {
	case (*durationpb.Duration)(nil).ProtoReflect().Descriptor().FullName():
		d, err := time.ParseDuration(node.Value)
		return durationpb.New(d).ProtoReflect(), err
	case (*structpb.Struct)(nil).ProtoReflect().Descriptor().FullName():
		var metadata map[string]any
		if err := node.Decode(&metadata); err != nil {
			return nil, err
		}
		s, err := structpb.NewStruct(metadata)
		return proto.Message(s).ProtoReflect(), err
	case "google.protobuf.UInt64Value", "google.protobuf.BoolValue":
		field := m.Descriptor().Fields().ByName("value")
		v, err := convert(field, m.NewField(field), node)
		if err == nil {
			m.Set(field, v)
		}
		return m, err
	}
	return m, fill(m, node)
}

// mapping is a mapping by its keys. Of two with one key the last one counts.
func mapping(node *yaml.Node) (map[string]*yaml.Node, error) {
	node = resolve(node)
	keys := make(map[string]*yaml.Node)
	if node.Kind == 0 || node.Tag == "!!null" {
		return keys, nil
	}
	if node.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: this is no mapping", node.Line)
	}
	for i := 0; i < len(node.Content); i += 2 {
		if node.Content[i].Tag == "!!merge" {
			return nil, fmt.Errorf("line %d: << is not understood here; write the keys out", node.Content[i].Line)
		}
		keys[resolve(node.Content[i]).Value] = resolve(node.Content[i+1])
	}
	return keys, nil
}

// resolve is what a document holds, or an alias stands for.
func resolve(node *yaml.Node) *yaml.Node {
	switch {
	case node.Kind == yaml.AliasNode:
		return node.Alias
	case node.Kind == yaml.DocumentNode && len(node.Content) > 0:
		return node.Content[0]
	}
	return node
}
