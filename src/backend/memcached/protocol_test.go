package memcached

import (
	"strings"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/testbed/memcachedtest"
)

func TestAppendKey(t *testing.T) {
	t.Parallel()
	at := epoch.Add(90 * time.Second)
	for _, tt := range []struct {
		key    string
		limit  *algorithm.Limit
		tagged bool
		ago    int64
		want   string
	}{
		// envoyproxy/ratelimit's windows have its keys.
		{"d_a_1_", window(1, time.Second), false, 0, "d_a_1_1767225690"},
		{"d_a_1_b__", window(1, time.Minute), false, 0, "d_a_1_b__1767225660"},
		{"d_a_1_", window(1, 365*24*time.Hour), false, 0, "d_a_1_1766016000"},
		{"d_ä_ключ_", window(1, time.Hour), false, 0, "d_ä_ключ_1767225600"},
		{"d_a_1_", window(1, time.Second), true, 0, "{d_a_1_}|fw:1:1767225690"},
		{"d_a_1_", window(1, 5*time.Minute), false, 0, "{d_a_1_}|fw:300:1767225600"},
		{"d_a_1_", sliding(1, time.Minute), false, 0, "{d_a_1_}|sc:60:1767225660"},
		{"d_a_1_", sliding(1, time.Minute), false, 1, "{d_a_1_}|sc:60:1767225600"},
		{"d_a_1_", sliding(1, 1500*time.Millisecond), false, 0, "{d_a_1_}|sc:1.5:1767225690"},
		{"d_a_1_", sliding(1, 1500*time.Millisecond), false, 1, "{d_a_1_}|sc:1.5:1767225688.5"},
		{"d_a_1_", sliding(1, 7*time.Microsecond), false, 1, "{d_a_1_}|sc:0.000007:1767225689.999987"},
		{strings.Repeat("x", 240), window(1, time.Second), false, 0, strings.Repeat("x", 240) + "1767225690"},
		// What Memcached does not take is hashed; `printf %s 'd_a b_1767225690' | sha256sum`.
		{
			strings.Repeat("x", 241), window(1, time.Second), false, 0,
			"sha256:4ce006eaf35039549bd9b0da2694067bdbfdbbe4290aa3a685a789054ce8f838#",
		},
		{
			"d_a b_", window(1, time.Second), false, 0,
			"sha256:ccb8a3650f0f080b1a62969af841403831b6d4af901621c29dac614eb457117e#",
		},
		{
			"d_a\x7f_", window(1, time.Second), false, 0,
			"sha256:5d99baadb2380dc808f717df1f20d6856c3ff5cf032c0fc35d79ed660326e7a9#",
		},
		{
			"d_a\r\nb_", window(1, time.Second), false, 0,
			"sha256:277706e03dde5b952625e37974083abb4463fabe4e8ff88503693d1085e9b549#",
		},
		{
			"d_\xff_", window(1, time.Second), false, 0,
			"sha256:fb4ec83af068576a1c12ec354a248061c9b640eb05489f34d22473ab3c62385c#",
		},
	} {
		h := backend.Hit{Key: []byte(tt.key), Limit: tt.limit}
		if got := string(appendKey([]byte("before"), &h, at.UnixNano(), tt.tagged, tt.ago)); got != "before"+tt.want {
			t.Errorf("%.20q, %v, tagged %t:\n got %s\nwant before%s", tt.key, tt.limit.Period, tt.tagged, got, tt.want)
		}
	}
}

// Whatever clients send, keys are such that Memcached takes them, and different
// ones stay different.
func FuzzKeys(f *testing.F) {
	f.Add([]byte("d_a_1_"), []byte("d_a 1_"))
	f.Add([]byte("sha256:d"), []byte("\xff"))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		for _, limit := range []*algorithm.Limit{window(1, time.Hour), sliding(1, time.Hour)} {
			h, other := backend.Hit{Key: a, Limit: limit}, backend.Hit{Key: b, Limit: limit}
			key, key2 := appendKey(nil, &h, epoch.UnixNano(), false, 0), appendKey(nil, &other, epoch.UnixNano(),
				false, 0)
			if !isLegalKey(key) {
				t.Errorf("%q becomes %q", a, key)
			}
			if (string(a) == string(b)) != (string(key) == string(key2)) {
				t.Errorf("%q and %q become %q and %q", a, b, key, key2)
			}
		}
	})
}

// A live envoyproxy/ratelimit can share the servers: we go on from what it
// counted, and it from what we count.
func TestKeysAreUpstreams(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t, memcachedtest.Options{})
	s := open(t, Config{Servers: []string{server.Addr}})
	const key = "domain_k1_v1_k2_v2_1767225600"
	server.Set(t, key, "3")
	h := backend.Hit{
		Key: []byte("domain_k1_v1_k2_v2_"), TagLength: len("domain_k1_v1_"),
		Limit: window(10, 24*time.Hour), Amount: 2,
	}
	if v := send(t, s, h); v.Before != 3 || v.After != 5 {
		t.Errorf("we see %+v", v)
	}
	if got := server.Get(t, key); got != "5" {
		t.Errorf("upstream sees %s", got)
	}
}
