package rules

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"ratelimit/src/algorithm"
)

// schema is a JSON Schema of draft 7, which all editors know; some do not know
// later ones. ErrorMessage, PatternErrorMessage and DeprecationMessage are not
// in the standard: editors that know them show them, others ignore them.
type schema struct {
	Schema               string    `json:"$schema,omitempty"`
	Comment              string    `json:"$comment,omitempty"`
	Title                string    `json:"title,omitempty"`
	Description          string    `json:"description,omitempty"`
	Ref                  string    `json:"$ref,omitempty"`
	Type                 types     `json:"type,omitempty"`
	Const                any       `json:"const,omitempty"`
	Enum                 []any     `json:"enum,omitempty"`
	Minimum              *int64    `json:"minimum,omitempty"`
	Maximum              *int64    `json:"maximum,omitempty"`
	MinLength            int       `json:"minLength,omitempty"`
	Pattern              string    `json:"pattern,omitempty"`
	MinItems             int       `json:"minItems,omitempty"`
	MaxItems             int       `json:"maxItems,omitempty"`
	Required             []string  `json:"required,omitempty"`
	MaxProperties        int       `json:"maxProperties,omitempty"`
	Properties           members   `json:"properties,omitempty"`
	PatternProperties    members   `json:"patternProperties,omitempty"`
	AdditionalProperties any       `json:"additionalProperties,omitempty"`
	Items                any       `json:"items,omitempty"` // a schema, or one for each place
	PropertyNames        *schema   `json:"propertyNames,omitempty"`
	MinProperties        int       `json:"minProperties,omitempty"`
	Not                  *schema   `json:"not,omitempty"`
	If                   *schema   `json:"if,omitempty"`
	Then                 *schema   `json:"then,omitempty"`
	Else                 *schema   `json:"else,omitempty"`
	AllOf                []*schema `json:"allOf,omitempty"`
	AnyOf                []*schema `json:"anyOf,omitempty"`
	ErrorMessage         string    `json:"errorMessage,omitempty"`
	PatternErrorMessage  string    `json:"patternErrorMessage,omitempty"`
	DeprecationMessage   string    `json:"deprecationMessage,omitempty"`
	Definitions          members   `json:"definitions,omitempty"`
}

// types are what a value may be: one or several.
type types []string

// MarshalJSON writes one type as a string.
func (t types) MarshalJSON() ([]byte, error) {
	if len(t) == 1 {
		return encoded(t[0])
	}
	return encoded([]string(t))
}

// members are the properties of an object, in this order.
type members []member

type member struct {
	name string
	is   *schema
}

// MarshalJSON writes an object.
func (m members) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, one := range m {
		if i > 0 {
			b.WriteByte(',')
		}
		name, err := encoded(one.name)
		if err != nil {
			return nil, err
		}
		value, err := encoded(one.is)
		if err != nil {
			return nil, err
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// encoded is v as JSON, with < > and & as they are.
func encoded(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSpace(b.Bytes()), err
}

// Schema is the JSON Schema of a rule file, for editors. It takes each file
// that ParseYAML and Compile take, if its scalars are read by YAML 1.1; files of
// tests, which ParseYAML passes over, are not for it. What it refuses they
// refuse too, but not the other way round: a schema cannot compare two places of
// a file, nor calculate.
func Schema() ([]byte, error) {
	root := &schema{
		Schema:  "http://json-schema.org/draft-07/schema#",
		Title:   "Rules of a rate limit service",
		Comment: "Written by `ratelimit schema` from the definitions that rule files are read with.",
		Type:    types{"object"},
		If:      &schema{Required: []string{"schema"}, Not: &schema{Required: []string{"domain"}}},
		Then:    treeSchema(),
		Else:    definition("rules"),
	}
	rules := object(atRoot, fileKeys)
	rules.AllOf = rootConditions()
	descriptor := object(atDescriptor, descriptorKeys)
	descriptor.Type = types{"object"}
	descriptor.AllOf = descriptorConditions()
	limit := object(atLimit, limitKeys)
	limit.Type = types{"object", "null"}
	limit.AllOf = limitConditions()
	replaces := object(atReplaces, replacesKeys)
	replaces.Type = types{"object"}
	rule := object(atRule, ruleKeys)
	rule.Type = types{"object"}
	rule.AllOf = ruleConditions()
	root.Definitions = members{
		{"rules", rules},
		{"descriptor", descriptor},
		{"rule", rule},
		{"rate_limit", limit},
		{"replaces", replaces},
		{"name", nameSchema()},
		{"ignored", ignoredSchema()},
	}
	text, err := encoded(root)
	if err != nil {
		return nil, fmt.Errorf("rules: schema: %w", err)
	}
	var b bytes.Buffer
	if err := json.Indent(&b, text, "", "  "); err != nil {
		return nil, fmt.Errorf("rules: schema: %w", err)
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// treeSchema is a tree of limits, and nameSchema what stands below a name in it.
func treeSchema() *schema {
	return &schema{
		Properties: members{{"schema", &schema{
			Description: treeKeys[0].says, Type: types{"object"},
			PropertyNames: &schema{MinLength: 1}, AdditionalProperties: definition("name"),
		}}},
		AdditionalProperties: false,
	}
}

func nameSchema() *schema {
	number := func(least, most int64, says string) *schema {
		return &schema{Type: types{"integer"}, Minimum: &least, Maximum: &most, Description: says}
	}
	limits := &schema{
		Description: treeKeys[1].says, Type: types{"array", "null"}, MinItems: 3, MaxItems: 3,
		Items: []*schema{
			number(0, math.MaxUint32-1, "How many pass at once beyond the first."),
			number(1, math.MaxUint32, "How many come back in the period."),
			number(1, int64(algorithm.MaxPeriod.Seconds()), "The period in seconds."),
		},
	}
	children := &schema{
		Description: treeKeys[2].says, Type: types{"object", "null"},
		PropertyNames: &schema{MinLength: 1}, AdditionalProperties: definition("name"),
	}
	return &schema{
		Type:                 types{"object"},
		Properties:           members{{"limits", limits}, {"children", children}},
		AdditionalProperties: false,
		AnyOf: []*schema{
			given("limits", something()),
			given("children", &schema{Type: types{"object"}, MinProperties: 1}),
		},
		ErrorMessage: "a name needs limits or children",
	}
}

func definition(name string) *schema { return &schema{Ref: "#/definitions/" + name} }

// object is a map with the keys of a table. Those of other places are taken,
// and marked, as the reader does.
func object[T any](place where, table []key[T]) *schema {
	s := &schema{AdditionalProperties: false}
	var zero T
	for i := range table {
		k := &table[i]
		is := schemaOf(k.into(&zero), k.words, k.least, k.most, k.need)
		is.Description = k.says
		s.Properties = append(s.Properties, member{k.name, is})
		if k.need {
			s.Required = append(s.Required, k.name)
		}
	}
	var others []string
	for name, places := range keys {
		if places&place == 0 {
			others = append(others, name)
		}
	}
	// Some have any form even where they are ignored.
	ignored := "No effect in " + whereNames[place] + "."
	loose := slices.DeleteFunc(slices.Clone(others), func(name string) bool { return !free[name] })
	others = slices.DeleteFunc(others, func(name string) bool { return free[name] })
	if len(loose) > 0 {
		s.PatternProperties = append(s.PatternProperties, member{anyOf(loose), &schema{DeprecationMessage: ignored}})
	}
	s.PatternProperties = append(s.PatternProperties, member{anyOf(others), &schema{
		AllOf:              []*schema{definition("ignored")},
		DeprecationMessage: ignored,
	}})
	return s
}

// anyOf is a pattern of whole words.
func anyOf(words []string) string {
	slices.Sort(words)
	return "^(" + strings.Join(words, "|") + ")$"
}

// ignoredSchema is what yamlReader.ignored takes.
func ignoredSchema() *schema {
	var names, loose []string
	for name := range keys {
		if free[name] {
			loose = append(loose, name)
		} else {
			names = append(names, name)
		}
	}
	return &schema{
		Type:                 types{"object", "array", "string", "integer", "boolean", "null"},
		Items:                &schema{Type: types{"object"}, AllOf: []*schema{definition("ignored")}},
		PatternProperties:    members{{anyOf(loose), &schema{}}, {anyOf(names), definition("ignored")}},
		AdditionalProperties: false,
	}
}

// schemaOf is what yamlReader.value takes for a field of this type, and the
// compiler then does not refuse.
func schemaOf(into any, words []string, least, most int64, need bool) *schema {
	s := &schema{}
	orNothing := true
	switch into.(type) {
	case *string:
		s.Type = asText().Type
		orNothing = !need
		if need {
			s.MinLength = 1
		}
		if words != nil { // proposed here, but what is right depends on what stands beside it
			s.AnyOf = []*schema{{Enum: anys(words)}, {}}
		}
	case **Placed[string]:
		s.Enum = append(anys(words), nil)
		return s
	case *bool, **Placed[bool]:
		s.Type = types{"boolean"}
	case *uint32, **uint32, **Placed[uint32]:
		if most == 0 {
			most = math.MaxUint32
		}
		s.Type = types{"integer"}
		s.Minimum, s.Maximum = &least, &most
	case **Placed[time.Duration]:
		s.Type = types{"string"}
		s.PatternErrorMessage = mendDuration
		s.Pattern = anyDuration
		if least > 0 {
			s.Pattern = positiveDuration
			s.AllOf = []*schema{{Pattern: "[1-9]", PatternErrorMessage: "write a longer one"}}
		}
		s.AllOf = append(s.AllOf, never(&schema{Type: types{"string"}, Pattern: splitMicrosecond}, "write whole microseconds"))
	case *map[string]any:
		s.Type = types{"object"}
	case *[]DescriptorConfig:
		s.Type, s.Items = types{"array"}, definition("descriptor")
	case *[]ReplacesConfig:
		s.Type, s.Items = types{"array"}, definition("replaces")
	case **Placed[[]RuleConfig]:
		s.Type, s.Items = types{"array"}, definition("rule")
	case **Placed[[]PairConfig]:
		s.Type, s.AdditionalProperties = types{"object"}, asText()
		s.MaxProperties = maxPairs
		orNothing = false
	case *[]Placed[string]:
		s.Type, s.Items, s.MaxItems = types{"array"}, asText(), maxPairs
	case **RateLimitConfig:
		s.AllOf = []*schema{definition("rate_limit")}
		return s
	case **Placed[[]RateLimitConfig]:
		s.Type = types{"array"}
		s.Items = &schema{Type: types{"object"}, AllOf: []*schema{definition("rate_limit")}}
		s.MinItems, s.MaxItems = 1, maxCharges
		orNothing = false
	}
	if orNothing {
		s.Type = append(s.Type, "null")
	}
	return s
}

// asText is a scalar that is taken as written.
func asText() *schema { return &schema{Type: types{"string", "integer", "boolean"}} }

func anys(words []string) (list []any) {
	for _, w := range words {
		list = append(list, w)
	}
	return list
}

// The durations that yamlReader.duration takes, in a regular expression that
// JavaScript and Go read alike. One with a minus may still be nothing at all.
const (
	durationUnit     = `(ns|us|µs|μs|ms|s|m|h)`
	positiveDuration = `^\+?(([0-9]+(\.[0-9]*)?|\.[0-9]+)` + durationUnit + `)+$`
	anyDuration      = `^(\+?(([0-9]+(\.[0-9]*)?|\.[0-9]+)` + durationUnit + `)+|-((0+(\.[0-9]*)?|\.[0-9]+)` + durationUnit + `)+)$`
	// Durations of one unit that are surely not whole seconds, or microseconds:
	// few write 1s500000ns.
	splitSecond      = `^\+?([0-9]*[1-9]0{0,2}ms|[0-9]*[1-9]0{0,5}(us|µs|μs)|[0-9]*[1-9]0{0,8}ns|[0-9]*\.[0-9]{0,8}[1-9]s)$`
	splitMicrosecond = `^\+?([0-9]*[1-9]0{0,2}ns|[0-9]*\.[0-9]{0,2}[1-9](us|µs|μs))$`
)

// given is a map in which a key is there, with this value.
func given(key string, value *schema) *schema {
	return &schema{Required: []string{key}, Properties: members{{key, value}}}
}

// something is any value but null.
func something() *schema { return &schema{Not: &schema{Type: types{"null"}}} }

// never takes no value of the form s; message says why. Editors show that of a
// wrong type, and none of a schema that must not match.
func never(s *schema, message string) *schema {
	return &schema{If: s, Then: &schema{Type: types{"null"}, ErrorMessage: message}}
}

// without is a map in which a key is not there, or null; message says why.
func without(key, message string) member {
	return member{key, &schema{Type: types{"null"}, ErrorMessage: message}}
}

func rootConditions() []*schema {
	return []*schema{{
		If: given("rules", something()),
		Then: &schema{Properties: members{{"descriptors", &schema{
			Enum: []any{nil, []any{}}, ErrorMessage: "rules and descriptors exclude each other",
		}}}},
	}}
}

func ruleConditions() []*schema {
	return append(severalConditions(), &schema{
		AnyOf:        []*schema{given("rate_limit", something()), given("rate_limits", something())},
		ErrorMessage: "a rule needs a rate_limit",
	})
}

// severalConditions is what rate_limits does not go with.
func severalConditions() []*schema {
	return []*schema{
		{
			If:   &schema{Required: []string{"rate_limits"}},
			Then: &schema{Properties: members{without("rate_limit", "rate_limit and rate_limits exclude each other")}},
		}, {
			If: given("rate_limits", &schema{Type: types{"array"}, MinItems: 2}),
			Then: &schema{Properties: members{{"rate_limits", &schema{Items: &schema{Properties: members{
				{"unlimited", never(&schema{Const: true}, "an unlimited one of several rate_limits changes nothing")},
			}}}}}},
		},
	}
}

func descriptorConditions() []*schema {
	wildcard := &schema{Type: types{"string"}, Pattern: `\*`, PatternErrorMessage: "share_threshold needs a `*` in key or value"}
	return append(severalConditions(), []*schema{
		{
			If:   given("share_threshold", &schema{Const: true}),
			Then: &schema{AnyOf: []*schema{given("key", wildcard), given("value", wildcard)}},
		},
	}...)
}

func limitConditions() []*schema {
	unit := folded(unitWords()...)
	unlimited := &schema{Properties: members{
		{"unit", never(&schema{Type: types{"string"}, Pattern: unit}, "unlimited and unit exclude each other")},
	}}
	for i := range limitKeys {
		if k := &limitKeys[i]; k.counts {
			unlimited.Properties = append(unlimited.Properties, without(k.name, "unlimited and "+k.name+" exclude each other"))
		}
	}
	period := &schema{Properties: members{
		{"unit", &schema{Enum: []any{"", nil}, ErrorMessage: "period and unit exclude each other"}},
		without("unit_multiplier", "period and unit_multiplier exclude each other"),
	}}
	byUnit := given("unit", &schema{Type: types{"string"}, Pattern: unit, PatternErrorMessage: "write " + oneOf(unitWords())})
	list := []*schema{{
		If:   given("unlimited", &schema{Const: true}),
		Then: unlimited,
		Else: &schema{If: given("period", something()), Then: period, Else: byUnit},
	}}
	for _, word := range unitWords() {
		longest := int64(algorithm.MaxPeriod / parseUnit(word).Length())
		if longest >= math.MaxUint32 {
			continue
		}
		list = append(list, &schema{
			If:   given("unit", &schema{Type: types{"string"}, Pattern: folded(word)}),
			Then: &schema{Properties: members{{"unit_multiplier", &schema{Maximum: &longest}}}},
		})
	}
	for _, name := range algorithm.Kinds() {
		if s := kindConditions(name); s != nil {
			list = append(list, s)
		}
	}
	return list
}

// kindConditions is what an algorithm does not take.
func kindConditions(name string) *schema {
	kind, _ := algorithm.ParseKind(name)
	is := given("algorithm", &schema{Const: name})
	if kind == algorithm.FixedWindow { // the default
		is = &schema{Properties: members{{"algorithm", &schema{Enum: []any{name, nil}}}}}
	}
	var not members
	if !takesBurst(kind) {
		not = append(not, without("burst", "burst means nothing to the algorithm "+name))
	}
	if !takesInterval(kind) {
		not = append(not, without("min_interval", "min_interval means nothing to the algorithm "+name))
	}
	if kind == algorithm.FixedWindow {
		not = append(not, member{"period", never(&schema{Type: types{"string"}, Pattern: splitSecond}, "fixed_window needs whole seconds")})
	}
	if kind == algorithm.SlidingWindow {
		not = append(not, member{"requests_per_unit", &schema{Maximum: new(int64(algorithm.MaxLogged))}})
	}
	if not == nil {
		return nil
	}
	return &schema{If: is, Then: &schema{Properties: not}}
}

// folded matches these words, whatever the case of their letters, as
// strings.EqualFold does.
func folded(words ...string) string {
	var any []string
	for _, word := range words {
		var b strings.Builder
		for _, letter := range word {
			b.WriteByte('[')
			for other := letter; ; {
				b.WriteString(regexp.QuoteMeta(string(other)))
				if other = unicode.SimpleFold(other); other == letter {
					break
				}
			}
			b.WriteByte(']')
		}
		any = append(any, b.String())
	}
	return "^(" + strings.Join(any, "|") + ")$"
}
