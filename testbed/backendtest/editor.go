package backendtest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// testEditor tests the part of a store that changes counters for operators. A store that cannot change any skips it.
func (suite *Suite) testEditor(t *testing.T, open func(*testing.T) backend.Backend) {
	if backend.EditorOf(open(t)).SetCounts(t.Context(), new(backend.Batch)) != nil {
		t.Skip("the store cannot change counters")
	}
	suite.perKind(t, func(t *testing.T, kind algorithm.Kind) {
		t.Run("a reset counter is like a new one", func(t *testing.T) { suite.testReset(t, open(t), kind) })
		t.Run("a counter is set", func(t *testing.T) { suite.testSetCount(t, open(t), kind) })
		t.Run("prefixes", func(t *testing.T) { suite.testPrefixes(t, open(t), kind) })
	})
	t.Run("limits on one key", func(t *testing.T) { suite.testResetOneLimit(t, open(t)) })
	t.Run("what remains", func(t *testing.T) { suite.testResetRemaining(t, open(t)) })
	t.Run("its own clock", func(t *testing.T) {
		suite.perKind(t, func(t *testing.T, kind algorithm.Kind) {
			store, h := open(t), backend.Hit{
				Key: []byte("k"), Limit: countingBlocked(kind, 3, 365*24*time.Hour),
				Amount: 3,
			}
			send(t, store, time.Time{}, h)
			setCount(t, store, time.Time{}, h, 0)
			if v := send(t, store, time.Time{}, h)[0]; v.Over || v.Before != 0 {
				t.Errorf("after the reset: %+v", v)
			}
		})
	})
}

func setCount(t *testing.T, store backend.Backend, at time.Time, h backend.Hit, amount uint64) {
	t.Helper()
	h.Amount = amount
	b := backend.Batch{Hits: []backend.Hit{h}, Verdicts: make([]backend.Verdict, 1), Now: at}
	if err := backend.EditorOf(store).SetCounts(t.Context(), &b); err != nil {
		t.Fatalf("SetCounts: %v", err)
	}
}

func (suite *Suite) testReset(t *testing.T, store backend.Backend, kind algorithm.Kind) {
	limit := countingBlocked(kind, 5, time.Hour)
	if kind == algorithm.SlidingWindow || kind == algorithm.GCRA {
		limit = withInterval(limit, time.Minute)
	}
	h, other := backend.Hit{Key: []byte("a"), Limit: limit, Amount: 2}, backend.Hit{
		Key: []byte("b"), Limit: limit,
		Amount: 2, GroupID: 1,
	}
	send(t, store, epoch, h, other)
	later := epoch.Add(time.Hour + time.Second) // Sliding windows have two buckets now.
	send(t, store, later, h, other)
	before := send(t, store, later, backend.Hit{Key: other.Key, Limit: limit, Op: look})[0]
	setCount(t, store, later, h, 0)
	setCount(t, store, later, backend.Hit{Key: []byte("never counted"), Limit: limit}, 0)
	if after := send(t, store, later, backend.Hit{Key: other.Key, Limit: limit, Op: look})[0]; !suite.equal(before,
		after) {
		t.Errorf("the reset of another counter changed %+v to %+v", before, after)
	}
	referee := newReferee(false)
	for i := range 3 {
		h.Op = []algorithm.Op{look, charge, charge}[i]
		got, want := send(t, store, later, h)[0], referee.takeGroup([]backend.Hit{h}, later.UnixNano())[0]
		if !suite.equal(got, want) {
			t.Errorf("hit %d after the reset: %+v, want %+v", i, got, want)
		}
	}
}

func (suite *Suite) testSetCount(t *testing.T, store backend.Backend, kind algorithm.Kind) {
	limit := countingBlocked(kind, 5, time.Hour)
	h := backend.Hit{Key: []byte("a"), Limit: limit, Amount: 1}
	for _, step := range []struct{ charged, set, want uint64 }{
		{0, 3, 3},
		{2, 4, 4},
		{4, 1, 1},
		{0, 5, 5},
		{0, 0, 0},
		{0, 7, 7},
	} {
		if step.charged > 0 {
			send(t, store, epoch, backend.Hit{Key: h.Key, Limit: limit, Amount: step.charged})
		}
		setCount(t, store, epoch, h, step.set)
		if v := send(t, store, epoch, backend.Hit{
			Key: h.Key, Limit: limit, Op: look,
			Amount: 1,
		})[0]; v.Before != step.want || v.Over != (step.want >= 5) {
			t.Errorf("set to %d: a look finds %d, over %t", step.set, v.Before, v.Over)
		}
	}
}

// testResetOneLimit resets one of two limits under the same key.
func (suite *Suite) testResetOneLimit(t *testing.T, store backend.Backend) {
	kinds := []algorithm.Kind{suite.Kinds[0], suite.Kinds[len(suite.Kinds)-1]}
	hits := []backend.Hit{
		{
			Key: []byte("d_a_x_"), TagLength: 6, SharesKey: true, Limit: countingBlocked(kinds[0], 9, time.Minute),
			Amount: 2,
		},
		{
			Key: []byte("d_a_x_"), TagLength: 6, SharesKey: true, Limit: countingBlocked(kinds[1], 9, time.Hour),
			Amount: 3, GroupID: 1,
		},
	}
	send(t, store, epoch, hits...)
	setCount(t, store, epoch, hits[0], 0)
	for i := range hits {
		hits[i].Op, hits[i].Amount = look, 0
	}
	if v := send(t, store, epoch, hits...); v[0].Before != 0 || v[1].Before != 3 {
		t.Errorf("the counts are %d and %d, want 0 and 3", v[0].Before, v[1].Before)
	}
}

// testResetRemaining resets a counter whose store keeps what remains.
func (suite *Suite) testResetRemaining(t *testing.T, store backend.Backend) {
	limit := ignoringBlocked(algorithm.FirstHitWindow, 5, time.Hour)
	if !suite.supports(limit) {
		t.Skip("the store has no first-hit windows")
	}
	h := backend.Hit{Key: []byte("divvy:a=*:x:5:3600"), Limit: limit, StoresRemaining: true, Amount: 5}
	send(t, store, time.Time{}, h)
	setCount(t, store, time.Time{}, h, 2)
	if v := send(t, store, time.Time{}, h)[0]; !v.Over || v.Before != 2 {
		t.Errorf("after it was set to 2: %+v", v)
	}
	setCount(t, store, time.Time{}, h, 0)
	if v := send(t, store, time.Time{}, h)[0]; v.Over || v.Before != 0 {
		t.Errorf("after the reset: %+v", v)
	}
}

func (suite *Suite) testPrefixes(t *testing.T, store backend.Backend, kind algorithm.Kind) {
	limits := []*algorithm.Limit{countingBlocked(kind, 9, time.Minute), countingBlocked(kind, 9, 90*time.Second)}
	keys := []string{
		"d_user_al_", "d_user_alex_", "d_user_bob_", "d_ip_1_user_alex_", "d_ip_1_user_al*[x]_",
		"d_ip_1_user_bob_", "dx_user_alex_",
	}
	hit := func(key string, limit *algorithm.Limit, op algorithm.Op) backend.Hit {
		tag := len(key)
		if i := strings.Index(key, "_user_"); strings.HasPrefix(key, "d_ip_") {
			tag = i + 1
		}
		return backend.Hit{Key: []byte(key), TagLength: tag, Limit: limit, Amount: 1, Op: op}
	}
	count := func() (left []string) {
		for _, key := range keys {
			for i, limit := range limits {
				if send(t, store, epoch, hit(key, limit, look))[0].Before > 0 {
					left = append(left, fmt.Sprint(key, i))
				}
			}
		}
		return left
	}
	for _, key := range keys {
		for _, limit := range limits {
			send(t, store, epoch, hit(key, limit, charge))
		}
	}
	all := count()
	reset := func(dryRun bool, prefixes ...backend.KeyPrefix) (names []string) {
		t.Helper()
		err := backend.EditorOf(store).ResetPrefixes(t.Context(), prefixes, dryRun, func(found [][]byte) {
			for _, name := range found {
				names = append(names, string(bytes.Clone(name)))
			}
		})
		if errors.Is(err, backend.ErrNoNames) {
			t.Skip("the store does not keep names")
		}
		if err != nil {
			t.Fatalf("ResetPrefixes: %v", err)
		}
		slices.Sort(names)
		return slices.Compact(names)
	}
	user := backend.KeyPrefix{Text: []byte("d_user_al")}
	user2 := backend.KeyPrefix{Text: []byte("d_ip_1_user_al*"), TagLength: 7}
	if names := reset(true, user); len(names) != 4 || !strings.Contains(names[0], "d_user_al") {
		t.Errorf("the dry run found %q, want 4 counters", names)
	}
	if left := count(); !slices.Equal(left, all) {
		t.Errorf("after the dry run %q are left", left)
	}
	if names := reset(false, user, user2); len(names) != 6 {
		t.Errorf("the reset found %q, want 6 counters", names)
	}
	want := slices.DeleteFunc(all, func(s string) bool {
		return strings.HasPrefix(s, "d_user_al") || strings.HasPrefix(s, "d_ip_1_user_al*")
	})
	if left := count(); !slices.Equal(left, want) {
		t.Errorf("%q are left, want %q", left, want)
	}
	if names := reset(false, user, user2); len(names) != 0 {
		t.Errorf("a second reset found %q", names)
	}
}
