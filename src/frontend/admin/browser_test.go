package admin

import (
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"ratelimit/src/testbed/browser"
)

// soon is the time after which the page must show what happened.
const soon = 2 * time.Second

// operatorPort is a debug port that can stop and start again on the same address.
type operatorPort struct {
	t       *testing.T
	figures *fakeFigures
	address string
	server  *http.Server
}

func newOperatorPort(t *testing.T) *operatorPort {
	now := time.Now()
	f := newFakeFigures()
	f.state = State{
		Version: "1.2.3", Commit: "abcdef0123456789", Now: now, StartedAt: now.Add(-3 * time.Hour), Ready: true, Store: "redis", StoreSince: now.Add(-50 * time.Minute), Replicas: 3,
		Components: []Component{{Name: "rules", Note: "2 domains"}, {Name: "redis"}},
		Rules:      LoadedRules{Hash: "8f14e45fceea167a5a36dedd4bea2543", Domains: 2, Rules: 121, Files: 4, LoadedAt: now.Add(-20 * time.Minute)},
	}
	f.rates = Rates{Total: PerSecond{1234.5, 56.7, 12, 3, 0}, Domains: []DomainRates{{"api", PerSecond{1200, 56, 12, 3, 0}}, {"mail", PerSecond{34.5, 0.7, 0, 0, 0}}}}
	f.rates.Rules = []RuleRates{{"api", "api.tenant", "9000 per minute", PerSecond{Admitted: 99}}}
	for i := range 60 {
		f.rates.Rules = append(f.rates.Rules,
			RuleRates{"api", fmt.Sprintf("api.tenant.path_/v1/things/%d", i), "100 per second", PerSecond{Admitted: float64(80 / (i + 1)), Denied: float64(20 / (i + 1))}},
			RuleRates{"mail", fmt.Sprintf("mail.to_%d@example.org", i), "5 per hour", PerSecond{}})
	}
	p := &operatorPort{t: t, figures: f, address: "127.0.0.1:0"}
	p.start()
	t.Cleanup(p.stop)
	return p
}

func (p *operatorPort) start() {
	p.t.Helper()
	listener, err := net.Listen("tcp", p.address)
	if err != nil {
		p.t.Fatal(err)
	}
	p.address = listener.Addr().String()
	pages := DebugPages{
		SortedFigures: func(func(string, int64) bool) {}, Components: func() []Component { return nil }, Figures: p.figures,
		ExplainHandler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "explained <b>nothing</b>", http.StatusBadRequest)
		}),
	}
	p.server = &http.Server{Handler: pages.Handler(), ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second}
	go func(s *http.Server) { _ = s.Serve(listener) }(p.server)
}

func (p *operatorPort) stop() { _ = p.server.Close() }

func (p *operatorPort) url() string { return "http://" + p.address + "/" }

const (
	rowsOf      = "document.querySelectorAll('#%s-table tbody tr').length"
	isConnected = "document.getElementById('connection').textContent === 'Live'"
)

func TestPageInBrowser(t *testing.T) {
	t.Parallel()
	chromium := browser.Start(t)
	for name, test := range map[string]func(*testing.T, *browser.Browser){
		"live": testPageIsLive, "strangers": testPageShowsTextOfStrangers, "rules": testPageWithManyRules, "looks": testPageLooks, "restart": testPageSurvivesRestart, "keyboard": testPageKeyboard,
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
	p.Await(soon, isConnected)
	p.Await(soon, "document.querySelector('#series .value').textContent === '1,235/s'")
	p.Await(soon, "document.getElementById('ready').textContent === 'Ready'")
	p.Await(soon, "document.querySelector('#chart canvas') !== null")
	port.figures.set(func(s *State, r *Rates) {
		r.Total.Admitted = 7
		s.Ready, s.Components = false, []Component{{Name: "redis", NotReadyReason: "no answer"}}
		s.Rules.Problems = []string{"a.yaml:3:5: unknown key"}
	})
	p.Await(soon, "document.querySelector('#series .value').textContent === '7/s'")
	p.Await(soon, "document.getElementById('ready').textContent === 'Not ready' && document.title.startsWith('Not ready')")
	if got, want := p.Text("document.getElementById('problems').innerText"), "redis is not ready: no answer\n\nThe last reload refused this: a.yaml:3:5: unknown key"; got != want {
		t.Errorf("problems %q, want %q", got, want)
	}
	for i := range 3 {
		port.figures.deny(Denial{At: time.Now(), Protocol: "grpc", Domain: "api", Rule: "api.user", Subject: fmt.Sprintf("user=u%d", i), RetryAfterSeconds: NeverRetry})
	}
	p.Await(soon, fmt.Sprintf(rowsOf, "denials")+" === 3")
	if got := p.Text("document.querySelector('#denials-table tbody').innerText.replaceAll(/\\s+/g, ' ')"); got == "" {
		t.Errorf("denials %q", got)
	}
	p.Type("#denials-filter", "U1")
	p.Await(soon, fmt.Sprintf(rowsOf, "denials")+" === 1")
	p.Await(soon, "document.getElementById('denials-count').textContent === '1 of the last 3'")
	p.Click("input[value=hour]")
	p.Await(soon, "document.querySelector('#hot-table tbody th span').textContent === 'hot of a hour'")
	if problems := p.Problems(); problems != nil {
		t.Errorf("%q", problems)
	}
}

// Texts that callers chose are never HTML, and errors are shown.
func testPageShowsTextOfStrangers(t *testing.T, chromium *browser.Browser) {
	port := newOperatorPort(t)
	const hostile = `<img src=x onerror=alert(1)>`
	port.figures.set(func(s *State, r *Rates) {
		r.Rules = []RuleRates{{"d", "d." + hostile, hostile, PerSecond{}}}
		r.Domains = []DomainRates{{"d", PerSecond{}}}
		s.Rules.Problems = []string{hostile}
	})
	port.figures.deny(Denial{Domain: "d", Rule: hostile, Subject: hostile, Counter: hostile, Protocol: hostile})
	p := chromium.Open(t, port.url(), 1280)
	p.Await(soon, fmt.Sprintf(rowsOf, "denials")+" === 1")
	p.Await(soon, fmt.Sprintf(rowsOf, "rules")+" === 2")
	if got := p.Text("document.querySelector('#denials-table tbody th .mono').textContent"); got != hostile {
		t.Errorf("the subject is %q", got)
	}
	p.Do("document.querySelector('#denials-table tbody button').click()")
	p.Await(soon, "document.getElementById('explain-result').textContent === 'explained <b>nothing</b>'")
	if got := p.Text("document.querySelectorAll('main img, main b').length"); got != "0" {
		t.Errorf("%s elements come from texts of callers", got)
	}
	if problems := p.Problems("status of 400"); problems != nil {
		t.Errorf("%q", problems)
	}
}

// 10,000 rules are searched and paged by the service.
func testPageWithManyRules(t *testing.T, chromium *browser.Browser) {
	port := newOperatorPort(t)
	port.figures.set(func(s *State, r *Rates) {
		s.Rules.Rules, r.Rules = 10_000, nil
		for i := range 10_000 {
			r.Rules = append(r.Rules, RuleRates{"api", fmt.Sprintf("api.user_%05d", i), "10 per minute", PerSecond{Admitted: float64(10_000 - i)}})
		}
	})
	p := chromium.Open(t, port.url(), 1280)
	p.Await(soon, fmt.Sprintf(rowsOf, "rules")+" === 101") // 100 rules below their domain
	p.Await(soon, "document.getElementById('rules-range').textContent === '1–100 of 10,000 rules, the busiest first'")
	p.Do("document.getElementById('rules-next').click()")
	p.Await(soon, "document.querySelectorAll('#rules-table tbody th')[1].textContent === 'user_00100'")
	p.Type("#rules-search", "USER_0777")
	p.Await(soon, "document.getElementById('rules-range').textContent === '1–10 of 10 rules'")
	p.Type("#rules-search", "nothing")
	p.Await(soon, "document.getElementById('rules-range').textContent === 'No rule matches.'")
	if problems := p.Problems(); problems != nil {
		t.Errorf("%q", problems)
	}
}

// The page is dark or light as the user prefers, and fits a phone.
func testPageLooks(t *testing.T, chromium *browser.Browser) {
	port := newOperatorPort(t)
	for i := range 30 {
		port.figures.deny(Denial{
			At: time.Now(), Protocol: "grpc", Domain: "api", Rule: "api.tenant", Subject: fmt.Sprintf("tenant=customer-%d,path=/v1/things/and/a/long/one", i),
			Counter: fmt.Sprintf("api_tenant_customer-%d_path_/v1/things_1795476060", i), RetryAfterSeconds: float64(i) * 3.3, Skipped: uint64(i % 3),
		})
	}
	p := chromium.Open(t, port.url(), 1280)
	p.Await(soon, fmt.Sprintf(rowsOf, "denials")+" === 30 && "+fmt.Sprintf(rowsOf, "rules")+" > 99 && document.querySelector('#chart canvas') !== null")
	const background = "getComputedStyle(document.body).backgroundColor"
	p.PreferDark(false)
	light := p.Text(background)
	p.Screenshot("light", true)
	p.PreferDark(true)
	if dark := p.Text(background); light != "rgb(245, 246, 248)" || dark != "rgb(14, 18, 23)" {
		t.Errorf("light %s, dark %s", light, dark)
	}
	p.Screenshot("dark", true)
	phone := chromium.Open(t, port.url(), 360)
	phone.Await(soon, fmt.Sprintf(rowsOf, "denials")+" === 30 && "+fmt.Sprintf(rowsOf, "rules")+" > 99 && document.querySelector('#chart canvas') !== null")
	if got := phone.Text("document.documentElement.scrollWidth"); got != "360" {
		t.Errorf("the page is %s pixels wide on a phone of 360", got)
	}
	phone.Screenshot("phone", true)
	if problems := append(p.Problems(), phone.Problems()...); problems != nil {
		t.Errorf("%q", problems)
	}
}

// The page says that it is disconnected, and connects again by itself. Denials of the new process follow those of the old one.
func testPageSurvivesRestart(t *testing.T, chromium *browser.Browser) {
	port := newOperatorPort(t)
	port.figures.deny(Denial{Subject: "before"})
	p := chromium.Open(t, port.url(), 1280)
	p.Await(soon, fmt.Sprintf(rowsOf, "denials")+" === 1")
	port.stop()
	p.Await(soon, "document.getElementById('connection').textContent === 'Disconnected, trying again'")
	port.figures = newFakeFigures()
	port.figures.state = State{StartedAt: time.Now(), Version: "1.2.4"}
	port.figures.deny(Denial{Subject: "after"})
	port.start()
	p.Await(2*soon, isConnected)
	p.Await(soon, fmt.Sprintf(rowsOf, "denials")+" === 2")
	if got := p.Text("document.getElementById('problems').innerText"); got != "The service has another version now. Reload this page." {
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
	p.Await(soon, fmt.Sprintf(rowsOf, "rules")+" > 99")
	p.Press("\t")
	if got := p.Text("document.activeElement.textContent + ' ' + (document.activeElement.getBoundingClientRect().top >= 0)"); got != "Skip to the figures true" {
		t.Errorf("Tab leads to %q", got)
	}
	p.Do("document.querySelectorAll('#rules-table tbody button')[1].focus()")
	p.Press("\r")
	p.Await(soon, "document.getElementById('scope').textContent === 'api: tenant' && !document.getElementById('scope-all').hidden")
	port.figures.set(func(_ *State, r *Rates) {
		r.Rules = append([]RuleRates{{"aaa", "aaa.first", "1 per day", PerSecond{Admitted: 1000}}}, r.Rules...)
	})
	p.Await(3*soon, "document.querySelector('#rules-table tbody button').textContent === 'aaa'")
	if got := p.Text("document.activeElement.textContent"); got != "tenant" {
		t.Errorf("after an update the focus is on %q", got)
	}
	unnamed := "[...document.querySelectorAll('input, select, textarea, button')].filter(e => !e.labels?.length && !e.ariaLabel && !e.textContent.trim()).length"
	if got := p.Text(unnamed); got != "0" {
		t.Errorf("%s controls have no name", got)
	}
}
