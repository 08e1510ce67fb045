package chaos

import (
	"net"
	"testing"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/memcachedtest"
	"ratelimit/testbed/redistest"
)

// surroundings are faults of what is around: names, and the service itself.
var surroundings = []fault{
	{
		name: "address changed", does: "the store moves, empty, to another address, and the old one becomes a black hole; " +
			"it ends when the name means the new one",
		short: single, lost: 1, named: true,
		unlike: map[storeName]string{
			sentinel: "see *failover*",
			cluster:  "see *failover*",
		},
		begin: addressChanged,
	},
	steppingClock,
	{
		name: "service killed", does: "SIGKILL to the service, which is then started again", short: single, restarts: 1,
		everywhere: true,
		begin: func(t *testing.T, x *trial) outage {
			x.service.kill(t)
			return outage{end: func() { x.service.start(t) }}
		},
	},
}

func addressChanged(t *testing.T, x *trial) outage {
	t.Helper()
	old := x.store.proxy(t)
	_, port, err := net.SplitHostPort(old.Addr)
	if err != nil {
		t.Fatal(err)
	}
	var addr string
	if x.store.name == memcached {
		addr = memcachedtest.Start(t, memcachedtest.Options{}).Addr
	} else {
		next := redistest.Start(t, redistest.Options{Password: "other"})
		password := x.store.single.Do(t, "CONFIG", "GET", "requirepass").([]any)[1]
		next.Do(t, "CONFIG", "SET", "requirepass", password)
		addr = next.Addr
	}
	const elsewhere = "127.0.0.2" // loopback as well
	moved := harness.StartProxyAt(t, net.JoinHostPort(elsewhere, port), addr)
	old.Blackhole()
	return outage{
		end: func() { putHost(t, x.hosts, elsewhere) },
		restore: func() {
			moved.Refuse()
			moved.Reset()
			old.Heal()
		},
	}
}
