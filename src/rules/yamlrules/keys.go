package yamlrules

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
)

// mapKind is one kind of map in a rule file.
type mapKind struct {
	messageName string // the kind in messages, such as "a descriptor"
	// fieldIndexByKey maps each key that such a map may have to the field of the configuration that holds its value, as an
	// index for reflect.
	fieldIndexByKey map[string][]int
}

var (
	fileMapKind       = newMapKind[compile.DomainConfig]("the file")
	descriptorMapKind = newMapKind[compile.DescriptorConfig]("a descriptor")
	ruleMapKind       = newMapKind[compile.RuleConfig]("a rule", "detailed_metric")
	limitMapKind      = newMapKind[compile.RateLimitConfig]("a rate_limit")
	replacesMapKind   = &mapKind{"replaces", map[string][]int{"name": nil}}
	prefixesMapKind   = newMapKind[compile.PrefixLengthsConfig]("count_by_prefix")
	reserveMapKind    = newMapKind[compile.ReserveConfig]("reserve_on_check")
	notifyMapKind     = newMapKind[compile.NotifyConfig]("notify")
	mapKinds          = []*mapKind{fileMapKind, descriptorMapKind, ruleMapKind, limitMapKind, replacesMapKind}
	// ignoredMapKind is a map inside a value that has no effect, of which a warning has told.
	ignoredMapKind = &mapKind{}
)

// newMapKind returns the kind of maps that are read into a T. Its keys are those of T without those in unused.
func newMapKind[T any](name string, unused ...string) *mapKind {
	k := &mapKind{name, compile.FieldsByKey[T]()}
	for _, key := range unused {
		delete(k.fieldIndexByKey, key)
	}
	return k
}

func (k *mapKind) hasKey(key string) bool {
	_, has := k.fieldIndexByKey[key]
	return has
}

// readMap reads the map n into config, a pointer to the configuration for maps of this kind. It returns the fields that
// it read.
func (r *reader) readMap(n *yaml.Node, kind *mapKind, config any) []field {
	fields := r.readKnownFields(n, kind)
	for _, f := range fields {
		r.readField(f, reflect.ValueOf(config).Elem().FieldByIndex(kind.fieldIndexByKey[f.name]).Addr().Interface())
	}
	return fields
}

// readField reads the value of f into the variable that target points to. The type of the variable decides what the
// value may be.
func (r *reader) readField(f field, target any) {
	switch target := target.(type) {
	case *string:
		*target = r.readText(f)
	case *bool:
		*target = r.readBool(f)
	case *uint64:
		*target = r.readNumber(f)
	case **uint32:
		if n := uint32(r.readNumber(f)); kindOf(f.valueNode) != compile.KindNull {
			*target = &n
		}
	case **compile.Positioned[string]:
		*target = positioned(r, f, r.readText)
	case **compile.Positioned[bool]:
		*target = positioned(r, f, r.readBool)
	case **compile.Positioned[uint32]:
		*target = positioned(r, f, func(f field) uint32 { return uint32(r.readNumber(f)) })
	case **compile.Positioned[uint64]:
		*target = positioned(r, f, r.readNumber)
	case **compile.Positioned[float64]:
		*target = positioned(r, f, r.readPercent)
	case **compile.Positioned[time.Duration]:
		*target = positioned(r, f, r.readDuration)
	case *map[string]any:
		*target = r.readMetadata(f)
	case *[]compile.DescriptorConfig:
		*target = r.readDescriptors(f)
	case **compile.Positioned[[]compile.Positioned[string]]:
		*target = r.readNetworks(f)
	case **compile.PrefixLengthsConfig:
		*target = readSubMap[compile.PrefixLengthsConfig](r, f, prefixesMapKind, "{v4: 24, v6: 64}")
	case **compile.ReserveConfig:
		*target = readSubMap[compile.ReserveConfig](r, f, reserveMapKind, "{estimate: 2000, for: 2m}")
	case **compile.Positioned[compile.Estimate]:
		*target = positioned(r, f, r.readEstimate)
	case **compile.NotifyConfig:
		*target = readSubMap[compile.NotifyConfig](r, f, notifyMapKind, "{at: [80, 100]}")
	case **compile.Positioned[[]compile.Positioned[uint32]]:
		*target = r.readNumbers(f)
	case **compile.RateLimitConfig:
		*target = r.readRateLimit(f)
	case **compile.Positioned[[]compile.RateLimitConfig]:
		*target = r.readRateLimits(f)
	case **compile.Positioned[[]compile.RuleConfig]:
		*target = r.readRules(f)
	case **compile.Positioned[[]compile.MatchPairConfig]:
		*target = r.readMatchPairs(f)
	case *[]compile.Positioned[string]:
		if f.name == "per" {
			*target = r.readTexts(f)
		} else {
			*target = r.readReplaces(f)
		}
	}
}

// positioned reads a field together with its position. It returns nil for a null value.
func positioned[T any](r *reader, f field, read func(field) T) *compile.Positioned[T] {
	if kindOf(f.valueNode) == compile.KindNull {
		return nil
	}
	return &compile.Positioned[T]{Pos: r.posOf(f.valueNode), Value: read(f)}
}

// readKnownFields returns the fields of the map n whose keys are known for its kind. A key that only other kinds have
// is ignored with a warning, as envoyproxy/ratelimit ignores it; any other key is a problem.
func (r *reader) readKnownFields(n *yaml.Node, kind *mapKind) []field {
	accept := func(f *field) bool {
		if isRestOfNumber(f) {
			r.problems.Add(f.keyPos, "write numbers without commas: 1000, not 1,000", "%s stands behind a comma in braces, "+
				"which begins another key", rules.Quote(f.name))
			return false
		}
		if kind := kindOf(f.keyNode); kind != compile.KindText {
			r.problems.Add(f.keyPos, "put the key in quotes if it is meant as text", "the key %s is %v, not text",
				rules.Quote(f.name), kind)
			return false
		}
		switch {
		case kind.hasKey(f.name):
			return true
		case kind != ignoredMapKind && !slices.Contains(mapKinds, kind) ||
			!slices.ContainsFunc(mapKinds, func(other *mapKind) bool { return other.hasKey(f.name) }):
			fix := "remove it"
			if kind != ignoredMapKind {
				known := slices.Sorted(maps.Keys(kind.fieldIndexByKey))
				fix = rules.SuggestFix(f.name, known, "known in "+kind.messageName+": "+strings.Join(known, ", "))
			}
			r.problems.Add(f.keyPos, fix, "unknown key %s", rules.Quote(f.name))
			return false
		case kind != ignoredMapKind:
			r.warnings.Add(f.keyPos, "move it or remove it", "%s has no effect in %s", f.name, kind.messageName)
		}
		// The values of these keys may have any form.
		if !slices.Contains(
			[]string{"metadata", "match", "per", "cidr", "count_by_prefix", "notify", "reserve_on_check"}, f.name) {
			r.checkIgnoredValue(f.valueNode)
		}
		return false
	}
	// As in envoyproxy/ratelimit, the last of two equal keys wins. But a second rate_limit would silently replace a limit.
	twice := func(first, second *field) (replace bool) {
		if second.name == "rate_limit" || second.name == "rate_limits" {
			r.problems.Add(second.keyPos, "keep one of them, or put both limits into one list `rate_limits`",
				"the key %s is here twice, the first is at %v", second.name, first.keyPos)
			return false
		}
		r.warnings.Add(second.keyPos, "remove one of them", "the key %s is here twice; the last one wins", second.name)
		return true
	}
	return r.collectFields(n, accept, twice)
}

// isRestOfNumber returns whether f is what YAML makes of the digits behind the comma of a number: a key without a
// value, as 000 in `{requests_per_unit: 1,000}`.
func isRestOfNumber(f *field) bool {
	return len(f.name) == 3 && strings.Trim(f.name, "0123456789") == "" && kindOf(f.valueNode) == compile.KindNull &&
		f.keyNode.Style == 0
}

// checkIgnoredValue checks a value that has no effect. Like envoyproxy/ratelimit, it refuses fractions, and lists with
// items that are not maps.
func (r *reader) checkIgnoredValue(n *yaml.Node) {
	switch kind := kindOf(n); kind {
	case compile.KindFloat, compile.KindBigInt:
		r.addProblem(n, "write a whole number, or put it in quotes", "%s is %v", rules.Quote(n.Value), kind)
	case compile.KindMap:
		r.readKnownFields(n, ignoredMapKind)
	case compile.KindList:
		for _, item := range n.Content {
			item = resolveAlias(item)
			if kind := kindOf(item); kind != compile.KindMap {
				r.addProblem(item, "remove it", "an item of the list is %v, not a map", kind)
				continue
			}
			r.checkIgnoredValue(item)
		}
	default:
	}
}
