package redistest

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mediocregopher/radix/v4"

	"ratelimit/testbed/harness"
)

const (
	clusterEnabled = "cluster-enabled yes" // the line of the configuration file of a node of a cluster
	numSlots       = 16384
)

// ClusterOptions configure the nodes of a cluster.
type ClusterOptions struct {
	// Server holds the options of each node.
	Server Options
	// NodeTimeout is the silence after which the other nodes consider a node down. 0 means 2 s; nodes of a busy machine
	// may be silent for shorter times.
	NodeTimeout time.Duration
}

// Cluster is three primaries with a replica each.
type Cluster struct {
	Addrs []string
	// Nodes are, at the start, three primaries and their replicas in the same order: Nodes[3] is the replica of
	// Nodes[0].
	Nodes []*Server
}

// StartCluster returns after the cluster has become stable; see AwaitStable.
func StartCluster(t testing.TB, o ClusterOptions) *Cluster {
	t.Helper()
	lines := append(o.Server.configLines(t),
		clusterEnabled,
		fmt.Sprintf("cluster-node-timeout %d", cmp.Or(o.NodeTimeout, 2*time.Second).Milliseconds()),
		"cluster-replica-validity-factor 0", // a replica may be promoted however old its data
		"cluster-allow-replica-migration no")
	if o.Server.TLS != nil {
		lines = append(lines, "tls-cluster yes")
	}
	// Each node gets its id and its slots before it is connected to the others.
	c := &Cluster{Nodes: startAll(t, 6, o.Server, lines, func(i int, s *Server) error {
		id, err := s.Try("CLUSTER", "MYID")
		if err != nil {
			return err
		}
		s.nodeID = fmt.Sprint(id)
		if _, err := s.Try("CLUSTER", "SET-CONFIG-EPOCH", i+1); err != nil {
			return err
		}
		if i < 3 {
			_, err = s.Try("CLUSTER", "ADDSLOTSRANGE", i*numSlots/3, (i+1)*numSlots/3-1)
		}
		return err
	})}
	for i, s := range c.Nodes {
		c.Addrs = append(c.Addrs, s.PublicAddr())
		for _, other := range c.Nodes[i+1:] {
			connectNodes(t, s, other)
		}
	}
	for i, s := range c.Nodes[3:] {
		awaitValue(t, "a replica has not found its primary",
			func() (any, error) { return s.Try("CLUSTER", "REPLICATE", c.Nodes[i].nodeID) })
	}
	c.AwaitStable(t)
	return c
}

func connectNodes(t testing.TB, s, other *Server) {
	t.Helper()
	host, port, err := net.SplitHostPort(other.Addr)
	must(t, err)
	bus := other.Do(t, "CONFIG", "GET", "cluster-port").([]any)
	s.Do(t, "CLUSTER", "MEET", host, port, bus[1])
}

// node is a line of the reply to CLUSTER NODES.
type node struct {
	id      string
	self    bool     // says that the node itself sent the reply
	primary string   // the id of the primary of a replica; "-" for a primary
	slots   []string // the slots of a primary, such as "7" or "0-5460"
}

func (n node) has(slot int) bool {
	return slices.ContainsFunc(n.slots, func(slots string) bool {
		var low, high int
		if k, _ := fmt.Sscanf(slots, "%d-%d", &low, &high); k == 1 {
			high = low
		}
		return low <= slot && slot <= high
	})
}

// nodesSeenBy returns the cluster as one of its nodes sees it.
func nodesSeenBy(s *Server) ([]node, error) {
	reply, err := s.Try("CLUSTER", "NODES")
	if err != nil {
		return nil, err
	}
	var nodes []node
	for line := range strings.Lines(fmt.Sprint(reply)) {
		// The fields of a line are: id address flags primary ping pong epoch link slots…
		field := strings.Fields(line)
		if len(field) < 8 {
			return nil, fmt.Errorf("CLUSTER NODES of %s: %q", s.Addr, line)
		}
		// a slot in brackets is being moved
		slots := slices.DeleteFunc(field[8:], func(slot string) bool { return slot[0] == '[' })
		nodes = append(nodes, node{field[0], strings.Contains(field[2], "myself"), field[3], slots})
	}
	return nodes, nil
}

// ownLine returns the line of s in its own reply to CLUSTER NODES.
func ownLine(s *Server) (node, error) {
	nodes, err := nodesSeenBy(s)
	i := slices.IndexFunc(nodes, func(n node) bool { return n.self })
	if i < 0 {
		return node{}, errors.Join(err, fmt.Errorf("CLUSTER NODES of %s: no line for itself", s.Addr))
	}
	return nodes[i], nil
}

// AwaitStable returns when all running nodes find the cluster complete, and agree on the owner of each slot and the
// primary of each replica, and all replicas have the data of their primaries.
func (c *Cluster) AwaitStable(t testing.TB) {
	t.Helper()
	harness.Await(t, harness.Deadline, "the cluster is not stable", c.checkStable)
}

// checkStable returns an error unless the cluster is stable.
func (c *Cluster) checkStable() error {
	agreed := ""
	for _, s := range running(c.Nodes) {
		reply, err := s.Try("CLUSTER", "INFO")
		if err != nil {
			return err
		}
		info := parseFields(reply)
		if info["cluster_state"] != "ok" || info["cluster_known_nodes"] != strconv.Itoa(len(c.Nodes)) {
			return fmt.Errorf("at %s the state is %s, with %s nodes", s.Addr, info["cluster_state"],
				info["cluster_known_nodes"])
		}
		nodes, err := nodesSeenBy(s)
		if err != nil {
			return err
		}
		var seen []string
		for _, n := range nodes {
			known := c.byID(n.id)
			if known == nil {
				return fmt.Errorf("%s lists %s, which is not a node of this cluster", s.Addr, n.id)
			}
			if !known.Alive() {
				if len(n.slots) > 0 {
					return fmt.Errorf("slots %v are with %s, which does not run", n.slots, known.Addr)
				}
				continue
			}
			seen = append(seen, fmt.Sprint(n.id, n.primary, n.slots))
			if !n.self || n.primary == "-" {
				continue
			}
			primary := c.byID(n.primary)
			if primary == nil || !primary.Alive() {
				return fmt.Errorf("%s has no primary that runs", s.Addr)
			}
			if err := checkReplica(s, primary); err != nil {
				return err
			}
		}
		slices.Sort(seen)
		text := strings.Join(seen, "\n")
		if agreed != "" && agreed != text {
			return fmt.Errorf("nodes see different clusters:\n%s\n\n%s", agreed, text)
		}
		agreed = text
	}
	return nil
}

func (c *Cluster) byID(id string) *Server {
	if i := slices.IndexFunc(c.Nodes, func(s *Server) bool { return s.nodeID == id }); i >= 0 {
		return c.Nodes[i]
	}
	return nil
}

// NodeForKey returns the primary of key. It waits until there is exactly one.
func (c *Cluster) NodeForKey(t testing.TB, key string) *Server {
	t.Helper()
	return c.NodeForSlot(t, KeySlot(key))
}

// NodeForSlot returns the primary of slot. It waits until there is exactly one.
func (c *Cluster) NodeForSlot(t testing.TB, slot int) *Server {
	t.Helper()
	return c.awaitNode(t, fmt.Sprintf("own slot %d", slot), func(n node) bool { return n.has(slot) })
}

// awaitNode returns the one running node that matches. It waits until there is exactly one; predicate says in an error
// what match means.
func (c *Cluster) awaitNode(t testing.TB, predicate string, match func(node) bool) *Server {
	t.Helper()
	return awaitValue(t, "not exactly one node", func() (*Server, error) {
		nodes, err := c.matching(match)
		if err == nil && len(nodes) != 1 {
			err = fmt.Errorf("%d nodes %s", len(nodes), predicate)
		}
		if err != nil {
			return nil, err
		}
		return nodes[0], nil
	})
}

// matching returns the running nodes for whose own lines of CLUSTER NODES match returns true.
func (c *Cluster) matching(match func(node) bool) (found []*Server, err error) {
	for _, s := range running(c.Nodes) {
		n, err := ownLine(s)
		if err != nil {
			return nil, err
		}
		if match(n) {
			found = append(found, s)
		}
	}
	return found, nil
}

// Primaries returns the running nodes that have slots.
func (c *Cluster) Primaries(t testing.TB) []*Server {
	t.Helper()
	primaries, err := c.matching(func(n node) bool { return len(n.slots) > 0 })
	must(t, err)
	return primaries
}

// Replica returns the running replica of primary. It waits for it.
func (c *Cluster) Replica(t testing.TB, primary *Server) *Server {
	t.Helper()
	return c.awaitNode(t, "replicate "+primary.Addr, func(n node) bool { return n.primary == primary.nodeID })
}

// FailoverReplica promotes the replica of a primary, and returns it after the cluster has become stable. A running
// primary hands over its slots; if the primary was killed, the replica starts an election.
func (c *Cluster) FailoverReplica(t testing.TB, primary *Server) *Server {
	t.Helper()
	replica := c.Replica(t, primary)
	awaitPromotion(t, "the replica is not promoted", func() (bool, error) {
		info, err := replica.replication()
		return info["role"] == "master", err
	}, func() error {
		command := []any{"CLUSTER", "FAILOVER"}
		if !primary.Alive() {
			command = append(command, "FORCE")
		}
		_, err := replica.Try(command...)
		return err
	})
	c.AwaitStable(t)
	return replica
}

// Migration moves a slot from one primary to another in steps. Until Finish, From answers ASK for keys of the slot it
// no longer has, and To serves requests after ASKING. Then From answers MOVED.
type Migration struct {
	Slot     int
	From, To *Server

	c *Cluster
}

// StartMigration prepares both primaries, and moves no key.
func (c *Cluster) StartMigration(t testing.TB, slot int, to *Server) *Migration {
	t.Helper()
	m := &Migration{Slot: slot, From: c.NodeForSlot(t, slot), To: to, c: c}
	if m.From == to {
		t.Fatalf("redistest: slot %d is at %s already", slot, to.Addr)
	}
	to.Do(t, "CLUSTER", "SETSLOT", slot, "IMPORTING", m.From.nodeID)
	m.From.Do(t, "CLUSTER", "SETSLOT", slot, "MIGRATING", to.nodeID)
	return m
}

// Move moves up to n keys, and returns how many it moved.
func (m *Migration) Move(t testing.TB, n int) int {
	t.Helper()
	keys, _ := m.From.Do(t, "CLUSTER", "GETKEYSINSLOT", m.Slot, n).([]any)
	if len(keys) == 0 {
		return 0
	}
	host, port, err := net.SplitHostPort(m.To.Addr)
	must(t, err)
	command := []any{"MIGRATE", host, port, "", 0, 5000, "AUTH2", admin, adminPassword, "KEYS"}
	m.From.Do(t, append(command, keys...)...)
	return len(keys)
}

// Finish moves the other keys, assigns the slot to To, and returns after the cluster has become stable.
func (m *Migration) Finish(t testing.TB) {
	t.Helper()
	for m.Move(t, 100) > 0 {
	}
	// The new owner is told first, since a redirect must not lead to a node that still refuses the slot.
	for _, s := range append([]*Server{m.To, m.From}, m.c.Primaries(t)...) {
		s.Do(t, "CLUSTER", "SETSLOT", m.Slot, "NODE", m.To.nodeID)
	}
	m.c.AwaitStable(t)
}

// MigrateSlot moves a slot with its keys.
func (c *Cluster) MigrateSlot(t testing.TB, slot int, to *Server) {
	t.Helper()
	c.StartMigration(t, slot, to).Finish(t)
}

// KeySlot returns the slot of a key by the cluster specification.
func KeySlot(key string) int { return int(radix.ClusterSlot([]byte(key))) }
