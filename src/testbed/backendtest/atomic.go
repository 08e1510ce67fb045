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

// group is hits of one group, with the counters at the start and at the end.
type group struct {
	name         string
	before, then map[string]uint64
	hits         []member
}

// member is a hit of a group and its expected verdict.
type member struct {
	backend.Hit // without Limit
	max         uint64
	over        bool
	after       uint64
}

//go:embed groups.txt
var groupsText string

// readGroups parses groups.txt.
func readGroups(t *testing.T) (groups []*group) {
	t.Helper()
	var last *group
	for i, line := range strings.Split(groupsText, "\n") {
		var err error
		switch word, rest, _ := strings.Cut(line, " "); word {
		case "", "#":
		case "==":
			last = &group{name: rest}
			groups = append(groups, last)
		case "before":
			last.before, err = readCounts(rest)
		case "then":
			last.then, err = readCounts(rest)
		default:
			var m member
			m, err = readMember(line)
			last.hits = append(last.hits, m)
		}
		if err != nil {
			t.Fatalf("groups.txt:%d: %v", i+1, err)
		}
	}
	return groups
}

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

func readMember(line string) (m member, err error) {
	var kind, key, op, verdict string
	line = strings.ReplaceAll(line, ",", " ")
	_, err = fmt.Sscanf(line, "%s %s max %d %s %d -> %s after %d", &kind, &key, &m.max, &op, &m.Amount, &verdict, &m.after)
	m.Key, m.Op, m.Group = []byte(key), opNamed(op), 7
	m.Atomic, m.NoVeto, m.over = kind != "alone", kind == "shadow", verdict == "over"
	return m, err
}

func (suite *Suite) testAtomic(t *testing.T, open func(*testing.T) backend.Backend) {
	groups := readGroups(t)
	suite.perKind(t, func(t *testing.T, kind algorithm.Kind) {
		for _, g := range groups {
			t.Run(g.name, func(t *testing.T) {
				g.test(t, open(t), func(string) algorithm.Kind { return kind })
			})
		}
	})
	if len(suite.Kinds) == 1 {
		return
	}
	for from, first := range suite.Kinds {
		t.Run("mixed from "+first.String(), func(t *testing.T) {
			kinds := append(suite.Kinds[from:len(suite.Kinds):len(suite.Kinds)], suite.Kinds[:from]...)
			for _, g := range groups {
				t.Run(g.name, func(t *testing.T) {
					g.test(t, open(t), func(key string) algorithm.Kind {
						return kinds[(int(key[len(key)-1])-'a'+100*len(kinds))%len(kinds)]
					})
				})
			}
		})
	}
}

// test sends the group, with limits of the kinds that its keys have.
func (g *group) test(t *testing.T, store backend.Backend, kind func(key string) algorithm.Kind) {
	hits := make([]backend.Hit, len(g.hits))
	limits := make(map[string]*algorithm.Limit)
	for i, m := range g.hits {
		key := string(m.Key)
		limits[key] = blocked(kind(key), m.max, time.Hour)
		hits[i], hits[i].Limit = m.Hit, limits[key]
	}
	for key, n := range g.before {
		send(t, store, epoch, backend.Hit{Key: []byte(key), Limit: limits[key], Amount: n, Op: force})
	}
	for i, v := range send(t, store, epoch, hits...) {
		if want := g.hits[i]; v.Over != want.over || v.After != want.after || v.Over && v.Remaining != left(hits[i].Limit, v.After) {
			t.Errorf("hit %d on %s: over %t, after %d, remaining %d; want over %t, after %d",
				i, want.Key, v.Over, v.After, v.Remaining, want.over, want.after)
		}
	}
	for key, want := range g.then {
		if v := send(t, store, epoch, backend.Hit{Key: []byte(key), Limit: limits[key], Op: look})[0]; v.Before != want {
			t.Errorf("%s is %d in the end, want %d", key, v.Before, want)
		}
	}
}

// left returns the Remaining of a refused hit at that count.
func left(l *algorithm.Limit, count uint64) uint64 {
	if l.Kind == algorithm.FixedWindow || l.Kind == algorithm.SlidingWindowCounter {
		return 0
	}
	return l.Capacity() - min(count, l.Capacity())
}
