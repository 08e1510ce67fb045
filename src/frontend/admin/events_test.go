package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ratelimit/src/operator"
	"ratelimit/testbed/harness"
)

// streamRecorder is a ResponseWriter that keeps each write.
type streamRecorder struct {
	header http.Header
	status int
	writes chan string
	fail   bool
}

func newStreamRecorder() *streamRecorder {
	return &streamRecorder{header: http.Header{}, status: http.StatusOK, writes: make(chan string, 100)}
}

func (r *streamRecorder) Header() http.Header    { return r.header }
func (r *streamRecorder) WriteHeader(status int) { r.status = status }
func (r *streamRecorder) Flush()                 {}

func (r *streamRecorder) Write(p []byte) (int, error) {
	if r.fail {
		return 0, io.ErrClosedPipe
	}
	r.writes <- string(p)
	return len(p), nil
}

// next returns the name and the data of the next event.
func (r *streamRecorder) next(t *testing.T) (name, data string) {
	t.Helper()
	text := <-r.writes
	name, data, ok := strings.Cut(strings.TrimPrefix(text, "event: "), "\ndata: ")
	if !ok || !strings.HasSuffix(data, "\n\n") {
		t.Fatalf("no event: %q", text)
	}
	return name, strings.TrimSpace(data)
}

// listen connects a listener until the context ends.
func listen(ctx context.Context, h http.Handler) *streamRecorder {
	w := newStreamRecorder()
	go h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/events", nil).WithContext(ctx))
	return w
}

func TestEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeFigures()
		f.state.Store = "memory"
		f.rates = operator.Rates{Total: operator.PerSecond{Admitted: 3}}
		for i := range 120 {
			f.rates.Domains = append(f.rates.Domains,
				operator.DomainRates{Domain: fmt.Sprint("d", i), PerSecond: operator.PerSecond{Denied: float64(120 - i)}})
			f.rates.Rules = append(f.rates.Rules, operator.RuleRates{Domain: "d", Rule: fmt.Sprint("d.", i)})
			f.deny(operator.Denial{Subject: fmt.Sprint("ip=", i)})
		}
		ctx, cancel := context.WithCancel(t.Context())
		w := listen(ctx, pagesWith(f.source()))
		begin := time.Now()

		name, data := w.next(t)
		var u Update
		if err := json.Unmarshal([]byte(data), &u); err != nil || name != "update" {
			t.Fatalf("%s: %v", name, err)
		}
		if u.State.Store != "memory" || u.Rates.Total.Admitted != 3 || len(u.Rates.Rules) != 20 ||
			u.Rates.MatchingRules != 120 {
			t.Errorf("update %+v", u)
		}
		if len(u.Rates.Domains) != 50 || u.Rates.Domains[0].Domain != "d0" {
			t.Errorf("the first of 120 domains are %d: %+v", len(u.Rates.Domains), u.Rates.Domains[0])
		}
		if u.Top.Hot[0].Subject != "hot of a minute" || u.Top.Denied[0].Subject != "denied of a minute" ||
			u.Top.Hot[0].Hits != 20 {
			t.Errorf("top %+v", u.Top)
		}
		if got := w.header.Get("Content-Type"); got != "text/event-stream" {
			t.Errorf("content type %q", got)
		}

		past := <-w.writes
		if n := strings.Count(past, "event: denial\n"); n != 100 || !strings.Contains(past, `"ip=20"`) ||
			!strings.Contains(past, `"ip=119"`) {
			t.Errorf("the stream begins with %d denials:\n%.300s", n, past)
		}
		f.deny(operator.Denial{Subject: "ip=new"})
		if name, data = w.next(t); name != "denial" || !strings.Contains(data, `"id":121`) || time.Since(begin) != 0 {
			t.Errorf("after %v: %s %s", time.Since(begin), name, data)
		}
		f.set(func(s *operator.State, _ *operator.Rates) { s.Store = "redis" })
		for i := range 3 {
			if name, data = w.next(t); name != "update" || !strings.Contains(data, `"store":"redis"`) ||
				time.Since(begin) != time.Duration(i+1)*time.Second {
				t.Errorf("after %v: %s %.100s", time.Since(begin), name, data)
			}
		}
		cancel()
		synctest.Wait() // The test fails if the handler does not return.
	})
}

// An update is computed once per second for all listeners, and not at all without a listener.
func TestEventsShareUpdates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var states atomic.Int64 // how often a state is computed
		f := newFakeFigures().source()
		f.State = func() (s operator.State) { states.Add(1); return s }
		h := pagesWith(f)
		time.Sleep(time.Minute)
		if n := states.Load(); n != 0 {
			t.Errorf("%d computations without a listener", n)
		}
		ctx, cancel := context.WithCancel(t.Context())
		for range maxListeners {
			w := listen(ctx, h)
			go func() {
				for {
					select {
					case <-w.writes:
					case <-ctx.Done():
						return
					}
				}
			}()
			time.Sleep(37 * time.Millisecond)
		}
		before := states.Load()
		time.Sleep(10 * time.Second)
		if n := states.Load() - before; n < 9 || n > 11 {
			t.Errorf("%d computations in 10 s", n)
		}
		w := newStreamRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/events", nil))
		if text := <-w.writes; w.status != 503 || text != "32 listeners are connected to /api/events; close one of them\n" ||
			w.header.Get("Retry-After") == "" {
			t.Errorf("one listener too many: %d %s", w.status, text)
		}
		cancel()
		synctest.Wait()
		ctx, cancel = context.WithCancel(t.Context())
		if name, _ := listen(ctx, h).next(t); name != "update" {
			t.Errorf("after others have gone: %s", name)
		}
		cancel()
	})
}

// A stream ends when a write fails, and does not loop while announced denials cannot be read.
func TestEventsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeFigures()
		w := newStreamRecorder()
		w.fail = true
		pagesWith(f.source()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/events", nil)) // returns

		f.deny(operator.Denial{})
		ctx, cancel := context.WithCancel(t.Context())
		gone := f.source()
		gone.Denials = func(uint64, int) []operator.Denial { return nil } // as of a ring that was overwritten
		w = listen(ctx, pagesWith(gone))
		for range 2 {
			if name, _ := w.next(t); name != "update" {
				t.Error(name)
			}
		}
		cancel()
	})
}

// Timeouts of the server are for whole answers. A stream goes on, and ends when the server closes.
func TestEventsOverTCP(t *testing.T) {
	t.Parallel()
	listener := harness.Listen(t)
	server := &http.Server{
		Handler: pagesWith(newFakeFigures().source()), ReadTimeout: 500 * time.Millisecond,
		WriteTimeout: 500 * time.Millisecond,
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + listener.Addr().String() + "/api/events")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	for updates := 0; updates < 3 && lines.Scan(); {
		if lines.Text() == "event: update" {
			updates++
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatalf("the stream ended: %v", err)
	}
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	for lines.Scan() { // The rest of the stream.
	}
	if err := <-served; err != http.ErrServerClosed {
		t.Error(err)
	}
}

// Listeners that never read, and for which the system takes what is sent, make room for others after a minute, the
// oldest first.
func TestListenersMakeRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := pagesWith(newFakeFigures().source())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ends := make(chan int, maxListeners)
		for i := range maxListeners {
			go func() {
				w := &deafRecorder{newStreamRecorder()}
				h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/events", nil).WithContext(ctx))
				ends <- i
			}()
			time.Sleep(time.Second)
		}
		for i := range 3 {
			var w *streamRecorder
			for w = listen(ctx, h); ; w = listen(ctx, h) {
				if text := <-w.writes; strings.HasPrefix(text, "event: update") {
					break
				}
				time.Sleep(100 * time.Millisecond)
			}
			if first := <-ends; first != i {
				t.Errorf("listener %d made room, want %d", first, i)
			}
		}
		if len(ends) > 0 {
			t.Errorf("%d more listeners were ended", len(ends))
		}
	})
}

// deafRecorder takes everything, as the buffers of the system do.
type deafRecorder struct{ *streamRecorder }

func (*deafRecorder) Write(p []byte) (int, error) { return len(p), nil }
