package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"ratelimit/src/backend/remote"
)

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
