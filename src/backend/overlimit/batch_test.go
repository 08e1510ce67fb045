package overlimit

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// A batch of which a part is known: the rest goes on, and everything comes
// back in order.
func TestPartOfABatch(t *testing.T) {
	c, s := open(t)
	l := fixed(1, time.Minute)
	send(t, c, epoch, hit("full", l, 2), hit("full too", l, 2))
	v, seen := s.send(t, c, epoch, hit("full", l, 1), hit("a", l, 1), hit("full too", l, 1), hit("b", l, 2),
		hit("full", l, 1))
	if len(seen) != 2 || string(seen[0].Key) != "a" || string(seen[1].Key) != "b" {
		t.Fatalf("the store was asked %+v", seen)
	}
	for i, want := range []bool{true, false, true, false, true} {
		if v[i].Cached != want {
			t.Errorf("hit %d: %+v", i, v[i])
		}
	}
	if v[1].Over || v[1].After != 1 || !v[3].Over || v[3].After != 2 {
		t.Errorf("%+v", v)
	}
	if _, seen = s.send(t, c, epoch, hit("b", l, 1)); seen != nil {
		t.Error("nothing was learnt from what went on")
	}
}

func TestWhatIsNotLearnt(t *testing.T) {
	l := fixed(1, time.Minute)
	t.Run("an error", func(t *testing.T) {
		c, s := open(t)
		s.err = errors.New("gone")
		if v := send(t, c, epoch, hit("k", l, 2)); v[0].Err == nil {
			t.Fatal("no error")
		}
		s.err = nil
		if _, seen := s.send(t, c, epoch, hit("k", l, 1)); seen == nil {
			t.Error("an entry was made of an error")
		}
	})
	t.Run("a refund with an error may have happened", func(t *testing.T) {
		c, s := open(t)
		send(t, c, epoch, hit("k", l, 2))
		s.err = errors.New("gone")
		back := hit("k", l, 2)
		back.Op = refund
		send(t, c, epoch, back)
		s.err = nil
		if v := send(t, c, epoch, hit("k", l, 1)); v[0].Over {
			t.Error("the entry has outlived the refund")
		}
	})
	t.Run("an answer older than a refund", func(t *testing.T) {
		c, s := open(t)
		s.then = func() {
			back := hit("k", l, 2)
			back.Op = refund
			send(t, c, epoch, back)
		}
		if v := send(t, c, epoch, hit("k", l, 2)); !v[0].Over {
			t.Fatal("not over")
		}
		if v := send(t, c, epoch, hit("k", l, 1)); v[0].Over {
			t.Error("an old answer was stored after the refund")
		}
	})
	t.Run("an answer that has ended on the way", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, s := open(t)
			s.then = func() { time.Sleep(time.Minute) }
			send(t, c, time.Time{}, hit("k", l, 2))
			if n := c.Stats().Entries; n != 0 {
				t.Errorf("%d entries", n)
			}
		})
	})
}

func TestWithinABatch(t *testing.T) {
	l := fixed(2, time.Minute)
	back := hit("k", l, 3)
	back.Op = refund
	t.Run("a charge sees the refund before it", func(t *testing.T) {
		c, _ := open(t)
		send(t, c, epoch, hit("k", l, 3))
		if v := send(t, c, epoch, back, hit("k", l, 2)); v[1].Over {
			t.Errorf("%+v", v)
		}
	})
	t.Run("and not the one behind it", func(t *testing.T) {
		c, s := open(t)
		send(t, c, epoch, hit("k", l, 3))
		v, seen := s.send(t, c, epoch, hit("k", l, 2), back, hit("other", l, 1), hit("k", l, 2))
		if !v[0].Over || !v[0].Cached || v[3].Over || len(seen) != 3 {
			t.Errorf("%+v", v)
		}
	})
	t.Run("refunds of other counters do not keep the cache from learning", func(t *testing.T) {
		c, s := open(t)
		var refunds, charges []backend.Hit
		for i := range 200 {
			refunds, charges = append(refunds, back), append(charges, hit(fmt.Sprint("full", i), l, 3))
			refunds[i].Key = fmt.Append(nil, "refunded", i)
		}
		send(t, c, epoch, append(refunds, charges...)...)
		if _, seen := s.send(t, c, epoch, charges...); len(seen) > 0 {
			t.Errorf("the store was asked about %d of 200 full counters", len(seen))
		}
	})
	t.Run("what was learnt before a refund ends with it", func(t *testing.T) {
		c, _ := open(t)
		if v := send(t, c, epoch, hit("k", l, 3), back); !v[0].Over {
			t.Errorf("%+v", v)
		}
		if v := send(t, c, epoch, hit("k", l, 2)); v[0].Over {
			t.Errorf("%+v", v)
		}
	})
}

// Groups in which the counters full, full2 (limit 1) and just (limit 1, not
// beyond it) are known to be full.
type member struct {
	key      string
	n        uint64
	op       algorithm.Op
	plain    bool // not atomic
	shadow   bool
	group    uint16
	over     bool
	charged  bool
	cached   bool
	seen     bool // by the store
	seenLook bool
}

type groupCase struct {
	name string
	hits []member
}

var groupCases = []groupCase{
	{"the others are looked at", []member{
		{key: "a", n: 1, seen: true, seenLook: true},
		{key: "full", n: 1, over: true, cached: true},
		{key: "b", n: 2, over: true, seen: true, seenLook: true},
	}},
	{"refunds and forced hits of a refused group do nothing, and are never over", []member{
		{key: "some", n: 1, op: refund, seen: true, seenLook: true},
		{key: "some2", n: 9, op: force, seen: true, seenLook: true},
		{key: "full", n: 1, over: true, cached: true},
	}},
	{"what is not atomic is charged", []member{
		{key: "a", n: 1, plain: true, charged: true, seen: true},
		{key: "full", n: 1, over: true, cached: true},
	}},
	{"and refuses for the atomic ones", []member{
		{key: "full", n: 1, plain: true, over: true, cached: true},
		{key: "a", n: 1, seen: true, seenLook: true},
	}},
	{"a look refuses too", []member{
		{key: "full", n: 1, op: look, over: true, cached: true},
		{key: "a", n: 1, seen: true, seenLook: true},
	}},
	{"a shadow hit refuses no other hit", []member{
		{key: "full", n: 1, shadow: true, over: true, cached: true},
		{key: "a", n: 1, charged: true, seen: true},
		{key: "b", n: 1, charged: true, seen: true},
	}},
	{"shadow, and another refuses", []member{
		{key: "full", n: 1, shadow: true, over: true, cached: true},
		{key: "a", n: 1, seen: true},
		{key: "b", n: 2, over: true, seen: true},
	}},
	{"the refusal of an atomic hit is not counted, so it is known", []member{
		{key: "just", n: 1, over: true, cached: true},
		{key: "a", n: 1, seen: true, seenLook: true},
	}},
	{"that of shadow is, so it is asked", []member{
		{key: "just", n: 1, shadow: true, over: true, charged: true, seen: true},
		{key: "a", n: 1, charged: true, seen: true},
	}},
	{"all known", []member{
		{key: "full", n: 1, over: true, cached: true},
		{key: "full2", n: 1, over: true, cached: true},
	}},
	{"the same key twice, together too much: only the store can tell", []member{
		{key: "full", n: 1, over: true, seen: true},
		{key: "half", n: 1, seen: true},
		{key: "half", n: 1, over: true, seen: true},
	}},
	{"no group, no veto", []member{
		{key: "full", n: 1, over: true, cached: true},
		{key: "a", n: 1, group: 1, charged: true, seen: true},
	}},
	{"groups of one number stay apart when the one between is known", []member{
		{key: "a", n: 1, group: 7, charged: true, seen: true},
		{key: "full", n: 1, group: 8, over: true, cached: true},
		{key: "b", n: 2, group: 7, over: true, seen: true},
	}},
}

func TestAtomicGroups(t *testing.T) {
	for _, test := range groupCases {
		t.Run(test.name, func(t *testing.T) {
			c, s := open(t)
			l := fixed(1, time.Minute)
			atomicLook := hit("just", l, 1)
			atomicLook.Op = look
			send(
				t, c, epoch, hit("full", l, 2), hit("full2", l, 2), hit("just", l, 1), atomicLook,
				hit("half", fixed(2, time.Minute), 1), hit("some", l, 1), hit("some2", l, 1),
			)
			var hits []backend.Hit
			for _, m := range test.hits {
				h := hit(m.key, l, m.n)
				if m.key == "half" {
					h.Limit = fixed(2, time.Minute)
				}
				h.Op, h.Atomic, h.NoVeto, h.GroupID = m.op, !m.plain, m.shadow, m.group
				hits = append(hits, h)
			}
			verdicts, seen := s.send(t, c, epoch, hits...)
			var groups []uint16
			for i, want := range test.hits {
				v, got := verdicts[i], want
				got.over, got.charged, got.cached, got.seen, got.seenLook = v.Over, v.Charged, v.Cached, false, false
				if len(seen) > 0 && string(seen[0].Key) == want.key {
					got.seen = true
					got.seenLook = seen[0].Op == look && !seen[0].Atomic
					groups = append(groups, seen[0].GroupID)
					seen = seen[1:]
				}
				if got != want {
					t.Errorf("hit %d:\n got %+v\nwant %+v", i, got, want)
				}
			}
			if test.hits[0].group == 7 && groups[0] == groups[1] {
				t.Error("two groups became one")
			}
		})
	}
}
