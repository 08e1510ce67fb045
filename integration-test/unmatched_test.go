package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"ratelimit/src/operator"
	"ratelimit/testbed/browser"
)

// shopService serves the rules of the recipe about unlimited requests, and got ten requests of an unknown domain and
// ten with an unknown key.
func shopService(t *testing.T) *service {
	t.Helper()
	s := startRecipe(t, unlimitedPage, "shop")
	for range 10 {
		for _, ask := range [][2]string{{"shopp", "user=x"}, {"shop", "usr=x"}} {
			if status, _ := s.ask(t, ask[0], ask[1]); status != 200 {
				t.Fatalf("%q: status %d", ask, status)
			}
		}
	}
	return s
}

const unlimitedPage = "docs/recipes/nothing-is-limited.md"

// Nothing is limited, and everything that the recipe names says why: the log, `top`, the JSON, the metric and explain.
func TestRecipeNothingIsLimited(t *testing.T) {
	t.Parallel()
	s := shopService(t)
	for line := range strings.Lines(blocks(t, unlimitedPage, "text", "level=warning")[0]) {
		s.until(t, "the log has "+line, func() error {
			if !strings.Contains(s.log(t), strings.TrimSpace(line)) {
				return errors.New(s.log(t))
			}
			return nil
		})
	}
	table := blocks(t, unlimitedPage, "text", "UNMATCHED, LAST HOUR")[0]
	s.until(t, "top has the table", func() error {
		if out := mustRun(t, "top", "--once", "--address", s.debug); !strings.Contains(out, table) {
			return errors.New(out)
		}
		return nil
	})
	var state operator.State
	var rates operator.Rates
	s.readJSON(t, "/api/state", &state)
	s.readJSON(t, "/api/rates", &rates)
	isSame := func(a, b operator.Unmatched) bool {
		return a.Domain == b.Domain && a.Descriptors == b.Descriptors && a.DidYouMean == b.DidYouMean
	}
	if len(state.Unmatched) != 2 || !slices.EqualFunc(state.Unmatched, rates.Unmatched, isSame) {
		t.Errorf("state %+v\nrates %+v", state.Unmatched, rates.Unmatched)
	}
	s.until(t, "rates of unmatched descriptors", func() error {
		s.readJSON(t, "/api/rates", &rates)
		if d := rates.Domains; rates.Total.Unmatched > 0 && len(d) == 1 && d[0].Domain == "shop" && d[0].Unmatched > 0 &&
			d[0].Unmatched < rates.Total.Unmatched && rates.Total.Admitted == 0 {
			return nil
		}
		return fmt.Errorf("%+v", rates)
	})
	for _, domain := range []string{"", "shop"} {
		matches(t, "http://"+s.prometheus+"/metrics",
			`\nratelimit_decisions_total\{domain="`+domain+`",outcome="unmatched",rule=""\} 10\n`)
	}
	for _, line := range blocks(t, unlimitedPage, "sh", "ratelimit explain") {
		args := strings.Fields(strings.ReplaceAll(strings.TrimSpace(line), "rl-0.example:6070", s.debug))[1:]
		if out := mustRun(t, args...); !strings.Contains(out, "did you mean user?") {
			t.Errorf("%s: %s", line, out)
		}
	}
}

// readJSON reads a page of the debug port.
func (s *service) readJSON(t *testing.T, path string, into any) {
	t.Helper()
	text, err := get("http://" + s.debug + path)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// mustRun runs the built program and returns what it prints.
func mustRun(t *testing.T, args ...string) string {
	t.Helper()
	out, err := run(args...)
	if err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
	return out
}

// `ratelimit bench` says that no rule applies to what it sends.
func TestBenchOfUnknownDomain(t *testing.T) {
	t.Parallel()
	s := startRecipe(t, unlimitedPage, "shop")
	for domain, want := range map[string]bool{"shopp": true, "shop": false} {
		out := mustRun(t, "bench", "--address", s.grpc, "--requests", "100", "--warmup", "0s", "--domain", domain)
		if got := strings.Contains(out, "\nno answer names a limit: no rule applies to these requests, "); got != want {
			t.Errorf("%s: it says so: %t\n%s", domain, got, out)
		}
	}
}

// The operator's page of the built program has a tile and rows for traffic without a rule, and explains it with one
// click.
func TestPageOfUnmatched(t *testing.T) {
	t.Parallel()
	chromium := browser.Start(t)
	s := shopService(t)
	p := chromium.Open(t, "http://"+s.debug+"/", 1400)
	p.Await("document.querySelectorAll('tr.unmatched').length === 2")
	p.Await("document.querySelector('#series button:last-child .value').textContent !== '0/s'")
	for i, want := range []string{
		`^Unknown domain shopp Explain No rules have the domain; did you mean shop\? 10 passed since `,
		`^Unmatched usr=x Explain No rule has the key of entry 1 of 1 in this place; did you mean user\? 10 passed since `,
	} {
		got := p.Text(fmt.Sprintf(`document.querySelectorAll('tr.unmatched')[%d].innerText.replaceAll(/\s+/g, ' ')`, i))
		if !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	p.Screenshot("unmatched", true)
	p.Do("document.querySelectorAll('tr.unmatched button')[1].click()")
	p.Await("document.getElementById('explain-result').textContent.includes('did you mean user?')")
	phone := chromium.Open(t, "http://"+s.debug+"/", 390)
	phone.Await("document.querySelectorAll('tr.unmatched').length === 2")
	if got := phone.Text("document.documentElement.scrollWidth"); got != "390" {
		t.Errorf("the page is %s pixels wide on a phone of 390", got)
	}
	phone.Screenshot("unmatched-phone", true)
	if problems := append(p.Problems(), phone.Problems()...); problems != nil {
		t.Errorf("%q", problems)
	}
}
