package redis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"

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
	q := query{commandWords: words}
	if err := p.currentConnection.Do(ctx, q.roundTrip); err != nil {
		return nil, err
	}
	return q.reply, q.errorReply
}

// useNextServer makes the next server the current one.
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
