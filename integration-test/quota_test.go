package integration

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
)

const (
	quotaPage  = "docs/rlqs.md"
	quotaFile  = repository + "/examples/envoy/quota.yaml"
	quotaLimit = 40  // a second
	quotaAsked = 100 // requests a second that a busy Envoy gets
)

// quotaWorld is two Envoys that enforce one limit themselves, and two replicas that divide it among them. Each Envoy
// has a replica of its own, and uses the other one when that is gone.
type quotaWorld struct {
	replicas [2]*service
	fronts   [2]*front
	callers  [3]*quotaCaller // one for each Envoy, and one that asks a replica about each request.
	reported [2]int          // how many reports each replica has got.
	began    int64           // the second in which the first request could pass.
}

// startQuotas starts a world without requests.
func startQuotas(t *testing.T) *quotaWorld {
	t.Helper()
	harness.Envoy(t) // or skip, before the service is built
	rules := newRuleDir(t)
	doc := readYAML(t, repository+"/examples/quota/config/quotas.yaml")
	doc.set(t, "requests_per_unit", strconv.Itoa(quotaLimit))
	rules.put(t, "quotas.yaml", doc.text(t))
	redis := redistest.Start(t, redistest.Options{})
	w := new(quotaWorld)
	for i := range w.replicas {
		w.replicas[i] = startService(t,
			append(rules.env(), "DISABLE_STATS=true", "BACKEND_TYPE=redis", "REDIS_URL="+redis.Addr, "REDIS_TIMEOUT=5s")...)
	}
	w.began = time.Now().Unix()
	for i := range w.fronts {
		p, address := startEnvoy(t, fmt.Sprint("envoy ", i), quotaConfig(t, w.replicas[i].grpc, w.replicas[1-i].grpc))
		w.fronts[i] = &front{process: p, url: "http://" + address}
		w.callers[i] = startQuotaCaller(t, w.fronts[i].quotaRequest)
	}
	w.callers[2] = startQuotaCaller(t, w.replicas[1].quotaRequest)
	return w
}

// quotaConfig returns the configuration of the page for an Envoy whose first replica has the address own. Without an
// assignment nothing passes.
func quotaConfig(t *testing.T, own, other string) *document {
	t.Helper()
	config := readYAML(t, quotaFile)
	var cluster yaml.Node
	if err := yaml.Unmarshal([]byte(blocks(t, quotaPage, "yml", "load_assignment:")[0]), &cluster); err != nil {
		t.Fatal(err)
	}
	for _, list := range config.at("clusters") {
		c := list.Content[0]
		i := slices.IndexFunc(c.Content, func(n *yaml.Node) bool { return n.Value == "load_assignment" })
		c.Content = append(c.Content[:i], cluster.Content[0].Content...)
	}
	config.move(t, map[string]string{
		"127.0.0.1:8001": anyPort,
		"0.0.0.0:8888":   anyPort,
		"replica-1:8081": own,
		"replica-2:8081": other,
	})
	config.set(t, "blanket_rule", "DENY_ALL")
	return config
}

// quotaRequest reports whether a request passes.
func (f *front) quotaRequest() (bool, error) {
	status, _, err := f.send(call{"/", "env: prod"})
	return status == http.StatusOK, err
}

// quotaRequest reports whether the service lets a request pass that counts for the same limit.
func (s *service) quotaRequest() (bool, error) {
	const body = `{"domain": "quotas", "descriptors": [{"entries": [{"key": "env", "value": "prod"}, {"key": "name", "value": "web"}]}]}`
	resp, err := client.Post("http://"+s.http+"/json", "application/json", strings.NewReader(body))
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode == http.StatusOK, err
}

// quotaCaller sends requests at a rate, and counts those that pass.
type quotaCaller struct {
	mu     sync.Mutex
	rate   float64 // how many requests a second are sent.
	sent   int
	passed map[int64]int // how many passed in each second.
	err    error         // the first error. It ends the caller.
}

// startQuotaCaller starts a caller with rate 0. It ends with the test.
func startQuotaCaller(t *testing.T, request func() (bool, error)) *quotaCaller {
	t.Helper()
	c := &quotaCaller{passed: make(map[int64]int)}
	quit, ended := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() {
		close(quit)
		<-ended
	})
	go func() {
		defer close(ended)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		last, due := time.Now(), 0.0
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
			}
			c.mu.Lock()
			rate, err := c.rate, c.err
			c.mu.Unlock()
			now := time.Now()
			if due += rate * now.Sub(last).Seconds(); rate == 0 {
				due = 0
			}
			for last = now; due >= 1 && err == nil; due-- {
				err = c.send(request)
			}
		}
	}()
	return c
}

func (c *quotaCaller) send(request func() (bool, error)) error {
	passes, err := request()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent++
	if passes {
		c.passed[time.Now().Unix()]++
	}
	if c.rate > 0 {
		c.err = err
	}
	return c.err
}

// demand sets how many requests a second arrive.
func (c *quotaCaller) demand(rate float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rate = rate
}

// count returns how many requests were sent.
func (c *quotaCaller) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent
}

// in returns how many requests passed in a second.
func (c *quotaCaller) in(second int64) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.passed[second], c.err
}

// until waits until each caller lets so many requests pass in one second, plus or minus a tenth of the limit, and all
// together the limit, plus or minus 5 %. A negative number means any. It returns how many reports each replica got from
// its call to the end of that second.
func (w *quotaWorld) until(t *testing.T, problem string, want ...int) (reports [2]int) {
	t.Helper()
	before, second := w.reports(t), time.Now().Unix()
	harness.Await(t, 2*patience, problem, func() error {
		if second >= time.Now().Unix() {
			return errors.New("no whole second has passed")
		}
		total, got, isReached := 0, make([]int, len(want)), true
		for i, c := range w.callers {
			n, err := c.in(second)
			if err != nil {
				t.Fatalf("caller %d: %v", i, err)
			}
			got[i] = n
			total += n
			isReached = isReached && (want[i] < 0 || n >= want[i]-quotaLimit/10 && n <= want[i]+quotaLimit/10)
		}
		t.Logf("%d: %d pass in one second, want %d", second, got, want)
		second++
		if !isReached || total*100 < quotaLimit*95 || total*100 > quotaLimit*105 {
			return fmt.Errorf("%d pass in one second, want %d", got, want)
		}
		return nil
	})
	reports = w.reports(t)
	for i := range reports {
		reports[i] -= before[i]
	}
	return reports
}

// reports returns how many reports each replica has got. Those of one that was killed are those before.
func (w *quotaWorld) reports(t *testing.T) [2]int {
	t.Helper()
	for i, s := range w.replicas {
		if s.stopped {
			continue
		}
		page, err := get("http://" + s.debug + "/stats")
		if err != nil {
			t.Fatal(err)
		}
		if m := regexp.MustCompile(`ratelimit\.quota\.reports: (\d+)`).FindSubmatch(page); m != nil {
			w.reported[i], _ = strconv.Atoi(string(m[1]))
		}
	}
	return w.reported
}

// Two Envoys share a limit with each other and with callers that ask about each request. Demand that moves gets its
// share, also when an Envoy or a replica dies.
func TestQuotas(t *testing.T) {
	t.Parallel()
	w := startQuotas(t)
	w.callers[2].demand(5)
	w.callers[0].demand(quotaAsked)
	w.callers[1].demand(quotaAsked)
	w.until(t, "both Envoys do not have a half", quotaLimit/2, quotaLimit/2, -1)

	w.callers[0].demand(0)
	reports := w.until(t, "the limit has not moved with the demand", 0, quotaLimit, -1)
	// Two whole reporting intervals, and the report of the time before.
	if max(reports[0], reports[1]) > 3 {
		t.Errorf("the move took %d reports, want at most 3 of each Envoy", reports)
	}
	w.reports(t)
	w.replicas[0].kill(t)
	w.callers[0].demand(quotaAsked)
	w.until(t, "both do not have a half again, with one replica", quotaLimit/2, quotaLimit/2, -1)

	w.callers[1].demand(0)
	w.fronts[1].kill(t)
	w.until(t, "the Envoy that is left has not the whole limit", quotaLimit, 0, -1)
	w.checkBounds(t)
}

// checkBounds checks that no more requests passed than were charged, which is at most the limit in each second. From
// any second on, they are at most those, and what was assigned and not used before.
func (w *quotaWorld) checkBounds(t *testing.T) {
	t.Helper()
	end := time.Now().Unix()
	for from := w.began; from <= end; from++ {
		most := quotaLimit + len(w.callers) // Each caller may get an answer of the second before.
		if from == w.began {
			most = 0
		}
		total := 0
		for second := from; second <= end; second++ {
			most += quotaLimit
			for _, c := range w.callers {
				n, _ := c.in(second)
				total += n
			}
			if total > most {
				t.Fatalf("%d requests passed in %d seconds, want at most %d", total, second-from+1, most)
			}
		}
	}
	reports, requests := w.reports(t), w.callers[0].count()+w.callers[1].count()
	if calls := reports[0] + reports[1]; calls*100 > requests {
		t.Errorf("%d reports for %d requests, want at most one for 100", calls, requests)
	}
}
