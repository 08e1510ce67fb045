// Package asrules writes limits that were changed at run time as rules.
package asrules

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"unicode/utf8"

	"ratelimit/src/overrides"
	"ratelimit/src/rules"
	"ratelimit/src/rules/match"
)

// Write writes rules which do for d without its overrides, list, what d does with them: descriptors that belong in
// front of those of the rule file, or all rules of an ordered list. Each descriptor that replaces one of the file has a
// comment with its place. What cannot be written is a comment that says why. The error is ErrTooLarge or that of w.
func Write(w io.Writer, d *rules.Domain, list []overrides.Override) error {
	x := &exporter{domain: d}
	if adjusted, isAdjusted := d.Matcher.(*rules.AdjustedMatcher); isAdjusted {
		x.adjuster = adjusted.Adjuster
	}
	var wanted []wantedPattern
	for i := range list {
		pattern, err := overrides.ParsePattern(list[i].Subject)
		if err != nil {
			x.cannot(&list[i], err.Error())
			continue
		}
		wanted = append(wanted, wantedPattern{pattern, &list[i]})
	}
	switch m := d.BaseMatcher().(type) {
	case *match.Tree:
		x.line(0, "# Limits that were changed at run time. Put these descriptors in front of those of the rule file.")
		x.line(0, "# One with the comment `replaces` stands for the descriptor at that place: remove that one.")
		x.writeTree(m, wanted)
	case *match.List:
		x.line(0, "# The rules of the domain with the limits that were changed at run time. Put them in place of those of the")
		x.line(0, "# rule file.")
		x.writeList(m, wanted)
	default:
		for _, w := range wanted {
			x.cannot(w.Override, "a tree of limits has no limits of single subjects")
		}
		x.line(0, "domain: %s", quote(d.Name))
		x.line(0, "descriptors: []")
	}
	if x.text.Len() >= maxBytes {
		return ErrTooLarge
	}
	_, err := io.WriteString(w, x.text.String())
	return err
}

// maxBytes bounds the text.
const maxBytes = 8 << 20

// ErrTooLarge says that the text would have maxBytes or more.
var ErrTooLarge = fmt.Errorf("as rules the changed limits have %d bytes or more: unset some, or use patterns", maxBytes)

// branch has the overrides whose patterns begin with the same entries.
type branch struct {
	entry    rules.Entry
	isPrefix bool
	notes    []string // of the overrides whose patterns end here
	first    *overrides.Override
	below    []*branch
	index    map[string]*branch // of below, by the text of their patterns
}

// add adds an override.
func (b *branch) add(p *overrides.Pattern, o *overrides.Override) {
	for i, e := range p.Entries {
		isPrefix := p.IsPrefix(i)
		one := overrides.Pattern{Entries: p.Entries[i : i+1]}
		if isPrefix {
			one.End = overrides.PrefixEnd
		}
		text := one.String()
		next := b.index[text]
		if next == nil {
			next = &branch{entry: e, isPrefix: isPrefix, first: o, index: make(map[string]*branch)}
			b.below, b.index[text] = append(b.below, next), next
		}
		b = next
	}
	b.notes = append(b.notes, noteOf(o))
}

// noteOf describes an override for a comment above its rule.
func noteOf(o *overrides.Override) string {
	return strings.TrimSpace(o.Subject+" "+strings.TrimPrefix(o.Rule, o.Domain+".")) + ": " + o.Note()
}

// child is a descriptor below a node of the tree.
type child struct {
	node    *match.Node // what it is, or a copy of
	level   []string    // the lines that say what it matches: key: "user", and value: "eve"
	branch  *branch     // the overrides of its subjects; nil for none
	sample  []rules.Entry
	isNew   bool // no descriptor of the file matches the same
	isFirst bool // its order among others matters
}

// unknown stands for any value that no override names.
const unknown = "\x00"

type exporter struct {
	domain   *rules.Domain
	adjuster rules.Adjuster // nil if nothing is changed
	text     strings.Builder
}

// writeTree writes the descriptors of t that have changed limits.
func (x *exporter) writeTree(t *match.Tree, list []wantedPattern) {
	wanted := branch{index: make(map[string]*branch)}
	for _, w := range list {
		wanted.add(&w.Pattern, w.Override)
	}
	children := x.childrenOf(&t.Root, &wanted, nil)
	for _, note := range wanted.notes { // The pattern * is for all descriptors.
		x.line(0, "# %s", note)
	}
	x.line(0, "domain: %s", quote(x.domain.Name))
	x.writeChanged(children)
}

// line writes a line, unless the text is too large.
func (x *exporter) line(indent int, format string, args ...any) {
	if x.text.Len() >= maxBytes {
		return
	}
	x.text.WriteString(strings.Repeat("  ", indent))
	x.text.WriteString(breaks.Replace(fmt.Sprintf(format, args...)))
	x.text.WriteByte('\n')
}

// breaks replaces the line breaks of YAML that a reason in a comment may have.
var breaks = strings.NewReplacer("\u0085", " ", "\u2028", " ", "\u2029", " ")

// cannot writes a comment that an override is not written.
func (x *exporter) cannot(o *overrides.Override, why string) {
	x.line(0, "# not written: %s, %s: %s", o.Subject, o.Note(), why)
}

func quote(text string) string { return jsonOf(text) }

// jsonOf returns a value from a rule file as JSON, which YAML contains.
func jsonOf(value any) string {
	text, err := json.Marshal(value)
	if err != nil { // Rule files have no values that cannot be encoded.
		return "null"
	}
	return unprintable.Replace(string(text))
}

// unprintable escapes characters that JSON may have in a text and YAML may not.
var unprintable = strings.NewReplacer("\u0085", `\u0085`, "\x7f", `\u007f`, "\ufeff", `\ufeff`)

// limitText returns a limit on one line: {unit: "minute", requests_per_unit: 10}.
func limitText(r *rules.Rule) string {
	return "{" + strings.Join(settingTexts(r.LimitSettings()), ", ") + "}"
}

func settingTexts(settings iter.Seq2[string, any]) (texts []string) {
	for name, value := range settings {
		texts = append(texts, name+": "+jsonOf(value))
	}
	return texts
}

// childrenOf returns the descriptors below n, with those that overrides need in addition, in the order of the file.
// above are entries that lead to n.
func (x *exporter) childrenOf(n *match.Node, b *branch, above []rules.Entry) []child {
	at := make(map[*match.Node]int)
	var list []child
	add := func(c *match.Node) {
		l := c.Level()
		value := unknown
		if l.HasOneValue() {
			value = l.Value()
		}
		at[c] = len(list)
		list = append(list, child{
			node: c, level: settingTexts(l.Settings()), sample: with(above, l.Key(), value),
			isFirst: !l.HasOneValue() && (l.Kind != rules.LevelValue || l.HasWildcard),
		})
	}
	for c := range n.ChildNodes() {
		add(c)
	}
	if b == nil {
		return list
	}
	// Of several prefixes the first that matches counts, so the longest is the first.
	below := slices.SortedStableFunc(slices.Values(b.below), func(a, b *branch) int {
		return cmp.Compare(len(b.entry.Value), len(a.entry.Value))
	})
	var prefixes []child
	for _, want := range below {
		if !utf8.Valid(want.entry.Key) || !utf8.Valid(want.entry.Value) {
			x.cannot(want.first, "it is not UTF-8")
			continue
		}
		if want.isPrefix {
			if c, ok := x.prefixChild(n, want, above); ok {
				prefixes = append(prefixes, c)
			}
			continue
		}
		var scratch rules.SearchScratch
		scratch.Begin(context.Background())
		g := n.MatchingChild(&want.entry, &scratch)
		if g == nil {
			continue // No limit counts the subject.
		}
		l := g.Level()
		switch isSame := l.HasOneValue() || l.HasWildcard && l.Value() == string(want.entry.Value); {
		case isSame:
			list[at[g]].branch = want
		case l.ShareThreshold || l.CountsNetworks():
			x.cannot(want.first, "its values share a counter in "+g.Descriptor.Pos.String())
		case strings.Contains(string(want.entry.Key), "*"):
			x.cannot(want.first, "its key has a *")
		default:
			name := "value"
			if v := string(want.entry.Value); v == "" || strings.Contains(v, "*") {
				name = "exact"
			}
			list = append(list, child{
				node: g, level: []string{"key: " + quote(string(want.entry.Key)), name + ": " + quote(string(want.entry.Value))},
				branch: want, sample: with(above, string(want.entry.Key), string(want.entry.Value)), isNew: true,
			})
		}
	}
	return append(prefixes, list...)
}

// prefixChild returns the descriptor of all values that begin like those of want.
func (x *exporter) prefixChild(n *match.Node, want *branch, above []rules.Entry) (c child, ok bool) {
	key, prefix := string(want.entry.Key), string(want.entry.Value)
	if n.HasMatchers(key) {
		x.cannot(want.first, "descriptors of this key match by patterns, networks or files, which may match the same values")
		return c, false
	}
	if strings.Contains(prefix, "*") || strings.Contains(key, "*") {
		x.cannot(want.first, "it has a * in its text")
		return c, false
	}
	var scratch rules.SearchScratch
	scratch.Begin(context.Background())
	g := n.MatchingChild(&rules.Entry{Key: want.entry.Key, Value: []byte(prefix + unknown)}, &scratch)
	if g == nil {
		return c, false
	}
	if g.Level().ShareThreshold || g.Level().CountsNetworks() {
		x.cannot(want.first, "its values share counters in "+g.Descriptor.Pos.String())
		return c, false
	}
	return child{
		node: g, level: []string{"key: " + quote(key), "value: " + quote(prefix+"*")}, branch: want,
		sample: with(above, key, prefix+unknown), isNew: true, isFirst: true,
	}, true
}

func with(above []rules.Entry, key, value string) []rules.Entry {
	return append(slices.Clone(above), rules.Entry{Key: []byte(key), Value: []byte(value)})
}

// writeChanged writes the descriptors at the top that have changed limits. If the order of one matters, it writes all
// whose order matters.
func (x *exporter) writeChanged(children []child) {
	changed := make([]bool, len(children))
	isOrdered := false
	for i := range children {
		changed[i] = x.isChanged(&children[i])
		isOrdered = isOrdered || changed[i] && children[i].isFirst
	}
	if !slices.Contains(changed, true) {
		x.line(0, "descriptors: []")
		return
	}
	x.line(0, "descriptors:")
	for i := range children {
		if changed[i] || isOrdered && children[i].isFirst && !children[i].isNew {
			x.write(&children[i], 1, nil)
		}
	}
}

// isChanged reports whether c, or a descriptor below it, may have a changed limit.
func (x *exporter) isChanged(c *child) bool {
	if c.branch != nil || slices.ContainsFunc(x.limits(c), func(r *rules.Rule) bool { return r.Overridden }) {
		return true
	}
	for _, below := range x.childrenOf(c.node, nil, c.sample) {
		if x.isChanged(&below) {
			return true
		}
	}
	return false
}

// limits returns the limits of the descriptor itself, with the changes.
func (x *exporter) limits(c *child) []*rules.Rule {
	if c.node.Match == nil {
		return nil
	}
	return x.limitsOf(c.node.Match, c.sample)
}

// limitsOf returns the limits that the descriptor of m has itself, with the changes for the subject of a request.
func (x *exporter) limitsOf(m *rules.Match, request []rules.Entry) []*rules.Rule {
	own := func(m *rules.Match) (list []*rules.Rule) {
		for _, r := range m.Limits {
			if r.Descriptor == m.Descriptor {
				list = append(list, r)
			}
		}
		return list
	}
	if x.adjuster == nil {
		return own(m)
	}
	var scratch rules.SearchScratch
	scratch.Begin(context.Background())
	changed := own(x.adjuster.Adjust(m, request, &scratch))
	for i, r := range changed {
		for _, other := range changed[:i] {
			if r.Limit.Kind == other.Limit.Kind && r.Limit.Window() == other.Limit.Window() {
				x.line(0, "# not written: a change of %s, two of whose limits would have the same window", r.Descriptor.FullName)
				return own(m)
			}
		}
	}
	return changed
}

// write writes a descriptor and those below it. parent is the descriptor above; nil at the top.
func (x *exporter) write(c *child, indent int, parent *rules.Descriptor) {
	d, limits := c.node.Descriptor, x.limits(c)
	if c.branch != nil {
		for _, note := range c.branch.notes {
			x.line(indent, "# %s", note)
		}
	}
	if parent == nil && !c.isNew {
		x.line(indent, "# replaces %s", d.Pos)
	}
	x.line(indent, "- %s", c.level[0])
	indent++
	for _, line := range c.level[1:] {
		x.line(indent, "%s", line)
	}
	x.writeLimits(indent, limits)
	if parent == nil || d.HasChargePath != parent.HasChargePath { // The file may have another default.
		x.line(indent, "charge: %s", map[bool]string{true: "path", false: "leaf"}[d.HasChargePath])
	}
	x.writeSettings(indent, d, d.ShadowMode, parent)
	if children := x.childrenOf(c.node, c.branch, c.sample); len(children) > 0 {
		x.line(indent, "descriptors:")
		for i := range children {
			x.write(&children[i], indent+1, d)
		}
	}
}

// writeLimits writes the limits of a descriptor or a rule.
func (x *exporter) writeLimits(indent int, limits []*rules.Rule) {
	switch len(limits) {
	case 0:
	case 1:
		x.line(indent, "rate_limit: %s", limitText(limits[0]))
	default:
		x.line(indent, "rate_limits:")
		for _, r := range limits {
			x.line(indent+1, "- %s", limitText(r))
		}
	}
}

// writeSettings writes the settings beside the limits that descriptors and rules of lists have, but for those that d
// inherits from parent; nil for none.
func (x *exporter) writeSettings(indent int, d *rules.Descriptor, inShadowMode bool, parent *rules.Descriptor) {
	if parent == nil || d.ChargesAllOrNone != parent.ChargesAllOrNone { // The file may have another default.
		x.line(indent, "on_reject: %s", map[bool]string{true: "none", false: "each"}[d.ChargesAllOrNone])
	}
	for _, flag := range []struct {
		name string
		set  bool
	}{{"shadow_mode", inShadowMode}, {"quota_mode", d.QuotaMode}, {"detailed_metric", d.DetailedMetric}} {
		if flag.set {
			x.line(indent, "%s: true", flag.name)
		}
	}
	if d.AnswerMetadata != nil {
		x.line(indent, "metadata: %s", jsonOf(d.AnswerMetadata))
	}
}
