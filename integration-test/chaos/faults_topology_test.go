package chaos

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
)

// topologyFaults are faults of stores with several servers. They have no fixed duration:
// the fault ends when a replica has taken over.
var topologyFaults = []fault{
	{
		name: "failover", does: "SIGKILL to the primary; the fault lasts until a replica has taken over", short: sentinel,
		lost:   1,
		unlike: map[storeName]string{single: onlyTopologies, memcached: onlyTopologies},
		begin: func(t *testing.T, x *trial) outage {
			if x.store.name == sentinel {
				return sentinelFailover(t, x.store.sentinel)
			}
			return clusterFailover(t, x.store)
		},
	},
	{
		name: "slot migration", does: "two slots move to another primary, key by key, while they are counted in",
		short: cluster, effect: unfelt,
		unlike: map[storeName]string{single: onlyClusters, sentinel: onlyClusters, memcached: onlyClusters},
		begin:  slotMigration,
	},
}

func sentinelFailover(t *testing.T, c *redistest.Sentinel) outage {
	t.Helper()
	downAfter := func(d time.Duration) {
		for _, s := range c.Sentinels {
			s.Do(t, "SENTINEL", "SET", c.PrimaryName, "down-after-milliseconds", d.Milliseconds())
		}
	}
	old := c.Primary(t)
	downAfter(700 * time.Millisecond)
	old.Kill()
	return outage{
		end: func() { c.AwaitFailover(t, old) },
		restore: func() {
			old.Restart(t)
			harness.Await(t, harness.Deadline, "the old primary is no replica", func() error {
				info, err := old.Try("INFO", "replication")
				if err == nil && !isReplica(info) {
					err = errNotYet
				}
				return err
			})
			c.AwaitFailover(t, old)
			downAfter(patient)
		},
	}
}

func clusterFailover(t *testing.T, s *store) outage {
	t.Helper()
	timeout := func(d time.Duration) {
		for _, node := range s.cluster.Nodes {
			node.Do(t, "CONFIG", "SET", "cluster-node-timeout", d.Milliseconds())
		}
	}
	old := s.victim(t)
	replica := s.cluster.Replica(t, old)
	timeout(2 * time.Second)
	old.Kill()
	asked := time.Now()
	return outage{
		end: func() {
			harness.Await(t, harness.Deadline, "the replica does not take over", func() error {
				info, err := replica.Try("INFO", "replication")
				if err == nil && isReplica(info) {
					err = errNotYet
					if time.Since(asked) > 6*time.Second { // on a busy machine an election may come to nothing
						asked = time.Now()
						if _, err := replica.Try("CLUSTER", "FAILOVER", "FORCE"); err != nil {
							t.Logf("CLUSTER FAILOVER: %v", err) // it may have been faster
						}
					}
				}
				return err
			})
		},
		restore: func() {
			old.Restart(t)
			s.cluster.AwaitStable(t)
			timeout(patient)
		},
	}
}

// slotMigration moves the slots of a key without holds and of one with them there and back.
func slotMigration(t *testing.T, x *trial) outage {
	t.Helper()
	c := x.store.cluster
	var started []*redistest.Migration
	for _, kind := range []kind{window, reservations} {
		k := x.keys[slices.IndexFunc(x.keys, func(k key) bool { return k.rule.kind == kind })]
		slot := redistest.KeySlot(hashTag(k.rule, k.value))
		from := c.NodeForSlot(t, slot)
		to := from
		for _, other := range c.Primaries(t) {
			if other != from {
				to = other
			}
		}
		m := c.StartMigration(t, slot, to)
		m.Move(t, 1)
		started = append(started, m)
	}
	return outage{
		end: func() {
			for _, m := range started {
				m.Finish(t)
			}
		},
		restore: func() {
			for _, m := range started {
				c.MigrateSlot(t, m.Slot, m.From)
			}
		},
	}
}

func isReplica(info any) bool {
	return strings.Contains(fmt.Sprint(info), "role:slave")
}
