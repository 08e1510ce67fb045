package quota

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"math"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// presence is what the proxies of a replica want of a bucket. Replicas that share a store add theirs up in a counter,
// so that each of them knows what the proxies of all others want, and takes no more than the share of its own proxies.
//
// Demand is in equal shares: the rate of the limit, divided by the number of proxies. With 100 a second and 4 proxies
// that ask for 10, 20, 30 and 90 a second, an equal share is 25. Two proxies are below it, by 10/25 and 20/25.
type presence struct {
	proxies uint64 // how many proxies have the bucket.
	above   uint64 // how many of them want more than an equal share.
	demand  uint64 // the sum of what they want, each at most an equal share, in 16ths of an equal share.
}

// demandUnit is how much an equal share is in presence.demand.
const demandUnit = 16

// The fields of all replicas together fit into these bits. If not, shares are wrong; a limit holds with any shares.
const (
	aboveShift  = 14
	demandShift = 28
	proxiesMask = 1<<aboveShift - 1
)

func (p presence) packed() uint64 {
	return min(p.proxies, proxiesMask) | min(p.above, proxiesMask)<<aboveShift | min(p.demand, 1<<20-1)<<demandShift
}

func unpackPresence(sum uint64) presence {
	return presence{sum & proxiesMask, sum >> aboveShift & proxiesMask, sum >> demandShift}
}

func (p presence) minus(q presence) presence {
	return presence{
		p.proxies - min(p.proxies, q.proxies), p.above - min(p.above, q.above),
		p.demand - min(p.demand, q.demand),
	}
}

// differsFrom reports whether the other replicas should know p instead of q.
func (p presence) differsFrom(q presence) bool {
	return p.proxies != q.proxies || p.above != q.above ||
		max(p.demand, q.demand)-min(p.demand, q.demand) > max(p.demand, q.demand)/8
}

// presenceLimit is the limit of the counter that adds presences up. Each presence is a hold, so that it disappears with
// its replica.
var presenceLimit = &algorithm.Limit{
	Kind: algorithm.FirstHitWindow, Max: 1 << 50, Period: time.Hour, Hold: presenceTime, ReleaseUnsettled: true,
}

// presenceTime is how long the presence of a replica that died has an effect.
const presenceTime = 20 * time.Second

// presenceKeySuffix follows the key of the first limit of the bucket.
const presenceKeySuffix = "|quota_presence"

// peers is what a bucket knows of other replicas.
type peers struct {
	others      presence // what the proxies of all other replicas want.
	published   presence
	publishedAt int64            // as Instant.elapsed; 0 if nothing is published.
	id          algorithm.HoldID // of the published hold.
	hit         backend.Hit      // on the counter of all presences, without an operation; zero without limits.
}

// use replaces hit by that for a bucket that is charged by hits. What was published for another counter expires.
func (p *peers) use(hits []backend.Hit) {
	old := p.hit.Key
	p.hit = backend.Hit{}
	if len(hits) > 0 {
		p.hit = backend.Hit{
			Key: append(bytes.Clone(hits[0].Key), presenceKeySuffix...), TagLength: hits[0].TagLength,
			Limit: presenceLimit, NoVeto: hits[0].NoVeto,
		}
	}
	if !bytes.Equal(old, p.hit.Key) {
		p.others, p.published, p.publishedAt = presence{}, presence{}, 0
	}
}

// newReplicaID returns a HoldID whose first half is random. The second half is for a number.
func newReplicaID() (id algorithm.HoldID) {
	_, _ = rand.Read(id[:8]) // Read never fails.
	id[0] |= 1
	return id
}

// appendPresence appends the hits that publish what the proxies of b want, if it has changed, and ask for the sum of
// all replicas.
func (d *Divider) appendPresence(b *bucket, now Instant, group uint16) {
	own, p := b.presence(), &b.peers
	hit := p.hit
	if p.publishedAt == 0 || own.differsFrom(p.published) || now.elapsed-p.publishedAt > int64(presenceTime/2) {
		if p.publishedAt > 0 {
			hit.HoldID = p.id
			appendHit(&d.looks, &hit, algorithm.Refund, 0, group)
		}
		p.publishedAt, p.published = 0, presence{}
		if len(b.members) > 0 {
			d.holds++
			p.id, p.published, p.publishedAt = d.replicaID, own, now.elapsed
			binary.LittleEndian.PutUint64(p.id[8:], d.holds)
			hit.HoldID = p.id
			appendHit(&d.looks, &hit, algorithm.Charge, own.packed(), group)
			d.looks.Hits[len(d.looks.Hits)-1].Atomic = false // It passes although a limit of the bucket is exceeded.
		}
	}
	appendHit(&d.looks, &p.hit, algorithm.Look, 0, group)
}

// readPresence learns from the verdict of a look at the sum of all presences. If that of this replica is not in it, the
// next round publishes it again.
func (b *bucket) readPresence(v *backend.Verdict) {
	p := &b.peers
	if v.Err != nil {
		p.published = presence{} // It may have been published or not.
		return
	}
	sum := unpackPresence(presenceLimit.Max - v.Remaining)
	p.others = sum.minus(p.published)
	if q := p.published; sum.proxies < q.proxies || sum.above < q.above || sum.demand < q.demand {
		p.published = presence{} // The store has lost it.
	}
}

// demandOf returns what a member wants, in equal shares. A member whose demand is not known wants more than one.
func (b *bucket) demandOf(m *member) float64 {
	if m.isNew {
		return 2
	}
	return m.demand * float64(len(b.members)+int(b.peers.others.proxies)) / b.terms.rate
}

// presence returns what the members of b want.
func (b *bucket) presence() (p presence) {
	p.proxies = uint64(len(b.members))
	for _, m := range b.members {
		share := b.demandOf(m)
		if share > 1 {
			p.above++
		}
		p.demand += uint64(math.Ceil(min(share, 1) * demandUnit))
	}
	return p
}

// share returns which part of the units belongs to the members of b, so that the division is max-min fair among the
// proxies of all replicas. It is 1 without other replicas, and if there is enough for all.
func (b *bucket) share() float64 {
	others := b.peers.others
	if others.proxies == 0 {
		return 1
	}
	own := b.presence()
	proxies := float64(own.proxies + others.proxies)
	upToEqual := float64(own.demand+others.demand) / demandUnit
	above := max(float64(own.above+others.above), 1)
	level := 1 + max(proxies-upToEqual, 0)/above // what a proxy gets at most, in equal shares.
	var wanted float64
	for _, m := range b.members {
		wanted += min(b.demandOf(m), level)
	}
	return min(wanted/proxies, 1)
}
