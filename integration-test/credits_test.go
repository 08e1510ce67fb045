package integration

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// payingGateway asks and charges as the recipe says, for a customer whose plan comes before its credits.
type payingGateway struct {
	*upstream
	mu   sync.Mutex
	paid map[string]uint64 // in micro-dollars, by plan=acme and credits=acme; guarded by mu
}

// charge sends one request with an amount for each descriptor, and reports whether it passes.
func (g *payingGateway) charge(t *testing.T, amounts []uint64, descriptors ...string) bool {
	req := request("gateway", descriptors...)
	for i, amount := range amounts {
		req.Descriptors[i].HitsAddend = wrapperspb.UInt64(amount)
	}
	answer, err := g.call(t, req)
	if err != nil {
		t.Error(err)
		return false
	}
	return answer.OverallCode == rlsv3.RateLimitResponse_OK
}

// serve asks for one request of a user, and charges its tokens and its price in micro-dollars. It reports whether the
// request was admitted.
func (g *payingGateway) serve(t *testing.T, user string, tokens, price uint64) bool {
	check, payer := []uint64{0, 0}, "plan=acme"
	if !g.charge(t, check, user, payer) {
		payer = "credits=acme"
		if !g.charge(t, check, user, payer) {
			return false
		}
	}
	if !g.charge(t, []uint64{tokens, price}, user, payer) {
		t.Errorf("a charge of %s is refused", payer)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.paid[payer] += price
	return true
}

// spend sends requests of 40 callers at once until none is admitted. Each request has a user of its own, in this round.
func (g *payingGateway) spend(t *testing.T, round string) {
	t.Helper()
	var callers sync.WaitGroup
	for c := range uint64(40) {
		callers.Go(func() {
			for n := uint64(0); ; n++ {
				if !g.serve(t, fmt.Sprintf("user=%s-%d-%d", round, c, n), 800, 15_000+(c*7919+n*104_729)%15_001) {
					break
				}
			}
		})
	}
	callers.Wait()
}

// used waits until the counter of the descriptor has the units: reservations of checks count, too.
func (g *payingGateway) used(t *testing.T, descriptor string, want uint64) {
	t.Helper()
	matches(t, "http://"+g.debug+"/explain?domain=gateway&hits=0&descriptors="+descriptor, fmt.Sprintf(` %d used`, want))
}

// Callers at once spend the plan, and then the credits that were bought while the service runs, and no micro-dollar
// more. A refused check reserves nothing.
func TestCreditsAfterThePlan(t *testing.T) {
	t.Parallel()
	const estimate, plan, credits = 30_000, 20_000_000, 50_000_000 // as on the page
	text := blocks(t, tokenBudgetPage, "yaml", "domain: gateway\n")[0]
	text = regexp.MustCompile(`unit: (day|month)`).ReplaceAllString(text, "unit: year")
	buy := regexp.MustCompile("`(ratelimit limit set [^`]*)`").FindStringSubmatch(read(t, tokenBudgetPage))
	for store, env := range holdStores {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			rules := newRuleDir(t)
			rules.put(t, "gateway.yaml", text)
			g := &payingGateway{
				upstream: startWith(t, rules, append(env(t), "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true")...),
				paid:     make(map[string]uint64),
			}
			g.spend(t, "plan")
			if paid := g.paid["plan=acme"]; paid > plan || paid <= plan-estimate || len(g.paid) != 1 {
				t.Errorf("%v is paid, want nearly %d of the plan", g.paid, plan)
			}
			line := strings.ReplaceAll(buy[1], "\n", " ") + " --address " + g.debug
			if out, errOut, code := shell(t, line); code != 0 {
				t.Fatalf("%s: exit %d, %s%s", line, code, out, errOut)
			}
			soon(t, "the credits are there", func() error {
				text, err := get("http://" + g.debug + "/explain?domain=gateway&hits=1&descriptors=credits=acme")
				if err == nil && !strings.Contains(string(text), fmt.Sprint(credits)) {
					err = fmt.Errorf("no %d in\n%s", credits, text)
				}
				return err
			})
			g.spend(t, "credits")
			if paid := g.paid["credits=acme"]; paid > credits || paid <= credits-estimate {
				t.Errorf("%v is paid, want nearly %d of the credits", g.paid, credits)
			}
			for descriptor, paid := range g.paid {
				g.used(t, descriptor, paid)
			}
			g.used(t, "user=credits-0-0", 800)
			if g.serve(t, "user=al", 1, 1) {
				t.Error("a request passes without plan and credits")
			}
			g.used(t, "user=al", 0)
		})
	}
}
