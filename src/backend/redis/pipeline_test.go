package redis

import (
	"fmt"
	"testing"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend/remote"
)

// Charges on one key, alternately added up and looked at, cost the same however many
// there are.
func BenchmarkPipelineOfOneKey(b *testing.B) {
	for _, hits := range []int{1000, 2000, 4000, 8000} {
		b.Run(fmt.Sprint(hits), func(b *testing.B) {
			batch := many(hits, algorithm.FixedWindow, "k", false)
			for i := range batch.Hits {
				batch.Hits[i].Key = []byte("k_")
				if i%2 > 0 {
					batch.Hits[i].Op = algorithm.Look
				}
			}
			c := remote.NewCall()
			if err := (&protocol{cfg: new(Config)}).FillCall(c, batch, epoch.UnixNano()); err != nil {
				b.Fatal(err)
			}
			p := pipeline{expireCache: newExpireCache()}
			b.ReportAllocs()
			for b.Loop() {
				p.Reset()
				for i := range c.Hits {
					p.AddHits(c, i, i+1)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(hits), "ns/hit")
		})
	}
}

// The connections to one server share what they know of sent expiries: only the first batch
// with a key has an EXPIRE, and if that batch fails, the next one of any connection.
func TestExpiriesAreSharedByConnections(t *testing.T) {
	t.Parallel()
	p := &protocol{cfg: new(Config)}
	c := remote.NewCall()
	if err := p.FillCall(c, many(1, algorithm.FixedWindow, "k", false), epoch.UnixNano()); err != nil {
		t.Fatal(err)
	}
	exchanges := p.NewExchanges(2)
	withExpire := func(i int) bool {
		x := exchanges[i].(*exchange)
		x.Reset()
		x.AddHits(c, 0, 1)
		return x.increments.usedItems()[0].withExpire
	}
	if !withExpire(0) || withExpire(1) || withExpire(0) {
		t.Error("the EXPIRE is missing, or sent again")
	}
	exchanges[0].(*exchange).increments.usedItems()[0].deliverResults(remote.ErrStalled)
	if !withExpire(1) || withExpire(0) {
		t.Error("after a failure the EXPIRE is missing, or sent again")
	}
	if other := p.NewExchanges(1)[0].(*exchange); other.expireCache == exchanges[0].(*exchange).expireCache {
		t.Error("another server shares the memory")
	}
}
