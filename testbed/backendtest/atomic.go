package backendtest

import (
	_ "embed"
	"fmt"
	"strings"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// group is a group of hits, with counters before and after it.
type group struct {
	name        string
	countBefore map[string]uint64 // the count of each key before the group
	countAfter  map[string]uint64 // the expected count of each key after the group
	hits        []groupHit
}

// groupHit is a hit of a group and its expected verdict.
type groupHit struct {
	backend.Hit // Hit.Limit is nil; test makes a limit from max
	max         uint64
	wantOver    bool
	wantAfter   uint64
}

//go:embed groups.txt
var groupsText string

// readGroups parses groups.txt.
func readGroups(t *testing.T) (groups []*group) {
	t.Helper()
	var last *group
	parseLines(t, "groups.txt", groupsText, func(_ int, line string) (err error) {
		switch word, rest, _ := strings.Cut(line, " "); word {
		case "==":
			last = &group{name: rest}
			groups = append(groups, last)
		case "before":
			last.countBefore, err = readCounts(rest)
		case "then":
			last.countAfter, err = readCounts(rest)
		default:
			var h groupHit
			h, err = readGroupHit(line)
			last.hits = append(last.hits, h)
		}
		return err
	})
	return groups
}

// parseLines calls parse for each line of a file that is neither empty nor a comment. The first error ends the test.
func parseLines(t *testing.T, file, text string, parse func(number int, line string) error) {
	t.Helper()
	for i, line := range strings.Split(text, "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		if err := parse(i+1, line); err != nil {
			t.Fatalf("%s:%d: %v", file, i+1, err)
		}
	}
}

// readCounts parses counts by key, such as "a=1 b=2".
func readCounts(text string) (map[string]uint64, error) {
	counts := make(map[string]uint64)
	for word := range strings.FieldsSeq(text) {
		var n uint64
		key, number, _ := strings.Cut(word, "=")
		if _, err := fmt.Sscan(number, &n); err != nil {
			return nil, err
		}
		counts[key] = n
	}
	return counts, nil
}

// readGroupHit parses a line such as "alone a max 3, charge 1 -> over after 2".
func readGroupHit(line string) (m groupHit, err error) {
	var kind, key, op, verdict string
	line = strings.ReplaceAll(line, ",", " ")
	_, err = fmt.Sscanf(line, "%s %s max %d %s %d -> %s after %d", &kind, &key, &m.max, &op, &m.Amount, &verdict,
		&m.wantAfter)
	m.Key, m.Op, m.GroupID = []byte(key), opNamed(op), 7
	m.Atomic, m.NoVeto, m.wantOver = kind != "alone", kind == "shadow", verdict == "over"
	return m, err
}

func (suite *Suite) testAtomic(t *testing.T, open func(*testing.T) backend.Backend) {
	groups := readGroups(t)
	suite.perKind(t, func(t *testing.T, kind algorithm.Kind) {
		store := open(t)
		for _, g := range groups {
			t.Run(g.name, func(t *testing.T) {
				g.test(t, store, func(string) algorithm.Kind { return kind })
			})
		}
	})
	if len(suite.Kinds) == 1 {
		return
	}
	for from, first := range suite.Kinds {
		t.Run("mixed from "+first.String(), func(t *testing.T) {
			kinds := append(suite.Kinds[from:len(suite.Kinds):len(suite.Kinds)], suite.Kinds[:from]...)
			store := open(t)
			for _, g := range groups {
				t.Run(g.name, func(t *testing.T) {
					g.test(t, store, func(key string) algorithm.Kind {
						return kinds[(int(key[len(key)-1])-'a'+100*len(kinds))%len(kinds)]
					})
				})
			}
		})
	}
}

// test sends the group to a store, under keys that no other group has. kind returns the kind of the limit for a key.
func (g *group) test(t *testing.T, store backend.Backend, kind func(key string) algorithm.Kind) {
	hits := make([]backend.Hit, len(g.hits))
	limits := make(map[string]*algorithm.Limit)
	ownKey := func(key string) []byte { return []byte(g.name + "/" + key) }
	for i, m := range g.hits {
		key := string(m.Key)
		limits[key] = countingBlocked(kind(key), m.max, time.Hour)
		hits[i], hits[i].Key, hits[i].Limit = m.Hit, ownKey(key), limits[key]
	}
	for key, n := range g.countBefore {
		send(t, store, epoch, backend.Hit{Key: ownKey(key), Limit: limits[key], Amount: n, Op: force})
	}
	for i, v := range send(t, store, epoch, hits...) {
		if want := g.hits[i]; v.Over != want.wantOver || v.After != want.wantAfter || v.Over &&
			v.Remaining != remainingAfterRefusal(hits[i].Limit, v.After) {
			t.Errorf("hit %d on %s: over %t, after %d, remaining %d; want over %t, after %d",
				i, want.Key, v.Over, v.After, v.Remaining, want.wantOver, want.wantAfter)
		}
	}
	for key, want := range g.countAfter {
		if v := send(t, store, epoch, backend.Hit{
			Key: ownKey(key), Limit: limits[key],
			Op: look,
		})[0]; v.Before != want {
			t.Errorf("%s is %d in the end, want %d", key, v.Before, want)
		}
	}
}

// remainingAfterRefusal returns the Remaining of a hit that is refused at that count.
func remainingAfterRefusal(l *algorithm.Limit, count uint64) uint64 {
	if l.Kind == algorithm.FixedWindow {
		return 0
	}
	return l.Capacity() - min(count, l.Capacity())
}
