package integration

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/browser"
	"ratelimit/testbed/harness"
)

// The operator's page of the built program: it shows load, denials and explanations, finds a rule among 10,000, and
// connects again after a restart.
func TestOperatorsPage(t *testing.T) {
	t.Parallel()
	chromium := browser.Start(t)
	dir := newRuleDir(t)
	dir.put(t, "basic.yaml", "domain: basic\ndescriptors:\n  - key: user\n    rate_limit: {unit: year, "+
		"requests_per_unit: 2}\n")
	var many strings.Builder
	many.WriteString("domain: many\ndescriptors:\n")
	for i := range 10_000 {
		fmt.Fprintf(&many, "  - {key: tenant, value: t%05d, rate_limit: {unit: minute, requests_per_unit: 10}}\n", i)
	}
	dir.put(t, "many.yaml", many.String())
	port, err := harness.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	env := append(dir.env(), "DISABLE_STATS=true", fmt.Sprintf("DEBUG_PORT=%d", port))
	s := startService(t, env...)

	p := chromium.Open(t, "http://"+net.JoinHostPort("127.0.0.1", fmt.Sprint(port))+"/", 1280)
	const live = "document.getElementById('connection').textContent === 'Live'"
	p.Await(live)
	p.Await("document.getElementById('ready').textContent === 'Ready'")
	p.Await("document.getElementById('rules-range').textContent === '1–100 of 10,001 rules, the busiest first'")
	p.Await("document.getElementById('state').textContent.includes('10,001 in 2 domains')")
	for i := range 30 {
		if status, _ := s.ask(t, "basic", "user=alex"); (status == 429) != (i >= 2) {
			t.Fatalf("request %d: status %d", i, status)
		}
	}
	if took := p.Await(
		"document.querySelector('#denials-table tbody th .mono')?.textContent === 'user=alex'"); took > 2*time.Second {
		t.Errorf("the first denial appeared after %v", took)
	}
	p.Await("document.querySelectorAll('#series .value')[1].textContent !== '0/s'")
	p.Await("document.querySelector('#denied-table tbody th .mono')?.textContent === 'user=alex'")
	p.Type("#denials-filter", "maria")
	p.Await("document.querySelectorAll('#denials-table tbody tr').length === 0")
	p.Type("#denials-filter", "ALEX")
	p.Await("document.querySelectorAll('#denials-table tbody tr').length > 0")
	p.Click("#denials-table tbody button")
	p.Await("document.getElementById('explain-result').textContent.includes('The request would be denied now.')")
	p.Await("document.querySelector('#explain-result .charge').textContent.includes(' used, 0 left')")
	p.Screenshot("explained", true)
	p.Type("#rules-search", "t0777")
	p.Await("document.getElementById('rules-range').textContent === '1–10 of 10 rules'")
	p.Do("document.querySelectorAll('#rules-table tbody button')[1].click()")
	p.Await("document.getElementById('scope').textContent === 'many: tenant_t07770'")

	s.stop(t)
	p.Await("document.getElementById('connection').textContent === 'Disconnected, trying again'")
	startService(t, env...)
	p.Await(live)
	if problems := p.Problems("net::ERR_", "status of 404"); problems != nil { // A rule without traffic has no history.
		t.Errorf("%q", problems)
	}
}
