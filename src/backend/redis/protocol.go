package redis

import (
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
)

type protocol struct {
	opener
	cfg *Config
}

func (p *protocol) NewExchanges(n int) []remote.Exchange {
	exchanges, cache := make([]remote.Exchange, n), newExpireCache()
	for i := range exchanges {
		exchanges[i] = &exchange{pipeline: pipeline{expireCache: cache}, cfg: p.cfg}
	}
	return exchanges
}

// The costs are estimates of the CPU time that Redis needs for a hit. remote.FairQueue divides Redis' time among calls
// by them.
const (
	scriptHitCost     = 12 * time.Microsecond // the cost of a hit in a script
	slidingLogHitCost = 24 * time.Microsecond // the cost of a sliding_window, for which the script searches a log
	heldHitCost       = 30 * time.Microsecond // the cost of a hit on a limit with holds
	keyByteCost       = time.Nanosecond       // the cost of each byte of a key in a command
	scriptByteCost    = 10 * time.Nanosecond  // the cost of each byte of a key in a script
)

// FillCall adds the hits of b to c, under the keys of remote.AppendKey.
func (p *protocol) FillCall(c *remote.Call, b *backend.Batch, now int64) error {
	virtual := !b.Now.IsZero()
	if virtual {
		c.UnixMicros = now / int64(time.Microsecond)
	}
	for i := 0; i < len(b.Hits); {
		end := b.GroupEnd(i)
		group := backend.AnyAtomic(b.Hits[i:end])
		for ; i < end; i++ {
			h := &b.Hits[i]
			keyStart := len(c.Keys)
			c.Keys = remote.AppendKey(c.Keys, h, now, p.cfg.TagKeys)
			hit := remote.NewHit(h)
			if h.Limit.Kind == algorithm.FixedWindow {
				hit.ResolveWindow(h, now)
			}
			keyEnd := len(c.Keys)
			c.Keys = remote.AppendHoldsKey(c.Keys, h)
			if hit.HoldsKeyBytes = len(c.Keys) - keyEnd; h.Limit.Hold > 0 && h.Limit.Kind == algorithm.FixedWindow {
				start, stop := h.Limit.WindowBounds(now)
				hit.WindowStart, hit.WindowEnd = start/int64(time.Microsecond), stop/int64(time.Microsecond)
			}
			hit.CountDown = h.StoresRemaining && !virtual
			hit.SetTTL(remote.WindowTTL(h.Limit, now)+b.Ahead, p.cfg.ExpirationJitter, virtual)
			switch {
			case group:
				hit.GroupEnd = end
			case needsScript(h):
				hit.GroupEnd = i + 1
			}
			hit.Cost = estimateCost(h.Limit, hit.GroupEnd > 0, len(c.Keys)-keyStart)
			c.AddHit(hit)
		}
	}
	return nil
}

// needsScript reports whether a hit without a group needs takeScript, because no command of Redis counts it.
func needsScript(h *backend.Hit) bool {
	return h.StoresRemaining || h.Limit.Hold > 0 || h.Limit.Kind != algorithm.FixedWindow ||
		h.Op == algorithm.Refund || h.Op == algorithm.Charge && !h.Limit.CountBlocked
}

// HitTime returns an estimate of the CPU time that a hit takes, of Redis and of this process, as measured where many
// commands go with a few scripts.
func HitTime(h *backend.Hit) time.Duration {
	if h.Atomic || needsScript(h) {
		return 4 * estimateCost(h.Limit, true, 0)
	}
	return 5 * remote.CommandCost / 2
}

// estimateCost returns the estimated time in which the server counts a hit on l, in a script or with a command.
func estimateCost(l *algorithm.Limit, inScript bool, keyBytes int) time.Duration {
	switch {
	case !inScript:
		return remote.CommandCost + time.Duration(keyBytes)*keyByteCost
	case l.Hold > 0:
		return heldHitCost + time.Duration(keyBytes)*scriptByteCost
	case l.Kind == algorithm.SlidingWindow:
		return slidingLogHitCost + time.Duration(keyBytes)*scriptByteCost
	}
	return scriptHitCost + time.Duration(keyBytes)*scriptByteCost
}
