package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"ratelimit/src/operator"
	"ratelimit/testbed/browser"
)

const (
	rowsOf      = "document.querySelectorAll('#%s-table tbody tr').length"
	isConnected = "document.getElementById('connection').textContent === 'Live'"
)

func TestPageInBrowser(t *testing.T) {
	t.Parallel()
	chromium := browser.Start(t)
	for name, test := range map[string]func(*testing.T, *browser.Browser){
		"live": testPageIsLive, "strangers": testPageShowsTextOfStrangers, "rules": testPageWithManyRules,
		"looks": testPageLooks, "restart": testPageSurvivesRestart, "keyboard": testPageKeyboard,
		"descriptors": testPageDescriptors, "outage": testPageInOutage, "denials first": testPageDeniedFirst,
		"token": testPageWithToken, "candidate": testPageOfCandidate, "quotas": testPageOfQuotas,
		"limits": testPageOfLimits, "refused change": testPageOfRefusedChange,
		"dry run":   testPageOfDryRun,
		"unmatched": testPageOfUnmatched, "replicas": testPageOfReplicas,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, chromium)
		})
	}
}

// The page shows changes of rates and state, and denials, and filters these.
func testPageIsLive(t *testing.T, chromium *browser.Browser) {
	port := newOperatorPort(t)
	p := chromium.Open(t, port.url(), 1280)
	p.Await(isConnected)
	p.Await("document.querySelector('#series .value').textContent === '1,235/s'")
	p.Await("document.getElementById('ready').textContent === 'Ready'")
	p.Await("document.querySelector('#chart canvas') !== null")
	port.figures.set(func(s *operator.State, r *operator.Rates) {
		r.Total.Admitted = 7
		s.Ready, s.Components = false, []operator.Component{
			{Name: "redis_pool", NotReadyReason: "no answer"},
			{Name: "counting", Note: "degraded: on_store_failure decides"},
			{Name: "rules", Note: "2 domains"},
		}
		s.Rules.Problems = []string{"a.yaml:3:5: unknown key"}
	})
	p.Await("document.querySelector('#series .value').textContent === '7/s'")
	p.Await("document.getElementById('ready').textContent === 'Not ready' && document.title.startsWith('Not ready')")
	if got, want := p.Text("document.getElementById('problems').innerText"),
		"redis_pool is not ready: no answer\n\nThe last reload refused this: a.yaml:3:5: unknown key"; got != want {
		t.Errorf("problems %q, want %q", got, want)
	}
	if got, want := p.Text("document.getElementById('notes').innerText"),
		"counting: degraded: on_store_failure decides"; got != want {
		t.Errorf("notes %q, want %q", got, want)
	}
	for fact, want := range map[string]string{
		"Store":        "redis\nnot answering for 50 min",
		"Rules loaded": "newer ones were refused",
	} {
		if got := p.Text(
			"[...document.querySelectorAll('#state > div')].find((e) => e.innerText.startsWith('" + fact + "\\n')).innerText"); !strings.Contains(got, want) {
			t.Errorf("the state shows %q, want %q", got, want)
		}
	}
	for i := range 3 {
		port.figures.deny(operator.Denial{
			At: time.Now(), Protocol: "grpc", Domain: "api", Rule: "api.user",
			Subject: fmt.Sprintf("user=u%d", i), RetryAfterSeconds: operator.NeverRetry,
			Reason: []string{"", "the store does not answer", ""}[i],
		})
	}
	p.Await(fmt.Sprintf(rowsOf, "denials") + " === 3")
	if got := p.Text("document.querySelector('#denials-table tbody').innerText.replaceAll(/\\s+/g, ' ')"); strings.Count(got, "the store does not answer") != 1 {
		t.Errorf("denials %q", got)
	}
	p.Type("#denials-filter", "U1")
	p.Await(fmt.Sprintf(rowsOf, "denials") + " === 1")
	p.Await("document.getElementById('denials-count').textContent === '1 of the last 3'")
	p.Click("input[value=hour]")
	p.Await("document.querySelector('#hot-table tbody th span').textContent === 'hot of a hour'")
	if problems := p.Problems(); problems != nil {
		t.Errorf("%q", problems)
	}
}

// Traffic without a rule has a tile, and rows in the table of rules that explain it with one click.
func testPageOfUnmatched(t *testing.T, chromium *browser.Browser) {
	port := newOperatorPort(t)
	now := time.Now()
	port.figures.set(func(_ *operator.State, r *operator.Rates) {
		r.Total, r.Rules = operator.PerSecond{Admitted: 9, Unmatched: 3}, r.Rules[:3] // They fit on one page, as a tree.
		r.Unmatched = []operator.Unmatched{
			{
				Domain: "appi", IsUnknownDomain: true, Why: "no rules have the domain", DidYouMean: "api",
				Descriptor: "user=x", Descriptors: 10, FirstAt: now, LastAt: now,
			},
			{
				Domain: "mail", Keys: "usr", Why: "no rule has the key", DidYouMean: "<b>user",
				Descriptor: "usr=x", Descriptors: 1200, FirstAt: now, LastAt: now,
			},
		}
	})
	p := chromium.Open(t, port.url(), 1280)
	p.Await("document.querySelector('#series button:last-child').innerText.replaceAll(/\\s+/g, ' ') === " +
		"'Unmatched 3/s 25.0 % of descriptors' && document.getElementById('requests').textContent.startsWith('Requests: ')")
	const rowsText = "[...document.querySelectorAll('tr.unmatched')].map((r) => r.innerText.replaceAll(/\\s+/g, ' '))"
	p.Await(rowsText + ".length === 2")
	for i, want := range []string{
		"Unknown domain appi Explain No rules have the domain; did you mean api? 10 passed since ",
		"Unmatched usr=x Explain No rule has the key; did you mean <b>user? 1,200 passed since ",
	} {
		if got := p.Text(fmt.Sprintf("%s[%d]", rowsText, i)); !strings.HasPrefix(got, want) {
			t.Errorf("row %d: got %q, want %q", i, got, want)
		}
	}
	p.Await("document.querySelector('#rules-table tbody tr').className === 'unmatched'")
	if got := p.Text("document.querySelectorAll('tr.unmatched')[1].previousElementSibling.innerText"); !strings.HasPrefix(got, "mail") {
		t.Errorf("the row of mail is below %q", got)
	}
	p.Click("tr.unmatched button")
	p.Await("document.getElementById('explain-result').textContent.includes('No rules have the domain appi.')")
	if got := p.Text("document.getElementById('explain-descriptors').value"); got != "user=x" {
		t.Errorf("the form has %q", got)
	}
	checkContrast(t, p)
	p.Type("#rules-search", "mail")
	p.Await(rowsText + ".length === 1")
	if problems := p.Problems(); problems != nil {
		t.Errorf("%q", problems)
	}
}

// The page works with a token that the browser got with its address, and says why it is not connected.
func testPageWithToken(t *testing.T, chromium *browser.Browser) {
	port := newOperatorPortWith(t, "secret", nil)
	for range maxListeners {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, port.url()+"api/events", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer secret")
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%v %v", resp, err)
		}
		defer func() { _ = resp.Body.Close() }()
	}
	p := chromium.Open(t, "http://operator:secret@"+port.address+"/", 1280)
	p.Await("document.getElementById('disconnected').innerText.includes(': 32 listeners are connected to /api/events; " +
		"close one of them. ')")
	p.Await(fmt.Sprintf(rowsOf, "rules") + " > 24")
	port.stop()
	port.start()
	p.Await(isConnected)
	if problems := p.Problems("status of 503", "net::ERR_"); problems != nil {
		t.Errorf("%q", problems)
	}
}

// Texts that callers chose are never HTML, and errors are shown.
func testPageShowsTextOfStrangers(t *testing.T, chromium *browser.Browser) {
	port := newOperatorPort(t)
	const hostile = `<img src=x onerror=alert(1)>`
	port.figures.set(func(s *operator.State, r *operator.Rates) {
		r.Rules = []operator.RuleRates{{Domain: "d", Rule: "d." + hostile, Limit: hostile, PerSecond: operator.PerSecond{}}}
		r.Domains = []operator.DomainRates{{Domain: "d", PerSecond: operator.PerSecond{}}}
		s.Rules.Problems = []string{hostile}
	})
	port.figures.deny(operator.Denial{Domain: "d", Rule: hostile, Subject: hostile, Counter: hostile, Protocol: hostile})
	p := chromium.Open(t, port.url(), 1280)
	p.Await(fmt.Sprintf(rowsOf, "denials") + " === 1")
	p.Await(fmt.Sprintf(rowsOf, "rules") + " === 2")
	if got := p.Text("document.querySelector('#denials-table tbody th .mono').textContent"); got != hostile {
		t.Errorf("the subject is %q", got)
	}
	p.Click("#denials-table tbody button")
	p.Await("document.getElementById('explain-result').textContent.includes('<img src')")
	if got := p.Text("document.querySelectorAll('main img, main b').length"); got != "0" {
		t.Errorf("%s elements come from texts of callers", got)
	}
	if problems := p.Problems(); problems != nil {
		t.Errorf("%q", problems)
	}
}

// 10,000 rules are searched and paged by the service.
func testPageWithManyRules(t *testing.T, chromium *browser.Browser) {
	port := newOperatorPort(t)
	port.figures.set(func(s *operator.State, r *operator.Rates) {
		s.Rules.Rules, r.Rules = 10_000, nil
		for i := range 10_000 {
			r.Rules = append(r.Rules, operator.RuleRates{
				Domain: "api", Rule: fmt.Sprintf("api.user_%05d", i),
				Limit: "10 per minute", PerSecond: operator.PerSecond{Admitted: float64(10_000 - i)},
			})
		}
	})
	p := chromium.Open(t, port.url(), 1280)
	p.Await(fmt.Sprintf(rowsOf, "rules") + " === 25")
	p.Await("document.getElementById('rules-range').textContent === '1–25 of 10,000 rules, the busiest first'")
	p.Click("#rules-next")
	p.Await("document.querySelector('#rules-table tbody th').textContent === 'api.user_00025'")
	port.figures.set(func(_ *operator.State, r *operator.Rates) { slices.Reverse(r.Rules) })
	p.Do("const order = document.getElementById('rules-order'); order.value = 'tree'; " +
		"order.dispatchEvent(new Event('change'))")
	p.Await("document.getElementById('rules-range').textContent === '1–25 of 10,000 rules, by name'")
	p.Click("#rules-next")
	p.Await("[...document.querySelectorAll('#rules-table tbody th')].slice(0, 2).map((e) => e.textContent).join() === " +
		"'api,user_00025'") // Each page of the tree shows the domain.
	p.Type("#rules-search", "USER_0777")
	p.Await("document.getElementById('rules-range').textContent === '1–10 of 10 rules'")
	p.Type("#rules-search", "nothing")
	p.Await("document.getElementById('rules-range').textContent === 'No rule matches.'")
	if problems := p.Problems(); problems != nil {
		t.Errorf("%q", problems)
	}
}

// In an outage, the badge, the tile of failed decisions and the store are red, and one sentence says what happens.
func testPageInOutage(t *testing.T, chromium *browser.Browser) {
	port := newOperatorPort(t)
	since := time.Now().Add(-5 * time.Minute)
	var rates operator.Rates
	port.figures.set(func(s *operator.State, r *operator.Rates) {
		s.Outages = []operator.Outage{{Store: "Redis", SilentServers: 1, Servers: 1, Since: since}}
		s.OnStoreFailure, s.Replicas = []string{"error"}, 0
		s.Components[1].Note = "1 server without an answer, only probed"
		r.Total, r.Requests = operator.PerSecond{Failed: 50}, operator.RequestsPerSecond{Failed: 40}
		for i := range r.Rules {
			r.Rules[i].PerSecond = operator.PerSecond{Failed: 1}
		}
		rates = *r
	})
	p := chromium.Open(t, port.url(), 390)
	const badge = "document.getElementById('ready')"
	p.Await(badge + ".textContent === 'Redis does not answer' && " + badge + ".classList.contains('bad') && " +
		"document.title.startsWith('Redis does not answer')")
	p.Await("document.querySelectorAll('.tile.alarm').length === 1 && " +
		"document.querySelector('.tile.alarm').innerText.replaceAll(/\\s+/g, ' ') === 'Failed 50/s 100.0 %'")
	p.Await("document.querySelector('#state > .failed').innerText === 'Store\\nredis\\nnot answering for 50 min'")
	sentence := func(want string) {
		t.Helper()
		want = "Redis has not answered since " + since.Format(time.TimeOnly) + "; " + want
		p.Await("document.getElementById('problems').innerText === " + strconv.Quote(want))
	}
	sentence("100 % of requests get an error (on_store_failure: error)")
	if got := p.Text("document.getElementById('notes').innerText + " +
		"document.getElementById('state').innerText.includes('Replicas')"); got != "false" {
		t.Errorf("notes and unknown replicas: %q", got)
	}
	if got := p.Text("[...document.querySelectorAll('#rules-table th[scope=col]')].filter((e) => e.checkVisibility())" +
		".map((e) => e.textContent).join()"); got != "Rule,Admitted,Denied,Failed" {
		t.Errorf("the columns on a phone are %s", got)
	}
	checkContrast(t, p)
	p.PreferDark(true)
	checkContrast(t, p)
	for want, requests := range map[string]operator.RequestsPerSecond{
		"no requests in the last 10 s (on_store_failure: error, local)":          {},
		"no request of the last 10 s needed it (on_store_failure: error, local)": {Admitted: 2},
		"less than 1 % of requests get an error, more than 99 % of requests are decided without the store " +
			"(on_store_failure: error, local)": {Admitted: 998, Denied: 1, Fallback: 999, Failed: 1},
	} {
		port.figures.set(func(s *operator.State, r *operator.Rates) {
			s.OnStoreFailure, r.Requests = []string{"error", "local"}, requests
		})
		sentence(want)
	}
	port.figures.set(func(s *operator.State, _ *operator.Rates) { s.OnStoreFailure = []string{"local"} })
	p.Await(badge + ".classList.contains('wait')")
	port.figures.set(func(s *operator.State, r *operator.Rates) {
		s.Outages[0].SilentServers, s.Outages[0].Servers, s.Outages[0].Since = 2, 3, time.Time{}
		r.Requests = rates.Requests
	})
	p.Await("document.getElementById('problems').innerText === '2 servers of 3 of Redis have not answered since this " +
		"process started; 100 % of requests get an error (on_store_failure: local)'")
	port.figures.set(func(s *operator.State, r *operator.Rates) {
		s.Outages, r.Requests = nil, operator.RequestsPerSecond{Admitted: 999, Failed: 1}
	})
	p.Await(badge + ".textContent === 'Ready' && document.querySelector('#problems .wait')?.innerText === 'Some calls of " +
		"the store get no answer; less than 1 % of requests get an error (on_store_failure: local)'")
	p.Do(`const [list, row, name, value] = ["dl", "div", "dt", "dd"].map((tag) => document.createElement(tag));
		[list.className, name.textContent, value.textContent] = ["charge", "If the store does not answer", "sliding_window"];
		row.append(name, value);
		list.append(row);
		document.getElementById("explain-result").append(list);`)
	if got := p.Text(`["dt", "dd"].map((name) => document.querySelector(".charge " + name).getBoundingClientRect().left)
		.reduce((a, b) => a - b)`); got != "0" {
		t.Errorf("on a phone a value begins %s pixels beside its name", got)
	}
	if problems := p.Problems(); problems != nil {
		t.Errorf("%q", problems)
	}
}

// Denials and subjects are above the rules while something is denied. Sections without content have one line, and a
// table has pages instead of a bar to scroll.
func testPageDeniedFirst(t *testing.T, chromium *browser.Browser) {
	port := newOperatorPort(t)
	nothing := map[string][]operator.Subject{operator.TopHot: {}, operator.TopDenied: {}}
	port.figures.set(func(_ *operator.State, r *operator.Rates) {
		r.Total, r.Rules, port.figures.top = operator.PerSecond{}, nil, nothing
		port.figures.hour = &operator.History{StepSeconds: 10}
	})
	p := chromium.Open(t, port.url(), 1280)
	order := func(want string) {
		t.Helper()
		p.Await("[...document.querySelectorAll('main > section')].filter((e) => !e.hidden).map((e) => e.id).join(' ') === '" +
			want + "'")
	}
	p.Await("document.getElementById('rules-range').textContent === 'There are no rules.'")
	order("rates state-section rules denials subjects limits explain")
	for _, id := range []string{"rules", "denials", "subjects", "limits"} {
		if got := p.Text("document.getElementById('" + id + "').offsetHeight < 90 && " +
			"![...document.querySelectorAll('#" + id + " table')].some((e) => e.checkVisibility())"); got != "true" {
			t.Errorf("the empty section %s is not folded", id)
		}
	}
	for i := range 25 {
		port.figures.deny(operator.Denial{At: time.Now(), Domain: "api", Subject: fmt.Sprintf("user=u%02d", i)})
	}
	port.figures.set(func(_ *operator.State, r *operator.Rates) { r.Total.Denied = 0.1 })
	order("rates state-section denials subjects rules limits explain")
	const shown = "document.querySelector('#denials-table tbody .mono').textContent === "
	p.Await(shown + "'user=u24'")
	p.Click("#denials-next")
	p.Await(shown + "'user=u14'")
	port.figures.deny(operator.Denial{At: time.Now(), Domain: "api", Subject: "user=new"})
	p.Click("#denials-next")
	p.Await(shown + "'user=u04'")
	p.Await("document.getElementById('denials-range').textContent === '21–25 of 25' && " +
		"document.getElementById('denials-count').textContent === 'New ones wait on the first page.'")
	p.Click("#denials-previous")
	p.Click("#denials-previous")
	p.Await(shown + "'user=new'")
	if got := p.Text("[...document.querySelectorAll('main *')].filter((e) => ['auto', 'scroll'].includes(" +
		"getComputedStyle(e).overflowY) && e.tagName !== 'TEXTAREA').length"); got != "0" {
		t.Errorf("%s parts of the page scroll by themselves", got)
	}
	port.figures.set(func(_ *operator.State, r *operator.Rates) { r.Total.Denied = 0 })
	order("rates state-section rules denials subjects limits explain")
	if problems := p.Problems(); problems != nil {
		t.Errorf("%q", problems)
	}
}

// The section of the candidate rules is there if there is a directory for them, and shows differences as they come.
func testPageOfCandidate(t *testing.T, chromium *browser.Browser) {
	port := newOperatorPort(t)
	p := chromium.Open(t, port.url(), 1280)
	p.Await(isConnected + " && document.getElementById('candidate').hidden && " +
		"document.getElementById('candidate-link').hidden")
	const hostile = `<img src=x onerror=alert(1)>`
	set := func(c *operator.Candidate) {
		port.figures.set(func(*operator.State, *operator.Rates) { port.figures.candidate = c })
	}
	set(&operator.Candidate{Directory: "/rules/next", Problems: []string{"a.yaml:3:5: " + hostile}})
	p.Await("document.getElementById('candidate-state').textContent === 'none in /rules/next'")
	p.Await("document.getElementById('candidate-problems').textContent === 'The last candidate was refused: a.yaml:3:5: " + hostile + "'")
	set(exampleCandidate(hostile))
	p.Await(fmt.Sprintf(rowsOf, "candidate-rules") + " === 2")
	for id, want := range map[string]string{
		"candidate-problems": "Domains that the candidate removes, so that all their requests would be admitted: mail",
		"candidate-counts": "Compared 1.2M Same answer 1.2M 99.93 % Would deny 812 0.067 % Would admit 44 0.0037 % " +
			"Would be error 3 0.00025 % Not compared 17 the store did not answer Not in the sample 98,000 38.6 % of counters " +
			"are judged",
		"candidate-subjects-table": "Most affected subjects of the last hour Subject Result Requests " + hostile + " api: " + hostile + " would deny 700 ip=10.0.0.7 api: ip would admit 44",
	} {
		if got := p.Text("document.getElementById('" + id + "').innerText.replaceAll(/\\s+/g, ' ').trim()"); got != want {
			t.Errorf("%s:\n got %s\nwant %s", id, got, want)
		}
	}
	if got, want := p.Text("document.querySelector('#candidate-rules-table tbody').innerText.replaceAll(/\\s+/g, ' "+
		"').trim()"),
		hostile+" api 60000 per minute 50000 per minute 812 0 0 ip api 10 per second none 0 44 3"; got != want {
		t.Errorf("rules:\n got %s\nwant %s", got, want)
	}
	p.Do("document.querySelector('#candidate-examples-table button').focus()")
	p.Press("\r")
	p.Await("document.getElementById('explain-domain').value === 'api'")
	if got := p.Text("document.querySelectorAll('main img').length"); got != "0" {
		t.Errorf("%s elements come from texts of callers", got)
	}
	set(nil)
	p.Await("document.getElementById('candidate').hidden")
	if problems := p.Problems(); problems != nil {
		t.Errorf("%q", problems)
	}
}

// The page is dark or light as the user prefers, its texts can be read, and it fits a phone.
func testPageLooks(t *testing.T, chromium *browser.Browser) {
	port := newOperatorPort(t)
	fillForPictures(port.figures)
	p := chromium.Open(t, port.url(), 1280)
	const isFilled = "document.querySelectorAll('#denials-table tbody tr').length === 10 && " +
		"document.querySelectorAll('#rules-table tbody tr').length === 25 && document.querySelector('#chart canvas') !== null"
	p.Await(isFilled)
	p.Await("!document.getElementById('candidate').hidden && " + fmt.Sprintf(rowsOf, "candidate-examples") + " === 2")
	const background = "getComputedStyle(document.body).backgroundColor"
	p.PreferDark(false)
	light := p.Text(background)
	checkContrast(t, p)
	p.Screenshot("light", true)
	p.Screenshot("first-screen", false)
	p.PreferDark(true)
	checkContrast(t, p)
	if dark := p.Text(background); light != "rgb(245, 246, 248)" || dark != "rgb(14, 18, 23)" {
		t.Errorf("light %s, dark %s", light, dark)
	}
	p.Screenshot("dark", true)
	phone := chromium.Open(t, port.url(), 360)
	phone.Await(isFilled)
	if got := phone.Text("document.documentElement.scrollWidth"); got != "360" {
		t.Errorf("the page is %s pixels wide on a phone of 360", got)
	}
	phone.Screenshot("phone", true)
	if problems := append(p.Problems(), phone.Problems()...); problems != nil {
		t.Errorf("%q", problems)
	}
}

// The page says that it is disconnected, and connects again by itself. Denials of the new process follow those of the
// old one.
func testPageSurvivesRestart(t *testing.T, chromium *browser.Browser) {
	port := newOperatorPort(t)
	port.figures.deny(operator.Denial{Subject: "before"})
	p := chromium.Open(t, port.url(), 1280)
	p.Await(fmt.Sprintf(rowsOf, "denials") + " === 1")
	port.stop()
	p.Await("document.getElementById('connection').textContent === 'Disconnected, trying again'")
	p.Await("document.getElementById('disconnected').innerText.startsWith('Disconnected since ')")
	port.figures = newFakeFigures()
	port.figures.state = operator.State{StartedAt: time.Now(), Version: "1.2.4"}
	port.figures.deny(operator.Denial{Subject: "after"})
	port.start()
	p.Await(isConnected + " && document.getElementById('disconnected').hidden")
	p.Await(fmt.Sprintf(rowsOf, "denials") + " === 2")
	if got := p.Text("document.getElementById('problems').innerText"); got != "The service has another version now. "+
		"Reload this page." {
		t.Errorf("problems %q", got)
	}
	if problems := p.Problems("net::ERR_"); problems != nil {
		t.Errorf("%q", problems)
	}
}

// The page can be used with the keyboard, and updates do not move the focus.
func testPageKeyboard(t *testing.T, chromium *browser.Browser) {
	port := newOperatorPort(t)
	p := chromium.Open(t, port.url(), 1280)
	p.Await(fmt.Sprintf(rowsOf, "rules") + " > 24")
	p.Press("\t")
	if got := p.Text(
		"document.activeElement.textContent + ' ' + (document.activeElement.getBoundingClientRect().top >= 0)"); got != "Skip to the figures true" {
		t.Errorf("Tab leads to %q", got)
	}
	p.Do("document.querySelector('#rules-table tbody button').focus()")
	p.Press("\r")
	p.Await("document.getElementById('scope').textContent === 'api: tenant' && " +
		"!document.getElementById('scope-all').hidden")
	if got := p.Text("document.querySelectorAll('#rules-table [aria-pressed=true]').length + " +
		"document.activeElement.ariaPressed"); got != "1true" {
		t.Errorf("the rule is chosen: %s", got)
	}
	port.figures.set(func(_ *operator.State, r *operator.Rates) {
		r.Rules = append([]operator.RuleRates{{
			Domain: "aaa", Rule: "aaa.first", Limit: "1 per day",
			PerSecond: operator.PerSecond{Admitted: 1000},
		}}, r.Rules...)
	})
	p.Await("document.querySelector('#rules-table tbody button').textContent === 'aaa.first'")
	if got := p.Text("document.activeElement.textContent"); got != "api.tenant" {
		t.Errorf("after an update the focus is on %q", got)
	}
	unnamed := "[...document.querySelectorAll('input, select, textarea, button')].filter(e => !e.labels?.length && " +
		"!e.ariaLabel && !e.textContent.trim()).length"
	if got := p.Text(unnamed); got != "0" {
		t.Errorf("%s controls have no name", got)
	}
}

// contrast is JavaScript that returns the texts whose contrast with their background is below 4.5, which WCAG AA asks
// for.
const contrast = `(() => {
	const parse = (colour) => colour.match(/[\d.]+/g).map(Number);
	const luminance = ([r, g, b]) => [r, g, b].map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
		.reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
	const backgroundOf = (e) => {
		for (; e; e = e.parentElement) {
			const colour = parse(getComputedStyle(e).backgroundColor);
			if (colour[3] !== 0) return colour;
		}
		return [255, 255, 255];
	};
	const bad = new Set();
	for (const e of document.body.querySelectorAll("*")) {
		if (e.disabled || !e.checkVisibility() || ![...e.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.data.trim())) continue;
		const [low, high] = [luminance(parse(getComputedStyle(e).color)), luminance(backgroundOf(e))].sort((a, b) => a - b);
		const ratio = (high + 0.05) / (low + 0.05);
		if (ratio < 4.5) bad.add(e.tagName + "." + e.className + " " + e.textContent.trim().slice(0, 30) + ": " + ratio.toFixed(2));
	}
	return [...bad].join("\n");
})()`

func checkContrast(t *testing.T, p *browser.Page) {
	t.Helper()
	if bad := p.Text(contrast); bad != "" {
		t.Errorf("low contrast:\n%s", bad)
	}
}

// The texts of descriptors that the service shows are read as the service writes them.
func testPageDescriptors(t *testing.T, chromium *browser.Browser) {
	p := chromium.Open(t, newOperatorPort(t).url(), 1280)
	for _, tt := range []struct{ text, want string }{
		{`ip=1.2.3.4`, `{"entries":[{"key":"ip","value":"1.2.3.4"}],"isCut":false}`},
		{` a=1 , b=x=y `, `{"entries":[{"key":"a","value":"1"},{"key":"b","value":"x=y"}],"isCut":false}`},
		{`word,a=`, `{"entries":[{"key":"word","value":""},{"key":"a","value":""}],"isCut":false}`},
		{
			strconv.Quote("k,1") + "=" + strconv.Quote("a \"=,\\\a\u2028é\x00\x7f😀"),
			`{"entries":[{"key":"k,1","value":"a \"=,\\\u0007\u2028é\u0000\u007f😀"}],"isCut":false}`,
		},
		{`"user=\"bot,7\""`, `{"entries":[{"key":"user","value":"bot,7"}],"isCut":false}`}, // as the log has it
		{`user=\"bot,7\",b=c`, `{"entries":[{"key":"user","value":"bot,7"},{"key":"b","value":"c"}],"isCut":false}`},
		{`"tenant=acme"`, `{"entries":[{"key":"tenant","value":"acme"}],"isCut":false}`},
		{`"a b"=,c`, `{"entries":[{"key":"a b","value":""},{"key":"c","value":""}],"isCut":false}`},
		{`a=long…`, `{"entries":[{"key":"a","value":"long…"}],"isCut":true}`},
		{`a=1,… (4 more)`, `{"entries":[{"key":"a","value":"1"}],"isCut":true}`},
		{`=1`, `"Error: =1: write key=value, separated by commas; a key is missing"`},
		{`a=1,,b=2`, `"Error: a=1,,b=2: write key=value, separated by commas; a key is missing"`},
		{`a="x`, `"Error: a=\"x: a closing quote is missing"`},
		{`a="x"y`, `"Error: a=\"x\"y: write a comma after the closing quote"`},
		{`a="\q"`, `"Error: a=\"\\q\": \\q is not an escape of Go"`},
		{`a="\xff"`, `"Error: a=\"\\xff\": \\xff is a byte that is not UTF-8 text; only ratelimit explain can send it"`},
	} {
		text, err := json.Marshal(tt.text)
		if err != nil {
			t.Fatal(err)
		}
		p.Do("const { parseDescriptor } = await import('/page/descriptor.js');" +
			"try { window.got = parseDescriptor(" + string(text) + ") } catch (error) { window.got = String(error) }")
		var want any
		if err := json.Unmarshal([]byte(tt.want), &want); err != nil {
			t.Fatalf("%s: %v", tt.want, err)
		}
		var got any
		if err := json.Unmarshal([]byte(p.Text("JSON.stringify(window.got)")), &got); err != nil ||
			!reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v, want %v; %v", tt.text, got, want, err)
		}
	}
}
