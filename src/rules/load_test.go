package rules

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// TestLoad plays the cases of testdata/*.txt. A case is
//
//	== title
//	-- a.yaml --
//	a rule file; there may be more than one
//	-- want --
//	all problems, or else the rules and the warnings
//
// A title that ends in "(merged)" loads with MergeDomains, one that ends in
// "(all documents)" with AllDocuments, in "(all or nothing)" with AllOrNothing, one that ends in "(small store)" for a
// store that cannot do much.
func TestLoad(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatal("no cases", err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, text, _ := strings.Cut("\n"+string(data), "\n== ") // a remark may stand before the first case
		for one := range strings.SplitSeq(text, "\n== ") {
			title, body, _ := strings.Cut(one, "\n")
			t.Run(filepath.Base(path)+"/"+title, func(t *testing.T) {
				var files []File
				want := ""
				_, body, _ = strings.Cut("\n"+body, "\n-- ")
				for section := range strings.SplitSeq(body, "\n-- ") {
					name, content, ok := strings.Cut(section+"\n", " --\n")
					switch content = strings.TrimRight(content, "\n") + "\n"; {
					case !ok:
						t.Fatalf("cannot read section %q", section)
					case name == "want":
						want = content
					default:
						files = append(files, File{name, []byte(content)})
					}
				}
				opt := Options{
					MergeDomains: strings.HasSuffix(title, "(merged)"),
					AllOrNothing: strings.HasSuffix(title, "(all or nothing)"),
					AllDocuments: strings.HasSuffix(title, "(all documents)"),
				}
				if strings.HasSuffix(title, "(small store)") {
					opt.Store = smallStore
				}
				if got := outcome(files, opt); got != want {
					t.Errorf("got:\n%swant:\n%s", got, want)
				}
			})
		}
	}
}

var smallStore = Store{
	Name: "Abacus", Kinds: []algorithm.Kind{algorithm.FixedWindow, algorithm.SlidingWindowCounter},
	CountsBlocked: true, NoGroups: true, Others: []string{"memory", "redis"},
}

// outcome is all that comes of loading files, as text.
func outcome(files []File, opt Options) string {
	set, warnings, err := Load(files, opt)
	if err != nil {
		return err.Error() + "\n"
	}
	var b strings.Builder
	for i, r := range set.Rules() {
		if r.Index != i {
			fmt.Fprintf(&b, "INDEX %d AT %d: ", r.Index, i)
		}
		fmt.Fprintln(&b, describe(r))
	}
	for _, line := range charges(set) {
		fmt.Fprintln(&b, line)
	}
	for _, w := range warnings {
		fmt.Fprintln(&b, "warning:", w)
	}
	if b.Len() == 0 {
		return "no rules\n"
	}
	return b.String()
}

// charges describes the descriptors that are charged to more, or to others,
// than a rule of their own.
func charges(set *Set) (lines []string) {
	var found []*Rule
	var walk func(n *node)
	walk = func(n *node) {
		if n.rule != nil && n.rule.Charges != nil {
			found = append(found, n.rule)
		}
		if n.children == nil {
			return
		}
		for _, k := range n.children.keys.all() {
			for child := range k.nodes() {
				walk(child)
			}
		}
	}
	var words func(n *wordNode)
	words = func(n *wordNode) {
		if n.rule != nil && n.rule.Charges != nil {
			found = append(found, n.rule)
		}
		for _, child := range n.children.all() {
			words(child)
		}
		if n.other != nil {
			words(n.other)
		}
	}
	for _, d := range set.domains {
		walk(&d.root)
		if d.words != nil {
			words(d.words)
		}
		if d.list != nil {
			for _, r := range d.list.rules {
				if r.rule.Charges != nil {
					found = append(found, r.rule)
				}
			}
		}
	}
	slices.SortFunc(found, func(a, b *Rule) int {
		return cmp.Or(strings.Compare(a.Pos.File, b.Pos.File), a.Pos.Line-b.Pos.Line, a.Pos.Col-b.Pos.Col, strings.Compare(a.Key, b.Key))
	})
	for _, r := range found {
		s := fmt.Sprintf("charged at %v:", r.Pos)
		for _, one := range r.Charges {
			s += " " + one.Key
		}
		if r.AllOrNone {
			s += ", all or none"
		}
		if r.Index < 0 && r.Quota {
			s += ", quota"
		}
		if r.Index < 0 && r.Metadata != nil {
			s += fmt.Sprintf(", metadata %v", r.Metadata)
		}
		lines = append(lines, s)
	}
	return lines
}

// describe is all that a test may want to know of a rule.
func describe(r *Rule) string {
	s := fmt.Sprintf("%v %s: ", r.Pos, r.Key)
	switch {
	case r.Unlimited:
		s += "unlimited"
	case r.Multiplier != 1:
		s += fmt.Sprintf("%d per %d %v", r.Requests, r.Multiplier, r.Unit)
	default:
		s += fmt.Sprintf("%d per %v", r.Requests, r.Unit)
	}
	if l := r.Limit; r.byPeriod || l.Kind != algorithm.FixedWindow {
		s += fmt.Sprintf(", %v of %d in %v", l.Kind, l.Max, l.Period)
	}
	if r.Limit.Burst > 0 {
		s += fmt.Sprintf(", burst %d", r.Limit.Burst)
	}
	if r.Limit.MinInterval > 0 {
		s += fmt.Sprintf(", %v apart", r.Limit.MinInterval)
	}
	if r.Limit.CountBlocked != (r.Limit.Kind == algorithm.FixedWindow && !r.Unlimited) {
		s += fmt.Sprintf(", count_blocked %t", r.Limit.CountBlocked)
	}
	if r.Fallback != backend.FallbackError {
		s += fmt.Sprintf(", on_store_failure %v", r.Fallback)
	}
	if r.Name != "" {
		s += fmt.Sprintf(", name %q", r.Name)
	}
	if r.Shadow {
		s += ", shadow"
	}
	if r.Quota {
		s += ", quota"
	}
	if r.Detailed {
		s += ", detailed"
	}
	if l := r.Listed; l != nil {
		s += fmt.Sprintf(", match {%s}", r.Operation())
		if l.Per != nil {
			s += fmt.Sprintf(" per %s", strings.Join(l.Per, "+"))
		}
		if l.Canary {
			s += ", canary"
		}
	}
	if r.words != nil {
		s += ", named " + strings.Join(r.Names(), " ")
	}
	for _, l := range r.Path {
		if l.ValueToMetric {
			s += fmt.Sprintf(", value of %s", l.Key())
		}
		if l.ShareThreshold {
			s += fmt.Sprintf(", %s shared", l.Key())
		}
	}
	if r.replaces != nil {
		s += fmt.Sprintf(", replaces %d", len(r.replaces.numbers))
	}
	if r.Joint {
		s += ", joint"
	}
	if r.AllOrNone && r.Charges == nil {
		s += ", all or none"
	}
	if r.Metadata != nil {
		text, err := json.Marshal(r.Metadata)
		s += fmt.Sprintf(", metadata %s %v", text, err)
	}
	return s
}

// Every key of the rule files stands in the table of docs/rule-keys.md.
func TestDocumentHasEveryKey(t *testing.T) {
	text, err := os.ReadFile("../../docs/rule-keys.md")
	if err != nil {
		t.Fatal(err)
	}
	for key, places := range keys {
		row := "| `" + key + "` | "
		for _, place := range []where{atRoot, atDescriptor, atRule, atLimit, atReplaces} {
			if places&place != 0 {
				row += whereNames[place] + ", "
			}
		}
		if row = strings.TrimSuffix(row, ", ") + " |"; !strings.Contains(string(text), row) {
			t.Errorf("docs/rule-keys.md has no row that begins %q", row)
		}
	}
}

// So do those of trees of limits.
func TestDocumentHasEveryKeyOfTrees(t *testing.T) {
	text, err := os.ReadFile("../../docs/rule-keys.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range treeKeys {
		if row := "| `" + k.name + "` | " + k.place + " |"; !strings.Contains(string(text), row) {
			t.Errorf("docs/rule-keys.md has no row that begins %q", row)
		}
	}
}
