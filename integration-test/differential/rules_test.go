package differential

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// rules is the rule file of a domain.
type rules struct {
	descriptors []*descriptor
	mistake     string // a line of YAML below the root that upstream or this service may refuse; "": none
}

// descriptor is one descriptor of a rule file.
type descriptor struct {
	key, value string
	hasValue   bool
	limit      *limit
	flags      []string // such as "shadow_mode: true"
	metadata   string   // YAML; "": none
	mistake    string   // a field that upstream or this service may refuse; "": none
	children   []*descriptor
}

// limit is the rate_limit of a descriptor.
type limit struct {
	unit      string
	requests  int
	unlimited bool
	name      string
	replaces  []string
	mistake   string // as in descriptor
}

// The words are few, so that requests often match, and joined texts such as a_b meet.
var (
	ruleKeys   = []string{"a", "b", "c", "a_b", "path", "ip", "k.v", "K"}
	oddKeys    = []string{"k*", "*", "a b", "a:b", "ä"}
	ruleValues = []string{"x", "y", "x_y", "b", "b_c", "1", "10.0.0.1", "v1.2", "X", "a/b", "é"}
	wildcards  = []string{"*", "*", "x*", "x*", "1*", "a/*", "10.0.*", "x_*"}
	oddStars   = []string{"*y", "x*y", "1*0*", "**"}
	oddValues  = []string{"", "a:b|c", "sp ace", "q\"uote", "=", "€", "%d", "x=y", "true", "null", "~"}
	units      = []string{"second", "minute", "hour", "day", "week", "month", "year", "MINUTE", "Hour"}
	names      = []string{"n1", "n2", "n3"}
	metadata   = []string{
		"{m: 1}", "{m: x, n: {o: 1}}", "{n: {o: 2, p: [1, two, {q: r}]}}",
		"{m: true, r: null, s: 1.5}", "{}",
	}
)

// Mistakes, and notations that look like some.
var (
	descriptorMistakes = []string{
		"unknown_key: 1", "unit: minute", "value: 1.5", "key: \"\"", "share_threshold: true", "detailed_metric: yes",
		"shadow_mode: \"true\"",
		"metadata: [1]", "descriptors: {}", "rate_limit: []", "rate_limit: {}", "descriptors: null", "rate_limit: null",
		"5: x", "value: [x]",
		"name: n1", "requests_per_unit: 5", "domain: other", "quota_mode: 1", "value: 5", "value: true", "value: null",
		"value: 2001-01-01",
		"metadata: null", "value: 0x10", "value: 1_000", "value: ~", "detailed_metric: on", "value: 010",
	}
	limitMistakes = []string{
		"unit: fortnight", "unit: unknown", "unit: \"\"", "requests_per_unit: -1", "requests_per_unit: 1.5",
		"requests_per_unit: \"5\"",
		"requests_per_unit: 281474976710657", "requests_per_unit: 4294967295", "unlimited: true", "requests_per_unit: 0x10",
		"requests_per_unit: 1_000",
		"replaces: [{name: \"\"}]", "replaces: [{name: n1}, {name: n9}]", "replaces: {name: n1}", "replaces: [n1]",
		"shadow_mode: true", "nonsense: 1",
		"unit: null", "requests_per_unit: null", "name: 5", "unlimited: no", "requests_per_unit: 010", "replaces: null",
		"key: a", "unit: 5",
		"requests_per_unit: 1e3", "name: null", "requests_per_unit: true",
	}
	rootMistakes = []string{
		"domain: \"\"", "nonsense: 1", "descriptors: {a: b}", "descriptors: [5]", "descriptors: [[]]", "unit: minute",
		"key: a", "- x", "descriptors: null", "? [a]",
	}
)

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// one reports true once in n.
func one(r *rand.Rand, n int) bool { return r.IntN(n) == 0 }

// randomRules makes the rules of a domain. Most sets have no mistake.
func randomRules(r *rand.Rand) *rules {
	all := &rules{descriptors: randomDescriptors(r, 0)}
	if one(r, 8) {
		all.addMistake(r)
	}
	return all
}

func randomDescriptors(r *rand.Rand, depth int) []*descriptor {
	var list []*descriptor
	taken := make(map[string]bool)
	for range 1 + r.IntN(4-min(depth, 2)) {
		d := randomDescriptor(r, depth)
		// Two of one joined text are a mistake, which descriptorMistakes do not cover.
		if joined := d.joined(); !taken[joined] || one(r, 30) {
			taken[joined] = true
			list = append(list, d)
		}
	}
	return list
}

func randomDescriptor(r *rand.Rand, depth int) *descriptor {
	d := &descriptor{key: pick(r, ruleKeys)}
	if one(r, 40) {
		d.key = pick(r, oddKeys)
	}
	switch n := r.IntN(20); {
	case n < 8:
		d.value, d.hasValue = pick(r, ruleValues), true
	case n < 13:
		d.value, d.hasValue = pick(r, wildcards), true
	case n < 14:
		d.value, d.hasValue = pick(r, oddValues), true
	case one(r, 40):
		d.value, d.hasValue = pick(r, oddStars), true
	}
	if depth < 3 && one(r, 2) {
		d.children = randomDescriptors(r, depth+1)
	}
	if !one(r, 4) {
		d.limit = randomLimit(r)
	}
	for _, flag := range []string{"shadow_mode", "detailed_metric", "value_to_metric"} {
		if one(r, 6) {
			d.flags = append(d.flags, fmt.Sprintf("%s: %t", flag, !one(r, 6)))
		}
	}
	if one(r, 15) {
		d.flags = append(d.flags, "quota_mode: true")
	}
	if strings.Contains(d.key+d.value, "*") && one(r, 3) {
		d.flags = append(d.flags, "share_threshold: true")
	}
	if one(r, 300) {
		d.metadata = pick(r, metadata)
	}
	return d
}

func randomLimit(r *rand.Rand) *limit {
	l := new(limit)
	if one(r, 10) {
		l.unlimited = true
	} else {
		l.unit, l.requests = pick(r, units), r.IntN(12)
		if one(r, 10) {
			l.requests = pick(r, []int{100, 1000, 1 << 31, 1<<32 - 1})
		}
	}
	if one(r, 3) {
		l.name = pick(r, names)
	}
	if one(r, 6) {
		l.replaces = append(l.replaces, pick(r, append(names, "n9")))
	}
	return l
}

// addMistake puts a mistake into one place.
func (all *rules) addMistake(r *rand.Rand) {
	var places []*descriptor
	all.walk(func(d *descriptor) { places = append(places, d) })
	d := pick(r, places)
	switch {
	case one(r, 8):
		all.mistake = pick(r, rootMistakes)
	case d.limit != nil && one(r, 2):
		d.limit.mistake = pick(r, limitMistakes)
	default:
		d.mistake = pick(r, descriptorMistakes)
	}
}

// walk calls f for each descriptor.
func (all *rules) walk(f func(*descriptor)) { walk(all.descriptors, f) }

func walk(list []*descriptor, f func(*descriptor)) {
	for _, d := range list {
		f(d)
		walk(d.children, f)
	}
}

// joined is the text by which upstream finds the descriptor.
func (d *descriptor) joined() string {
	if d.value == "" {
		return d.key
	}
	return d.key + "_" + d.value
}

// hasFlag reports whether the descriptor has a flag that is true.
func (d *descriptor) hasFlag(name string) bool {
	for _, flag := range d.flags {
		if flag == name+": true" {
			return true
		}
	}
	return false
}

// text is the rule file of this domain.
func (all *rules) text(domain string) string {
	fields := []string{"domain: " + domain}
	if len(all.descriptors) > 0 {
		fields = append(fields, "descriptors:\n"+descriptorsText(all.descriptors, ""))
	}
	return strings.Join(withMistake(fields, all.mistake), "\n") + "\n"
}

// files are the rule files of this domain: one, or two that are merged. Upstream merges files in random order, so
// patterns, whose order matters, are all in the first.
func (all *rules) files(domain string, merged bool) []string {
	if !merged {
		return []string{all.text(domain)}
	}
	first, second := &rules{mistake: all.mistake}, new(rules)
	for _, d := range all.descriptors {
		if strings.Contains(d.joined(), "*") {
			first.descriptors = append(first.descriptors, d)
		} else {
			second.descriptors = append(second.descriptors, d)
		}
	}
	return []string{first.text(domain), second.text(domain)}
}

// changed returns rules in which some limits are others, and some descriptors are left out.
func (all *rules) changed(r *rand.Rand) *rules {
	return &rules{descriptors: changed(r, all.descriptors)}
}

func changed(r *rand.Rand, list []*descriptor) []*descriptor {
	var left []*descriptor
	for _, d := range list {
		if one(r, 10) {
			continue
		}
		next := *d
		if d.limit != nil && one(r, 2) {
			next.limit = randomLimit(r)
		}
		next.children = changed(r, d.children)
		left = append(left, &next)
	}
	return left
}

// descriptorsText is a list of descriptors in YAML.
func descriptorsText(list []*descriptor, indent string) string {
	var lines []string
	for _, d := range list {
		for i, field := range d.fields(indent + "  ") {
			start := indent + "  "
			if i == 0 {
				start = indent + "- "
			}
			lines = append(lines, start+field)
		}
	}
	return strings.Join(lines, "\n")
}

// fields are the lines of a descriptor. A mistake takes the place of a field of its name.
func (d *descriptor) fields(indent string) []string {
	fields := []string{"key: " + strconv.Quote(d.key)}
	if d.hasValue {
		fields = append(fields, "value: "+strconv.Quote(d.value))
	}
	if d.limit != nil {
		fields = append(fields, "rate_limit: {"+strings.Join(d.limit.fields(), ", ")+"}")
	}
	fields = append(fields, d.flags...)
	if d.metadata != "" {
		fields = append(fields, "metadata: "+d.metadata)
	}
	if len(d.children) > 0 {
		fields = append(fields, "descriptors:\n"+descriptorsText(d.children, indent))
	}
	return withMistake(fields, d.mistake)
}

// withMistake puts a mistake in the place of the field that has its name.
func withMistake(fields []string, mistake string) []string {
	if mistake == "" {
		return fields
	}
	name, _, _ := strings.Cut(mistake, ":")
	for i, field := range fields {
		if strings.HasPrefix(field, name+":") {
			fields[i] = mistake
			return fields
		}
	}
	return append(fields, mistake)
}

func (l *limit) fields() []string {
	var fields []string
	if l.unlimited {
		fields = append(fields, "unlimited: true")
	} else {
		fields = append(fields, "unit: "+l.unit, fmt.Sprintf("requests_per_unit: %d", l.requests))
	}
	if l.name != "" {
		fields = append(fields, "name: "+l.name)
	}
	if len(l.replaces) > 0 {
		fields = append(fields, "replaces: [{name: "+strings.Join(l.replaces, "}, {name: ")+"}]")
	}
	return withMistake(fields, l.mistake)
}
