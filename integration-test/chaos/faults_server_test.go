package chaos

import "testing"

// serverFaults are those of the store's process.
var serverFaults = []fault{
	{
		name: "store stands still", does: "SIGSTOP: connections stay, the kernel accepts new ones, no answers", short: single,
		begin: func(t *testing.T, x *trial) outage {
			s := x.store.server(t)
			s.Pause()
			return outage{end: s.Resume}
		},
	},
	{
		name: "store killed", does: "SIGKILL; it comes back empty at the same address", short: memcached, lost: 1,
		unlike: map[storeName]string{
			sentinel: "see *failover*",
			cluster:  "see *failover*",
		},
		begin: func(t *testing.T, x *trial) outage {
			s := x.store.server(t)
			s.Kill()
			return outage{end: func() { s.Restart(t) }}
		},
	},
}
