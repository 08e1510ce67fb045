package yamlrules

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"ratelimit/src/rules"
)

// place is one kind of map in a rule file.
type place struct {
	name string // in messages
	// keys are the keys that it may have, each with the field of the configuration that its value goes to, as reflect counts them.
	keys map[string][]int
}

var (
	atRoot       = newPlace[rules.DomainConfig]("the file")
	atDescriptor = newPlace[rules.DescriptorConfig]("a descriptor")
	atRule       = newPlace[rules.RuleConfig]("a rule", "detailed_metric")
	atLimit      = newPlace[rules.RateLimitConfig]("a rate_limit")
	atReplaces   = &place{"replaces", map[string][]int{"name": nil}}
	places       = []*place{atRoot, atDescriptor, atRule, atLimit, atReplaces}
	// nowhere is inside a value that has no effect, which a warning says.
	nowhere = &place{"", nil}
)

// newPlace returns the place of maps that are read into a T. Its keys are the yaml tags of T, but for those of without.
func newPlace[T any](name string, without ...string) *place {
	p := &place{name, make(map[string][]int)}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		if key := f.Tag.Get("yaml"); key != "" && !slices.Contains(without, key) {
			p.keys[key] = f.Index
		}
	}
	return p
}

// isKnown reports whether any place has the key.
func isKnown(key string) bool {
	return slices.ContainsFunc(places, func(p *place) bool { return p.has(key) })
}

func (p *place) has(key string) bool {
	_, has := p.keys[key]
	return has
}

// hasFreeForm reports whether the value of a key may have any form, also where it has no effect.
func hasFreeForm(key string) bool { return key == "metadata" || key == "match" || key == "per" }

// read reads the map n at a place to cfg, a pointer to the configuration of that place. It returns the fields that were read.
func (r *reader) read(n *yaml.Node, at *place, cfg any) []field {
	fields := r.known(n, at)
	for _, f := range fields {
		r.fill(f, reflect.ValueOf(cfg).Elem().FieldByIndex(at.keys[f.name]).Addr().Interface())
	}
	return fields
}

// fill reads the value of a field. The type of into says what the value may be.
func (r *reader) fill(f field, into any) {
	switch into := into.(type) {
	case *string:
		*into = r.text(f)
	case *bool:
		*into = r.flag(f)
	case *uint32:
		*into = r.number(f)
	case **uint32:
		if n := r.number(f); kindOf(f.node) != isNull {
			*into = &n
		}
	case **rules.Placed[string]:
		*into = placed(r, f, r.text)
	case **rules.Placed[bool]:
		*into = placed(r, f, r.flag)
	case **rules.Placed[uint32]:
		*into = placed(r, f, r.number)
	case **rules.Placed[time.Duration]:
		*into = placed(r, f, r.duration)
	case *map[string]any:
		*into = r.metadata(f)
	case *[]rules.DescriptorConfig:
		*into = r.descriptors(f)
	case **rules.RateLimitConfig:
		*into = r.rateLimit(f)
	case **rules.Placed[[]rules.RateLimitConfig]:
		*into = r.rateLimits(f)
	case **rules.Placed[[]rules.RuleConfig]:
		*into = r.rules(f)
	case **rules.Placed[[]rules.PairConfig]:
		*into = r.pairs(f)
	case *[]rules.Placed[string]:
		if f.name == "per" {
			*into = r.texts(f)
		} else {
			*into = r.replaces(f)
		}
	}
}

// placed reads a field with its place; nil if there is nothing.
func placed[T any](r *reader, f field, read func(field) T) *rules.Placed[T] {
	if kindOf(f.node) == isNull {
		return nil
	}
	return &rules.Placed[T]{Pos: r.pos(f.node), Value: read(f)}
}

// known returns the fields of the map n whose keys a place has. Other keys are refused, but for those of other places: as in
// envoyproxy/ratelimit, these have no effect, with a warning.
func (r *reader) known(n *yaml.Node, at *place) []field {
	accept := func(f *field) bool {
		if kind := kindOf(f.key); kind != isString {
			r.problems.Add(f.at, "put the key in quotes if it is meant as text", "the key %s is %v, not text", rules.Quote(f.name), kind)
			return false
		}
		switch {
		case at.has(f.name):
			return true
		case !isKnown(f.name):
			r.problems.Add(f.at, at.suggest(f.name), "unknown key %s", rules.Quote(f.name))
			return false
		case at != nowhere:
			r.warnings.Add(f.at, "move it or remove it", "%s has no effect in %s", f.name, at.name)
		}
		if !hasFreeForm(f.name) {
			r.ignore(f.node)
		}
		return false
	}
	return r.fields(n, accept, r.knownTwice)
}

// knownTwice lets the last key win, as envoyproxy/ratelimit does, but refuses a second rate_limit: it would silently replace a limit.
func (r *reader) knownTwice(first, second *field) (replace bool) {
	if second.name == "rate_limit" || second.name == "rate_limits" {
		r.problems.Add(second.at, "keep one of them, or put both limits into one list `rate_limits`",
			"the key %s is here twice, the first is at %v", second.name, first.at)
		return false
	}
	r.warnings.Add(second.at, "remove one of them", "the key %s is here twice; the last one wins", second.name)
	return true
}

// ignore checks a value that has no effect as far as envoyproxy/ratelimit does: it refuses fractions, and lists of anything but maps.
func (r *reader) ignore(n *yaml.Node) {
	switch kind := kindOf(n); kind {
	case isFloat, isBigInt:
		r.wrong(n, "write a whole number, or put it in quotes", "%s is %v", rules.Quote(n.Value), kind)
	case isMap:
		r.known(n, nowhere)
	case isList:
		for _, item := range n.Content {
			item = target(item)
			if kind := kindOf(item); kind != isMap {
				r.wrong(item, "remove it", "an item of the list is %v, not a map", kind)
				continue
			}
			r.ignore(item)
		}
	default:
	}
}

// suggest says how to fix an unknown key.
func (p *place) suggest(key string) string {
	if p == nowhere {
		return "remove it"
	}
	known := slices.Sorted(maps.Keys(p.keys))
	return meant(key, known, "known in "+p.name+": "+strings.Join(known, ", "))
}

// meant is how to fix an unknown key: the one of known that was probably meant, or else other.
func meant(key string, known []string, other string) string {
	near := strings.ReplaceAll(strings.ToLower(key), "-", "_")
	if !slices.Contains(known, near) {
		near = rules.Near(near, slices.Values(known))
	}
	if near == "" {
		return other
	}
	return "did you mean `" + near + "`?"
}
