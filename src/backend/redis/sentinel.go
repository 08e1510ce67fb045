package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"ratelimit/src/backend/remote"
)

// sentinels finds the primary by asking sentinels again and again. A subscription could end without
// an error.
type sentinels struct {
	*panel
	primary string // its name
	epoch   int64  // of the newest answer
	behind  int    // how often since then all that answered knew less
}

// anewAfter is how often all sentinels that answer have to know less than they
// did before they are believed to have been set up anew.
const anewAfter = 10

// find asks until a sentinel has at least the epoch of the last answer: after a failover
// some still name the old primary. The sentinel that carries it out does so under
// MASTER for minutes, with the new epoch: only GET-MASTER-ADDR-BY-NAME counts.
func (s *sentinels) find(ctx context.Context, another bool) (remote.Layout, error) {
	found, newest := "", int64(-1)
	err := s.ask(ctx, another, func(reply []any, from string) error {
		epoch, err := strconv.ParseInt(pairs(reply)["config-epoch"], 10, 64)
		if err != nil {
			return fmt.Errorf("redis: %s names no epoch: %w", from, err)
		}
		addr, err := s.address(ctx, from)
		if err != nil {
			return err
		}
		if epoch > newest {
			found, newest = addr, epoch
		}
		if epoch < s.epoch {
			return fmt.Errorf("redis: %s does not know of the last failover yet", from)
		}
		return nil
	}, "SENTINEL", "MASTER", s.primary)
	switch {
	case newest >= s.epoch:
		s.behind = 0
	case found != "" && s.behind+1 >= anewAfter: // it was set up anew
	default:
		if found != "" {
			s.behind++
		}
		return remote.Layout{}, fmt.Errorf("redis: no sentinel names the primary %q: %w", s.primary, err)
	}
	s.epoch = newest
	s.learn(ctx)
	return remote.Layout{Addrs: []string{found}}, nil
}

// address returns the address of the primary that the current sentinel names.
func (s *sentinels) address(ctx context.Context, from string) (string, error) {
	reply, err := s.one(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", s.primary)
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

// learn asks for the other sentinels, so that those that were configured may
// go. Those that this one does not reach are left out, unless that is all of
// them: a sentinel never forgets another by itself, and asking those that are
// gone for good costs time. A sentinel that does not tell stays in use.
func (s *sentinels) learn(ctx context.Context) {
	reply, err := s.one(ctx, "SENTINEL", "SENTINELS", s.primary)
	if err != nil {
		return
	}
	from := s.addrs[0]
	others := []string{from}
	for _, v := range reply[:min(len(reply), maxPanel)] {
		fields, _ := v.([]any)
		m := pairs(fields)
		if strings.Contains(m["flags"], "s_down") || strings.Contains(m["flags"], "disconnected") {
			continue
		}
		if addr, err := joinAddr(m["ip"], m["port"], from); err == nil {
			others = append(others, addr)
		}
	}
	if len(others) > 1 {
		s.panel.learn(others)
	}
}

// pairs returns a list of alternating names and values as a map.
func pairs(list []any) map[string]string {
	m := make(map[string]string, len(list)/2)
	for i := 0; i+1 < len(list); i += 2 {
		name, _ := list[i].(string)
		m[name], _ = list[i+1].(string)
	}
	return m
}
