package redis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/mediocregopher/radix/v4"

	"ratelimit/src/backend/remote"
)

// topologyServers are servers of which each can tell the addresses of the Redis nodes: the sentinels, or the nodes of a
// cluster. Commands go to the same server as long as it answers, and then to the next.
type topologyServers struct {
	*remote.Access
	configuredAddrs   []string
	addrsToAsk        []string     // the configured and the discovered addresses, in the order of asking
	currentConnection *remote.Link // the connection to addrsToAsk[0], and nil before the first query
}

// maxDiscoveredAddrs bounds the servers that topologyServers learns. A few nodes of a large cluster are enough.
const maxDiscoveredAddrs = 64

func newTopologyServers(a *remote.Access, configured []string) *topologyServers {
	p := &topologyServers{Access: a, configuredAddrs: configured, addrsToAsk: slices.Clone(configured)}
	rand.Shuffle(len(p.addrsToAsk), func(i, j int) {
		p.addrsToAsk[i], p.addrsToAsk[j] = p.addrsToAsk[j], p.addrsToAsk[i]
	})
	return p
}

// askInTurn sends a command to the servers in turn, until accept returns nil for a reply. With
// another set, it starts with the server after the one that answered last.
func (p *topologyServers) askInTurn(ctx context.Context, another bool, accept func(reply []any, from string) error,
	words ...string,
) error {
	if another {
		p.useNextServer()
	}
	var errs []error
	for range len(p.addrsToAsk) {
		reply, err := p.askCurrent(ctx, words...)
		if err == nil {
			err = accept(reply, p.addrsToAsk[0])
		}
		if err == nil || ctx.Err() != nil {
			return err
		}
		errs = append(errs, err)
		p.useNextServer()
	}
	return remote.JoinErrors(errs)
}

// askCurrent sends a command to the server that askInTurn would try first.
func (p *topologyServers) askCurrent(ctx context.Context, words ...string) ([]any, error) {
	if p.currentConnection == nil {
		p.currentConnection = remote.NewLink(p.Access, p.addrsToAsk[0])
	}
	return performList(ctx, p.currentConnection, words...)
}

func (p *topologyServers) useNextServer() {
	p.close()
	p.addrsToAsk = append(p.addrsToAsk[1:], p.addrsToAsk[0])
}

// learnServers makes the configured servers and those at discovered the servers to ask.
func (p *topologyServers) learnServers(discovered []string) {
	known := slices.Concat(discovered[:min(len(discovered), maxDiscoveredAddrs)], p.configuredAddrs)
	p.addrsToAsk = slices.DeleteFunc(p.addrsToAsk, func(addr string) bool { return !slices.Contains(known, addr) })
	if p.currentConnection != nil && (len(p.addrsToAsk) == 0 || p.addrsToAsk[0] != p.currentConnection.Addr) {
		p.close()
	}
	for _, addr := range known {
		if !slices.Contains(p.addrsToAsk, addr) {
			p.addrsToAsk = append(p.addrsToAsk, addr)
		}
	}
}

func (p *topologyServers) close() {
	if p.currentConnection != nil {
		p.currentConnection.Close()
		p.currentConnection = nil
	}
}

// maxHostBytes is the longest name in DNS, in bytes.
const maxHostBytes = 255

// joinAddr returns the address of a server that the server at asked named. An empty host
// stands for the host of asked, because a server may not know the name that clients use.
func joinAddr(host, port, asked string) (string, error) {
	if n, err := strconv.Atoi(port); err != nil || n <= 0 || n > 65535 {
		return "", fmt.Errorf("redis: %s names a server on port %.20q", asked, port)
	}
	if len(host) > maxHostBytes {
		return "", fmt.Errorf("redis: %s names a server on a host with %d characters", asked, len(host))
	}
	if host == "" || host == "?" {
		var err error
		if host, _, err = net.SplitHostPort(asked); err != nil {
			return "", fmt.Errorf("redis: %w", err)
		}
	}
	return net.JoinHostPort(host, port), nil
}

const clusterSlots = 16384

// clusterLayout asks nodes of a cluster which nodes there are, and which slots they have. With another set, it first
// asks a node other than the one that answered last.
func (p *topologyServers) clusterLayout(ctx context.Context, another bool) (found remote.Layout, err error) {
	var nodes []string
	err = p.askInTurn(ctx, another, func(reply []any, from string) (err error) {
		found, nodes, err = readSlotsReply(reply, from)
		return err
	}, "CLUSTER", "SLOTS")
	if err != nil {
		return found, fmt.Errorf("redis: no node tells which node has which slots: %w", err)
	}
	p.learnServers(nodes)
	return found, nil
}

// readSlotsReply reads the reply of a node to CLUSTER SLOTS. Each range of slots has its first and last slot and then
// its nodes, the primary first. It returns the layout of the primaries, and the addresses of all nodes.
func readSlotsReply(reply []any, from string) (l remote.Layout, nodes []string, err error) {
	l = remote.Layout{
		SlotOwners: make([]uint16, clusterSlots),
		SlotOfKey:  func(key []byte) int { return int(radix.ClusterSlot(key)) },
	}
	owners, seen := make(map[string]uint16), make(map[string]bool)
	for _, v := range reply {
		fields, _ := v.([]any)
		if len(fields) < 3 {
			return l, nil, fmt.Errorf("redis: %s: a range of slots with %d fields", from, len(fields))
		}
		first, ok1 := fields[0].(int64)
		last, ok2 := fields[1].(int64)
		if !ok1 || !ok2 || first < 0 || first > last || last >= clusterSlots {
			return l, nil, fmt.Errorf("redis: %s: no range of slots: %d to %d", from, first, last)
		}
		for i, v := range fields[2:] {
			node, _ := v.([]any)
			if len(node) < 2 {
				return l, nil, fmt.Errorf("redis: %s: a node with %d fields", from, len(node))
			}
			host, _ := node[0].(string)
			port, _ := node[1].(int64)
			addr, err := joinAddr(host, strconv.FormatInt(port, 10), from)
			if err != nil {
				return l, nil, err
			}
			if !seen[addr] {
				seen[addr] = true
				nodes = append(nodes, addr)
			}
			if len(nodes) > remote.MaxTableNodes {
				return l, nil, fmt.Errorf("redis: %s: a layout of more than %d nodes", from, remote.MaxTableNodes)
			}
			if i > 0 {
				continue // Replicas own no slots.
			}
			if owners[addr] == 0 {
				l.Addrs = append(l.Addrs, addr)
				owners[addr] = uint16(len(l.Addrs))
			}
			for slot := first; slot <= last; slot++ {
				l.SlotOwners[slot] = owners[addr]
			}
		}
	}
	if len(l.Addrs) == 0 {
		return l, nil, fmt.Errorf("redis: %s: no node has any slots", from)
	}
	return l, nodes, nil
}

// sentinels finds the primary by asking sentinels again and again. It does not subscribe to
// their messages, because a subscription can end without an error.
type sentinels struct {
	*topologyServers
	primaryName     string // the name of the primary in the configuration of the sentinels
	newestEpoch     int64  // the newest configuration epoch that a sentinel has named
	oldEpochReplies int    // how often in a row all sentinels that replied named an older epoch
}

// resetAfterOldReplies is how many oldEpochReplies make findLayout accept a lower epoch, because the
// sentinels have probably been set up anew.
const resetAfterOldReplies = 10

// findLayout asks until a sentinel names at least the epoch of the last answer, because after a failover some sentinels
// still name the old primary. It takes the address of the primary from GET-MASTER-ADDR-BY-NAME: in the reply to MASTER,
// the sentinel that carries out the failover names the old address with the new epoch for minutes.
func (s *sentinels) findLayout(ctx context.Context, another bool) (remote.Layout, error) {
	found, newest := "", int64(-1)
	err := s.askInTurn(ctx, another, func(reply []any, from string) error {
		epoch, err := strconv.ParseInt(pairsToMap(reply)["config-epoch"], 10, 64)
		if err != nil {
			return fmt.Errorf("redis: %s names no epoch: %w", from, err)
		}
		addr, err := s.askPrimaryAddr(ctx, from)
		if err != nil {
			return err
		}
		if epoch > newest {
			found, newest = addr, epoch
		}
		if epoch < s.newestEpoch {
			return fmt.Errorf("redis: %s does not know of the last failover yet", from)
		}
		return nil
	}, "SENTINEL", "MASTER", s.primaryName)
	if found != "" {
		s.oldEpochReplies++
	}
	if newest < s.newestEpoch && (found == "" || s.oldEpochReplies < resetAfterOldReplies) {
		return remote.Layout{}, fmt.Errorf("redis: no sentinel names the primary %q: %w", s.primaryName, err)
	}
	s.newestEpoch, s.oldEpochReplies = newest, 0
	s.discoverSentinels(ctx)
	return remote.Layout{Addrs: []string{found}}, nil
}

// askPrimaryAddr returns the address of the primary that the current sentinel names.
func (s *sentinels) askPrimaryAddr(ctx context.Context, from string) (string, error) {
	reply, err := s.askCurrent(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", s.primaryName)
	if err != nil {
		return "", err
	}
	if len(reply) != 2 {
		return "", fmt.Errorf("redis: %s names an address of %d fields", from, len(reply))
	}
	host, _ := reply[0].(string)
	port, _ := reply[1].(string)
	return joinAddr(host, port, from)
}

// discoverSentinels learns the other sentinels, so that the configured ones may disappear. It leaves out those that the
// current sentinel does not reach, unless it reaches none: sentinels never forget each other, and to ask one that is
// gone takes time.
func (s *sentinels) discoverSentinels(ctx context.Context) {
	reply, err := s.askCurrent(ctx, "SENTINEL", "SENTINELS", s.primaryName)
	if err != nil {
		return
	}
	from := s.addrsToAsk[0]
	reached := []string{from}
	for _, v := range reply[:min(len(reply), maxDiscoveredAddrs)] {
		list, _ := v.([]any)
		fields := pairsToMap(list)
		if strings.Contains(fields["flags"], "s_down") || strings.Contains(fields["flags"], "disconnected") {
			continue
		}
		if addr, err := joinAddr(fields["ip"], fields["port"], from); err == nil {
			reached = append(reached, addr)
		}
	}
	if len(reached) > 1 {
		s.learnServers(reached)
	}
}

// pairsToMap returns a list of alternating names and values as a map.
func pairsToMap(list []any) map[string]string {
	m := make(map[string]string, len(list)/2)
	for i := 0; i+1 < len(list); i += 2 {
		name, _ := list[i].(string)
		m[name], _ = list[i+1].(string)
	}
	return m
}
