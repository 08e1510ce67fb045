package rules_test

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/datafile"
	"ratelimit/src/rules/divvyrules"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/match"
	"ratelimit/testbed/testfiles"
)

// TestLoad plays the cases of testdata/*.txt. A case is
//
//	== title
//	-- a.yaml --
//	a rule file; there may be more than one
//	-- want --
//	all problems, or else the rules and the warnings
//
// Sections named *.txt or *.csv are data files. A title that ends in "(merged)" loads with MergeDomains, one that ends
// in "(all or nothing)" with ChargesAllOrNothing, one that ends in "(small store)" for a store that cannot do much, one
// that ends in "(leased)" with leases for all limits and with divvy's keys.
func TestLoad(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatal("no cases", err)
	}
	for _, path := range paths {
		data := testfiles.Read(t, path)
		_, text, _ := strings.Cut("\n"+string(data), "\n== ") // a remark may stand before the first case
		for one := range strings.SplitSeq(text, "\n== ") {
			title, body, _ := strings.Cut(one, "\n")
			t.Run(filepath.Base(path)+"/"+title, func(t *testing.T) {
				var files []filerules.File
				data, want := make(map[string]string), ""
				_, body, _ = strings.Cut("\n"+body, "\n-- ")
				for section := range strings.SplitSeq(body, "\n-- ") {
					name, content, ok := strings.Cut(section+"\n", " --\n")
					switch content = strings.TrimRight(content, "\n") + "\n"; {
					case !ok:
						t.Fatalf("cannot read section %q", section)
					case name == "want":
						want = content
					case strings.HasSuffix(name, ".txt"), strings.HasSuffix(name, ".csv"):
						data[name] = content
					default:
						files = append(files, filerules.File{Name: name, Data: []byte(content)})
					}
				}
				opt := compile.Options{
					MergeDomains:        strings.HasSuffix(title, "(merged)"),
					ChargesAllOrNothing: strings.HasSuffix(title, "(all or nothing)"),
				}
				if strings.HasSuffix(title, "(small store)") {
					opt.Store = smallStore
				}
				if strings.HasSuffix(title, "(leased)") {
					opt.Counting, opt.OnContention, opt.PeerKey = backend.Leased, backend.Refuse, divvyrules.PeerKey
				}
				if got := outcome(withData(files, data), opt); got != want {
					t.Errorf("got:\n%swant:\n%s", got, want)
				}
			})
		}
	}
}

// withData gives rule files the data files that they refer to, as far as texts has them.
func withData(files []filerules.File, texts map[string]string) []filerules.File {
	for i := range files {
		f := &files[i]
		dataFiles := make(datafile.Files)
		f.Attached = dataFiles
		for _, r := range filerules.DataFiles(*f) {
			data := &datafile.File{
				Path:     r.Name,
				Problems: []datafile.Problem{{Message: "does not exist", Fix: "create the file, or fix the path"}},
			}
			if text, has := texts[r.Name]; has {
				data.Sum = sha256.Sum256([]byte(text))
				data.Table, data.Problems = datafile.Parse(r.Name, []byte(text), r.Kind, new(datafile.Pacer))
			}
			dataFiles[r] = data
		}
	}
	return files
}

var smallStore = compile.StoreSupport{
	StoreName: "Abacus", Algorithms: []algorithm.Kind{algorithm.FixedWindow, algorithm.SlidingWindowCounter},
	AlwaysCountsBlocked: true, CannotChargeAllOrNone: true, WhyNoHolds: "it has one wire for each number",
	AlternativeStores: []string{"memory", "redis"},
}

// outcome is all that comes of loading files, as text.
func outcome(files []filerules.File, opt compile.Options) string {
	set, warnings, err := filerules.Load(files, opt)
	if err != nil {
		return err.Error() + "\n"
	}
	chargedTogether := make(map[*rules.Rule]bool) // The lines of charges tell whether they are charged all or none.
	for _, m := range chargedMatches(set) {
		chargedTogether[m.OwnLimit()] = true
	}
	var b strings.Builder
	for i, r := range set.Rules() {
		if r.Index != i {
			fmt.Fprintf(&b, "INDEX %d AT %d: ", r.Index, i)
		}
		line := describe(r)
		if chargedTogether[r] {
			line = strings.Replace(line, ", all or none", "", 1)
		}
		fmt.Fprintln(&b, line)
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
func charges(set *rules.Set) (lines []string) {
	found := chargedMatches(set)
	for _, r := range found {
		s := fmt.Sprintf("charged at %v:", r.Pos)
		for _, one := range r.Limits {
			s += " " + one.FullName
		}
		if r.ChargesAllOrNone {
			s += ", all or none"
		}
		if r.OwnLimit() == nil && r.QuotaMode {
			s += ", quota"
		}
		if r.OwnLimit() == nil && r.AnswerMetadata != nil {
			s += fmt.Sprintf(", metadata %v", r.AnswerMetadata)
		}
		lines = append(lines, s)
	}
	return lines
}

// describe is all that a test may want to know of a rule.
func describe(r *rules.Rule) string {
	s := fmt.Sprintf("%v %s: ", r.Pos, r.FullName)
	switch {
	case r.Unlimited:
		s += "unlimited"
	case r.UnitMultiplier != 1:
		s += fmt.Sprintf("%d per %d %v", r.Requests, r.UnitMultiplier, r.Unit)
	default:
		s += fmt.Sprintf("%d per %v", r.Requests, r.Unit)
	}
	if r.Limit.Calendar != nil {
		s += fmt.Sprintf(", calendar %v", r.Limit.Calendar)
	}
	if l := r.Limit; r.HasPeriod || l.Kind != algorithm.FixedWindow {
		s += fmt.Sprintf(", %v of %d in %v", l.Kind, l.Max, l.Period)
	}
	if r.Limit.Burst > 0 {
		s += fmt.Sprintf(", burst %d", r.Limit.Burst)
	}
	if r.Limit.MinInterval > 0 {
		s += fmt.Sprintf(", %v apart", r.Limit.MinInterval)
	}
	if l := &r.Limit; l.Hold > 0 || r.HoldIDKey != "" {
		s += fmt.Sprintf(", hold %v by %s, released %t", l.Hold, r.HoldIDKey, l.ReleaseUnsettled)
	}
	if r.Enforcement != nil {
		s += fmt.Sprintf(", enforced for %v%%", r.EnforcePercent())
	}
	if r.Limit.CountBlocked != (r.Limit.Kind == algorithm.FixedWindow && r.Limit.Hold == 0 && !r.Unlimited) {
		s += fmt.Sprintf(", count_blocked %t", r.Limit.CountBlocked)
	}
	if r.Fallback != backend.FallbackError {
		s += fmt.Sprintf(", on_store_failure %v", r.Fallback)
	}
	if r.Counting != backend.Exact || r.OnContention != backend.Wait {
		s += fmt.Sprintf(", %v, %v", r.Counting, r.OnContention)
	}
	if r.WhyExact != "" {
		s += ", exact: " + r.WhyExact
	}
	if r.Reserve != nil {
		s += ", reserves " + r.Reserve.String()
	}
	if r.Notify != nil {
		s += ", notify " + r.Notify.String()
	}
	if r.Name != "" {
		s += fmt.Sprintf(", name %q", r.Name)
	}
	if r.ShadowMode {
		s += ", shadow"
	}
	if r.QuotaMode {
		s += ", quota"
	}
	if r.DetailedMetric {
		s += ", detailed"
	}
	if l := r.ListSettings; l != nil {
		s += fmt.Sprintf(", match {%s}", r.MatchText())
		if l.PerKeys != nil {
			s += fmt.Sprintf(" per %s", strings.Join(l.PerKeys, "+"))
		}
		if l.IsCanary {
			s += ", canary"
		}
	}
	if len(r.WordPath()) > 0 {
		s += ", named " + strings.Join(r.WordPath(), " ")
	}
	for _, l := range r.Path {
		if l.ValueToMetric {
			s += fmt.Sprintf(", value of %s", l.Key())
		}
		if l.ShareThreshold {
			s += fmt.Sprintf(", %s shared", l.Key())
		}
		if l.Kind != rules.LevelValue {
			s += fmt.Sprintf(", %s by %v", l.Key(), l.Kind)
		}
		if networks := l.Networks(); len(networks) > 0 {
			s += fmt.Sprintf(" %v", networks)
		}
		if v4, v6 := l.CountedPrefixes(); v4+v6 > 0 {
			s += fmt.Sprintf(", %s counted by /%d and /%d", l.Key(), v4, v6)
		}
	}
	if len(r.Replaces) > 0 {
		s += fmt.Sprintf(", replaces %d", len(r.Replaces))
	}
	if r.ChargedWithOthers {
		s += ", joint"
	}
	if r.ChargesAllOrNone {
		s += ", all or none"
	}
	if r.AnswerMetadata != nil {
		text, err := json.Marshal(r.AnswerMetadata)
		s += fmt.Sprintf(", metadata %s %v", text, err)
	}
	return s
}

// chargedMatches returns what Find returns in set for matches that are charged to other limits than one of their own,
// in the order of the files.
func chargedMatches(set *rules.Set) []*rules.Match {
	var found []*rules.Match
	add := func(m *rules.Match) {
		if m != nil && (len(m.Limits) > 1 || m.OwnLimit() == nil) {
			found = append(found, m)
		}
	}
	var walk func(n *match.Node)
	walk = func(n *match.Node) {
		add(n.Match)
		if n.Children == nil {
			return
		}
		for _, k := range n.Children.Groups.All() {
			for child := range k.Nodes() {
				walk(child)
			}
		}
	}
	var words func(n *match.WordNode)
	words = func(n *match.WordNode) {
		add(n.Match)
		for _, child := range n.Named.All() {
			words(child)
		}
		if n.AnyWord != nil {
			words(n.AnyWord)
		}
	}
	for _, d := range set.Domains() {
		switch m := d.Matcher.(type) {
		case *match.Tree:
			walk(&m.Root)
		case *match.WordTree:
			words(&m.Root)
		case *match.List:
			for _, r := range m.Rules {
				add(r.Match)
			}
		}
	}
	slices.SortFunc(found, func(a, b *rules.Match) int {
		return cmp.Or(
			strings.Compare(a.Pos.File, b.Pos.File),
			a.Pos.Line-b.Pos.Line,
			a.Pos.Col-b.Pos.Col,
			strings.Compare(a.FullName, b.FullName),
		)
	})
	return found
}
