package redistest

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"ratelimit/src/testbed/harness"
)

// SentinelOptions configure a primary, its replicas and their sentinels.
type SentinelOptions struct {
	// Server is for the three redis-servers.
	Server Options
	// Password is that of the sentinels; "" is none.
	Password string
	// User is the only user of the sentinels, as in Options.
	User string
	// DownAfter is the silence after which a sentinel considers a server down. 0 is 700 ms.
	DownAfter time.Duration
}

// Sentinel is a primary with two replicas, watched by three sentinels with a quorum of two.
type Sentinel struct {
	PrimaryName   string
	SentinelAddrs []string
	Sentinels     []*Server
	Servers       []*Server // the first was the primary at the start
}

// sentinelPace makes the sentinels poll the servers and each other faster, in milliseconds. The publish period cannot be much
// shorter: after four of them the other sentinels demote a promoted server, and the sentinel that promoted it checks once a
// second whether that worked. Nor can the ping period: while the primary is down, replicas are polled once a second, and a
// replica is not promoted if that was more than five ping periods ago.
var sentinelPace = []any{
	"SENTINEL", "DEBUG",
	"INFO-PERIOD", 300, "PING-PERIOD", 300, "ASK-PERIOD", 100, "PUBLISH-PERIOD", 500,
	"ELECTION-TIMEOUT", 2000, "TILT-PERIOD", 2000,
}

// StartSentinel returns once the replicas follow the primary, and each sentinel has found all replicas and the other sentinels.
func StartSentinel(t testing.TB, o SentinelOptions) *Sentinel {
	t.Helper()
	const name = "mymaster"
	settings := o.Server.settings(t)
	servers := startAll(t, 1, "redis-server", o.Server, settings, nil)
	host, port, err := net.SplitHostPort(servers[0].PublicAddr())
	check(t, err)
	settings = append(settings, "replicaof "+host+" "+port)
	servers = append(servers, startAll(t, 2, "redis-server", o.Server, settings, nil)...)
	c := &Sentinel{PrimaryName: name, Servers: servers}
	// A sentinel asks the primary for its replicas when it starts, and again much later.
	harness.Await(t, harness.Deadline, "the replicas do not follow", func() error { return c.follow(servers[0]) })

	if o.DownAfter == 0 {
		o.DownAfter = 700 * time.Millisecond
	}
	c.Sentinels = startAll(t, 3, "redis-sentinel", Options{TLS: o.Server.TLS, Certificate: o.Server.Certificate}, append([]string{
		"sentinel monitor " + name + " " + host + " " + port + " 2",
		"sentinel auth-user " + name + " " + admin,
		"sentinel auth-pass " + name + " " + adminPassword,
		fmt.Sprintf("sentinel down-after-milliseconds %s %d", name, o.DownAfter.Milliseconds()),
		"sentinel failover-timeout " + name + " 2500",
		"sentinel parallel-syncs " + name + " 2",
		"sentinel sentinel-user " + admin,
		"sentinel sentinel-pass " + adminPassword,
	}, access(o.User, o.Password)...), nil)
	for _, s := range c.Sentinels {
		c.SentinelAddrs = append(c.SentinelAddrs, s.Addr)
	}
	harness.Await(t, harness.Deadline, "the sentinels have not found each other", c.connected)
	return c
}

// follow returns an error unless all other running servers are replicas of primary, in step.
func (c *Sentinel) follow(primary *Server) error {
	for _, s := range running(c.Servers) {
		if s == primary {
			continue
		}
		if err := follows(s, primary); err != nil {
			return err
		}
	}
	return nil
}

// running returns the servers whose processes run.
func running(servers []*Server) []*Server {
	return slices.DeleteFunc(slices.Clone(servers), func(s *Server) bool { return !s.Alive() })
}

// follows returns an error unless replica has all data of primary and gets its updates.
func follows(replica, primary *Server) error {
	info, err := replica.info("replication", 0)
	if err != nil {
		return err
	}
	of := net.JoinHostPort(info["master_host"], info["master_port"])
	if info["role"] != "slave" || of != primary.PublicAddr() || info["master_link_status"] != "up" {
		return fmt.Errorf("%s is %s of %s, link %s; want a replica of %s",
			replica.Addr, info["role"], of, info["master_link_status"], primary.Addr)
	}
	if info, err = primary.info("replication", 0); err != nil {
		return err
	}
	online := strings.Replace("ip="+replica.PublicAddr(), ":", ",port=", 1) + ",state=online,"
	for _, line := range info {
		if strings.HasPrefix(line, online) {
			return nil
		}
	}
	return fmt.Errorf("%s does not count %s as online", primary.Addr, replica.Addr)
}

// connected returns an error unless every sentinel can take part in a failover.
func (c *Sentinel) connected() error {
	for _, s := range c.Sentinels {
		m, err := c.master(s)
		if err != nil {
			return err
		}
		if m["num-other-sentinels"] != "2" || m["num-slaves"] != "2" || m["flags"] != "master" {
			return fmt.Errorf("the sentinel at %s sees a %s with %s replicas, and %s other sentinels",
				s.Addr, m["flags"], m["num-slaves"], m["num-other-sentinels"])
		}
		if _, err := s.Try("SENTINEL", "CKQUORUM", c.PrimaryName); err != nil {
			return err
		}
	}
	return nil
}

// master returns what a sentinel says about the primary.
func (c *Sentinel) master(s *Server) (map[string]string, error) {
	reply, err := s.Try("SENTINEL", "MASTER", c.PrimaryName)
	if err != nil {
		return nil, err
	}
	list, _ := reply.([]any)
	known := make(map[string]string)
	for i := 0; i+1 < len(list); i += 2 {
		known[fmt.Sprint(list[i])] = fmt.Sprint(list[i+1])
	}
	return known, nil
}

// Primary returns the primary. It waits until all running sentinels and the server itself agree.
func (c *Sentinel) Primary(t testing.TB) *Server {
	t.Helper()
	return find(t, "there is no primary", c.primary)
}

func (c *Sentinel) primary() (*Server, error) {
	addr := ""
	for _, s := range running(c.Sentinels) {
		m, err := c.master(s)
		if err != nil {
			return nil, err
		}
		said := net.JoinHostPort(m["ip"], m["port"])
		if addr != "" && addr != said {
			return nil, fmt.Errorf("sentinels name %s and %s", addr, said)
		}
		addr = said
	}
	i := slices.IndexFunc(c.Servers, func(s *Server) bool { return s.PublicAddr() == addr })
	if i < 0 {
		return nil, fmt.Errorf("the sentinels name %q, which is none of the servers", addr)
	}
	info, err := c.Servers[i].info("replication", 0)
	if err == nil && info["role"] != "master" {
		err = fmt.Errorf("%s is still a %s", addr, info["role"])
	}
	return c.Servers[i], err
}

// Failover makes the sentinels promote a replica, as an operator would, and returns the new primary once all agree and the others
// follow it.
func (c *Sentinel) Failover(t testing.TB) *Server {
	t.Helper()
	old := c.Primary(t)
	askUntil(t, "no replica is promoted", func() (bool, error) {
		primary, err := c.primary()
		return primary != old, err
	}, func() error {
		sentinels := running(c.Sentinels)
		if len(sentinels) == 0 {
			return harness.Final{Err: errors.New("no sentinel runs")}
		}
		_, err := sentinels[0].Try("SENTINEL", "FAILOVER", c.PrimaryName)
		return err
	})
	return c.AwaitFailover(t, old)
}

// askUntil asks for a failover until it is done. It asks again after 6s: Redis gives up after 5s, and a busy machine may abort
// one.
func askUntil(t testing.TB, missing string, done func() (bool, error), ask func() error) {
	t.Helper()
	var asked time.Time
	harness.Await(t, harness.Deadline, missing, func() error {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if time.Since(asked) > 6*time.Second {
			asked = time.Now()
			if err := ask(); err != nil {
				return err
			}
		}
		return errors.New("not yet")
	})
}

// AwaitFailover returns the primary after old, once all running sentinels agree and all running servers follow it. Tests use it
// after they killed or paused old; a paused one must be resumed within 20 s.
func (c *Sentinel) AwaitFailover(t testing.TB, old *Server) *Server {
	t.Helper()
	return find(t, "the failover is not over", func() (*Server, error) {
		primary, err := c.primary()
		switch {
		case err != nil:
			return nil, err
		case primary == old:
			return nil, fmt.Errorf("%s is still the primary", old.Addr)
		}
		return primary, c.follow(primary)
	})
}
