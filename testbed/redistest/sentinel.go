package redistest

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/harness"
)

// SentinelOptions configure a primary, its replicas and their sentinels.
type SentinelOptions struct {
	// Server holds the options of the three redis-servers.
	Server Options
	// Password is the clients' password at the sentinels; "" means that they need none.
	Password string
	// User is the only user of the sentinels, as in Options.
	User string
	// DownAfter is the silence after which a sentinel considers a server down. 0 means 700 ms.
	DownAfter time.Duration
}

// Sentinel is a primary with two replicas, watched by three sentinels with a quorum of two.
type Sentinel struct {
	PrimaryName   string
	SentinelAddrs []string
	Sentinels     []*Server
	Servers       []*Server // Servers[0] is the first primary
}

// sentinelPeriods is a command that makes a sentinel poll the servers and the other sentinels faster, in milliseconds.
// A publish period cannot be much shorter: after four of them the other sentinels demote a promoted server, and the
// sentinel that promoted it checks once a second whether that worked. A ping period cannot be much shorter, either:
// while the primary is down, replicas are polled once a second, and a replica is not promoted if its last poll was more
// than five ping periods ago.
var sentinelPeriods = []any{
	"SENTINEL", "DEBUG",
	"INFO-PERIOD", 300, "PING-PERIOD", 300, "ASK-PERIOD", 100, "PUBLISH-PERIOD", 500,
	"ELECTION-TIMEOUT", 2000, "TILT-PERIOD", 2000,
}

const sentinelFlag = "--sentinel" // makes redis-server a sentinel

// StartSentinel returns after the replicas follow the primary, and each sentinel has found all replicas and the other
// sentinels.
func StartSentinel(t testing.TB, o SentinelOptions) *Sentinel {
	t.Helper()
	const name = "mymaster"
	lines := o.Server.configLines(t)
	servers := startAll(t, 1, o.Server, lines, nil)
	host, port, err := net.SplitHostPort(servers[0].PublicAddr())
	must(t, err)
	servers = append(servers, startAll(t, 2, o.Server, append(lines, "replicaof "+host+" "+port), nil)...)
	c := &Sentinel{PrimaryName: name, Servers: servers}
	// A sentinel asks the primary for its replicas when it starts, and again much later.
	harness.Await(t, harness.Deadline, "the replicas do not follow",
		func() error { return c.checkReplicas(servers[0]) })

	downAfter := cmp.Or(o.DownAfter, 700*time.Millisecond)
	c.Sentinels = startAll(t, 3, Options{
		TLS: o.Server.TLS, Certificate: o.Server.Certificate,
		Args: []string{sentinelFlag},
	}, append([]string{
		"sentinel monitor " + name + " " + host + " " + port + " 2",
		"sentinel auth-user " + name + " " + admin,
		"sentinel auth-pass " + name + " " + adminPassword,
		fmt.Sprintf("sentinel down-after-milliseconds %s %d", name, downAfter.Milliseconds()),
		"sentinel failover-timeout " + name + " 2500",
		"sentinel parallel-syncs " + name + " 2",
		"sentinel sentinel-user " + admin,
		"sentinel sentinel-pass " + adminPassword,
	}, accessLines(o.User, o.Password)...), nil)
	for _, s := range c.Sentinels {
		c.SentinelAddrs = append(c.SentinelAddrs, s.Addr)
	}
	harness.Await(t, harness.Deadline, "the sentinels have not found each other", c.checkSentinels)
	return c
}

// checkReplicas returns an error unless all other running servers are replicas of primary and have all its data.
func (c *Sentinel) checkReplicas(primary *Server) error {
	for _, s := range running(c.Servers) {
		if s != primary {
			if err := checkReplica(s, primary); err != nil {
				return err
			}
		}
	}
	return nil
}

// running returns the servers whose processes run.
func running(servers []*Server) []*Server {
	return slices.DeleteFunc(slices.Clone(servers), func(s *Server) bool { return !s.Alive() })
}

// checkReplica returns an error unless replica has all data of primary and gets its updates.
func checkReplica(replica, primary *Server) error {
	info, err := replica.replication()
	if err != nil {
		return err
	}
	of := net.JoinHostPort(info["master_host"], info["master_port"])
	if info["role"] != "slave" || of != primary.PublicAddr() || info["master_link_status"] != "up" {
		return fmt.Errorf("%s is %s of %s, link %s; want a replica of %s",
			replica.Addr, info["role"], of, info["master_link_status"], primary.Addr)
	}
	if info, err = primary.replication(); err != nil {
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

// checkSentinels returns an error unless every sentinel can take part in a failover.
func (c *Sentinel) checkSentinels() error {
	for _, s := range c.Sentinels {
		m, err := c.primaryStatus(s)
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

// primaryStatus returns the reply of a sentinel to SENTINEL MASTER, by the names of its fields.
func (c *Sentinel) primaryStatus(s *Server) (map[string]string, error) {
	reply, err := s.Try("SENTINEL", "MASTER", c.PrimaryName)
	if err != nil {
		return nil, err
	}
	list, _ := reply.([]any)
	status := make(map[string]string)
	for pair := range slices.Chunk(list, 2) {
		status[fmt.Sprint(pair[0])] = fmt.Sprint(pair[1])
	}
	return status, nil
}

// Primary returns the primary. It waits until all running sentinels and the server itself agree.
func (c *Sentinel) Primary(t testing.TB) *Server {
	t.Helper()
	return awaitValue(t, "there is no primary", c.primary)
}

func (c *Sentinel) primary() (*Server, error) {
	addr := ""
	for _, s := range running(c.Sentinels) {
		m, err := c.primaryStatus(s)
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
	info, err := c.Servers[i].replication()
	if err == nil && info["role"] != "master" {
		err = fmt.Errorf("%s is still a %s", addr, info["role"])
	}
	return c.Servers[i], err
}

// Failover makes the sentinels promote a replica, as an operator would. It returns the new primary after all sentinels
// agree and the other servers follow it.
func (c *Sentinel) Failover(t testing.TB) *Server {
	t.Helper()
	old := c.Primary(t)
	awaitPromotion(t, "no replica is promoted", func() (bool, error) {
		primary, err := c.primary()
		return primary != old, err
	}, func() error {
		sentinels := running(c.Sentinels)
		if len(sentinels) == 0 {
			return harness.Permanent{Err: errors.New("no sentinel runs")}
		}
		_, err := sentinels[0].Try("SENTINEL", "FAILOVER", c.PrimaryName)
		return err
	})
	return c.AwaitFailover(t, old)
}

// awaitPromotion calls promote until done returns true. It calls it again after 6 s, since Redis gives up after 5 s,
// and a busy machine may abort a promotion.
func awaitPromotion(t testing.TB, problem string, done func() (bool, error), promote func() error) {
	t.Helper()
	var promoted time.Time
	harness.Await(t, harness.Deadline, problem, func() error {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if time.Since(promoted) > 6*time.Second {
			promoted = time.Now()
			if err := promote(); err != nil {
				return err
			}
		}
		return errors.New("not yet")
	})
}

// AwaitFailover returns the primary after old, when all running sentinels agree and all running servers follow it.
// Tests call it after they killed or paused old; a paused one must be resumed within 20 s.
func (c *Sentinel) AwaitFailover(t testing.TB, old *Server) *Server {
	t.Helper()
	return awaitValue(t, "the failover is not over", func() (*Server, error) {
		primary, err := c.primary()
		if err == nil && primary == old {
			err = fmt.Errorf("%s is still the primary", old.Addr)
		}
		if err == nil {
			err = c.checkReplicas(primary)
		}
		return primary, err
	})
}
