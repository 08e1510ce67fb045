package denials

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ratelimit/src/frontend/admin"
	"ratelimit/src/operator"
	"ratelimit/src/operator/debugport"
	"ratelimit/src/operator/output"
)

// ring is a service that has denials, and no other figures.
type ring struct {
	mu   sync.Mutex
	list []operator.Denial
}

func (r *ring) Denials(after uint64, limit int) []operator.Denial {
	r.mu.Lock()
	defer r.mu.Unlock()
	newer := slices.DeleteFunc(slices.Clone(r.list), func(d operator.Denial) bool { return d.ID <= after })
	return newer[max(0, len(newer)-limit):]
}

// add adds denials of a domain, whose subjects are their IDs. IDs start at 1.
func (r *ring) add(domain string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for range n {
		id := uint64(len(r.list) + 1)
		at := time.Date(2026, 11, 23, 12, 0, int(id), 0, time.UTC)
		r.list = append(r.list, operator.Denial{
			ID: id, At: at, Protocol: "grpc", Domain: domain, Rule: domain + ".key",
			Subject: fmt.Sprintf("key=%d", id),
		})
	}
}

// call runs `ratelimit denials` with args on a service with the denials of r.
func call(t *testing.T, r *ring, args ...string) (string, error) {
	t.Helper()
	server := httptest.NewServer(admin.DebugPages{Figures: &operator.Figures{Denials: r.Denials}}.Handler())
	defer server.Close()
	var out bytes.Buffer
	cmd := Command()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(append(args, "--address", server.URL))
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestPrint(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 23, 13, 0, 0, 123456789, time.FixedZone("", 3600))
	r := &ring{list: []operator.Denial{
		{
			ID: 7, At: at, Protocol: "grpc", Domain: "accounts", Rule: "accounts.login", Subject: "login=alex",
			Counter: "accounts_login_alex_", RetryAfterSeconds: 192.0004,
		},
		{
			ID: 8, At: at.Add(time.Second), Protocol: "divvy", Domain: "d", Subject: "a=ü,b=日本",
			RetryAfterSeconds: operator.NeverRetry, Skipped: 1234,
		},
		{
			ID: 9, At: at.Add(time.Hour), Protocol: "json", Domain: "d", Rule: "d.\x1b[2J", Subject: "key=\u009b31m\n",
			RetryAfterSeconds: 1, Reason: "the store does not answer",
		},
	}}
	got, err := call(t, r)
	want := `TIME                      PROTOCOL  DOMAIN    RULE            WAIT   SKIPPED  REASON                     SUBJECT
2026-11-23T12:00:00.123Z  grpc      accounts  accounts.login  3m13s  0        -                          login=alex
2026-11-23T12:00:01.123Z  divvy     d         -               never  1234     -                          a=ü,b=日本
2026-11-23T13:00:00.123Z  json      d         "d.\x1b[2J"     1s     0        the store does not answer  "key=\u009b31m\n"
`
	if got != want || err != nil {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
	got, err = call(t, r, "--json")
	lines := strings.Split(strings.TrimSuffix(got, "\n"), "\n")
	for i, line := range lines {
		var d operator.Denial
		if err := json.Unmarshal([]byte(line), &d); err != nil || d.ID != r.list[i].ID || d.Subject != r.list[i].Subject ||
			d.Reason != r.list[i].Reason ||
			output.Printable(line) != line {
			t.Errorf("%v in %q", err, line)
		}
	}
	if len(lines) != 3 || err != nil {
		t.Errorf("%v\n%s", err, got)
	}
}

func TestFlags(t *testing.T) {
	t.Parallel()
	r := new(ring)
	r.add("a", 2)
	r.add("b", 150)
	for _, tt := range []struct {
		args string
		want string // the IDs that are printed
	}{
		{"", "53-152"},
		{"--limit 3", "150-152"},
		{"--domain a", "1-2"},
		{"--domain a --limit 1", "2-2"},
		{"--rule a.key", "1-2"},
		{"--rule a.key --domain b", "none"},
		{"--domain b --limit 1000", "3-152"},
	} {
		out, err := call(t, r, append(strings.Fields(tt.args), "--json")...)
		if err != nil {
			t.Errorf("%s: %v", tt.args, err)
		}
		got, printed := "none", []operator.Denial{}
		for dec := json.NewDecoder(strings.NewReader(out)); dec.More(); {
			var d operator.Denial
			if err := dec.Decode(&d); err != nil {
				t.Fatal(err)
			}
			printed = append(printed, d)
		}
		if n := len(printed); n > 0 {
			got = fmt.Sprintf("%d-%d", printed[0].ID, printed[n-1].ID)
		}
		if got != tt.want {
			t.Errorf("%s: printed %s, want %s", tt.args, got, tt.want)
		}
	}
	if out, err := call(t, new(ring)); err != nil || !strings.HasSuffix(out, " has denied nothing since its start\n") ||
		strings.Contains(out, "TIME") {
		t.Errorf("without denials: %q, %v", out, err)
	}
}

func TestWait(t *testing.T) {
	t.Parallel()
	for seconds, want := range map[float64]string{
		0: "0s", 0.0001: "1ms", 0.25: "250ms", 9.9991: "10s", 10.1: "11s", 192: "3m12s", 3600: "1h",
		operator.NeverRetry: "never", 3.2e9: "888888h53m20s",
	} {
		if got := waitText(seconds); got != want {
			t.Errorf("%v: %s, want %s", seconds, got, want)
		}
	}
}

// --follow prints what comes, survives failures, and ends without an error.
func TestFollow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := new(ring)
		r.add("a", 3)
		var out, errOut recorder
		var failure error
		f := newFollower(&options{limit: 2, follow: true}, &out, &errOut)
		f.add("rl:6070", func(_ context.Context, after uint64, limit int) ([]operator.Denial, error) {
			r.mu.Lock()
			err := failure
			r.mu.Unlock()
			if err != nil {
				return nil, err
			}
			return r.Denials(after, limit), nil
		})
		fail := func(err error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			failure = err
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- f.run(ctx) }()
		gone := &debugport.Error{Temporary: true, Err: errors.New("gone")}
		for i, step := range []struct {
			act             func()
			after           time.Duration
			wantOut, errOut string // what is new
		}{
			{func() {}, 0, "2 3", ""},
			{func() {}, 3500 * time.Millisecond, "", ""},
			{func() { r.add("a", 2) }, time.Second, "4 5", ""},
			{
				func() { fail(gone) }, 8500 * time.Millisecond, "",
				"gone; trying again in 1s|gone; trying again in 2s|gone; trying again in 4s|gone; trying again in 8s",
			},
			{
				func() { r.add("a", 1) }, time.Minute, "",
				"gone; trying again in 16s|gone; trying again in 30s|gone; trying again in 30s",
			},
			{func() { fail(nil) }, 30 * time.Second, "6", "rl:6070 answers again"},
			{func() { r.add("b", 2) }, 2 * time.Second, "7 8", ""},
		} {
			step.act()
			time.Sleep(step.after)
			synctest.Wait()
			if got, errs := out.subjects(),
				errOut.take(); got != step.wantOut ||
				strings.ReplaceAll(errs, "\n", "|") != strings.TrimPrefix(step.errOut+"|", "|") {
				t.Errorf("step %d: printed %q and %q, want %q and %q", i, got, errs, step.wantOut, step.errOut)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("ended with %v", err)
		}
	})
}

// An error that trying again does not change ends --follow.
func TestFollowGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		refused := &debugport.Error{Status: http.StatusUnauthorized, Err: errors.New("refused")}
		calls := 0
		f := newFollower(&options{limit: 2, follow: true}, new(recorder), new(recorder))
		f.add("rl:6070", func(context.Context, uint64, int) ([]operator.Denial, error) {
			if calls++; calls > 2 {
				return nil, refused
			}
			return nil, nil
		})
		if err := f.run(t.Context()); !errors.Is(err, refused) || calls != 3 {
			t.Errorf("%v after %d calls", err, calls)
		}
		if err := f.run(t.Context()); !errors.Is(err, refused) {
			t.Errorf("at first: %v", err)
		}
	})
}

// recorder is an output that is read while it is written.
type recorder struct {
	mu   sync.Mutex
	text strings.Builder
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

// take returns what was written since the last call.
func (r *recorder) take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.text.Reset()
	return r.text.String()
}

// subjects returns the numbers of the subjects that were written since the last call.
func (r *recorder) subjects() string {
	var numbers []string
	for line := range strings.Lines(r.take()) {
		if _, number, found := strings.Cut(strings.TrimSpace(line), "key="); found {
			numbers = append(numbers, number)
		}
	}
	return strings.Join(numbers, " ")
}
