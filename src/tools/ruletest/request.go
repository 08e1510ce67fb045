package ruletest

import (
	"strings"

	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/src/rules/yamlrules"
)

// request reads a RateLimitRequest in the form of proto3 JSON. Keys may have either spelling: hits_addend or
// hitsAddend.
func (r *reader) request(v *yamlrules.Value, req *limiter.Request) {
	isMap := r.message(v, "a request", map[string]valueReader{
		"domain": storeIn(&req.Domain, r.bytes),
		"descriptors": func(v *yamlrules.Value, name string) {
			r.each(v, name, func(v *yamlrules.Value) { req.Descriptors = append(req.Descriptors, r.descriptor(v)) })
		},
		"hits_addend": func(v *yamlrules.Value, name string) { req.DefaultAmount = uint64(r.uint32(v, name)) },
	})
	switch {
	case !isMap:
	case len(req.Domain) == 0:
		r.Add(v.Pos, "add `domain:`", "the request has no domain")
	case len(req.Descriptors) == 0:
		r.Add(v.Pos, "add `descriptors:`", "the request has no descriptors")
	}
}

// message reads a protobuf message; name is its name in messages to people. It accepts each key in snake case and in
// camel case, and ignores fields that are null.
func (r *reader) message(v *yamlrules.Value, name string, known map[string]valueReader) bool {
	spellings := make(map[string]valueReader, 2*len(known))
	for key, read := range known {
		readPresent := func(v *yamlrules.Value, _ string) {
			if !v.IsNull() {
				read(v, key)
			}
		}
		spellings[key], spellings[camelCase(key)] = readPresent, readPresent
	}
	return r.fields(v, name, spellings)
}

// camelCase returns "hitsAddend" for "hits_addend".
func camelCase(key string) string {
	words := strings.Split(key, "_")
	for i, w := range words[1:] {
		words[i+1] = strings.ToUpper(w[:1]) + w[1:]
	}
	return strings.Join(words, "")
}

func (r *reader) descriptor(v *yamlrules.Value) (d limiter.Descriptor) {
	r.message(v, "a descriptor", map[string]valueReader{
		"entries": func(v *yamlrules.Value, name string) {
			r.each(v, name, func(v *yamlrules.Value) {
				var e rules.Entry
				r.message(v, "an entry", map[string]valueReader{
					"key":   storeIn(&e.Key, r.bytes),
					"value": storeIn(&e.Value, r.bytes),
				})
				d.Entries = append(d.Entries, e)
			})
		},
		"hits_addend":      func(v *yamlrules.Value, name string) { d.HasAmount, d.Amount = true, r.uint64(v, name) },
		"is_negative_hits": storeIn(&d.IsRefund, r.flag),
		"limit":            func(v *yamlrules.Value, _ string) { d.HasLimit, d.Limit = true, r.limit(v) },
	})
	return d
}

func (r *reader) limit(v *yamlrules.Value) rules.Rate {
	found, q := len(r.Problems), rules.Rate{UnitMultiplier: 1}
	r.message(v, "a limit", map[string]valueReader{
		"requests_per_unit": storeIn(&q.Requests, r.uint32),
		"unit_multiplier":   storeIn(&q.UnitMultiplier, r.uint32),
		"unit":              storeIn(&q.Unit, r.unit),
	})
	if _, err := q.FixedWindowLimit(); err != nil && len(r.Problems) == found {
		r.Add(v.Pos, "fix it", "the limit is invalid: %v", err)
	}
	return q
}

// unit reads a unit by its name, in any letter case, or by its number in Envoy's enum.
func (r *reader) unit(v *yamlrules.Value, _ string) rules.Unit {
	if unit := rules.ParseUnit(v.Text); unit != rules.UnitUnknown {
		return unit
	} else if int64(rules.UnitSecond) <= v.Int && v.Int <= int64(rules.UnitWeek) { // Int is 0 if it is no number.
		return rules.Unit(v.Int)
	}
	r.Add(v.Pos, "write second, minute, hour, day, week, month or year", "the unit %s is not known", quoteValue(v))
	return rules.UnitUnknown
}

// ask reads the short form of a request, "domain: key=value, key=value + key=value". Values that have one of these
// separators need the long form, which request reads.
func (r *reader) ask(v *yamlrules.Value, req *limiter.Request) {
	const form = "write \"domain: key=value, key=value + key=value\", + between descriptors, in quotes because of the " +
		"colon"
	domain, rest, hasDomain := strings.Cut(v.Text, ": ")
	if !v.IsScalar() || !hasDomain || strings.TrimSpace(domain) == "" {
		r.Add(v.Pos, form, "ask is no domain and descriptors: %s", quoteValue(v))
		return
	}
	req.Domain = []byte(strings.TrimSpace(domain))
	for descriptor := range strings.SplitSeq(rest, " + ") {
		var d limiter.Descriptor
		for pair := range strings.SplitSeq(descriptor, ",") {
			key, value, ok := strings.Cut(pair, "=")
			if key = strings.TrimSpace(key); !ok || key == "" {
				r.Add(v.Pos, form, "%s in ask is no key=value", rules.Quote(strings.TrimSpace(pair)))
				continue
			}
			d.Entries = append(d.Entries, rules.Entry{Key: []byte(key), Value: []byte(strings.TrimSpace(value))})
		}
		req.Descriptors = append(req.Descriptors, d)
	}
}
