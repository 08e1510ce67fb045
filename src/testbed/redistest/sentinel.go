package redistest

import (
	"errors"
	"fmt"
	"net"
	"strconv"
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

// sentinelPace makes the sentinels poll the servers and each other faster, in milliseconds. The
// publish period cannot be much shorter: after four of them the other sentinels demote a
// promoted server, and the sentinel that promoted it checks once a second whether that worked.
// Nor can the ping period: while the primary is down, replicas are polled once a second, and a
// replica is not promoted if that was more than five ping periods ago.
var sentinelPace = []any{
	"SENTINEL", "DEBUG",
	"INFO-PERIOD", 300, "PING-PERIOD", 300, "ASK-PERIOD", 100, "PUBLISH-PERIOD", 500,
	"ELECTION-TIMEOUT", 2000, "TILT-PERIOD", 2000,
}

// StartSentinel returns once the replicas follow the primary, and each sentinel has found all
// replicas and the other sentinels.
func StartSentinel(t testing.TB, o SentinelOptions) *Sentinel {
	t.Helper()
	c := &Sentinel{PrimaryName: "mymaster"}
	settings := o.Server.settings(t)
	for range 3 {
		c.Servers = append(c.Servers, newServer(t, "redis-server", o.Server))
		c.Sentinels = append(c.Sentinels, newServer(t, "redis-sentinel", Options{TLS: o.Server.TLS, Certificate: o.Server.Certificate}))
	}
	fail := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatalf("redistest: %v", err)
		}
	}
	primary := c.Servers[0]
	fail(primary.launch(settings))
	host, port, err := net.SplitHostPort(primary.PublicAddr())
	fail(err)
	follow := append(settings[:len(settings):len(settings)], "replicaof "+host+" "+port)
	fail(together(c.Servers[1:], func(_ int, s *Server) error {
		return s.launch(follow)
	}))
	// A sentinel asks the primary for its replicas when it starts, and again much later.
	harness.Await(t, harness.Deadline, "the replicas do not follow", func() error { return c.follow(primary) })

	if o.DownAfter == 0 {
		o.DownAfter = 700 * time.Millisecond
	}
	name := c.PrimaryName
	watch := []string{
		"sentinel monitor " + name + " " + host + " " + port + " 2",
		"sentinel auth-user " + name + " " + admin,
		"sentinel auth-pass " + name + " " + adminPassword,
		fmt.Sprintf("sentinel down-after-milliseconds %s %d", name, o.DownAfter.Milliseconds()),
		"sentinel failover-timeout " + name + " 2500",
		"sentinel parallel-syncs " + name + " 2",
		"sentinel sentinel-user " + admin,
		"sentinel sentinel-pass " + adminPassword,
	}
	watch = append(watch, access(o.User, o.Password)...)
	fail(together(c.Sentinels, func(_ int, s *Server) error {
		s.Ready = func() error {
			_, err := s.Try(sentinelPace...)
			return err
		}
		return s.launch(watch)
	}))
	for _, s := range c.Sentinels {
		c.SentinelAddrs = append(c.SentinelAddrs, s.Addr)
	}
	harness.Await(t, harness.Deadline, "the sentinels have not found each other", c.connected)
	return c
}

// follow returns an error unless all other running servers are replicas of primary, in step.
func (c *Sentinel) follow(primary *Server) error {
	for _, s := range c.Servers {
		if s == primary || !s.Alive() {
			continue
		}
		if err := follows(s, primary); err != nil {
			return err
		}
	}
	return nil
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
	_, port, err := net.SplitHostPort(replica.PublicAddr())
	if err != nil {
		return err
	}
	for i := range 10 {
		line := info["slave"+strconv.Itoa(i)]
		if want := "ip=127.0.0.1,port=" + port + ",state=online"; len(line) > len(want) && line[:len(want)] == want {
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
	var primary *Server
	harness.Await(t, harness.Deadline, "there is no primary", func() (err error) {
		primary, err = c.primary()
		return err
	})
	return primary
}

func (c *Sentinel) primary() (*Server, error) {
	addr := ""
	for _, s := range c.Sentinels {
		if !s.Alive() {
			continue
		}
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
	for _, s := range c.Servers {
		if s.PublicAddr() != addr {
			continue
		}
		info, err := s.info("replication", 0)
		if err == nil && info["role"] != "master" {
			err = fmt.Errorf("%s is still a %s", addr, info["role"])
		}
		return s, err
	}
	return nil, fmt.Errorf("the sentinels name %q, which is none of the servers", addr)
}

// Failover makes the sentinels promote a replica, as an operator would, and returns the new
// primary once all agree and the others follow it.
func (c *Sentinel) Failover(t testing.TB) *Server {
	t.Helper()
	old := c.Primary(t)
	var asked time.Time
	harness.Await(t, harness.Deadline, "no replica is promoted", func() error {
		if primary, err := c.primary(); err != nil || primary != old {
			return err
		}
		if time.Since(asked) > 6*time.Second { // a busy machine may have aborted the failover
			asked = time.Now()
			if err := c.promote(); err != nil {
				return err
			}
		}
		return errors.New("not yet")
	})
	return c.AwaitFailover(t, old)
}

func (c *Sentinel) promote() error {
	for _, s := range c.Sentinels {
		if s.Alive() {
			_, err := s.Try("SENTINEL", "FAILOVER", c.PrimaryName)
			return err
		}
	}
	return harness.Final{Err: errors.New("no sentinel runs")}
}

// AwaitFailover returns the primary after old, once all running sentinels agree and all running
// servers follow it. Tests use it after they killed or paused old; a paused one must be resumed
// within 20 s.
func (c *Sentinel) AwaitFailover(t testing.TB, old *Server) *Server {
	t.Helper()
	var primary *Server
	harness.Await(t, harness.Deadline, "the failover is not over", func() (err error) {
		if primary, err = c.primary(); err != nil {
			return err
		}
		if primary == old {
			return fmt.Errorf("%s is still the primary", old.Addr)
		}
		return c.follow(primary)
	})
	return primary
}
