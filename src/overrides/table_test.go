package overrides

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"ratelimit/src/rules"
)

func sameEntries(a, b []rules.Entry) bool {
	return slices.EqualFunc(a, b, func(x, y rules.Entry) bool {
		return bytes.Equal(x.Key, y.Key) && bytes.Equal(x.Value, y.Value)
	})
}

// names reports whether p names the subject. It is the slow definition of what a table looks up.
func (p *Pattern) names(subject []rules.Entry) bool {
	n := len(p.Entries)
	switch {
	case n > len(subject):
		return false
	case p.End == ExactEnd:
		return sameEntries(p.Entries, subject)
	case p.End == MoreEnd:
		return sameEntries(p.Entries, subject[:n])
	}
	last := n - 1
	return sameEntries(p.Entries[:last], subject[:last]) && bytes.Equal(p.Entries[last].Key, subject[last].Key) &&
		bytes.HasPrefix(subject[last].Value, p.Entries[last].Value)
}

// rank orders patterns that name the same subject: the most specific first.
func (o *Override) rank(tb testing.TB) string {
	p, err := ParsePattern(o.Subject)
	if err != nil {
		tb.Fatal(err)
	}
	rule := 1
	if o.Rule != "" {
		rule = 0
	}
	if p.End == ExactEnd {
		return fmt.Sprintf("0 %d", rule)
	}
	s := shapeOf(&p)
	return fmt.Sprintf("1 %03d %05d %d", 999-s.entries, 9999-s.prefix, rule)
}

// Random overrides are found as the slow definition finds them, while they are set, replaced, removed, and end.
func TestRandomTables(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	defer func() { t.Logf("seed %d", seed) }()
	rule := load(t, "domain: shop\ndescriptors:\n  - key: a\n    rate_limit: {unit: minute, requests_per_unit: 10}\n").Rules()[0]
	now := epoch
	store, _, err := OpenFile("")
	if err != nil {
		t.Fatal(err)
	}
	g := New(Config{Store: store, MaxOverrides: 10_000, Now: func() time.Time { return now }})
	values := []string{"", "x", "xy", "xyz", "y", "*", "é,"}
	pick := func() string { return values[random.IntN(len(values))] }
	subject := func() (list []rules.Entry) {
		for range 1 + random.IntN(3) {
			list = append(list, rules.Entry{Key: []byte("k" + pick()), Value: []byte(pick())})
		}
		return list
	}
	type knownOverride struct {
		Override
		pattern Pattern
		rank    string
	}
	known := map[ID]knownOverride{}
	for range 1500 {
		p := Pattern{Entries: subject(), End: PatternEnd(random.IntN(3))}
		o := override(t, p.String(), fmt.Sprint(1+random.IntN(1000)))
		if random.IntN(2) == 0 {
			o.Rule = []string{rule.FullName, "shop.other"}[random.IntN(2)]
		}
		if random.IntN(3) == 0 {
			o.Until = now.Add(time.Duration(random.IntN(100)) * time.Second)
		}
		if random.IntN(3) == 0 {
			commit(t, g, unset(o))
			delete(known, o.ID())
		} else {
			commit(t, g, set(o))
			known[o.ID()] = knownOverride{o, p, o.rank(t)}
		}
		now = now.Add(time.Duration(random.IntN(3)) * time.Second)
		for range 3 {
			asked := subject()
			var want *knownOverride
			for _, o := range known {
				if !o.pattern.names(asked) || o.Rule == "shop.other" || !o.Until.IsZero() && !o.Until.After(now) {
					continue
				}
				if want == nil || o.rank < want.rank {
					want = &o
				}
			}
			var got *entry
			shop := g.domains["shop"]
			if l := shop.lookups.Load(); l != nil {
				got = shop.find(l, rule, asked, g.nanos)
			}
			switch {
			case (got == nil) != (want == nil):
				t.Fatalf("%s: found %v, want %+v", Pattern{Entries: asked}, got, want)
			case got != nil && (got.subject != want.Subject || got.rule() != want.Rule || got.limit.String() != want.Limit):
				t.Fatalf("%s: found %s of %q, want %+v", Pattern{Entries: asked}, got.subject, got.rule(), want)
			}
		}
	}
	for _, o := range known {
		commit(t, g, unset(o.Override))
	}
	if st := g.State(); st.Count != 0 || g.sum != 0 || len(g.changes) != 0 || g.domains["shop"].lookups.Load() != nil {
		t.Errorf("%+v, sum %d, %d changes are left of nothing", st, g.sum, len(g.changes))
	}
}

// Patterns of so many lengths that lookups would take long are refused.
func TestManyShapes(t *testing.T) {
	t.Parallel()
	store, _, _ := OpenFile("")
	g := New(Config{Store: store, MaxOverrides: 1000})
	for i := range maxShapes {
		commit(t, g, set(override(t, "user="+strings.Repeat("x", i)+"*", "ban")))
	}
	commit(t, g, set(override(t, "user=yyy*", "ban")), set(override(t, "user=exact", "ban")))
	_, err := g.Commit(t.Context(), []Edit{set(override(t, "user="+strings.Repeat("x", maxShapes)+"*", "ban"))})
	if err == nil || !strings.Contains(err.Error(), "domain shop has patterns of 64 lengths, which is the most") {
		t.Error(err)
	}
	commit(t, g, unset(override(t, "user=x*", "ban")))
	commit(t, g, set(override(t, "user="+strings.Repeat("x", maxShapes)+"*", "ban")))
}
