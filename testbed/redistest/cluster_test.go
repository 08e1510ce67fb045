package redistest

import (
	"fmt"
	"testing"

	"ratelimit/testbed/harness"
)

func TestCluster(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, ClusterOptions{Server: Options{Password: "secret"}})
	for key, slot := range map[string]int{
		"": 0, "123456789": 12739, "foo": 12182, "a{foo}b": 12182, "{}foo": -1,
		"{foo": -1, "{{x}}": -1, "é{é}{b}": -1,
	} {
		want := c.Nodes[0].Do(t, "CLUSTER", "KEYSLOT", key)
		if got := KeySlot(key); int64(got) != want || slot >= 0 && got != slot {
			t.Errorf("slot of %q: %d, want %v", key, got, want)
		}
	}
	for i, key := range []string{"b", "c", "a"} { // slots 3300, 7365, 15495
		if s := c.NodeForKey(t, key); s != c.Nodes[i] {
			t.Errorf("%q is at %s, not %s", key, s.Addr, c.Nodes[i].Addr)
		}
		if c.Replica(t, c.Nodes[i]) != c.Nodes[i+3] {
			t.Errorf("node %d has another replica", i)
		}
	}
	if p := c.Primaries(t); len(p) != 3 || len(c.Addrs) != 6 {
		t.Errorf("%d primaries, %d addresses", len(p), len(c.Addrs))
	}

	moveSlotAndBack(t, c)
	failOver(t, c)
}

func movedTo(kind, key string, to *Server) string {
	return fmt.Sprintf("%s %d %s", kind, KeySlot(key), to.Addr)
}

// moveSlotAndBack moves a slot step by step, and back at once.
func moveSlotAndBack(t *testing.T, c *Cluster) {
	t.Helper()
	slot := KeySlot("{b}")
	from, to := c.NodeForSlot(t, slot), c.Nodes[2]
	for i := range 250 {
		from.Do(t, "SET", fmt.Sprintf("{b}%d", i), i)
	}
	m := c.StartMigration(t, slot, to)
	if n := m.Move(t, 10); n != 10 {
		t.Errorf("%d keys moved", n)
	}
	asked := 0
	for i := range 250 {
		if _, err := from.Try("GET", fmt.Sprintf("{b}%d", i)); err != nil {
			asked++
			if err.Error() != movedTo("ASK", "{b}", to) {
				t.Error(err)
			}
		}
	}
	if asked != 10 {
		t.Errorf("%d keys were asked elsewhere", asked)
	}
	if _, err := to.Try("SET", "{b}new", 1); err == nil || err.Error() != movedTo("MOVED", "{b}", from) {
		t.Errorf("the new owner, early: %v", err)
	}
	g := to.Client(t)
	for _, args := range [][]any{{"ASKING"}, {"SET", "{b}new", 1}} {
		if _, err := g.Do(args...); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
	m.Finish(t)
	if _, err := from.Try("GET", "{b}1"); err == nil || err.Error() != movedTo("MOVED", "{b}", to) {
		t.Errorf("the old owner, late: %v", err)
	}
	if n := to.Do(t, "CLUSTER", "COUNTKEYSINSLOT", slot); n != int64(251) {
		t.Errorf("%v keys arrived", n)
	}
	c.MigrateSlot(t, slot, from)
	if c.NodeForKey(t, "b") != from {
		t.Error("the slot did not return")
	}
}

// failOver promotes a replica by command, and the old primary again after a kill.
func failOver(t *testing.T, c *Cluster) {
	t.Helper()
	from := c.NodeForKey(t, "b")
	next := c.FailoverReplica(t, from)
	if next != c.Nodes[3] || c.NodeForKey(t, "b") != next {
		t.Errorf("promoted %s", next.Addr)
	}
	if _, err := from.Try("GET", "{b}1"); err == nil || err.Error() != movedTo("MOVED", "{b}", next) {
		t.Errorf("the replica: %v", err)
	}
	next.Kill()
	if got := c.FailoverReplica(t, next); got != from {
		t.Errorf("promoted %s", got.Addr)
	}
	if reply := from.Do(t, "GET", "{b}7"); reply != "7" {
		t.Errorf("GET: %v", reply)
	}
	next.Restart(t)
	harness.Await(t, harness.Deadline, "the killed node is not back", func() error { return checkReplica(next, from) })
	c.AwaitStable(t)
}

func TestClusterTLS(t *testing.T) {
	t.Parallel()
	certs := harness.NewCertificates(t)
	c := StartCluster(t, ClusterOptions{Server: Options{TLS: certs}})
	client, err := Dial(c.NodeForKey(t, "b").Addr, DialOptions{TLS: certs.ClientConfig(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	if _, err := client.Do("SET", "b", 1); err != nil {
		t.Error(err)
	}
	c.MigrateSlot(t, KeySlot("b"), c.Nodes[1])
	if reply := c.Nodes[1].Do(t, "GET", "b"); reply != "1" {
		t.Errorf("GET: %v", reply)
	}
}
