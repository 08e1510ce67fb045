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

// directory sends questions to servers that all know the answers, such as sentinels. It asks the
// same server as long as that answers, and then the next.
type directory struct {
	*remote.Access
	configuredAddrs []string
	addrsToAsk      []string     // addrsToAsk has the configured and the discovered addresses, in the order of asking.
	connection      *remote.Link // connection is the connection to addrsToAsk[0], and nil before the first query.
}

// maxDiscoveredAddrs bounds the servers that a directory learns. A few nodes of a large cluster are enough.
const maxDiscoveredAddrs = 64

func newDirectory(a *remote.Access, configured []string) *directory {
	p := &directory{Access: a, configuredAddrs: configured, addrsToAsk: slices.Clone(configured)}
	rand.Shuffle(len(p.addrsToAsk), func(i, j int) { p.addrsToAsk[i], p.addrsToAsk[j] = p.addrsToAsk[j], p.addrsToAsk[i] })
	return p
}

// askInTurn sends a command to the servers in turn, until accept returns nil for a reply. With
// another set, it starts with the server after the one that answered last.
func (p *directory) askInTurn(ctx context.Context, another bool, accept func(reply []any, from string) error, words ...string) error {
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
func (p *directory) askCurrent(ctx context.Context, words ...string) ([]any, error) {
	if p.connection == nil {
		p.connection = remote.NewLink(p.Access, p.addrsToAsk[0])
	}
	q := query{commandWords: words}
	if err := p.connection.Do(ctx, q.roundTrip); err != nil {
		return nil, err
	}
	return q.reply, q.errorReply
}

// useNextServer makes the next server the current one.
func (p *directory) useNextServer() {
	p.close()
	p.addrsToAsk = append(p.addrsToAsk[1:], p.addrsToAsk[0])
}

// learnServers makes the configured servers and those at discovered the servers of the directory.
func (p *directory) learnServers(discovered []string) {
	known := slices.Concat(discovered[:min(len(discovered), maxDiscoveredAddrs)], p.configuredAddrs)
	p.addrsToAsk = slices.DeleteFunc(p.addrsToAsk, func(addr string) bool { return !slices.Contains(known, addr) })
	if p.connection != nil && (len(p.addrsToAsk) == 0 || p.addrsToAsk[0] != p.connection.Addr) {
		p.close()
	}
	for _, addr := range known {
		if !slices.Contains(p.addrsToAsk, addr) {
			p.addrsToAsk = append(p.addrsToAsk, addr)
		}
	}
}

func (p *directory) close() {
	if p.connection != nil {
		p.connection.Close()
		p.connection = nil
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
