package redistest

import (
	"net"
	"testing"

	"ratelimit/testbed/harness"
)

func TestSentinel(t *testing.T) {
	t.Parallel()
	c := StartSentinel(t, SentinelOptions{Server: Options{Password: "secret"}, Password: "guard"})
	first := c.Primary(t)
	if first != c.Servers[0] || len(c.SentinelAddrs) != 3 {
		t.Errorf("the primary is %s; sentinels %v", first.Addr, c.SentinelAddrs)
	}
	// As a client does it.
	if _, err := Dial(c.SentinelAddrs[0], DialOptions{Password: "secret"}); code(err) != "WRONGPASS" {
		t.Errorf("a sentinel takes the servers' password: %v", err)
	}
	g, err := Dial(c.SentinelAddrs[0], DialOptions{Password: "guard"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = g.Close() }()
	reply, err := g.Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", c.PrimaryName)
	if at, ok := reply.([]any); err != nil || !ok || net.JoinHostPort(at[0].(string), at[1].(string)) != first.Addr {
		t.Errorf("the sentinel names %v, %v", reply, err)
	}

	first.Do(t, "SET", "k", "v")
	if reply := first.Do(t, "WAIT", 2, 5000); reply != int64(2) {
		t.Errorf("%v replicas have it", reply)
	}
	second := c.Failover(t)
	if second == first || c.Primary(t) != second {
		t.Error("no failover")
	}
	if reply := second.Do(t, "GET", "k"); reply != "v" {
		t.Errorf("GET: %v", reply)
	}
	if _, err := first.Try("SET", "k", "w"); code(err) != "READONLY" {
		t.Errorf("the old primary: %v", err)
	}

	second.Kill()
	c.Sentinels[0].Stop()
	third := c.AwaitFailover(t, second)
	if third == second || !third.Alive() {
		t.Errorf("after the primary's death: %s", third.Addr)
	}
	c.Sentinels[0].Restart(t)
	second.Restart(t)
	harness.Await(t, harness.Deadline, "the old primary does not return",
		func() error { return c.checkReplicas(third) })
	c.Primary(t) // all three agree
}

func TestSentinelTLS(t *testing.T) {
	t.Parallel()
	certs := harness.NewCertificates(t)
	c := StartSentinel(t, SentinelOptions{
		Server: Options{TLS: certs, User: "bob", Password: "b"}, User: "alice",
		Password: "a",
	})
	g, err := Dial(c.SentinelAddrs[2], DialOptions{TLS: certs.ClientConfig(t), User: "alice", Password: "a"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = g.Close() }()
	if _, err := g.Do("SENTINEL", "CKQUORUM", c.PrimaryName); err != nil {
		t.Error(err)
	}
	second := c.Failover(t)
	if second == c.Servers[0] {
		t.Errorf("the primary is %s", second.Addr)
	}
	b, err := Dial(second.Addr, DialOptions{TLS: certs.ClientConfig(t), User: "bob", Password: "b"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	if _, err := b.Do("SET", "k", 1); err != nil {
		t.Error(err)
	}
}
