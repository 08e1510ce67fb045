package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/testfiles"
)

const (
	regionsPage = "docs/recipes/three-regions.md"
	regionsDir  = repository + "/examples/regions"
	// regionsLimit is a tenth of the recipe's limit, so that it is used up in less than a minute.
	regionsLimit = 600
)

// regions is the recipe of three regions with one Redis.
type regions struct {
	services []*upstream
	links    []*harness.Proxy // from each region to Redis
}

// startRegions starts the recipe's files, at these round trips from one Redis.
func startRegions(t *testing.T, roundTrips ...time.Duration) *regions {
	t.Helper()
	server := redistest.Start(t, redistest.Options{})
	rules := newRuleDir(t)
	text, limit := read(t, "examples/regions/rules/global.yaml"), fmt.Sprintf("requests_per_unit: %d}", regionsLimit)
	changed := strings.Replace(text, fmt.Sprintf("requests_per_unit: %d}", 10*regionsLimit), limit, 1)
	if changed == text {
		t.Fatalf("the rules have no limit of %d", 10*regionsLimit)
	}
	rules.put(t, "global.yaml", changed)
	settings := testfiles.Read(t, filepath.Join(regionsDir, "region.env"))
	r := new(regions)
	for _, away := range roundTrips {
		link := harness.StartProxy(t, server.Addr)
		link.Latency(away)
		env := []string{fmt.Sprint("REPLICAS=", len(roundTrips))} // They would find out within 20 seconds.
		for line := range strings.Lines(string(settings)) {
			name, value, isSetting := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
			if strings.HasPrefix(line, "#") || !isSetting {
				continue
			}
			if name == "REDIS_URL" {
				value = link.Addr
			}
			env = append(env, name+"="+value)
		}
		r.links = append(r.links, link)
		r.services = append(r.services, startWith(t, rules, env...))
	}
	return r
}

// hit sends a request to a region, and reports whether it is admitted.
func (r *regions) hit(t *testing.T, region int) bool {
	t.Helper()
	answer, err := r.services[region].call(t, request("global", "customer=acme"))
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetOverallCode() == rlsv3.RateLimitResponse_OK
}

// hits sends n requests to each of these regions in turn, and returns how many are admitted.
func (r *regions) hits(t *testing.T, n int, in ...int) (admitted int) {
	t.Helper()
	for range n {
		for _, region := range in {
			if r.hit(t, region) {
				admitted++
			}
		}
		time.Sleep(2 * time.Millisecond) // Callers do not wait for a refill that is under way.
	}
	return admitted
}

// refusalsInARow is how many requests a region refuses before it has no units.
const refusalsInARow = 10

// useUp sends requests to these regions in turn until all of them refuse, and returns how many are admitted.
func (r *regions) useUp(t *testing.T, in ...int) (admitted int) {
	t.Helper()
	for refused := 0; refused < refusalsInARow*len(in); {
		for _, region := range in {
			if refused++; r.hit(t, region) {
				admitted, refused = admitted+1, 0
			}
		}
	}
	return admitted
}

// waited returns how many hits of a region went to Redis.
func (r *regions) waited(t *testing.T, region int) int64 {
	t.Helper()
	return r.services[region].stats(t)["ratelimit.leases.sent"]
}

// Three regions share one limit: requests do not wait for Redis, a region that is cut off uses what it holds and comes
// back, and no more than the limit is admitted.
func TestRecipeThreeRegions(t *testing.T) {
	t.Parallel()
	for file, name := range map[string]string{"rules/global.yaml": "yaml", "region.env": "sh"} {
		text := strings.TrimPrefix(read(t, "examples/regions/"+file),
			"# yaml-language-server: $schema=../../../api/ratelimit.schema.json\n")
		if !strings.Contains(read(t, regionsPage), "```"+name+"\n"+text+"```") {
			t.Errorf("%s does not show %s as it is", regionsPage, file)
		}
	}
	r := startRegions(t, 0, 40*time.Millisecond, 80*time.Millisecond)
	const enough = 40 * time.Second
	for range 3 {
		minute := time.Now().Truncate(time.Minute)
		if left := time.Until(minute.Add(time.Minute)); left < enough {
			time.Sleep(left)
			minute = minute.Add(time.Minute)
		}
		err := r.cutOffOne(t)
		if time.Now().Truncate(time.Minute).Equal(minute) {
			if err != nil {
				t.Error(err)
			}
			return
		}
		t.Logf("the minute ended: %v", err)
	}
	t.Error("no minute is long enough for the requests")
}

// cutOffOne uses up the limit in three regions, one of which is cut off meanwhile. It takes less than a minute.
func (r *regions) cutOffOne(t *testing.T) error {
	t.Helper()
	const each, far = 60, 2
	var before [3]int64
	for region := range before {
		before[region] = r.waited(t, region)
	}
	admitted := r.hits(t, each, 0, 1, far)
	if admitted != 3*each {
		return fmt.Errorf("%d of %d requests are admitted while the limit has room", admitted, 3*each)
	}
	for region := range before {
		if n := r.waited(t, region) - before[region]; n > 1 {
			return fmt.Errorf("region %d: %d of %d requests waited for Redis, want 1 at most", region, n, each)
		}
	}

	r.links[far].Blackhole()
	held := r.useUp(t, far)
	if held == 0 || held > regionsLimit/4 {
		return fmt.Errorf("a region that is cut off admits %d more, want some, and at most what it holds", held)
	}
	admitted += held + r.hits(t, each/2, 0, 1)

	r.links[far].Heal()
	r.links[far].Latency(80 * time.Millisecond)
	r.links[far].Reset() // The connections of the outage have lost bytes.
	harness.Await(t, patience, "the region is back", func() error {
		if !r.hit(t, far) {
			return fmt.Errorf("it refuses after %d were admitted", admitted)
		}
		admitted++
		return nil
	})
	admitted += r.useUp(t, 0, 1, far)
	const mostLost = regionsLimit / 6 // a refill that was under way to the region
	if admitted > regionsLimit || admitted < regionsLimit-mostLost {
		return fmt.Errorf("%d are admitted, want at most %d, and at least %d", admitted, regionsLimit, regionsLimit-mostLost)
	}
	return nil
}
