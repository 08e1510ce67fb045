//go:build linux

package siege

import (
	"fmt"
	"os"
	"testing"
	"time"

	"ratelimit/testbed/harness"
)

// attacks are all there are.
func attacks() (all []*attack) {
	for _, table := range [][]attack{
		grpcAttacks, wireAttacks, quotaAttacks, tlsAttacks, respAttacks, storeAttacks,
		logAttacks, httpAttacks, memoryAttacks, ruleAttacks, metricAttacks, clockAttacks, candidateAttacks, callerAttacks,
		operatorAttacks,
	} {
		for i := range table {
			all = append(all, &table[i])
		}
	}
	return all
}

// Each attack, scaled down.
func TestSiegeInShort(t *testing.T) {
	if *full || testing.Short() {
		t.Skip("TestSiege has all of this, and go test -short has no time")
	}
	lay(t, inShort, func(*result) {})
}

// Every attack in full size.
func TestSiege(t *testing.T) {
	if !*full {
		t.Skip("this takes several minutes: make siege")
	}
	begun := time.Now()
	report := newReport()
	lay(t, inFull, report.add)
	report.Took = time.Since(begun)
	fmt.Printf("\n%s\n", report.text())
	if *write && !t.Failed() {
		if err := report.write(); err != nil {
			t.Fatal(err)
		}
	}
}

// lay makes the attacks: quiet ones side by side, the others one after the other.
func lay(t *testing.T, with size, done func(*result)) {
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		t.Skip("this test needs Linux: it looks into /proc")
	}
	if _, err := harness.BuiltService(); err != nil {
		t.Fatal(err)
	}
	for _, quiet := range []bool{true, false} {
		t.Run(map[bool]string{true: "quiet", false: "loud"}[quiet], func(t *testing.T) {
			for _, a := range attacks() {
				if a.quiet != quiet || a.onlyFull && !with.full {
					continue
				}
				t.Run(a.letter+" "+a.name, func(t *testing.T) {
					if quiet {
						t.Parallel()
					}
					r := try(t, a, with)
					done(r)
					r.report(t)
				})
			}
		})
	}
}

// report fails the test for what is wrong.
func (r *result) report(t *testing.T) {
	t.Helper()
	for _, p := range r.wrong() {
		t.Error(p)
	}
	if r.unmeasured != "" {
		t.Log(r.unmeasured)
		return
	}
	if r.group != "" {
		t.Logf("without a memory control group: %s", r.group)
	}
	t.Logf("figures: %s", r.summary())
}
