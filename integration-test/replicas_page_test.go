package integration

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"ratelimit/testbed/browser"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
)

const replicaRules = `domain: shop
descriptors:
  - key: user
    rate_limit: {algorithm: gcra, unit: minute, requests_per_unit: 60, burst: 9}
    descriptors:
      - key: action
        rate_limit: {unit: minute, requests_per_unit: 3}
  - key: ip
    rate_limit: {unit: second, requests_per_unit: 100}
`

// startReplicas starts replicas that share Redis and know each other, with a token.
func startReplicas(t *testing.T, n int, token string) (list []*service) {
	t.Helper()
	redis := redistest.Start(t, redistest.Options{})
	dir := newRuleDir(t)
	dir.put(t, "shop.yaml", replicaRules)
	var ports, addresses []string
	for range n {
		port, err := harness.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, fmt.Sprint("DEBUG_PORT=", port))
		addresses = append(addresses, fmt.Sprint("127.0.0.1:", port))
	}
	for _, port := range ports {
		list = append(list, startService(t, append(dir.env(), port, "BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp",
			"REDIS_URL="+redis.Addr, "DISABLE_STATS=true", "DEBUG_TOKEN="+token,
			"DEBUG_PEERS="+strings.Join(addresses, ","))...))
	}
	return list
}

// callReplicas sends requests until the test ends: half of them to the first replica.
func callReplicas(t *testing.T, list []*service) {
	body := []byte(`{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"eve"},` +
		`{"key":"action","value":"buy"}]},{"entries":[{"key":"ip","value":"10.0.0.7"}]}]}`)
	ctx, stop := context.WithCancel(t.Context())
	var caller sync.WaitGroup
	caller.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			to := list[0]
			if i%2 == 1 {
				to = list[1+i/2%(len(list)-1)]
			}
			if resp, err := client.Post("http://"+to.http+"/json", "application/json", bytes.NewReader(body)); err == nil {
				_ = resp.Body.Close()
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	t.Cleanup(func() { stop(); caller.Wait() })
}

// The page of one of three replicas shows the sums of all with the share of each, names the one that was killed, and
// shows one replica alone if asked to.
func TestPageOfSeveralReplicas(t *testing.T) {
	t.Parallel()
	chromium := browser.Start(t)
	const token = "s3cr3t-of-replicas"
	list := startReplicas(t, 3, token)
	callReplicas(t, list)
	address := "http://operator:" + token + "@" + list[0].debug + "/"
	desk, phone := chromium.Open(t, address, 1400), chromium.Open(t, address, 390)
	const sums, notice = "document.getElementById('replicas-sum').textContent", "document.getElementById('problems').innerText"
	for _, page := range []*browser.Page{desk, phone} {
		page.Await(sums + " === 'All figures are the sums of 3 replicas.' && " + notice + " === ''")
		page.Await("document.getElementById('ready').textContent === 'Ready'")
		page.Await("[...document.querySelectorAll('#replicas-table tbody tr')].map((r) => r.cells[0].textContent).join() === '" +
			fmt.Sprintf("1. %s this replica,2. %s,3. %s'", list[0].debug, list[1].debug, list[2].debug))
		page.Await("(([a, b, c]) => a > 40 && a < 60 && b > 15 && c > 15)([...document.querySelectorAll(" +
			"'#replicas-table tbody tr')].map((r) => Number(r.cells[4].textContent)))")
	}
	desk.Await("[...document.querySelectorAll('#rules-table .shares')].some((e) => /^[45]\\d\\/[23]\\d\\/[23]\\d$/.test(e.textContent))")
	phone.Await("[...document.querySelectorAll('#rules-table .narrow')].some((e) => e.checkVisibility() && " +
		"/^shares \\d+\\/\\d+\\/\\d+ %$/.test(e.textContent))")
	desk.Await("[...document.querySelectorAll('#hot-table .below')].some((e) => /, shares [45]\\d\\/[23]\\d\\/[23]\\d %$/.test(e.textContent))")
	for _, by := range []string{"this replica", list[1].debug, list[2].debug} {
		desk.Await("[...document.querySelectorAll('#denials-table .below')].some((e) => e.textContent.includes(', by " + by + "'))")
	}
	desk.Await("document.querySelector('#chart canvas') !== null")

	list[2].kill(t)
	for _, page := range []*browser.Page{desk, phone} {
		page.Await(sums + " === 'All figures are the sums of 2 of 3 replicas, without the one that does not answer.'")
		page.Await(notice + ".startsWith('" + list[2].debug + " is not in the sums: connection refused')")
		page.Await("document.getElementById('ready').textContent === '" + list[2].debug + " does not answer'")
		page.Await("(([a, b, c]) => a + b >= 99 && c === '–')([...document.querySelectorAll('#replicas-table tbody tr')].map(" +
			"(r) => Number(r.cells[4].textContent) || r.cells[4].textContent))")
	}
	screenshots(desk, phone, "replicas")
	if got := phone.Text("document.documentElement.scrollWidth"); got != "390" {
		t.Errorf("the page is %s pixels wide on a phone of 390", got)
	}

	desk.Click("input[name=replicas][value=this]")
	desk.Await(sums + " === 'The figures are those of this replica alone.' && " + notice + " === '' && " +
		"location.search === '?replicas=this'")
	desk.Await("document.querySelectorAll('#denials-table tbody tr').length > 0 && " +
		"![...document.querySelectorAll('#denials-table .below')].some((e) => e.textContent.includes(', by '))")
	desk.Click("input[name=replicas][value=all]")
	desk.Await(sums + ".startsWith('All figures are the sums of 2 of 3 ') && location.search === ''")
	if problems := append(desk.Problems(), phone.Problems()...); problems != nil {
		t.Errorf("%q", problems)
	}
	for i, s := range list {
		if strings.Contains(s.log(t), token) {
			t.Errorf("the log of replica %d has the token", i)
		}
	}
	resp, err := client.Get("http://" + list[0].debug + "/api/events?replicas=all")
	if err != nil || resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("without the token: %v, %v", resp, err)
	} else if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
}
