package redis

import (
	"context"
	"fmt"
	"strconv"

	"github.com/mediocregopher/radix/v4"

	"ratelimit/src/backend/remote"
)

// numSlots is how many slots a cluster has.
const numSlots = 16384

// cluster finds which node has which slots by asking any of them.
type cluster struct{ *panel }

func (c *cluster) find(ctx context.Context, another bool) (found remote.Layout, err error) {
	var all []string
	err = c.ask(ctx, another, func(reply []any, from string) (err error) {
		found, all, err = readSlots(reply, from)
		return err
	}, "CLUSTER", "SLOTS")
	if err != nil {
		return found, fmt.Errorf("redis: no node tells which node has which slots: %w", err)
	}
	c.learn(all)
	return found, nil
}

// readSlots reads the reply to CLUSTER SLOTS: for each range its first and last
// slot, and its nodes, the primary first, each with host, port and more. All are the
// primaries and replicas.
func readSlots(reply []any, from string) (l remote.Layout, all []string, err error) {
	l = remote.Layout{Owners: make([]uint16, numSlots), Slot: func(key []byte) int { return int(radix.ClusterSlot(key)) }}
	index, seen := make(map[string]uint16), make(map[string]bool)
	for _, v := range reply {
		part, _ := v.([]any)
		if len(part) < 3 {
			return l, nil, fmt.Errorf("redis: %s: a range of slots with %d fields", from, len(part))
		}
		first, ok1 := part[0].(int64)
		last, ok2 := part[1].(int64)
		if !ok1 || !ok2 || first < 0 || first > last || last >= numSlots {
			return l, nil, fmt.Errorf("redis: %s: no range of slots: %d to %d", from, first, last)
		}
		for i, v := range part[2:] {
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
			if !seen[addr] { // in another range
				seen[addr] = true
				all = append(all, addr)
			}
			if len(all) > remote.MaxNodes {
				return l, nil, fmt.Errorf("redis: %s: a layout of more than %d nodes", from, remote.MaxNodes)
			}
			if i > 0 {
				continue // a replica
			}
			n, known := index[addr]
			if !known {
				l.Addrs = append(l.Addrs, addr)
				n = uint16(len(l.Addrs))
				index[addr] = n
			}
			for slot := first; slot <= last; slot++ {
				l.Owners[slot] = n
			}
		}
	}
	if len(l.Addrs) == 0 {
		return l, nil, fmt.Errorf("redis: %s: no node has any slots", from)
	}
	return l, all, nil
}
