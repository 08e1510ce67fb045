package quota

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
	"ratelimit/testbed/limitertest"
)

func TestPresencesAddUp(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 1))
	for range 1000 {
		var sum uint64
		var want presence
		for range 1 + random.IntN(10) {
			p := presence{random.Uint64N(1000), random.Uint64N(1000), random.Uint64N(16000)}
			sum += p.packed()
			want = presence{want.proxies + p.proxies, want.above + p.above, want.demand + p.demand}
		}
		if got := unpackPresence(sum); got != want {
			t.Fatalf("unpacked %+v, want %+v", got, want)
		}
	}
	if p := (presence{1 << 60, 1 << 60, 1 << 60}).packed(); p >= presenceLimit.Max {
		t.Errorf("the largest presence is %d, the counter ends at %d", p, presenceLimit.Max)
	}
}

// sharesOf returns which part of 100 units a second each replica takes, whose proxies ask for so many a second.
func sharesOf(replicas [][]float64) (shares []float64) {
	hits := []backend.Hit{{Limit: &algorithm.Limit{Kind: algorithm.FixedWindow, Max: 100, Period: time.Second}}}
	proxies := 0
	for _, asks := range replicas {
		proxies += len(asks)
	}
	buckets := make([]*bucket, len(replicas))
	var sum uint64
	for i, asks := range replicas {
		buckets[i] = &bucket{terms: termsOf(hits)}
		for _, demand := range asks {
			buckets[i].members = append(buckets[i].members, &member{demand: demand})
		}
		buckets[i].peers.others.proxies = uint64(proxies - len(asks))
		buckets[i].peers.published = buckets[i].presence()
		sum += buckets[i].peers.published.packed()
	}
	for _, b := range buckets {
		b.peers.others = unpackPresence(sum).minus(b.peers.published)
		shares = append(shares, b.share())
	}
	return shares
}

func TestShareOfReplicas(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		asks [][]float64
		want []float64
	}{
		{[][]float64{{500}}, []float64{1}},
		{[][]float64{{500}, {500}}, []float64{0.5, 0.5}},
		{[][]float64{{500}, {500, 500, 500}}, []float64{0.25, 0.75}},
		{[][]float64{{10, 20}, {90, 90}}, []float64{0.3, 0.7}},
		{[][]float64{{0}, {500}}, []float64{0, 1}},
	} {
		for i, got := range sharesOf(tt.asks) {
			if math.Abs(got-tt.want[i]) > 0.02 {
				t.Errorf("%v: replica %d has the share %.3f, want %.3f", tt.asks, i, got, tt.want[i])
			}
		}
	}
}

// maxMin returns what each proxy gets of 100 units if all are divided in one place.
func maxMin(replicas [][]float64) (sums []float64) {
	var claims []claim
	for _, asks := range replicas {
		for _, a := range asks {
			claims = append(claims, claim{want: uint64(a * 1000)})
		}
	}
	divide(100_000, claims)
	for _, asks := range replicas {
		sum := uint64(0)
		for range asks {
			sum += claims[0].got
			claims = claims[1:]
		}
		sums = append(sums, float64(sum)/100_000)
	}
	return sums
}

// If proxies ask for more than there is, replicas take together no more than there is, and a replica never much more
// than one place would give its proxies.
func TestSharesNeverExceedMaxMin(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		replicas := make([][]float64, 2+random.IntN(3))
		total := 0.0
		for i := range replicas {
			for range 1 + random.IntN(5) {
				ask := random.Float64() * random.Float64() * 150
				replicas[i], total = append(replicas[i], ask), total+ask
			}
		}
		if total < 100 {
			continue
		}
		sum, exact := 0.0, maxMin(replicas)
		for i, got := range sharesOf(replicas) {
			if sum += got; got > exact[i]+0.05 {
				t.Errorf("%.0f: replica %d takes %.3f, max-min is %.3f", replicas, i, got, exact[i])
			}
		}
		if sum > 1.02 {
			t.Errorf("%.0f: replicas take %.3f together", replicas, sum)
		}
	}
}

// Replicas know each other's proxies although the limit is exceeded, and soon after the store has lost what they told
// it.
func TestPresenceIsPublished(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, "unit: second, requests_per_unit: 100", 2)
	expect := func(when string) {
		t.Helper()
		w.run(3 * time.Second)
		for i := range w.nodes {
			if got := w.bucketOf(i).peers.others.proxies; got != 1 {
				t.Errorf("%s replica %d knows %d proxies of others, want 1", when, i, got)
			}
		}
	}
	w.connect(0, 150, 5*time.Second)
	w.run(time.Second)
	other := backend.Batch{Now: w.start.Add(w.now)}
	appendHit(&other, &w.bucketOf(0).target.Hits[0], algorithm.Force, 2000, 0)
	if err := w.store.Take(t.Context(), &other); err != nil {
		t.Fatal(err)
	}
	w.connect(1, 150, 5*time.Second)
	expect("beyond the limit,")
	empty := limitertest.Store(t, memory.Config{})
	for _, n := range w.nodes {
		n.cfg.Backend = empty
	}
	expect("on an empty store,")
}

// Other replicas know within a round what proxies report.
func TestPresenceFollowsReports(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, "unit: second, requests_per_unit: 100", 2)
	a := w.connect(0, 150, time.Second)
	w.connect(1, 150, time.Second)
	w.run(5 * time.Second)
	for _, rate := range []float64{10, 90, 30} {
		a.rate = rate
		w.run(2500 * time.Millisecond)
		own, b := w.bucketOf(0), w.bucketOf(1)
		if got := own.peers.published; own.presence().differsFrom(got) || b.peers.others.differsFrom(got) {
			t.Errorf("%.0f a second: the replica has %+v and published %+v, the other one knows %+v", rate, own.presence(), got,
				b.peers.others)
		}
	}
}

// A replica that died has no share after presenceTime.
func TestPresenceOfADeadReplica(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, "unit: second, requests_per_unit: 100", 2)
	w.connect(0, 150, time.Second)
	w.connect(1, 150, time.Second)
	w.run(5 * time.Second)
	if got := w.bucketOf(0).peers.others.proxies; got != 1 {
		t.Errorf("%d other proxies, want 1", got)
	}
	w.nodes, w.proxies = w.nodes[:1], w.proxies[:1]
	w.run(presenceTime + 2*time.Second)
	if got := w.bucketOf(0).peers.others.proxies; got != 0 {
		t.Errorf("%v after the death of the replica: %d other proxies", presenceTime, got)
	}
}
