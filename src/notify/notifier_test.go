package notify

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/testbed/limitertest"
)

const ruleText = `
domain: d
notify: {at: [50, 80, 100], url: $NOTIFY_URL_TEST}
descriptors:
- {key: user, rate_limit: {unit: minute, requests_per_unit: 10}}
- {key: none, rate_limit: {unit: minute, requests_per_unit: 10, notify: {at: []}}}
- {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 2, notify: {at: [100]}}}
- {key: steady, rate_limit: {algorithm: gcra, unit: minute, requests_per_unit: 60, burst: 9}}
- {key: first, rate_limit: {algorithm: first_hit_window, unit: minute, requests_per_unit: 4}}
- {key: apart, rate_limit: {algorithm: gcra, unit: minute, requests_per_unit: 60, burst: 9, min_interval: 10s}}
- {key: banned, rate_limit: {unit: day, requests_per_unit: 0}}
- {key: held, rate_limit: {algorithm: concurrency, requests_per_unit: 2, hold: 1m, hold_id: id}}
- {key: dflt, rate_limit: {unit: minute, requests_per_unit: 1, notify: {at: [100], url: $NOTIFY_URL_UNSET}}}
- {key: slack, rate_limit: {unit: minute, requests_per_unit: 1, notify: {at: [100], format: slack}}}
- {key: alert, rate_limit: {unit: minute, requests_per_unit: 1, notify: {at: [100], format: alertmanager}}}
- key: team
  charge: path
  rate_limit: {unit: minute, requests_per_unit: 4}
  descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 100}}
`

// epoch is the start of a minute and of a day.
var epoch = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// receiver is an HTTP server that keeps what it gets.
type receiver struct {
	*httptest.Server
	mu   sync.Mutex
	got  []Body
	raw  []string
	head []http.Header
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := new(receiver)
	r.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		text, err := io.ReadAll(req.Body)
		if err != nil {
			t.Error(err)
		}
		var b Body
		_ = json.Unmarshal(text, &b) // Other formats are in raw.
		r.mu.Lock()
		defer r.mu.Unlock()
		r.got, r.raw, r.head = append(r.got, b), append(r.raw, string(text)), append(r.head, req.Header)
	}))
	t.Cleanup(r.Close)
	return r
}

// replica is a limiter with a Notifier, which Run runs until stop.
type replica struct {
	*Notifier
	limiter *limiter.Limiter
	stop    func()
}

// newLimiter returns a limiter on the rules above.
func newLimiter(t testing.TB, store backend.Backend, recorders ...limiter.Recorder) *limiter.Limiter {
	t.Helper()
	return limitertest.New(t, limiter.Config{Backend: store, Recorders: recorders}, ruleText)
}

func newReplica(t *testing.T, store backend.Backend, cfg Config) *replica {
	t.Helper()
	cfg.Backend = store
	if cfg.OnFailure == nil {
		cfg.OnFailure = func(host string, err error) { t.Errorf("%s: %v", host, err) }
	}
	n := New(cfg)
	r := &replica{Notifier: n, limiter: newLimiter(t, store, n)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- n.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

func newMemory(t testing.TB) backend.Backend {
	t.Helper()
	return limitertest.Store(t, memory.Config{})
}

// check decides "key=value,key=value amount".
func (r *replica) check(t *testing.T, at time.Duration, text string) {
	t.Helper()
	text, amount, _ := strings.Cut(text, " ")
	d := limiter.Descriptor{Amount: 1, HasAmount: true}
	if n, isRefund := strings.CutPrefix(amount, "-"); amount != "" {
		d.IsRefund = isRefund
		var err error
		if d.Amount, err = strconv.ParseUint(n, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	d.Entries = entriesOf(text)
	req := &limiter.Request{Domain: []byte("d"), Descriptors: []limiter.Descriptor{d}, Now: epoch.Add(at)}
	if err := r.limiter.Check(t.Context(), req, new(limiter.Answer)); err != nil {
		t.Fatal(err)
	}
}

// entriesOf reads "key=value,key=value".
func entriesOf(text string) (entries []rules.Entry) {
	for pair := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(pair, "=")
		entries = append(entries, rules.Entry{Key: []byte(key), Value: []byte(value)})
	}
	return entries
}

// A subject is told of once for each percentage that it reaches first in a window.
func TestNotifier(t *testing.T) {
	t.Parallel()
	type step struct {
		at   time.Duration
		hits string // several with semicolons
	}
	for name, c := range map[string]struct {
		steps []step
		want  []string // subject, threshold, used/limit, denied
	}{
		"each percentage once": {
			[]step{{0, "user=a 4"}, {1, "user=a 1"}, {2, "user=a 1"}, {3, "user=a 2"}, {4, "user=a 2"}, {5, "user=a"}},
			[]string{"user=a 50 5/10", "user=a 80 8/10", "user=a 100 10/10"},
		},
		"a jump is told once": {[]step{{0, "user=a 9"}, {1, "user=a 1"}}, []string{"user=a 80 9/10", "user=a 100 10/10"}},
		"subjects":            {[]step{{0, "user=a 5;user=b 5"}}, []string{"user=a 50 5/10", "user=b 50 5/10"}},
		"windows": {
			[]step{{0, "user=a 5"}, {time.Minute, "user=a 5"}},
			[]string{"user=a 50 5/10", "user=a 50 5/10"},
		},
		"a refusal reaches all": {[]step{{0, "user=a 11"}}, []string{"user=a 100 10/10 denied"}},
		"a look and a refund":   {[]step{{0, "user=a 4"}, {1, "user=a 0"}, {2, "user=a -1"}}, nil},
		"no notify":             {[]step{{0, "none=a 10"}}, nil},
		"shadow mode":           {[]step{{0, "shadow=a 3"}}, []string{"shadow=a 100 2/2 denied not enforced"}},
		"a limit of 0":          {[]step{{0, "banned=a"}}, []string{"banned=a 100 0/0 denied"}},
		"too near is not much":  {[]step{{0, "apart=a"}, {1, "apart=a"}}, nil},
		"gcra refills":          {[]step{{0, "steady=a 5"}, {4 * time.Second, "steady=a 4"}}, []string{"steady=a 50 5/10"}},
		"gcra in another period": {
			[]step{{0, "steady=a 5"}, {2 * time.Minute, "steady=a 5"}},
			[]string{"steady=a 50 5/10", "steady=a 50 5/10"},
		},
		"windows of a first hit": {
			[]step{{5, "first=a 2"}, {6, "first=a 2"}, {time.Minute + 7, "first=a 2"}},
			[]string{"first=a 50 2/4", "first=a 100 4/4", "first=a 50 2/4"},
		},
		"levels":      {[]step{{0, "team=t,user=a 2"}, {1, "team=t,user=b"}}, []string{"team=t 50 2/4"}},
		"concurrency": {[]step{{0, "held=a,id=1"}, {1, "held=a,id=2"}}, []string{"held=a 50 1/2", "held=a 100 2/2"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to := newReceiver(t)
			r := newReplica(t, newMemory(t), Config{Variable: func(string) string { return to.URL }})
			for _, s := range c.steps {
				for hit := range strings.SplitSeq(s.hits, ";") {
					r.check(t, s.at, hit)
				}
			}
			r.stop()
			var got []string
			for _, b := range to.got {
				line := fmt.Sprintf("%s %d %d/%d", b.Subject, b.Threshold, b.Used, b.Limit)
				if b.Denied {
					line += " denied"
				}
				if !b.Enforced {
					line += " not enforced"
				}
				got = append(got, line)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got  %v\nwant %v", got, c.want)
			}
			if s := r.Stats(); s != (Stats{Sent: uint64(len(c.want))}) {
				t.Errorf("%+v", s)
			}
		})
	}
}

// The claim of a gcra, which has no windows, lasts for a period.
func TestNotifierAfterPeriod(t *testing.T) {
	t.Parallel()
	to := newReceiver(t)
	var at time.Time
	store := newMemory(t)
	timed := backendFunc(func(ctx context.Context, b *backend.Batch) error {
		b.Now = at
		return store.Take(ctx, b)
	})
	n := New(Config{Backend: timed, Variable: func(string) string { return to.URL }, OnFailure: func(string, error) {}})
	r := &reached{
		rule: &rules.Rule{
			Descriptor: &rules.Descriptor{}, Notify: &rules.Notification{At: []uint32{80}, URL: "$NOTIFY_URL_X"},
			Limit: algorithm.Limit{Kind: algorithm.GCRA, Max: 60, Burst: 9, Period: time.Minute},
		},
		counterKey: "k",
	}
	for _, s := range []struct {
		at   time.Duration
		want int
	}{{0, 1}, {59 * time.Second, 1}, {60 * time.Second, 2}} {
		at = epoch.Add(s.at)
		r.windowEnd = windowEnd(&r.rule.Limit, new(backend.Verdict), at.UnixNano())
		n.claim(r)
		n.sender.workers.Wait()
		if len(to.got) != s.want {
			t.Errorf("after %v: %d messages, want %d", s.at, len(to.got), s.want)
		}
	}
	n.sender.finish()
}

type backendFunc func(context.Context, *backend.Batch) error

func (f backendFunc) Take(ctx context.Context, b *backend.Batch) error { return f(ctx, b) }

// Of several replicas one tells of each subject, percentage and window, while all of them count.
func TestOneOfAllReplicas(t *testing.T) {
	t.Parallel()
	to := newReceiver(t)
	store := newMemory(t)
	var all []*replica
	for range 4 {
		all = append(all, newReplica(t, store, Config{Variable: func(string) string { return to.URL }}))
	}
	var wg sync.WaitGroup
	for _, r := range all {
		wg.Go(func() {
			for hit := range 300 {
				r.check(t, 0, fmt.Sprintf("user=%d", hit%20))
			}
		})
	}
	wg.Wait()
	for _, r := range all {
		r.stop()
	}
	seen := make(map[string]int)
	for _, b := range to.got {
		seen[fmt.Sprintf("%s %d", b.Subject, b.Threshold)]++
	}
	for i := range 20 {
		if name := fmt.Sprintf("user=%d 100", i); seen[name] != 1 {
			t.Errorf("%s: %d messages", name, seen[name])
		}
	}
	for name, n := range seen {
		if n != 1 {
			t.Errorf("%s: %d messages", name, n)
		}
	}
}

// If the store does not answer a claim, the message is sent. All replicas send it with the same id.
func TestClaimWithoutStore(t *testing.T) {
	t.Parallel()
	to := newReceiver(t)
	store := newMemory(t)
	isDown := backendFunc(func(ctx context.Context, b *backend.Batch) error {
		if strings.HasPrefix(string(b.Hits[0].Key), "notify_") {
			for i := range b.Verdicts {
				b.Verdicts[i].Err = context.DeadlineExceeded
			}
			return nil
		}
		return store.Take(ctx, b)
	})
	for _, hits := range []string{"user=a 5", "user=a 0", "user=a 1"} {
		r := newReplica(t, isDown, Config{Variable: func(string) string { return to.URL }})
		r.check(t, 0, hits)
		r.stop()
	}
	if len(to.got) != 2 || to.got[0].ID != to.got[1].ID || to.got[0].ID == "" {
		t.Errorf("%+v", to.got)
	}
}

// The other formats are what Slack and Alertmanager take.
func TestFormats(t *testing.T) {
	t.Parallel()
	to := newReceiver(t)
	r := newReplica(t, newMemory(t), Config{Variable: func(string) string { return to.URL }})
	r.check(t, 0, "slack=<!channel>`&")
	r.check(t, 0, "alert=a")
	r.check(t, 0, "user=\x00\xff\" 5")
	r.stop()
	slices.Sort(to.raw)
	for i, want := range []string{
		`[{"labels":{"alertname":"RateLimitReached","domain":"d","rule":"d.alert","subject":"alert=a","threshold":"100"},` +
			`"annotations":{"denied":"false","id":"` + alertID(to.raw) + `","limit":"1",` +
			`"summary":"alert=a has used 1 of 1 (100 %) of d.alert, ` +
			`1 per minute, until 2030-01-01 00:01:00 UTC.","used":"1"},"startsAt":"2030-01-01T00:00:00Z",` +
			`"endsAt":"2030-01-01T00:01:00Z"}]`,
		``,
		`{"text":"` + "`slack=\\u0026lt;!channel\\u0026gt;'\\u0026amp;` has used 1 of 1 (100 %) of `d.slack`" +
			`, 1 per minute, until 2030-01-01 00:01:00 UTC."}`,
	} {
		if want != "" && to.raw[i] != want {
			t.Errorf("got  %s\nwant %s", to.raw[i], want)
		}
	}
	if i := slices.IndexFunc(to.got, func(b Body) bool { return b.Subject != "" }); i < 0 ||
		to.got[i].Subject != `user="\x00\xff\""` || to.got[i].Reset != epoch.Add(time.Minute) {
		t.Errorf("%+v", to.got)
	}
}

// alertID returns the id in the body for Alertmanager.
func alertID(bodies []string) string {
	_, text, _ := strings.Cut(bodies[0], `"id":"`)
	id, _, _ := strings.Cut(text, `"`)
	return id
}

// A receiver can verify messages by each of the keys.
func TestSignature(t *testing.T) {
	t.Parallel()
	to := newReceiver(t)
	const old, next = "b2xkLWtleS1vZi0xNi1ieXRlcw==", "bmV3LWtleS1vZi0xNi1ieXRlcw=="
	keys, err := ParseKeys("whsec_" + old + ", " + next)
	if err != nil {
		t.Fatal(err)
	}
	r := newReplica(t, newMemory(t), Config{DefaultURL: "", Variable: func(string) string { return to.URL }, Keys: keys})
	r.check(t, 0, "user=a 5")
	r.stop()
	h := to.head[0]
	signatures := strings.Fields(h.Get("webhook-signature"))
	for i, text := range []string{old, next} {
		key, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(h.Get("webhook-id") + "." + h.Get("webhook-timestamp") + "." + to.raw[0]))
		if want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); signatures[i] != want {
			t.Errorf("signature %d is %s, want %s", i, signatures[i], want)
		}
	}
	if h.Get("webhook-id") != to.got[0].ID || h.Get("Content-Type") != "application/json" {
		t.Errorf("headers %v of %s", h, to.got[0].ID)
	}
	sent, err := strconv.ParseInt(h.Get("webhook-timestamp"), 10, 64)
	if err != nil || time.Since(time.Unix(sent, 0)) > time.Minute {
		t.Errorf("the timestamp is %s", h.Get("webhook-timestamp"))
	}
}

// The example of the specification: https://github.com/standard-webhooks/standard-webhooks, its test vector.
func TestSignatureOfSpecification(t *testing.T) {
	t.Parallel()
	keys, err := ParseKeys("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	got := signature(keys, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`))
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestParseKeys(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "", " , ": "",
		"whsec_!":  "it is not base64: write what `openssl rand -base64 32` prints",
		"c2hvcnQ=": "a key has 5 bytes, and 16 are the least: write what `openssl rand -base64 32` prints",
	} {
		keys, err := ParseKeys(text)
		if got := fmt.Sprint(err); len(keys) > 0 || got != want && (want != "" || err != nil) {
			t.Errorf("%q: %v, %v", text, keys, err)
		}
	}
}
