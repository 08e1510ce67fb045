package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"ratelimit/src/backend/memory"
	"ratelimit/src/frontend/access"
	"ratelimit/src/limiter"
	"ratelimit/src/operator"
	"ratelimit/src/overrides"
	"ratelimit/src/rules"
	"ratelimit/testbed/browser"
	"ratelimit/testbed/limitertest"
)

const limitsRules = `
domain: api
descriptors:
  - key: user
    charge: path
    rate_limit: {unit: day, requests_per_unit: 10}
    descriptors:
      - key: action
        rate_limit: {unit: day, requests_per_unit: 3}
  - key: key
    rate_limits:
      - {name: fast, unit: hour, requests_per_unit: 5}
      - {name: slow, unit: day, requests_per_unit: 50}
`

// changeable are the parts of a service whose limits can be changed, with rules of their own.
type changeable struct {
	*operator.LimitEditor
	decide *limiter.Limiter
}

func newChangeable(tb testing.TB, text string, most int) *changeable {
	tb.Helper()
	set := limitertest.Rules(tb, text)
	store := limitertest.Store(tb, memory.Config{MaxBytes: memory.MinBytes, KeepNames: true})
	kept, _, err := overrides.OpenFile("")
	if err != nil {
		tb.Fatal(err)
	}
	c := &changeable{&operator.LimitEditor{
		Registry: overrides.New(overrides.Config{Store: kept, MaxOverrides: most}),
		OnChange: func(*operator.LimitReport, operator.Client, error) {},
	}, limiter.New(limiter.Config{Backend: store})}
	c.Counters = &operator.Editor{
		Limiter: c.decide, Backend: store, Publish: func(context.Context, []byte) error { return nil },
		OnChange: func(*operator.CounterReport, operator.Client, error) {},
	}
	c.decide.UseRules(c.Registry.Over(set))
	return c
}

// hit sends n requests whose descriptor has one entry, and returns how many of them pass.
func (c *changeable) hit(tb testing.TB, n int, key, value string) (passed int) {
	tb.Helper()
	for range n {
		var a limiter.Answer
		req := limiter.Request{Domain: []byte("api"), Descriptors: []limiter.Descriptor{{
			Entries: []rules.Entry{{Key: []byte(key), Value: []byte(value)}},
		}}}
		if err := c.decide.Check(tb.Context(), &req, &a); err != nil {
			tb.Fatal(err)
		}
		if !a.Over {
			passed++
		}
	}
	return passed
}

// post sends a body to /api/limits.
func (c *changeable) post(body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/api/limits", strings.NewReader(body))
	r.RemoteAddr = "127.0.0.1:1000"
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	DebugPages{Limits: c}.Handler().ServeHTTP(w, r)
	return w
}

func limitBody(parts string) string {
	return `{"action":"set","domain":"api","subject":"user=eve","reason":"ticket 123"` + parts + `}`
}

func TestLimits(t *testing.T) {
	t.Parallel()
	c := newChangeable(t, limitsRules, 100)
	if w := c.post(limitBody(`,"limit":"x10","for":"2h","who":"anna"`)); w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	// The rule is one that the descriptor is charged to.
	w := c.post(`{"action":"set","domain":"api","rule":"api.user","subject":"user=bob,action=pay","limit":"ban","reason":"r"}`)
	var report operator.LimitReport
	if err := json.Unmarshal(w.Body.Bytes(), &report); err != nil || report.Override.Subject != "user=bob" ||
		report.Override.Rule != "api.user" || len(report.Limits) != 1 || report.Limits[0].After != "0 per day" {
		t.Errorf("%d %s, %v", w.Code, w.Body, err)
	}
	if w := c.post(`{"action":"unset","domain":"api","subject":"user=carl"}`); w.Code != http.StatusConflict {
		t.Errorf("unset of nothing: %d %s", w.Code, w.Body)
	}
	for query, want := range map[string]string{
		"":                      `"count":2,"limits":[{`,
		"?limit=1":              `"count":2,"limits":[{`,
		"?domain=other":         `"count":0,"limits":[]`,
		"?history=true&limit=1": `"history":[{`,
		"?domain=api&format=yaml": "# user=bob user: ban by 127.0.0.1: r\n" +
			"  - key: \"user\"\n    value: \"bob\"\n    rate_limit: {unit: \"day\", requests_per_unit: 0}",
		"?format=yaml":                        "needs domain=D",
		"?domain=none&format=yaml":            "is not known",
		"?format=xml":                         "write yaml",
		"?history=maybe":                      "history=\"maybe\"",
		"?limit=0":                            "write 1 to 100000",
		"?limit=1000000":                      "write 1 to 100000",
		"?limit=1&limit=2":                    `give "limit" once`,
		"?all=1":                              "unknown parameter",
		"?domain=%zz":                         "cannot be read",
		"?" + strings.Repeat("a", 100_000):    "unknown parameter",
		"?domain=" + strings.Repeat("a", 9e5): `"count":0`,
	} {
		w := get(DebugPages{Limits: c}.Handler(), "/api/limits"+query)
		isAnswer := want[0] == '"' || want[0] == '#'
		if (w.Code == 200) != isAnswer || !strings.Contains(w.Body.String(), want) ||
			w.Body.Len() > 2000 {
			t.Errorf("%.100s: %d %.300s, want %s", query, w.Code, w.Body, want)
		}
	}
}

// What strangers send changes nothing, gets a short and clear answer, and takes bounded memory.
func TestHostileLimits(t *testing.T) {
	t.Parallel()
	c := newChangeable(t, limitsRules, 3)
	long := strings.Repeat("x", 1<<20)
	x10 := `,"limit":"x10"`
	for _, tt := range []struct {
		name, body string
		code       int
		reason     string
	}{
		{"nothing", "", 400, "EOF"},
		{"no JSON", "action=set", 400, "invalid character"},
		{"two objects", limitBody(x10) + "{}", 400, "more than one object"},
		{"unknown field", limitBody(x10 + `,"all":true`), 400, "unknown field"},
		{"deep", strings.Repeat(`{"a":`, 12_000), 400, "no change of a limit"},
		{"deep lists", strings.Repeat("[", 60_000), 400, "no change of a limit"},
		{"subject of 1 MB", strings.Replace(limitBody(x10), "user=eve", "user="+long, 1), 413, "more than 65536 bytes"},
		{"subject of 60 KB", strings.Replace(limitBody(x10), "user=eve", "user="+long[:60_000], 1), 400, "60005 bytes"},
		{"long reason", strings.Replace(limitBody(x10), "ticket", long[:600], 1), 400, "reason has 604 bytes"},
		{"long name", limitBody(x10 + `,"who":"` + long[:200] + `"`), 400, "who has 200 bytes"},
		{"many entries", strings.Replace(limitBody(x10), "user=eve", strings.Repeat("a=b,", 50)+"a=b", 1), 400, "51 entries"},
		{"unknown domain", strings.Replace(limitBody(x10), `"api"`, `"`+long[:900]+`"`, 1), 422, "is not known"},
		{"long domain", strings.Replace(limitBody(x10), `"api"`, `"`+long[:2000]+`"`, 1), 400, "domain has 2000 bytes"},
		{"unknown rule", limitBody(x10 + `,"rule":"` + long[:900] + `"`), 422, "has no rule"},
		{"control characters", strings.Replace(limitBody(x10), "ticket", `\u001b[2J`, 1), 400, "control character"},
		{"no limit", limitBody(""), 400, "limit is missing"},
		{"no reason", `{"action":"set","domain":"api","subject":"user=eve","limit":"x2"}`, 400, "reason is missing"},
		{"unknown action", `{"action":"drop"}`, 400, "write set or unset"},
		{"huge factor", limitBody(`,"limit":"x1e300"`), 400, "up to 1000000"},
		{"NaN", limitBody(`,"limit":"xNaN"`), 400, "is not a number"},
		{"negative", limitBody(`,"limit":"-1"`), 400, "is not a number"},
		{"in the past", limitBody(x10 + `,"until":"2001-01-01T00:00:00Z"`), 400, "in the past"},
		{"for ever", limitBody(x10 + `,"for":"900000h"`), 400, "more than 10 years"},
	} {
		w := c.post(tt.body)
		if w.Code != tt.code || !strings.Contains(w.Body.String(), tt.reason) || w.Body.Len() > 1500 {
			t.Errorf("%s: %d %.300s; want %d, %q", tt.name, w.Code, w.Body, tt.code, tt.reason)
		}
	}
	if n := len(c.List("")); n != 0 {
		t.Errorf("%d changes", n)
	}
	// As many changes as are allowed are kept, and a further one is refused.
	for i := range 10 {
		w := c.post(strings.Replace(limitBody(x10), "eve", fmt.Sprint(i), 1))
		if want := map[bool]int{true: 200, false: 409}[i < 3]; w.Code != want {
			t.Errorf("change %d: %d %s, want %d", i, w.Code, w.Body, want)
		}
	}
	if w := c.post(strings.Replace(limitBody(x10), "eve", "11", 1)); !strings.Contains(w.Body.String(), "use a pattern") {
		t.Errorf("%s", w.Body)
	}
	if w := c.post(strings.Replace(limitBody(`,"limit":"x2"`), "eve", "1", 1)); w.Code != 200 {
		t.Errorf("a change that replaces one: %d %s", w.Code, w.Body)
	}
}

// Nobody but an operator changes limits: not pages of other sites, no renamed host, no other host without a token, and
// no guessed token.
func TestLimitsAreProtected(t *testing.T) {
	t.Parallel()
	c := newChangeable(t, limitsRules, 100)
	body := limitBody(`,"limit":"x10"`)
	for name, tt := range map[string]struct {
		headers []string
		code    int
	}{
		"another site":          {[]string{"Sec-Fetch-Site", "cross-site"}, 403},
		"a sibling site":        {[]string{"Sec-Fetch-Site", "same-site"}, 403},
		"an old browser":        {[]string{"Origin", "http://evil.example"}, 403},
		"a form":                {[]string{"Content-Type", "text/plain"}, 415},
		"through a proxy":       {[]string{"X-Forwarded-For", "10.0.0.7"}, 403},
		"the page of this port": {[]string{"Sec-Fetch-Site", "same-origin"}, 200},
	} {
		before := len(c.List(""))
		if w := c.post(body, tt.headers...); w.Code != tt.code || len(c.List("")) != before && tt.code != 200 {
			t.Errorf("%s: %d %s, want %d", name, w.Code, w.Body, tt.code)
		}
	}
	pages := func(hasToken bool) http.Handler { return DebugPages{Limits: c, HasToken: hasToken}.Handler() }
	send := func(h http.Handler, token string) int {
		r := httptest.NewRequest(http.MethodPost, "http://ratelimit.example/api/limits", strings.NewReader(body))
		r.RemoteAddr = "10.0.0.7:1000"
		r.Header.Set("Content-Type", "application/json")
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	if code := send(pages(false), ""); code != http.StatusForbidden {
		t.Errorf("another host without a token: %d", code)
	}
	if code := send(AllowHosts(nil, pages(true)), ""); code != http.StatusForbidden {
		t.Errorf("a renamed host: %d", code)
	}
	guarded := RequireToken(access.Fixed("secret"), newAttempts(t), pages(true))
	if code := send(guarded, "secret"); code != http.StatusOK {
		t.Errorf("with the token: %d", code)
	}
	if code := send(guarded, ""); code != http.StatusUnauthorized {
		t.Errorf("no token: %d", code)
	}
	refused := 0
	for i := range 100 {
		if send(guarded, fmt.Sprint(i)) == http.StatusTooManyRequests {
			refused++
		}
	}
	if code := send(guarded, "secret"); refused < 85 || code != http.StatusTooManyRequests {
		t.Errorf("%d of 100 guesses refused, then the right token: %d", refused, code)
	}
}

// An operator finds a denied subject, raises it for a reason, sees that in the table and in the history, bans and
// resets another one, and unsets both, all with the keyboard if they like.
func testPageOfLimits(t *testing.T, chromium *browser.Browser) {
	c := newChangeable(t, limitsRules, 100)
	port := newOperatorPort(t, func(p *operatorPort) { p.limits, p.counters, p.limiter = c, c.Counters.Change, c.decide })
	if passed := c.hit(t, 12, "user", "eve"); passed != 10 {
		t.Fatalf("%d requests pass", passed)
	}
	denied := operator.Subject{Domain: "api", Rule: "api.user", Subject: "user=eve", Hits: 2}
	port.figures.top = map[string][]operator.Subject{operator.TopHot: {denied}, operator.TopDenied: {denied}}
	port.figures.deny(operator.Denial{At: time.Now(), Domain: "api", Rule: "api.user", Subject: "user=eve,action=pay"})
	p := chromium.Open(t, port.url(), 1400)
	text := func(selector string) string {
		return "document.querySelector('" + selector + "').innerText.replaceAll(/\\s+/g, ' ').trim()"
	}
	p.Await(fmt.Sprintf(rowsOf, "denials") + " === 1 && !document.getElementById('limits').hidden")
	if got := p.Text(text("#limits")); got != "Changed limits No limit is changed. History" {
		t.Errorf("before: %s", got)
	}
	const button = "#denials-table tbody button:last-child"
	p.Do("document.querySelector('" + button + "').focus()")
	if got, want := p.Text("document.activeElement.ariaLabel"), "Raise, ban or reset user=eve,action=pay"; got != want {
		t.Errorf("label %q, want %q", got, want)
	}
	p.Press("\r")
	p.Await("document.getElementById('change').open")
	p.Press("\u001b")
	p.Await("!document.getElementById('change').open && document.activeElement === document.querySelector('" + button + "')")
	p.Press("\r")
	p.Await("document.getElementById('change').open")
	checkContrast(t, p)
	p.PreferDark(true)
	checkContrast(t, p)
	p.Screenshot("limits-dialog-dark", false)
	p.PreferDark(false)
	p.Screenshot("limits-dialog", false)
	p.Type("#change-limit", "many")
	p.Type("#change-reason", "ticket 123")
	p.Type("#change-who", "anna")
	p.Press("\r")
	p.Await("document.querySelector('#change-result [role=alert]')?.textContent.includes('many')")
	p.Type("#change-limit", "x10")
	p.Press("\r")
	p.Await(text("#change-result") + " === 'user: 10 per day → 100 per day, 10 used, 90 left'")
	p.Press("\r") // The focus is on Close.
	p.Await("!document.getElementById('change').open")
	p.Await(text("#limits-table tbody") + ".replace('23 h 59 min', '1 d') === 'user=eve api: user x10 1 d anna ticket 123 Unset'")
	if passed := c.hit(t, 5, "user", "eve"); passed != 5 {
		t.Errorf("%d of 5 requests pass after the limit was raised", passed)
	}
	p.Click("#hot-table tbody button:last-child")
	p.Click("input[name=change-action][value=reset]")
	p.Click("#change-submit")
	p.Await(text("#change-result") + " === 'user: 15 used → 0'")
	p.Click("#change-close")
	p.Do("document.getElementById('explain-domain').value = 'api';" +
		"document.getElementById('explain-descriptors').value = 'key=k'; document.querySelector('#explain-form button').click()")
	p.Await("document.querySelectorAll('#explain-result dl button').length === 2")
	p.Click("#explain-result dl button")
	p.Click("input[name=change-action][value=ban]")
	p.Type("#change-reason", "<b>guessing</b>")
	p.Press("\r")
	p.Await(text("#change-result") + " === 'key: 5 per hour → 0 per hour, 0 used, 0 left'")
	p.Press("\u001b")
	p.Await(fmt.Sprintf(rowsOf, "limits") + " === 2")
	if passed := c.hit(t, 1, "key", "k"); passed != 0 {
		t.Error("a banned subject passes")
	}
	p.Click("#limits-history summary")
	p.Await(fmt.Sprintf(rowsOf, "history") + " === 2")
	if got := p.Text(text("#history-table tbody")); !strings.Contains(got, " key=k api: key.fast rule → ban anna") ||
		!strings.Contains(got, " user=eve api: user rule → x10 anna ticket 123") || !strings.Contains(got, "<b>guessing</b>") {
		t.Errorf("history: %s", got)
	}
	checkContrast(t, p)
	p.Do("document.getElementById('limits').scrollIntoView()")
	p.Screenshot("limits", false)
	phone := chromium.Open(t, port.url(), 390)
	phone.Await(fmt.Sprintf(rowsOf, "limits") + " === 2 && " + fmt.Sprintf(rowsOf, "denials") + " === 1")
	phone.Click("#limits-history summary")
	phone.Await(fmt.Sprintf(rowsOf, "history") + " === 2")
	if got := phone.Text("document.documentElement.scrollWidth"); got != "390" {
		t.Errorf("the page is %s pixels wide on a phone of 390", got)
	}
	phone.PreferDark(true)
	phone.Screenshot("limits-phone-dark", true)
	phone.Click(button)
	phone.Await("document.getElementById('change').open")
	if got := phone.Text("document.getElementById('change').scrollWidth <= 390 && " +
		"document.getElementById('change-submit').getBoundingClientRect().bottom < innerHeight"); got != "true" {
		t.Error("the dialog does not fit a phone")
	}
	phone.Screenshot("limits-phone-dialog-dark", false)
	phone.PreferDark(false)
	phone.Screenshot("limits-phone-dialog", false)
	for _, want := range []int{1, 0} {
		p.Click("#limits-table tbody tr button")
		p.Click("#change-submit")
		p.Await(fmt.Sprintf(rowsOf, "limits") + fmt.Sprintf(" === %d", want))
		p.Press("\r")
		p.Await("!document.getElementById('change').open")
	}
	p.Await(fmt.Sprintf(rowsOf, "history") + " === 4")
	if got := p.Text("document.activeElement.id"); got != "limits-title" {
		t.Errorf("after the row is gone the focus is on %q", got)
	}
	if n := len(c.List("")); n != 0 {
		t.Errorf("%d changes are left", n)
	}
	if problems := append(p.Problems("400"), phone.Problems()...); problems != nil {
		t.Errorf("%q", problems)
	}
}

// A dry run says what a change does, and to how many subjects of a pattern, and changes nothing.
func testPageOfDryRun(t *testing.T, chromium *browser.Browser) {
	c := newChangeable(t, limitsRules, 100)
	port := newOperatorPort(t, func(p *operatorPort) { p.limits, p.counters, p.limiter = c, c.Counters.Change, c.decide })
	for _, user := range []string{"eve", "emma", "bob"} {
		c.hit(t, 2, "user", user)
	}
	if w := c.post(strings.Replace(limitBody(`,"limit":"x3","who":"anna"`), "eve", "e*", 1)); w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	port.figures.deny(operator.Denial{At: time.Now(), Domain: "api", Rule: "api.user", Subject: "user=bob"})
	p := chromium.Open(t, port.url(), 1280)
	p.Await(fmt.Sprintf(rowsOf, "denials") + " === 1 && " + fmt.Sprintf(rowsOf, "limits") + " === 1")
	const result = "document.getElementById('change-result').innerText.replaceAll(/\\s+/g, ' ')"
	p.Click("#limits-table tbody button")
	p.Click("#change-dry-run")
	p.Await(result + " === 'Dry run, nothing is changed: user: 10 per day user.action: 3 per day 2 subjects have a counter now.'")
	p.Click("#change-close")
	p.Click("#denials-table tbody button:last-child")
	p.Click("#change-dry-run") // It needs no reason.
	p.Await(result + " === 'Dry run, nothing is changed: user: 10 per day → 100 per day, 2 used, 98 left'")
	if got := p.Text("document.activeElement.id"); got != "change-submit" {
		t.Errorf("after the dry run the focus is on %q", got)
	}
	if list := c.List(""); len(list) != 1 || list[0].Limit != "x3" {
		t.Errorf("after dry runs: %+v", list)
	}
	p.Type("#change-reason", "ticket 123")
	p.Press("\r")
	p.Await(result + " === 'user: 10 per day → 100 per day, 2 used, 98 left'")
	p.Await(fmt.Sprintf(rowsOf, "limits") + " === 2")
	if problems := p.Problems(); problems != nil {
		t.Errorf("%q", problems)
	}
}

// The dialog shows why the service refuses, and how to fix that.
func testPageOfRefusedChange(t *testing.T, chromium *browser.Browser) {
	port := newOperatorPort(t, func(p *operatorPort) { p.limits = refusedLimits{} })
	port.figures.deny(operator.Denial{At: time.Now(), Domain: "api", Rule: "api.user", Subject: "user=eve"})
	p := chromium.Open(t, port.url(), 1280)
	p.Await(fmt.Sprintf(rowsOf, "denials") + " === 1")
	p.Click("#denials-table tbody button:last-child")
	p.Type("#change-reason", "r")
	p.Press("\r")
	p.Await("document.querySelector('#change-result [role=alert]')?.textContent === 'set DEBUG_TOKEN to change limits'")
	if problems := p.Problems("403"); problems != nil {
		t.Errorf("%q", problems)
	}
}

// refusedLimits refuses each change.
type refusedLimits struct{}

func (refusedLimits) List(string) []overrides.Override { return nil }

func (refusedLimits) History(context.Context) ([]overrides.Record, error) {
	return nil, errors.New("no history")
}

func (refusedLimits) WriteRules(io.Writer, string) error { return errors.New("no rules") }

func (refusedLimits) Change(context.Context, operator.LimitChange, operator.Client) (*operator.LimitReport, error) {
	return nil, operator.Refuse(http.StatusForbidden, "set DEBUG_TOKEN to change limits")
}
