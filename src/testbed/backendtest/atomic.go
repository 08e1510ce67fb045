package backendtest

import (
	"fmt"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// member is a hit of a group and its expected verdict.
type member struct {
	key    string
	limit  uint64
	n      uint64
	op     algorithm.Op
	atomic bool
	shadow bool
	// expected:
	over  bool
	after uint64
}

type group struct {
	name   string
	before map[string]uint64 // counters at the start
	hits   []member
	then   map[string]uint64 // counters at the end
}

// groups have the same outcome for limits of all kinds.
var groups = []group{
	{"all pass", nil, []member{
		{key: "a", limit: 2, n: 1, atomic: true, after: 1},
		{key: "b", limit: 2, n: 2, atomic: true, after: 2},
	}, map[string]uint64{"a": 1, "b": 2}},
	{"one refuses, nothing is charged", map[string]uint64{"b": 2}, []member{
		{key: "a", limit: 2, n: 1, atomic: true, after: 0},
		{key: "b", limit: 2, n: 1, atomic: true, over: true, after: 2},
		{key: "c", limit: 2, n: 1, atomic: true, after: 0},
	}, map[string]uint64{"a": 0, "b": 2, "c": 0}},
	{"one alone is not charged when refused", map[string]uint64{"a": 2}, []member{
		{key: "a", limit: 2, n: 1, atomic: true, over: true, after: 2},
	}, map[string]uint64{"a": 2}},
	{"a shadow hit refuses no other hit and counts", map[string]uint64{"b": 2}, []member{
		{key: "a", limit: 2, n: 1, atomic: true, after: 1},
		{key: "b", limit: 2, n: 1, atomic: true, shadow: true, over: true, after: 3},
	}, map[string]uint64{"a": 1, "b": 3}},
	{"another hit refuses a shadow hit", map[string]uint64{"b": 2}, []member{
		{key: "a", limit: 2, n: 1, atomic: true, shadow: true, after: 0},
		{key: "b", limit: 2, n: 1, atomic: true, over: true, after: 2},
	}, map[string]uint64{"a": 0, "b": 2}},
	{"a hit that is not atomic is charged all the same", map[string]uint64{"b": 2}, []member{
		{key: "a", limit: 2, n: 1, after: 1},
		{key: "b", limit: 2, n: 1, atomic: true, over: true, after: 2},
	}, map[string]uint64{"a": 1, "b": 2}},
	{"a hit that is not atomic refuses the group", map[string]uint64{"a": 2}, []member{
		{key: "a", limit: 2, n: 1, over: true, after: 3},
		{key: "b", limit: 2, n: 1, atomic: true, after: 0},
	}, map[string]uint64{"a": 3, "b": 0}},
	{"the same key twice, together too much", nil, []member{
		{key: "a", limit: 3, n: 2, atomic: true, after: 0},
		{key: "a", limit: 3, n: 2, atomic: true, over: true, after: 0},
	}, map[string]uint64{"a": 0}},
	{"the same key twice, together just enough", nil, []member{
		{key: "a", limit: 4, n: 2, atomic: true, after: 2},
		{key: "a", limit: 4, n: 2, atomic: true, after: 4},
	}, map[string]uint64{"a": 4}},
	{"the same key around another", map[string]uint64{"a": 1}, []member{
		{key: "a", limit: 4, n: 2, atomic: true, after: 1},
		{key: "b", limit: 4, n: 2, atomic: true, after: 0},
		{key: "a", limit: 4, n: 2, atomic: true, over: true, after: 1},
	}, map[string]uint64{"a": 1, "b": 0}},
	{"a refund within makes room", map[string]uint64{"a": 4}, []member{
		{key: "a", limit: 4, n: 2, op: refund, atomic: true, after: 2},
		{key: "a", limit: 4, n: 2, atomic: true, after: 4},
	}, map[string]uint64{"a": 4}},
	{"a refused group refunds nothing", map[string]uint64{"a": 4, "b": 1}, []member{
		{key: "a", limit: 4, n: 2, op: refund, atomic: true, after: 4},
		{key: "b", limit: 1, n: 1, atomic: true, over: true, after: 1},
	}, map[string]uint64{"a": 4, "b": 1}},
	{"a refused group forces nothing", map[string]uint64{"b": 1}, []member{
		{key: "a", limit: 4, n: 2, op: force, atomic: true, after: 0},
		{key: "b", limit: 1, n: 1, atomic: true, over: true, after: 1},
	}, map[string]uint64{"a": 0, "b": 1}},
	{"a forced hit in the group takes room", nil, []member{
		{key: "a", limit: 4, n: 4, op: force, atomic: true, after: 0},
		{key: "a", limit: 4, n: 1, atomic: true, over: true, after: 0},
	}, map[string]uint64{"a": 0}},
	{"a look refuses the group", map[string]uint64{"a": 4}, []member{
		{key: "a", limit: 4, n: 1, op: look, atomic: true, over: true, after: 4},
		{key: "b", limit: 1, n: 1, atomic: true, after: 0},
	}, map[string]uint64{"a": 4, "b": 0}},
	{"many keys", map[string]uint64{"k9": 1}, many(10, func(i int) member {
		return member{key: fmt.Sprintf("k%d", i), limit: 1, n: 1, atomic: true, over: i == 9, after: uint64(i / 9)}
	}), map[string]uint64{"k0": 0, "k8": 0, "k9": 1}},
}

func (suite *Suite) testAtomic(t *testing.T, open func(*testing.T) backend.Backend) {
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
		limits[m.key] = blocked(kind(m.key), m.limit, time.Hour)
		hits[i] = backend.Hit{
			Key: []byte(m.key), Limit: limits[m.key], Amount: m.n, Op: m.op,
			Group: 7, Atomic: m.atomic, NoVeto: m.shadow,
		}
	}
	for key, n := range g.before {
		send(t, store, epoch, backend.Hit{Key: []byte(key), Limit: limits[key], Amount: n, Op: force})
	}
	for i, v := range send(t, store, epoch, hits...) {
		if want := g.hits[i]; v.Over != want.over || v.After != want.after || v.Over && v.Remaining != left(limits[want.key], v.After) {
			t.Errorf("hit %d on %s: over %t, after %d, remaining %d; want over %t, after %d",
				i, want.key, v.Over, v.After, v.Remaining, want.over, want.after)
		}
	}
	for key, want := range g.then {
		if v := send(t, store, epoch, backend.Hit{Key: []byte(key), Limit: limits[key], Op: look})[0]; v.Before != want {
			t.Errorf("%s is %d in the end, want %d", key, v.Before, want)
		}
	}
}

func many(n int, make func(int) member) []member {
	var list []member
	for i := range n {
		list = append(list, make(i))
	}
	return list
}

// left returns the Remaining of a refused hit at that count.
func left(l *algorithm.Limit, count uint64) uint64 {
	if l.Kind == algorithm.FixedWindow || l.Kind == algorithm.SlidingWindowCounter {
		return 0
	}
	return l.Capacity() - min(count, l.Capacity())
}
