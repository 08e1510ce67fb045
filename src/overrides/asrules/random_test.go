//go:build !race

package asrules

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"ratelimit/src/overrides"
	"ratelimit/src/rules"
)

var (
	keys     = []string{"a", "b"}
	values   = []string{"x", "xy", "y", "z"}
	replaces = regexp.MustCompile(`# replaces test\.yaml:(\d+):`)
)

// block is the text of a descriptor at the top, and its line in the file.
type block struct {
	text string
	line int
}

// randomDescriptor returns the text of a descriptor and of those below it.
func randomDescriptor(r *rand.Rand, indent string, depth int) string {
	text := indent + "- key: " + keys[r.IntN(2)] + "\n"
	switch r.IntN(4) {
	case 0:
		text += indent + "  value: " + values[r.IntN(len(values))] + "\n"
	case 1:
		if r.IntN(3) == 0 {
			text += indent + "  value: x*\n"
			if r.IntN(2) == 0 {
				text += indent + "  share_threshold: true\n"
			}
		}
	}
	limit := fmt.Sprintf("{unit: minute, requests_per_unit: %d}", 1+r.IntN(90))
	switch r.IntN(4) {
	case 0:
	case 1:
		text += indent + "  rate_limits: [" + limit + ", {name: day, unit: day, requests_per_unit: 500}]\n"
	default:
		text += indent + "  rate_limit: " + limit + "\n"
	}
	if r.IntN(4) == 0 {
		text += indent + "  charge: " + []string{"path", "leaf"}[r.IntN(2)] + "\n"
	}
	if depth < 3 && r.IntN(3) > 0 {
		text += indent + "  descriptors:\n"
		for range 1 + r.IntN(2) {
			text += randomDescriptor(r, indent+"    ", depth+1)
		}
	}
	return text
}

func randomSubject(r *rand.Rand) string {
	var parts []string
	for range 1 + r.IntN(3) {
		parts = append(parts, keys[r.IntN(2)]+"="+values[r.IntN(len(values))])
	}
	return strings.Join(parts, ",") + []string{"", "", "*", ",*"}[r.IntN(4)]
}

// limitsOf returns the limits that a request with a descriptor is charged to.
func limitsOf(set *rules.Set, entries []rules.Entry) string {
	var s rules.SearchScratch
	s.Begin(context.Background())
	m := set.Domain([]byte("shop")).FindRule(entries, &s)
	if m == nil {
		return "none"
	}
	var parts []string
	for _, r := range m.Limits {
		parts = append(parts, r.LimitInWords())
	}
	return strings.Join(parts, ", ")
}

// The rules of a file with what Write writes have the same limits as the file with the overrides.
func TestSameLimits(t *testing.T) {
	t.Parallel()
	const wanted = 2000
	compared, differing := 0, 0
	for seed := uint64(0); compared < wanted; seed++ {
		if seed == 40*wanted {
			t.Fatalf("only %d of %d cases could be compared", compared, seed)
		}
		r := rand.New(rand.NewPCG(seed, 7))
		head := "domain: shop\n" + []string{"", "", "charge: path\n"}[r.IntN(3)] + "descriptors:\n"
		file, line := head, strings.Count(head, "\n")+1
		var blocks []block
		for range 1 + r.IntN(3) {
			text := randomDescriptor(r, "  ", 1)
			blocks = append(blocks, block{text, line})
			file, line = file+text, line+strings.Count(text, "\n")
		}
		set, err := load(file)
		if err != nil {
			continue // two descriptors are the same
		}
		var list []overrides.Override
		for range 1 + r.IntN(3) {
			list = append(list, override(randomSubject(r), []string{"x10", "x0.5", "ban", "777", "888/hour"}[r.IntN(5)]))
			if r.IntN(6) == 0 {
				list[len(list)-1] = override("*", "x2")
			}
			if all := set.Rules(); r.IntN(3) == 0 && len(all) > 0 {
				list[len(list)-1].Rule = all[r.IntN(len(all))].FullName
			}
		}
		with := changed(t, set, list...)
		exported := export(t, with, list)
		if _, err := load(exported); err != nil && !strings.Contains(exported, "descriptors: []") {
			t.Fatalf("seed %d: %v\n%s", seed, err, exported)
		}
		if strings.Contains(exported, "# not written") {
			continue
		}
		_, descriptors, _ := strings.Cut(exported, "descriptors:")
		merged := head + strings.TrimPrefix(strings.TrimPrefix(descriptors, " []"), "\n")
		replaced := make(map[int]bool)
		for _, found := range replaces.FindAllStringSubmatch(exported, -1) {
			n, _ := strconv.Atoi(found[1]) // The expression finds numbers only.
			replaced[n] = true
		}
		for _, b := range blocks {
			if !replaced[b.line] {
				merged += b.text
			}
		}
		again, err := load(merged)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s\n%s", seed, err, file, merged)
		}
		compared++
		for range 50 {
			var entries []rules.Entry
			for range 1 + r.IntN(4) {
				value := append([]string{"xq", "q"}, values...)[r.IntN(2+len(values))]
				entries = append(entries, rules.Entry{Key: []byte(keys[r.IntN(2)]), Value: []byte(value)})
			}
			got, want := limitsOf(again, entries), limitsOf(with, entries)
			if want != limitsOf(set, entries) {
				differing++
			}
			if got != want {
				t.Fatalf("seed %d: %s has %s, want %s\nfile:\n%s\noverrides: %+v\nmerged:\n%s", seed, entries, got, want, file,
					list, merged)
			}
		}
	}
	if differing < wanted {
		t.Errorf("only %d requests have other limits than before", differing)
	}
}
