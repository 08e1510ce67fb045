package chaos

import (
	"testing"
	"time"

	"ratelimit/testbed/harness"
)

// wayFaults are those of the network between service and store.
var wayFaults = []fault{
	{
		name: "black hole", does: "no byte arrives, either way; connections stay, and new ones are accepted",
		short: memcached,
		begin: onTheWay((*harness.Proxy).Blackhole),
	},
	{
		name: "half-open connections", does: "the connections there are become black holes for good; new ones are whole",
		short: single, effect: passing,
		begin: onTheWay((*harness.Proxy).Silence),
	},
	{
		name: "replies lost", does: "requests arrive and count, their replies do not", short: single,
		begin: onTheWay((*harness.Proxy).DropReplies),
	},
	{
		name: "connections refused", does: "RST to the connections there are, and to all who dial", short: cluster,
		begin: onTheWay(func(p *harness.Proxy) { p.Refuse(); p.Reset() }),
	},
	{
		name: "resets", does: "RST to all connections, five times a second; new ones are whole", short: single,
		effect: unfelt,
		begin: func(t *testing.T, x *trial) outage {
			p := x.store.proxy(t)
			return outage{end: repeat(200*time.Millisecond, p.Reset)}
		},
	},
	{
		name: "slow drip", does: "replies arrive a byte at a time, one every 50 ms", short: memcached,
		begin: onTheWay(func(p *harness.Proxy) { p.Drip(50 * time.Millisecond) }),
	},
	{
		name: "latency within the timeout", does: "replies take 5 to 40 ms longer, each its own time", short: cluster,
		effect: unfelt,
		begin:  onTheWay(func(p *harness.Proxy) { p.Jitter(5*time.Millisecond, 40*time.Millisecond) }),
	},
	{
		name: "latency beyond it", does: "replies take 400 to 800 ms longer", short: sentinel,
		begin: onTheWay(func(p *harness.Proxy) { p.Jitter(400*time.Millisecond, 800*time.Millisecond) }),
	},
	{
		name: "partial replies", does: "the first half of what the store says arrives, then the connection ends",
		short: single,
		begin: onTheWay((*harness.Proxy).Cut),
	},
	{
		name: "garbage", does: "replies are bytes that no store sends", short: memcached,
		begin: onTheWay((*harness.Proxy).Garbage),
	},
}

// onTheWay is a fault of the proxy, which heals.
func onTheWay(fault func(*harness.Proxy)) func(*testing.T, *trial) outage {
	return func(t *testing.T, x *trial) outage {
		p := x.store.proxy(t)
		fault(p)
		return outage{end: p.Heal}
	}
}

// repeat does something at once and then at a pace, until it is told to end.
func repeat(every time.Duration, do func()) (end func()) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	do()
	go func() {
		defer close(stopped)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				do()
			case <-stop:
				return
			}
		}
	}()
	return func() {
		close(stop)
		<-stopped
	}
}
