package integration

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"ratelimit/testbed/browser"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
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
	p.Await("document.getElementById('rules-range').textContent === '1–25 of 10,001 rules, the busiest first'")
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
	p.Await("document.querySelector('#explain-result code').textContent === 'ratelimit counter reset basic user=alex " +
		fmt.Sprintf("--address 127.0.0.1:%d'", port))
	p.Screenshot("explained", true)
	p.Type("#rules-search", "t0777")
	p.Await("document.getElementById('rules-range').textContent === '1–10 of 10 rules'")
	p.Do("document.querySelector('#rules-table tbody button').click()")
	p.Await("document.getElementById('scope').textContent === 'many: tenant_t07770'")

	s.stop(t)
	p.Await("document.getElementById('connection').textContent === 'Disconnected, trying again'")
	startService(t, env...)
	p.Await(live)
	if problems := p.Problems("net::ERR_", "status of 404"); problems != nil { // A rule without traffic has no history.
		t.Errorf("%q", problems)
	}
}

// An outage of Redis on the operator's page and in `ratelimit top`: what does not answer since when, and what requests
// get meanwhile. It ends when Redis is back.
func TestOutageOnThePage(t *testing.T) {
	t.Parallel()
	chromium := browser.Start(t)
	redis := redistest.Start(t, redistest.Options{})
	dir := newRuleDir(t)
	dir.put(t, "shop.yaml", `domain: shop
descriptors:
  - key: user
    rate_limit: {algorithm: gcra, unit: minute, requests_per_unit: 60, burst: 9}
    descriptors:
      - key: action
        rate_limit: {unit: minute, requests_per_unit: 3}
  - key: ip
    rate_limit: {unit: hour, requests_per_unit: 500000, counting: leased}
`)
	s := startService(t, append(dir.env(), "BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+redis.Addr,
		"REDIS_TIMEOUT=5s", "DISABLE_STATS=true")...)
	body := []byte(`{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"eve"},` +
		`{"key":"action","value":"buy"}]},{"entries":[{"key":"ip","value":"10.0.0.7"}]}]}`)
	ctx, stop := context.WithCancel(t.Context())
	var caller sync.WaitGroup
	caller.Go(func() {
		for ctx.Err() == nil {
			if resp, err := client.Post("http://"+s.http+"/json", "application/json", bytes.NewReader(body)); err == nil {
				_ = resp.Body.Close()
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	t.Cleanup(func() { stop(); caller.Wait() })

	desk, phone := chromium.Open(t, "http://"+s.debug+"/", 1400), chromium.Open(t, "http://"+s.debug+"/", 390)
	desk.Await("document.querySelector('#denials-table tbody th .mono')?.textContent === 'user=eve,action=buy'")
	desk.Await("[...document.querySelectorAll('#rules-table td')].some((e) => e.textContent === " +
		"'60 per minute, 10 at once')")
	const lease = `500000 per hour \(9\d\.\d % by lease, \d+ held, 0 of 1 counters contended\)`
	desk.Await("[...document.querySelectorAll('#rules-table td')].some((e) => /^" + lease + "$/.test(e.textContent))")
	top, err := run("top", "--once", "--address", s.debug)
	if err != nil || !regexp.MustCompile(lease).MatchString(top) {
		t.Errorf("ratelimit top: %v\n%s", err, top)
	}
	desk.Await("/^Requests: \\d[\\d.]*\\/s, /.test(document.getElementById('requests').textContent)")
	screenshots(desk, phone, "denied")

	redis.Stop()
	stopped := time.Now()
	const sentence = "document.querySelector('#problems p')?.textContent ?? ''"
	desk.Await("/^Redis has not answered since \\d\\d:\\d\\d:\\d\\d; 100 % of requests get an error " +
		"\\(on_store_failure: error\\)$/.test(" + sentence + ")")
	at, err := time.ParseInLocation(time.TimeOnly, desk.Text(sentence)[len("Redis has not answered since "):][:8],
		time.Local)
	if err != nil {
		t.Fatal(err)
	}
	if late := at.Sub(time.Date(0, 1, 1, stopped.Hour(), stopped.Minute(), stopped.Second(), 0, time.Local)); late < 0 ||
		late > 5*time.Second {
		t.Errorf("the outage starts %v after Redis was stopped", late)
	}
	const isRed = "document.getElementById('ready').textContent === 'Redis does not answer' && " +
		"document.getElementById('ready').classList.contains('bad') && " +
		"document.querySelector('.tile.alarm .name').textContent === 'Failed' && " +
		"document.querySelector('#state > .failed dt').textContent === 'Store'"
	desk.Await(isRed)
	phone.Await(isRed)
	for _, page := range []*browser.Page{desk, phone} {
		if got := page.Text("[...document.querySelectorAll('#rules-table thead th')].find((e) => e.textContent === " +
			"'Failed').checkVisibility() + ''"); got != "true" {
			t.Errorf("the column Failed: %s", got)
		}
	}
	screenshots(desk, phone, "outage")
	top, err = run("top", "--once", "--address", s.debug)
	if err != nil || !regexp.MustCompile(`(?m)^OUTAGE: Redis has not answered since \d\d:\d\d:\d\d; 100 % of requests get an `+
		`error \(on_store_failure: error\)$`).MatchString(top) || !strings.Contains(top, "redis (not answering for ") {
		t.Errorf("ratelimit top: %v\n%s", err, top)
	}

	redis.Server.Restart(t)
	desk.Await("document.getElementById('ready').textContent === 'Ready' && " +
		"document.getElementById('problems').textContent === ''")
	if problems := append(desk.Problems(), phone.Problems()...); problems != nil {
		t.Errorf("%q", problems)
	}
}

// screenshots takes pictures of both pages, light and dark.
func screenshots(desk, phone *browser.Page, name string) {
	for _, dark := range []bool{false, true} {
		scheme := map[bool]string{false: "light", true: "dark"}[dark]
		for width, page := range map[string]*browser.Page{"1400": desk, "390": phone} {
			page.PreferDark(dark)
			page.Screenshot(strings.Join([]string{name, width, scheme}, "-"), true)
		}
	}
}
