package notify

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ratelimit/src/rules"
	"ratelimit/testbed/harness"
)

// failures keeps what OnFailure is told.
type failures struct {
	mu   sync.Mutex
	list []string
}

func (f *failures) add(host string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, host+": "+err.Error())
}

func (f *failures) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.list, "\n")
}

func mustParse(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// Failures that may pass are tried again, others are not.
func TestDeliver(t *testing.T) {
	t.Parallel()
	answer := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	for name, c := range map[string]struct {
		handler  http.HandlerFunc
		attempts int32
		want     string // the failure, behind the host; empty for none
	}{
		"it works":         {answer(204), 1, ""},
		"it answers 500":   {answer(500), 3, "after 3 attempts: it answers 500"},
		"it answers 429":   {answer(429), 3, "after 3 attempts: it answers 429"},
		"it does not want": {answer(404), 1, "it answers 404"},
		"it leads elsewhere": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/x", http.StatusFound)
		}, 1, "it answers 302"},
		"it ends the connection": {func(w http.ResponseWriter, _ *http.Request) {
			panic(http.ErrAbortHandler)
		}, 3, "after 3 attempts: EOF"},
		"an endless body": {func(w http.ResponseWriter, r *http.Request) {
			for text := []byte(strings.Repeat("x", 64<<10)); r.Context().Err() == nil; {
				if _, err := w.Write(text); err != nil {
					return
				}
			}
		}, 1, ""},
		"endless headers": {func(w http.ResponseWriter, _ *http.Request) {
			for i := range 1000 {
				w.Header().Set(fmt.Sprintf("X-Header-%d", i), strings.Repeat("x", 100))
			}
		}, 3, "server response headers exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var attempts atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				attempts.Add(1)
				c.handler(w, r)
			}))
			server.Config.ErrorLog = nil
			defer server.Close()
			var failed failures
			s := newSender(&Config{OnFailure: failed.add, Pauses: []time.Duration{time.Millisecond, time.Millisecond}})
			s.add(mustParse(t, server.URL+"/secret"), message{"id", []byte("{}")})
			s.finish()
			got := failed.String()
			if c.want == "" && got != "" || !strings.Contains(got, c.want) || strings.Contains(got, "secret") {
				t.Errorf("%q, want %q", got, c.want)
			}
			if n := attempts.Load(); n != c.attempts && !strings.Contains(c.want, "EOF") { // The client retries those itself.
				t.Errorf("%d attempts, want %d", n, c.attempts)
			}
			if s.waiting() != 0 || s.sent.Load()+s.failed.Load() != 1 {
				t.Errorf("%d wait, %d sent, %d failed", s.waiting(), s.sent.Load(), s.failed.Load())
			}
		})
	}
}

// A receiver that does not answer delays no other, and what waits for it is bounded. The service stops nevertheless.
func TestSlowReceiver(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
	defer slow.Close()
	defer close(hang)
	good := newReceiver(t)
	var failed failures
	s := newSender(&Config{OnFailure: failed.add, Pauses: []time.Duration{time.Hour}})
	for range maxWaitingForOne + 5 {
		s.add(mustParse(t, slow.URL), message{"id", []byte("{}")})
	}
	s.add(mustParse(t, good.URL), message{"id", []byte("{}")})
	for s.waiting() > maxWaitingForOne {
		time.Sleep(time.Millisecond)
	}
	if s.sent.Load() != 1 || s.dropped.Load() != 5 {
		t.Errorf("%d wait, %d are dropped", s.waiting(), s.dropped.Load())
	}
	start := time.Now()
	s.hurry()
	s.finish()
	d := time.Since(start)
	if d > hurryTimeout+5*time.Second || s.waiting() != 0 || s.failed.Load() != maxWaitingForOne {
		t.Errorf("stopped after %v, %d wait, %d failed", d, s.waiting(), s.failed.Load())
	}
}

// A dead address fails without its path in the error.
func TestDeadReceiver(t *testing.T) {
	t.Parallel()
	l := harness.Listen(t)
	host := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var failed failures
	s := newSender(&Config{OnFailure: failed.add, Pauses: []time.Duration{time.Millisecond}})
	s.add(mustParse(t, "http://"+host+"/secret?token=secret"), message{"id", []byte("{}")})
	s.finish()
	got := failed.String()
	if !strings.HasPrefix(got, host+": after 2 attempts: dial tcp") || strings.Contains(got, "secret") {
		t.Error(got)
	}
}

// The queues of all addresses together are bounded.
func TestManyAddresses(t *testing.T) {
	t.Parallel()
	s := newSender(&Config{OnFailure: func(string, error) {}})
	s.cancel()
	s.hurry()
	s.mu.Lock()
	s.total = maxWaiting
	s.mu.Unlock()
	s.add(mustParse(t, "http://127.0.0.1:1"), message{})
	if s.dropped.Load() != 1 || s.waiting() != maxWaiting {
		t.Errorf("%d dropped, %d wait", s.dropped.Load(), s.waiting())
	}
	s.finish()
}

// A rule whose variable is not set is a problem that names it. An address that is none is not repeated.
func TestAddress(t *testing.T) {
	t.Parallel()
	const isNone = "$NOTIFY_URL_UNSET is no address of a webhook"
	for value, want := range map[string]string{
		"": "$NOTIFY_URL_UNSET is not set", "https://a/b": "",
		"secret": isNone, "ftp://secret": isNone, "http://[::1": isNone,
	} {
		var failed failures
		r := newReplica(t, newMemory(t), Config{Variable: func(string) string { return value }, OnFailure: failed.add})
		for _, rule := range r.limiter.Rules().Rules() {
			if rule.FullName == "d.dflt" {
				if got := r.Problem(rule); got != want {
					t.Errorf("%q: %q, want %q", value, got, want)
				}
			}
		}
		if value == "" {
			r.check(t, 0, "dflt=a")
			if r.stop(); failed.String() != ": "+want || r.Stats().Failed != 1 {
				t.Errorf("%q: %s, %+v", value, failed.String(), r.Stats())
			}
		}
	}
	n := New(Config{OnFailure: func(string, error) {}})
	if _, err := n.address(new(rules.Notification)); err == nil || err.Error() != "NOTIFY_URL is not set" {
		t.Error(err)
	}
	n.sender.finish()
}
