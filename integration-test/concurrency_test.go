package integration

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
)

// holdStores are the stores that count holds: their names, and the environment of a service with a new one.
var holdStores = map[string]func(*testing.T) []string{
	"memory": func(*testing.T) []string { return nil },
	"redis": func(t *testing.T) []string {
		return []string{"BACKEND_TYPE=redis", "REDIS_TIMEOUT=5s", "REDIS_URL=" + redistest.Start(t, redistest.Options{}).Addr}
	},
}

// holdsRecipe is a running service with the files of an example, and a server for Envoy's requests.
type holdsRecipe struct {
	*service
	dir     string
	backend *httptest.Server
}

// startHoldsRecipe serves the rules in examples/NAME/rules. change edits their file.
func startHoldsRecipe(t *testing.T, name, file string, env []string, change func(*testing.T, *document),
	backend http.HandlerFunc,
) *holdsRecipe {
	t.Helper()
	harness.Envoy(t) // or skip, before the service is built
	r := &holdsRecipe{dir: filepath.Join(repository, "examples", name), backend: httptest.NewServer(backend)}
	t.Cleanup(r.backend.Close)
	doc := readYAML(t, filepath.Join(r.dir, "rules", file))
	if change != nil {
		change(t, doc)
	}
	rules := newRuleDir(t)
	rules.put(t, file, doc.text(t))
	r.service = startService(t, append(append(rules.env(), "DISABLE_STATS=true"), env...)...)
	return r
}

// envoy starts the Envoy of the example. change edits its file.
func (r *holdsRecipe) envoy(t *testing.T, change func(*testing.T, *document)) *front {
	t.Helper()
	config := readYAML(t, filepath.Join(r.dir, "envoy.yaml"))
	backend := strings.TrimPrefix(r.backend.URL, "http://")
	config.move(t, map[string]string{
		"0.0.0.0:8888":   anyPort,
		"backend:8000":   backend,
		"model:8000":     backend,
		"ratelimit:8081": r.grpc,
	})
	config.set(t, "timeout", "5s") // the filter's: patience with a busy machine
	if change != nil {
		change(t, config)
	}
	p, address := startEnvoy(t, "front", config)
	return &front{process: p, url: "http://" + address}
}

// streams is the backend of the recipe: a response begins at once and ends when the test says so.
type streams struct{ end chan struct{} }

func (s streams) serve(w http.ResponseWriter, r *http.Request) {
	w.(http.Flusher).Flush()
	select {
	case <-s.end:
	case <-r.Context().Done():
	}
}

// stream sends a request with an x-request-id of its own choice and returns its status. The request lasts until the
// backend, Envoy or leave ends it.
func (f *front) stream(t *testing.T, user string) (status int, leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url+"/stream", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("x-user", user)
	req.Header.Set("x-request-id", "11111111-1111-1111-1111-111111111111")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp.StatusCode, cancel
}

// fill opens as many streams of alex as are left, which must be want, and returns how to leave them.
func (f *front) fill(t *testing.T, want int) (leave []func()) {
	t.Helper()
	for {
		status, end := f.stream(t, "alex")
		if status == http.StatusTooManyRequests {
			break
		}
		if status != http.StatusOK || len(leave) == want {
			t.Fatalf("stream %d: status %d, want %d streams and then 429", len(leave)+1, status, want)
		}
		leave = append(leave, end)
	}
	if len(leave) != want {
		t.Fatalf("%d streams are admitted, want %d", len(leave), want)
	}
	return leave
}

// admits waits until a stream of alex is admitted.
func (f *front) admits(t *testing.T, when string) {
	t.Helper()
	f.until(t, "a slot is free "+when, func() error {
		if status, _ := f.stream(t, "alex"); status != http.StatusOK {
			return fmt.Errorf("status %d", status)
		}
		return nil
	})
}

// The recipe for requests at once, with a real Envoy. A slot returns when its request ends, however it ends, and long
// before its hold expires. A client that repeats its x-request-id still needs a slot for each request.
func TestConcurrency(t *testing.T) {
	for name, store := range holdStores {
		t.Run(name, func(t *testing.T) {
			backend := streams{make(chan struct{})}
			r := startHoldsRecipe(t, "concurrency", "streams.yaml", store(t), nil, backend.serve)
			f := r.envoy(t, nil)
			leave := f.fill(t, 4)
			if status, _ := f.stream(t, "kim"); status != http.StatusOK {
				t.Errorf("another user: status %d, want 200", status)
			}
			leave[0]()
			f.admits(t, "after a client left")
			f.fill(t, 0)
			backend.end <- struct{}{}
			backend.end <- struct{}{} // one of both may be kim's
			f.admits(t, "after a response ended")
			f.stop(t)

			f = r.envoy(t, func(t *testing.T, config *document) { config.set(t, "max_stream_duration", "0.5s") })
			f.admits(t, "after Envoy was stopped")
			for range 4 {
				f.admits(t, "after the longest duration of a stream")
			}
		})
	}
}

// An Envoy that is killed returns nothing. Its slots are taken until their holds expire, and no longer.
func TestConcurrencyOfKilledEnvoy(t *testing.T) {
	t.Parallel()
	const hold = 3 * time.Second
	for name, store := range holdStores {
		t.Run(name, func(t *testing.T) {
			r := startHoldsRecipe(t, "concurrency", "streams.yaml", store(t),
				func(t *testing.T, rules *document) { rules.set(t, "hold", hold.String()) }, streams{make(chan struct{})}.serve)
			killed, other := r.envoy(t, nil), r.envoy(t, nil)
			killed.fill(t, 4)
			killed.kill(t)
			begun := time.Now()
			other.fill(t, 0)
			for range 4 {
				other.admits(t, "after the hold time")
			}
			if took := time.Since(begun); took > hold+time.Second {
				t.Errorf("the slots returned after %v, want at most %v", took, hold)
			}
		})
	}
}
