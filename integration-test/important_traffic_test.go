package integration

import (
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

const (
	importantPage = "docs/recipes/important-traffic.md"
	// poolFactor multiplies the limits of the page: the pool has 100 a second, and the reserve is 20.
	poolFactor = 10
	loadFor    = 3 * time.Second
)

// poolRules returns the rules of the page with larger limits.
func poolRules(t *testing.T) string {
	t.Helper()
	text := blocks(t, importantPage, "yaml", "domain: backend\n")[0]
	return regexp.MustCompile(`(requests_per_unit: )(\d+)`).ReplaceAllStringFunc(text, func(s string) string {
		key, digits, _ := strings.Cut(s, ": ")
		n, err := strconv.Atoi(digits)
		if err != nil {
			t.Fatal(err)
		}
		return key + ": " + strconv.Itoa(n*poolFactor)
	})
}

// poolClass is requests of one class that come at a steady pace.
type poolClass struct {
	name           string
	every          time.Duration // between two requests of a sender
	senders        int
	asked, refused int
}

// load sends the requests of all classes at the same time, for loadFor.
func (u *upstream) load(t *testing.T, classes []*poolClass) {
	var all sync.WaitGroup
	for _, c := range classes {
		var mu sync.Mutex // guards asked and refused of c
		for range c.senders {
			all.Go(func() {
				tick := time.NewTicker(c.every)
				defer tick.Stop()
				for end := time.Now().Add(loadFor); time.Now().Before(end); <-tick.C {
					answer, err := u.call(t, request("backend", "pool=db,class="+c.name))
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					c.asked++
					if answer.OverallCode == rlsv3.RateLimitResponse_OVER_LIMIT {
						c.refused++
					}
					mu.Unlock()
				}
			})
		}
	}
	all.Wait()
}

// Under ten times the load that the pool admits, no critical request is lost that fits into the reserve. Without
// `on_reject: none` most are.
func TestReserveForImportantTraffic(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		store     string
		protected bool
	}{
		"memory":                          {"memory", true},
		"redis":                           {"redis", true},
		"memory, without on_reject: none": {"memory", false},
	} {
		t.Run(name, func(t *testing.T) {
			text := poolRules(t)
			if !test.protected {
				text = strings.Replace(text, "on_reject: none", "on_reject: each", 1)
			}
			rules := newRuleDir(t)
			rules.put(t, "backend.yaml", text)
			u := startWith(t, rules, holdStores[test.store](t)...)
			critical := &poolClass{name: "critical", every: 60 * time.Millisecond, senders: 1} // at most 18 in a second
			classes := []*poolClass{
				critical,
				{name: "normal", every: 20 * time.Millisecond, senders: 10},
				{name: "batch", every: 20 * time.Millisecond, senders: 5},
				{name: "crawler", every: 20 * time.Millisecond, senders: 5},
			}
			u.load(t, classes)
			asked, admitted := 0, 0
			for _, c := range classes {
				t.Logf("%s: %d of %d are refused", c.name, c.refused, c.asked)
				asked, admitted = asked+c.asked, admitted+c.asked-c.refused
			}
			most := 10 * poolFactor * int(loadFor/time.Second+1) // The load begins and ends within a second of the clock.
			switch {
			case admitted > most || asked < 3*most:
				t.Errorf("%d of %d are admitted, and the pool has room for %d", admitted, asked, most)
			case test.protected && critical.refused > 0:
				t.Errorf("%d of %d critical requests are refused", critical.refused, critical.asked)
			case !test.protected && critical.refused < critical.asked/4:
				t.Errorf("only %d of %d critical requests are refused", critical.refused, critical.asked)
			}
		})
	}
}
