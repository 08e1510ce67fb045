package ruletest

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/yamlrules"
)

// reader turns YAML into a File and collects problems. Its methods read one value; name is for messages.
type reader struct {
	file *File
	rules.Problems
}

// valueReader reads the value of a key and stores it.
type valueReader = func(v *yamlrules.Value, name string)

// storeIn returns a valueReader that stores the result of read in target.
func storeIn[T any](target *T, read func(*yamlrules.Value, string) T) valueReader {
	return func(v *yamlrules.Value, name string) { *target = read(v, name) }
}

// readLater returns v itself, for a value that is read after the other keys of its map.
func readLater(v *yamlrules.Value, _ string) *yamlrules.Value { return v }

// fields reads a map with the keys of known. If v is not a map, it reports a problem and returns false.
func (r *reader) fields(v *yamlrules.Value, name string, known map[string]valueReader) bool {
	isMap := v.Kind == compile.KindMap
	if !isMap {
		r.Add(v.Pos, "write keys and values below it", "%s is %v, not a map", name, v.Kind)
	}
	for i := range v.Fields {
		f := &v.Fields[i]
		key := f.Name
		if known[key] == nil {
			fix := "known in " + name + ": " + strings.Join(slices.Sorted(maps.Keys(known)), ", ")
			if key = rules.NearestWord(f.Name, maps.Keys(known)); key != "" {
				fix = "did you mean `" + key + "`?"
			}
			r.Add(f.Pos, fix, "unknown key %s", rules.Quote(f.Name))
		}
		if read := known[key]; read != nil { // A misspelt key is read too, or else it would also be reported as missing.
			read(&f.Value, key)
		}
	}
	return isMap
}

// each calls read with each item of a list.
func (r *reader) each(v *yamlrules.Value, name string, read func(*yamlrules.Value)) {
	if v.Kind != compile.KindList && !v.IsNull() {
		r.Add(v.Pos, "write `- ...` for each", "%s is %v, not a list", name, v.Kind)
	}
	for i := range v.Items {
		read(&v.Items[i])
	}
}

// requiredList calls read with each item of list, the value of name in parent. problem is told of an empty list.
func (r *reader) requiredList(parent, list *yamlrules.Value, name, problem string, read func(*yamlrules.Value)) {
	if list == nil {
		r.Add(parent.Pos, "add `"+name+":` and a list", "%s", problem)
		return
	}
	r.each(list, name, read)
	if list.IsNull() || list.Kind == compile.KindList && len(list.Items) == 0 {
		r.Add(list.Pos, "add one", "%s", problem)
	}
}

func (r *reader) text(v *yamlrules.Value, name string) string {
	if !v.IsScalar() {
		r.Add(v.Pos, "write text", "%s is %v, not text", name, v.Kind)
	}
	return v.Text
}

// optionalText reads text. A null value is an empty text.
func (r *reader) optionalText(v *yamlrules.Value, name string) string {
	if v.IsNull() {
		return ""
	}
	return r.text(v, name)
}

func (r *reader) bytes(v *yamlrules.Value, name string) []byte { return []byte(r.text(v, name)) }

func (r *reader) flag(v *yamlrules.Value, name string) bool {
	if v.Kind != compile.KindBool {
		r.Add(v.Pos, "write true or false", "%s is %v, not true or false", name, v.Kind)
	}
	return v.Bool
}

// invalid reports a scalar that its reader cannot parse.
func (r *reader) invalid(v *yamlrules.Value, name, fix string) {
	r.Add(v.Pos, fix, "%s is invalid: %s", name, quoteValue(v))
}

// number reads a whole number up to most. As in proto3 JSON, the number may be in quotes.
func (r *reader) number(v *yamlrules.Value, name string, most uint64) uint64 {
	n, err := strconv.ParseUint(v.Text, 10, 64)
	if v.Kind == compile.KindInt && v.Int >= 0 {
		n, err = uint64(v.Int), nil
	}
	if err != nil || n > most {
		r.invalid(v, name, fmt.Sprintf("write a whole number from 0 to %d", most))
	}
	return n
}

func (r *reader) uint64(v *yamlrules.Value, name string) uint64 {
	return r.number(v, name, math.MaxUint64)
}

func (r *reader) uint32(v *yamlrules.Value, name string) uint32 {
	return uint32(r.number(v, name, math.MaxUint32))
}

// numberText reads a whole number and returns it as text.
func (r *reader) numberText(v *yamlrules.Value, name string) string {
	return fmt.Sprint(r.uint64(v, name))
}

const durationFix = "write a duration like 1m30s, 500ms or 0s"

// duration reads a duration such as 1m30s. It reports another value as invalid, with the fix.
func (r *reader) duration(v *yamlrules.Value, name, fix string) time.Duration {
	d, err := time.ParseDuration(v.Text)
	if err != nil || d < 0 {
		r.invalid(v, name, fix)
		return 0
	}
	return d
}

// resetTime reads a duration and returns it as text.
func (r *reader) resetTime(v *yamlrules.Value, name string) string {
	return r.duration(v, name, durationFix).String()
}

// wait reads a duration, or "never", and returns it as waitText writes it.
func (r *reader) wait(v *yamlrules.Value, name string) string {
	if v.Text == waitText(algorithm.Never) {
		return v.Text
	}
	return r.duration(v, name, durationFix+", or never").String()
}

// instant reads a time from 1970 to 2148, the years that stores support.
func (r *reader) instant(v *yamlrules.Value, name string) time.Time {
	at, err := time.Parse(time.RFC3339, v.Text)
	if err != nil || at.Before(time.Unix(0, 0)) || at.After(latestTime) {
		r.invalid(v, name, "write an instant like 2026-01-01T00:00:00Z, from 1970 to 2148")
		return defaultStart
	}
	return at
}

func (r *reader) code(v *yamlrules.Value, name string) string {
	if v.Text != limiter.CodeName(false) && v.Text != limiter.CodeName(true) {
		r.Add(v.Pos, "write OK or OVER_LIMIT", "%s is %s", name, quoteValue(v))
	}
	return v.Text
}

// quoteValue returns a value for a message: a scalar in quotes, or the type of another value.
func quoteValue(v *yamlrules.Value) string {
	if v.IsScalar() {
		return rules.Quote(v.Text)
	}
	return v.Kind.String()
}

// request reads a RateLimitRequest in the form of proto3 JSON, with keys as hits_addend or as hitsAddend.
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

// message reads a protobuf message: keys in snake case or camel case, of which those that are null are ignored.
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
		"requests_per_unit": func(v *yamlrules.Value, name string) { q.Requests = uint64(r.uint32(v, name)) },
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
