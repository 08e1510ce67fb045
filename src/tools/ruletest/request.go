package ruletest

import (
	"math"
	"strings"

	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/src/rules/yamlrules"
)

// request reads a RateLimitRequest as proto3 JSON has it, keys in either form:
// hits_addend or hitsAddend.
func (r *reader) request(v *yamlrules.Value, req *limiter.Request) {
	isMap := r.message(v, "a request", map[string]func(*yamlrules.Value){
		"domain":      func(v *yamlrules.Value) { req.Domain = []byte(r.text(v, "domain")) },
		"descriptors": func(v *yamlrules.Value) { r.each(v, "descriptors", func(v *yamlrules.Value) { r.descriptor(v, req) }) },
		"hits_addend": func(v *yamlrules.Value) { req.Hits = r.number(v, "hits_addend", math.MaxUint32) },
	})
	switch {
	case !isMap:
	case len(req.Domain) == 0:
		r.problem(v.Pos, "add `domain:`", "the request has no domain")
	case len(req.Descriptors) == 0:
		r.problem(v.Pos, "add `descriptors:`", "the request has no descriptors")
	}
	r.notTooMany(v, req)
}

func (r *reader) notTooMany(v *yamlrules.Value, req *limiter.Request) {
	if n := len(req.Descriptors); n > limiter.MaxDescriptors {
		r.problem(v.Pos, "use fewer", "a request of %d descriptors is refused; %d is the most", n, limiter.MaxDescriptors)
	}
}

// message reads a protobuf message: fields that are null are not there.
func (r *reader) message(v *yamlrules.Value, what string, known map[string]func(*yamlrules.Value)) bool {
	either := make(map[string]func(*yamlrules.Value), 2*len(known))
	for name, read := range known {
		set := func(v *yamlrules.Value) {
			if !v.Null() {
				read(v)
			}
		}
		either[name], either[camel(name)] = set, set
	}
	return r.fields(v, what, either)
}

// camel is hitsAddend for hits_addend.
func camel(name string) string {
	words := strings.Split(name, "_")
	for i, w := range words[1:] {
		words[i+1] = strings.ToUpper(w[:1]) + w[1:]
	}
	return strings.Join(words, "")
}

func (r *reader) descriptor(v *yamlrules.Value, req *limiter.Request) {
	var d limiter.Descriptor
	r.message(v, "a descriptor", map[string]func(*yamlrules.Value){
		"entries": func(v *yamlrules.Value) {
			r.each(v, "entries", func(v *yamlrules.Value) {
				var e rules.Entry
				r.message(v, "an entry", map[string]func(*yamlrules.Value){
					"key":   func(v *yamlrules.Value) { e.Key = []byte(r.text(v, "key")) },
					"value": func(v *yamlrules.Value) { e.Value = []byte(r.text(v, "value")) },
				})
				d.Entries = append(d.Entries, e)
			})
		},
		"hits_addend":      func(v *yamlrules.Value) { d.HasHits, d.Hits = true, r.number(v, "hits_addend", math.MaxUint64) },
		"is_negative_hits": func(v *yamlrules.Value) { d.Refund = r.flag(v, "is_negative_hits") },
		"limit":            func(v *yamlrules.Value) { d.HasLimit = true; r.limit(v, &d.Limit) },
	})
	req.Descriptors = append(req.Descriptors, d)
}

func (r *reader) limit(v *yamlrules.Value, q *rules.Quantity) {
	found := len(r.problems)
	q.Multiplier = 1
	r.message(v, "a limit", map[string]func(*yamlrules.Value){
		"requests_per_unit": func(v *yamlrules.Value) { q.Requests = uint32(r.number(v, "requests_per_unit", math.MaxUint32)) },
		"unit_multiplier":   func(v *yamlrules.Value) { q.Multiplier = uint32(r.number(v, "unit_multiplier", math.MaxUint32)) },
		"unit":              func(v *yamlrules.Value) { q.Unit = r.unit(v) },
	})
	if _, err := q.Window(); err != nil && len(r.problems) == found {
		r.problem(v.Pos, "fix it", "the limit is invalid: %v", err)
	}
}

// unit reads the enum by its name, in any letter case, or by its number.
func (r *reader) unit(v *yamlrules.Value) rules.Unit {
	text, _ := v.Text()
	n, isNumber := v.Int()
	for u := rules.Second; u <= rules.Week; u++ {
		if strings.EqualFold(text, u.String()) || isNumber && n == int64(u) {
			return u
		}
	}
	r.problem(v.Pos, "write second, minute, hour, day, week, month or year", "the unit %s is not known", r.as(v))
	return rules.UnitUnknown
}

// ask reads the short form of a request, "domain: key=value, key=value +
// key=value". Texts that hold its signs need the long one.
func (r *reader) ask(v *yamlrules.Value, req *limiter.Request) {
	const form = "write \"domain: key=value, key=value + key=value\", + between descriptors, in quotes because of the colon"
	text, ok := v.Text()
	domain, rest, hasDomain := strings.Cut(text, ": ")
	if !ok || !hasDomain || strings.TrimSpace(domain) == "" {
		r.problem(v.Pos, form, "ask is no domain and descriptors: %s", r.as(v))
		return
	}
	req.Domain = []byte(strings.TrimSpace(domain))
	for descriptor := range strings.SplitSeq(rest, " + ") {
		var d limiter.Descriptor
		for pair := range strings.SplitSeq(descriptor, ",") {
			key, value, ok := strings.Cut(pair, "=")
			if key = strings.TrimSpace(key); !ok || key == "" {
				r.problem(v.Pos, form, "%s in ask is no key=value", quote(strings.TrimSpace(pair)))
				continue
			}
			d.Entries = append(d.Entries, rules.Entry{Key: []byte(key), Value: []byte(strings.TrimSpace(value))})
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	r.notTooMany(v, req)
}
