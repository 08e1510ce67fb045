package limiter_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

const reservedRules = `
domain: d
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 100, reserve_on_check: {estimate: 40, for: 60s}}
  - key: team
    rate_limits:
      - {unit: day, requests_per_unit: 100, hold: 60s, hold_id: id, unsettled: release, reserve_on_check: {estimate: 40}}
      - {unit: day, requests_per_unit: 150, name: plain}
  - key: all
    on_reject: none
    rate_limits:
      - {algorithm: gcra, unit: day, requests_per_unit: 100, burst: 99, reserve_on_check: {for: 60s}}
      - {unit: day, requests_per_unit: 0}
`

// A check reserves, and the next charge ends the oldest reservation.
func TestReserveOnCheck(t *testing.T) {
	t.Parallel()
	l := start(t, limiter.Config{})
	l.UseRules(load(t, reservedRules))
	for _, s := range []struct {
		second   int
		user     string
		amount   uint64 // 0: a check
		isRefund bool
		want     string
	}{
		{0, "user=a", 0, false, "charge 40/100"},
		{1, "user=a", 0, false, "charge 80/100"},
		{2, "user=a", 0, false, "charge 80/100 over"}, // 20 are left, and the estimate is 40.
		{3, "user=a", 10, false, "force 50/100"},
		{4, "user=a", 0, false, "charge 90/100"},
		{5, "user=a", 45, false, "force 95/100"}, // More than was estimated.
		{6, "user=a", 0, false, "charge 95/100 over"},
		{7, "user=a", 0, true, "refund 95/100"},    // nothing
		{8, "user=a", 5, true, "refund 90/100"},    // a plain refund
		{64, "user=a", 0, false, "charge 90/100"},  // The reservation of second 4 has expired.
		{65, "user=a", 3, false, "force 53/100"},   // 10 + 45 - 5 + 3
		{66, "user=a", 60, false, "force 113/100"}, // A charge without a reservation is never refused.
		{67, "user=a", 0, false, "charge 113/100 over"},
		{0, "team=t", 0, false, "charge 40/100, charge 0/150"},
		{1, "team=t,id=1", 30, false, "charge 70/100, charge 30/150"},
		{2, "team=t", 7, false, "force 37/100, charge 37/150"},
		{3, "team=t,id=1,hold=settle", 5, false, "force 12/100"},
		{0, "all=x", 0, false, "charge 0/100, charge 0/0 over"}, // The other limit refuses.
	} {
		req := parse(s.user)
		req.Now = req.Now.Add(time.Duration(s.second) * time.Second)
		d := &req.Descriptors[0]
		d.HasAmount, d.Amount, d.IsRefund = true, s.amount, s.isRefund
		var a limiter.Answer
		if err := l.Check(t.Context(), req, &a); err != nil {
			t.Fatal(err)
		}
		if got := chargesText(&a); got != s.want {
			t.Errorf("second %d: %s of %d: %s, want %s", s.second, s.user, s.amount, got, s.want)
		}
	}
}

// A request that says no amount is a check, too: a gateway's policy without a cost of requests sends that. One with an
// amount for all descriptors is a charge.
func TestCheckWithoutAmount(t *testing.T) {
	t.Parallel()
	l := start(t, limiter.Config{})
	l.UseRules(load(t, reservedRules))
	for i, s := range []struct {
		amount uint64 // of the request
		want   string
	}{{0, "charge 40/100"}, {0, "charge 80/100"}, {0, "charge 80/100 over"}, {1, "force 41/100"}} {
		req := parse("user=a")
		req.DefaultAmount = s.amount
		var a limiter.Answer
		if err := l.Check(t.Context(), req, &a); err != nil {
			t.Fatal(err)
		}
		if got := chargesText(&a); got != s.want {
			t.Errorf("request %d: %s, want %s", i, got, s.want)
		}
	}
}

// What is counted for operators is what was charged: nothing for a check, and all of a charge.
func TestChargedUnitsOfReservations(t *testing.T) {
	t.Parallel()
	l := start(t, limiter.Config{})
	l.UseRules(load(t, reservedRules))
	for i, s := range []struct{ amount, want uint64 }{{0, 0}, {0, 0}, {3, 3}, {60, 60}, {9, 9}, {0, 0}} {
		req := parse("user=a")
		req.Descriptors[0].HasAmount, req.Descriptors[0].Amount = true, s.amount
		var a limiter.Answer
		if err := l.Check(t.Context(), req, &a); err != nil {
			t.Fatal(err)
		}
		if got := a.Charges[0].ChargedUnits(); got != s.want {
			t.Errorf("request %d for %d: %d units are charged, want %d", i, s.amount, got, s.want)
		}
	}
}

// A dry run of a check says what it would reserve, and reserves nothing; a program that looks at counters does neither.
func TestDryRunReservesNothing(t *testing.T) {
	t.Parallel()
	l := start(t, limiter.Config{})
	l.UseRules(load(t, reservedRules))
	for range 3 {
		req := parse("user=a")
		req.Descriptors[0].HasAmount = true
		var a limiter.Answer
		if err := l.DryRun(t.Context(), req, &a); err != nil {
			t.Fatal(err)
		}
		if c := &a.Charges[0]; c.RequestedAmount != 40 || c.Verdict.After != 0 || c.Over {
			t.Errorf("%+v", c)
		}
		req.IgnoresHolds = true
		if err := l.Check(t.Context(), req, &a); err != nil {
			t.Fatal(err)
		}
		if c := &a.Charges[0]; c.RequestedAmount != 0 || c.Verdict.After != 0 {
			t.Errorf("%+v", c)
		}
	}
}

// budget is what a counter with reservations must do, in the words of the documents: it has reservations by checks and
// holds by name, in the order of their time, and what was charged.
type budget struct {
	limit, charged int
	open           []reservation
}

type reservation struct {
	end   int // in seconds
	units int
	name  string // empty for one by a check
}

func (b *budget) expire(now int) {
	for len(b.open) > 0 && b.open[0].end <= now {
		b.open = b.open[1:]
	}
}

func (b *budget) used() (sum int) {
	sum = b.charged
	for _, r := range b.open {
		sum += r.units
	}
	return sum
}

// take reserves units, and reports whether there is room.
func (b *budget) take(now, units int, name string) bool {
	for _, r := range b.open {
		if name != "" && r.name == name {
			return true // It is held already.
		}
	}
	if b.used()+units > b.limit {
		return false
	}
	b.open = append(b.open, reservation{now + 60, units, name})
	return true
}

// settle charges units instead of the oldest reservation with the name.
func (b *budget) settle(units int, name string) {
	b.charged += units
	for i, r := range b.open {
		if r.name == name {
			b.open = append(b.open[:i:i], b.open[i+1:]...)
			return
		}
	}
}

// Checks, charges, and holds by name on one counter do what budget does, in any order. So no check is refused while
// there is room for its estimate, and what is charged exceeds the limit by at most what requests used beyond it.
func TestReservationsAreABudget(t *testing.T) {
	t.Parallel()
	const limit, estimate = 1000, 40
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		l := start(t, limiter.Config{})
		l.UseRules(load(t, fmt.Sprintf(`
domain: d
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: %d, hold: 60s, hold_id: id, unsettled: release, reserve_on_check: {estimate: %d}}
`, limit, estimate)))
		b, now, excess, done := budget{limit: limit}, 0, 0, make(map[string]bool)
		ask := func(name string, amount uint64, entries ...rules.Entry) bool {
			req := parse("user=a")
			req.Now = req.Now.Add(time.Duration(now) * time.Second)
			d := &req.Descriptors[0]
			d.Entries, d.HasAmount, d.Amount = append(d.Entries, entries...), true, amount
			if name != "" {
				d.Entries = append(d.Entries[:1:1], append([]rules.Entry{{Key: []byte("id"), Value: []byte(name)}}, entries...)...)
			}
			var a limiter.Answer
			if err := l.Check(t.Context(), req, &a); err != nil {
				t.Fatal(err)
			}
			if got := int(a.Charges[0].Verdict.After); got != b.used() {
				t.Fatalf("seed %d, second %d: %d are used, want %d", seed, now, got, b.used())
			}
			return !a.Over
		}
		for range 300 {
			if rnd.IntN(3) == 0 {
				now += rnd.IntN(20)
			}
			b.expire(now)
			name := fmt.Sprint(rnd.IntN(200))
			switch units := rnd.IntN(2 * estimate); {
			case rnd.IntN(2) == 0:
				want := b.take(now, estimate, "")
				if got := ask("", 0); got != want {
					t.Fatalf("seed %d, second %d: a check passes: %t, want %t", seed, now, got, want)
				}
			case rnd.IntN(2) == 0 && units > 0:
				before := b.used()
				b.settle(units, "")
				excess += max(0, b.used()-max(before, limit))
				if !ask("", uint64(units)) {
					t.Fatalf("seed %d: a charge is refused", seed)
				}
			case done[name] || units == 0:
			case rnd.IntN(2) == 0:
				want := b.take(now, units, name)
				if got := ask(name, uint64(units)); got != want {
					t.Fatalf("seed %d, second %d: hold %s of %d passes: %t, want %t", seed, now, name, units, got, want)
				}
			default:
				b.settle(units, name)
				done[name] = true
				ask(name, uint64(units), rules.Entry{Key: []byte("hold"), Value: []byte("settle")})
			}
		}
		if b.charged > limit && excess == 0 {
			t.Errorf("seed %d: %d of %d are charged", seed, b.charged, limit)
		}
	}
}
