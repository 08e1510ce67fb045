package ruletest

import (
	"strings"

	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/src/rules/yamlrules"
)

// request reads a RateLimitRequest as proto3 JSON has it, keys in either form:
// hits_addend or hitsAddend.
func (r *reader) request(v *yamlrules.Value, req *limiter.Request) {
	var hits uint32
	isMap := r.message(v, "a request", keys{
		"domain": to(&req.Domain, r.bytes),
		"descriptors": func(v *yamlrules.Value, what string) {
			r.each(v, what, func(v *yamlrules.Value) { req.Descriptors = append(req.Descriptors, r.descriptor(v)) })
		},
		"hits_addend": to(&hits, r.uint32),
	})
	req.Hits = uint64(hits)
	switch {
	case !isMap:
	case len(req.Domain) == 0:
		r.Add(v.Pos, "add `domain:`", "the request has no domain")
	case len(req.Descriptors) == 0:
		r.Add(v.Pos, "add `descriptors:`", "the request has no descriptors")
	}
	r.notTooMany(v, req)
}

func (r *reader) notTooMany(v *yamlrules.Value, req *limiter.Request) {
	if n := len(req.Descriptors); n > limiter.MaxDescriptors {
		r.Add(v.Pos, "use fewer", "a request of %d descriptors is refused; %d is the most", n, limiter.MaxDescriptors)
	}
}

// message reads a protobuf message: fields that are null are not there.
func (r *reader) message(v *yamlrules.Value, what string, known keys) bool {
	either := make(keys, 2*len(known))
	for name, read := range known {
		set := func(v *yamlrules.Value, _ string) {
			if !v.Null() {
				read(v, name)
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

func (r *reader) descriptor(v *yamlrules.Value) (d limiter.Descriptor) {
	r.message(v, "a descriptor", keys{
		"entries": func(v *yamlrules.Value, what string) {
			r.each(v, what, func(v *yamlrules.Value) {
				var e rules.Entry
				r.message(v, "an entry", keys{"key": to(&e.Key, r.bytes), "value": to(&e.Value, r.bytes)})
				d.Entries = append(d.Entries, e)
			})
		},
		"hits_addend":      func(v *yamlrules.Value, what string) { d.HasHits, d.Hits = true, r.uint64(v, what) },
		"is_negative_hits": to(&d.Refund, r.flag),
		"limit":            func(v *yamlrules.Value, _ string) { d.HasLimit, d.Limit = true, r.limit(v) },
	})
	return d
}

func (r *reader) limit(v *yamlrules.Value) rules.Quantity {
	found, q := len(r.Problems), rules.Quantity{Multiplier: 1}
	r.message(v, "a limit", keys{
		"requests_per_unit": to(&q.Requests, r.uint32),
		"unit_multiplier":   to(&q.Multiplier, r.uint32),
		"unit":              to(&q.Unit, r.unit),
	})
	if _, err := q.Window(); err != nil && len(r.Problems) == found {
		r.Add(v.Pos, "fix it", "the limit is invalid: %v", err)
	}
	return q
}

// unit reads the enum by its name, in any letter case, or by its number.
func (r *reader) unit(v *yamlrules.Value, _ string) rules.Unit {
	text, _ := v.Text()
	n, isNumber := v.Int()
	for u := rules.Second; u <= rules.Week; u++ {
		if strings.EqualFold(text, u.String()) || isNumber && n == int64(u) {
			return u
		}
	}
	r.Add(v.Pos, "write second, minute, hour, day, week, month or year", "the unit %s is not known", shown(v))
	return rules.UnitUnknown
}

// ask reads the short form of a request, "domain: key=value, key=value +
// key=value". Texts that hold its signs need the long one.
func (r *reader) ask(v *yamlrules.Value, req *limiter.Request) {
	const form = "write \"domain: key=value, key=value + key=value\", + between descriptors, in quotes because of the colon"
	text, ok := v.Text()
	domain, rest, hasDomain := strings.Cut(text, ": ")
	if !ok || !hasDomain || strings.TrimSpace(domain) == "" {
		r.Add(v.Pos, form, "ask is no domain and descriptors: %s", shown(v))
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
	r.notTooMany(v, req)
}
