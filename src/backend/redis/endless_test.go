package redis

import (
	"fmt"
	"testing"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
)

// A counter that Redis lost, and of which the next reply was lost too, gets its end
// also without another hit on it.
func TestNoKeyIsEndless(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	for _, tt := range []struct {
		name  string
		fault func(*harness.Proxy)
	}{
		{"silence", (*harness.Proxy).DropReplies},
		{"garbage", (*harness.Proxy).Garbage},
	} {
		for _, company := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, company %t", tt.name, company), func(t *testing.T) {
				proxy := harness.StartProxy(t, server.Addr)
				s := open(t, Config{Addr: proxy.Addr, Config: remote.Config{Connections: 1, Timeout: faultTimeout}})
				hit := func(key string) backend.Hit {
					return backend.Hit{Key: []byte(key), Limit: window(10, time.Hour), Amount: 1}
				}
				if v := send(t, s, hit("k_")); v.Err != nil {
					t.Fatal(v.Err)
				}
				server.Do(t, "FLUSHALL")
				tt.fault(proxy)
				if v := send(t, s, hit("k_")); v.Err == nil {
					t.Fatal("the reply was not lost")
				}
				proxy.Heal()
				err := harness.Retry(harness.Deadline, func() error {
					if company {
						_ = send(t, s, hit("other_")) // it may be too early for it
					}
					if ttl := fmt.Sprint(server.Do(t, "TTL", "k_1767225600")); ttl == "-1" || ttl == "-2" {
						return fmt.Errorf("TTL is %s", ttl)
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// What it remembers has an end: the rest is left to the next hit on the key.
func TestEndlessIsBounded(t *testing.T) {
	t.Parallel()
	x := &exchange{pipeline: pipeline{expireCache: newExpireCache()}}
	for i := range maxKeysWithoutTTL + 10 {
		x.expireCache.needsExpire(uint64(i)+1, 60, 60)
		c := x.increments.nextItem()
		c.pipeline, c.key, c.keyHash = &x.pipeline, fmt.Appendf(nil, "k%d", i), uint64(i)+1
	}
	x.noteKeysWithoutTTL()
	if n := len(x.keysWithoutTTL); n != maxKeysWithoutTTL {
		t.Errorf("%d keys, want %d", n, maxKeysWithoutTTL)
	}
	if !x.expireCache.needsExpire(maxKeysWithoutTTL+5, 60, 60) {
		t.Error("a key without room is believed to have its time to live")
	}
	link := remote.NewLink(openAccess(faultTimeout, new(remote.Figures)), "127.0.0.1:1")
	if x.Upkeep(t.Context(), link, false); link.Figures.Dials.Load() > 0 {
		t.Error("no pause")
	}
	x.nextExpireTime = time.Now()
	if x.Upkeep(t.Context(), link, false); link.Figures.Dials.Load() == 0 {
		t.Error("never due")
	}
}
