package redis

import (
	"context"
	"fmt"
	"strconv"

	"github.com/mediocregopher/radix/v4"

	"ratelimit/src/backend/remote"
)

const clusterSlots = 16384

// cluster asks nodes of a cluster which node has which slots.
type cluster struct{ *topologyServers }

// findLayout returns the nodes and their slots. With another set, it first asks a node other than the one that answered
// last.
func (c *cluster) findLayout(ctx context.Context, another bool) (found remote.Layout, err error) {
	var nodes []string
	err = c.askInTurn(ctx, another, func(reply []any, from string) (err error) {
		found, nodes, err = readSlotsReply(reply, from)
		return err
	}, "CLUSTER", "SLOTS")
	if err != nil {
		return found, fmt.Errorf("redis: no node tells which node has which slots: %w", err)
	}
	c.learnServers(nodes)
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
