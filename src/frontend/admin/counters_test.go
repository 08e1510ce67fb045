package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"ratelimit/src/operator"
)

// fakeCounters records the last change, and answers with report or err.
type fakeCounters struct {
	change operator.CounterChange
	who    operator.Client
	report operator.CounterReport
	err    error
}

func (f *fakeCounters) Change(ctx context.Context, c operator.CounterChange, who operator.Client,
	progress func(int),
) (*operator.CounterReport, error) {
	f.change, f.who = c, who
	if c.IsPattern() {
		progress(7)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return &f.report, f.err
}

func ask(h http.Handler, method, query, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "/api/counters"+query, strings.NewReader(body))
	r.RemoteAddr = "127.0.0.1:1000"
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestCounters(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ method, query, body, want string }{
		{
			http.MethodGet, "?domain=d&entry=user=alex&entry=path=/a=b", "",
			`{"action":"get","domain":"d","descriptor":[{"key":"user","value":"alex"},{"key":"path","value":"/a=b"}]}`,
		},
		{
			http.MethodGet, "?domain=d&entry=user=al*", "",
			`{"action":"get","domain":"d","descriptor":[{"key":"user","prefix":"al"}]}`,
		},
		{http.MethodGet, "?domain=d&entry=generic", "", `{"action":"get","domain":"d","descriptor":[{"key":"generic"}]}`},
		{http.MethodPost, "", `{"action":"get","domain":"d","descriptor":[{"key":"user","value":"al*"}]}`, ""},
		{http.MethodPost, "", `{"action":"reset","domain":"d","descriptor":[{"key":"user","prefix":""}],"dry_run":true}`, ""},
		{http.MethodPost, "", `{"action":"set","domain":"d","descriptor":[{"key":"user","value":"alex"}],"used":7}`, ""},
		{http.MethodPost, "", `{"action":"set","domain":"d","descriptor":[{"key":"user","value":"alex"}],"used":0}`, ""},
	} {
		fake := &fakeCounters{report: operator.CounterReport{Counters: []operator.Counter{{Rule: "d.user", Used: 3}}}}
		h := DebugPages{ChangeCounters: fake.Change}.Handler()
		w := ask(h, tt.method, tt.query, tt.body)
		if tt.want == "" {
			tt.want = tt.body
		}
		got, err := json.Marshal(fake.change)
		if w.Code != 200 || err != nil || string(got) != tt.want {
			t.Errorf("%s %s%s: %d %s, change %s, want %s", tt.method, tt.query, tt.body, w.Code, w.Body, got, tt.want)
		}
		var report operator.CounterReport
		if err := json.Unmarshal(w.Body.Bytes(), &report); err != nil || report.Counters[0].Used != 3 {
			t.Errorf("%s: %v", w.Body, err)
		}
	}
}

// The handler names the client that changes counters, without its password.
func TestClientOfAChange(t *testing.T) {
	t.Parallel()
	fake := new(fakeCounters)
	body := `{"action":"reset","domain":"d","descriptor":[{"key":"user","value":"alex"}]}`
	r := httptest.NewRequest(http.MethodPost, "/api/counters", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.SetBasicAuth(strings.Repeat("é", 100), "secret")
	DebugPages{ChangeCounters: fake.Change, HasToken: true}.Handler().ServeHTTP(httptest.NewRecorder(), r)
	if fake.who.Addr != r.RemoteAddr || len(fake.who.User) != maxUserNameBytes {
		t.Errorf("%+v", fake.who)
	}
}

func TestHostileChanges(t *testing.T) {
	t.Parallel()
	entry := `{"key":"user","value":"alex"}`
	change := func(parts string) string { return `{"domain":"d","descriptor":[` + entry + `],` + parts + `}` }
	for _, tt := range []struct {
		name, query, body string
		code              int
		reason            string
	}{
		{"nothing", "", "", 400, "EOF"},
		{"no JSON", "", "action=reset", 400, "invalid character"},
		{"two objects", "", change(`"action":"reset"`) + "{}", 400, "more than one object"},
		{"rubbish behind it", "", change(`"action":"reset"`) + "x", 400, "invalid character"},
		{"unknown field", "", change(`"action":"reset","all":true`), 400, "unknown field"},
		{"unknown action", "", change(`"action":"drop"`), 400, "write get, reset or set"},
		{"no action", "", change(`"used":1`), 400, "write get, reset or set"},
		{"no domain", "", `{"action":"reset","descriptor":[` + entry + `]}`, 400, "domain is missing"},
		{"long domain", "", `{"action":"reset","domain":"` + strings.Repeat("d", 5000) + `"}`, 400, "domain has 5000 bytes"},
		{"no descriptor", "", `{"action":"reset","domain":"d"}`, 400, "descriptor is missing"},
		{
			"many entries", "", `{"action":"reset","domain":"d","descriptor":[` + strings.Repeat(entry+",", 32) + entry + `]}`,
			400, "33 entries; at most 32",
		},
		{"long value", "", `{"action":"reset","domain":"d","descriptor":[{"key":"a","value":"` + strings.Repeat("x",
			5000) + `"}]}`, 400, "more than 4096 bytes"},
		{"long prefix", "", `{"action":"reset","domain":"d","descriptor":[{"key":"a","prefix":"` + strings.Repeat("x",
			5000) + `"}]}`, 400, "more than 4096 bytes"},
		{"large body", "", `{"action":"` + strings.Repeat("x", 70_000) + `"}`, 413, "more than 65536 bytes"},
		{
			"large body behind the change", "", change(`"action":"reset"`) + strings.Repeat(" ", 70_000), 413,
			"more than 65536 bytes",
		},
		{"deep body", "", strings.Repeat("[", 20_000), 400, "no change"},
		{"set without used", "", change(`"action":"set"`), 400, "set needs used"},
		{"reset with used", "", change(`"action":"reset","used":1`), 400, "belongs to the action set"},
		{"negative used", "", change(`"action":"set","used":-1`), 400, "cannot unmarshal"},
		{"huge used", "", change(`"action":"set","used":281474976710657`), 400, "at most 281474976710656 units"},
		{
			"value and prefix", "", `{"action":"reset","domain":"d","descriptor":[{"key":"a","value":"x","prefix":"y"}]}`, 400,
			"both a value and a prefix",
		},
		{
			"early prefix", "", `{"action":"reset","domain":"d","descriptor":[{"key":"a","prefix":"x"},` + entry + `]}`, 400,
			"only the last entry",
		},
		{
			"set of a pattern", "", `{"action":"set","used":1,"domain":"d","descriptor":[{"key":"a","prefix":"x"}]}`, 400,
			"only be reset",
		},
		{"unknown parameter", "?domain=d&descriptors=a=b", "", 400, "unknown parameter"},
		{"two domains", "?domain=d&domain=e&entry=a=b", "", 400, "give domain once"},
		{"unreadable query", "?domain=%zz", "", 400, "cannot be read"},
		{"no entries", "?domain=d", "", 400, "descriptor is missing"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			fake := new(fakeCounters)
			method := http.MethodPost
			if tt.query != "" {
				method = http.MethodGet
			}
			w := ask(DebugPages{ChangeCounters: fake.Change}.Handler(), method, tt.query, tt.body)
			if w.Code != tt.code || !strings.Contains(w.Body.String(), tt.reason) || fake.change.Action != "" {
				t.Errorf("%d %.200s, change %+v; want %d, %q", w.Code, w.Body, fake.change, tt.code, tt.reason)
			}
		})
	}
	if w := ask(DebugPages{ChangeCounters: new(fakeCounters).Change}.Handler(), http.MethodDelete, "",
		""); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("DELETE: %d", w.Code)
	}
}

func TestErrorsOfChanges(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err  error
		code int
	}{
		{errors.New("redis: no answer"), 503},
		{&operator.Refusal{Status: 404, Reason: "no limit applies"}, 404},
		{fmt.Errorf("rule x: %w", &operator.Refusal{Status: 400, Reason: "add ip"}), 400},
	} {
		w := ask(DebugPages{ChangeCounters: (&fakeCounters{err: tt.err}).Change}.Handler(), http.MethodGet,
			"?domain=d&entry=a=b", "")
		if w.Code != tt.code || strings.TrimSpace(w.Body.String()) != tt.err.Error() {
			t.Errorf("%v: %d %s", tt.err, w.Code, w.Body)
		}
	}
}

// Clients that accept lines see the progress of a pattern, and its report or error as the last line.
func TestProgressOfAPattern(t *testing.T) {
	t.Parallel()
	const query = "?domain=d&entry=a=x*"
	fake := &fakeCounters{report: operator.CounterReport{Matching: 7, Names: []string{"d_a_x1_"}}}
	h := DebugPages{ChangeCounters: fake.Change}.Handler()
	w := ask(h, http.MethodGet, query, "", "Accept", "application/x-ndjson")
	lines := strings.Split(strings.TrimSpace(w.Body.String()), "\n")
	if len(lines) != 2 || lines[0] != `{"progress":7}` || !strings.Contains(lines[1], `"matching":7`) {
		t.Errorf("%q", lines)
	}
	if w := ask(h, http.MethodGet, query, ""); strings.Contains(w.Body.String(), "progress") || w.Code != 200 {
		t.Errorf("without Accept: %d %s", w.Code, w.Body)
	}
	fake.err = errors.New("the store went away")
	w = ask(h, http.MethodGet, query, "", "Accept", "application/x-ndjson")
	if !strings.HasSuffix(w.Body.String(), `{"error":"the store went away"}`+"\n") {
		t.Errorf("%q", w.Body)
	}
}

// A search reads all names of the store, so only some run at a time.
func TestPatternsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		wait := make(chan struct{})
		api := newCountersAPI(func(_ context.Context, c operator.CounterChange, _ operator.Client,
			_ func(int),
		) (*operator.CounterReport, error) {
			if c.IsPattern() {
				<-wait
			}
			return new(operator.CounterReport), nil
		})
		for range maxPatterns {
			go ask(api, http.MethodGet, "?domain=d&entry=a=x*", "")
		}
		synctest.Wait()
		if w := ask(api, http.MethodGet, "?domain=d&entry=a=x*", ""); w.Code != http.StatusTooManyRequests ||
			w.Header().Get("Retry-After") == "" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if w := ask(api, http.MethodGet, "?domain=d&entry=a=x", ""); w.Code != 200 {
			t.Errorf("one descriptor: %d %s", w.Code, w.Body)
		}
		close(wait)
		synctest.Wait()
		if w := ask(api, http.MethodGet, "?domain=d&entry=a=x*", ""); w.Code != 200 {
			t.Errorf("afterwards: %d %s", w.Code, w.Body)
		}
	})
}

// A page of another site cannot make the service search for a pattern either.
func TestReadsFromOtherSites(t *testing.T) {
	t.Parallel()
	fake := new(fakeCounters)
	h := DebugPages{ChangeCounters: fake.Change}.Handler()
	if w := ask(h, http.MethodGet, "?domain=d&entry=a=x*", "", "Sec-Fetch-Site",
		"cross-site"); w.Code != http.StatusForbidden || fake.change.Action != "" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := ask(h, http.MethodGet, "?domain=d&entry=a=x*", "", "Sec-Fetch-Site", "same-origin"); w.Code != http.StatusOK {
		t.Errorf("the page of this port: %d %s", w.Code, w.Body)
	}
}
