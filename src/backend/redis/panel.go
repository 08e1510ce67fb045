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

// panel asks questions to which several servers know the answer, such as the sentinels. It asks the
// same server while that answers, and then the next.
type panel struct {
	*remote.Access
	seeds []string     // as configured
	addrs []string     // those and the ones that were learned, in the order of asking
	link  *remote.Link // to addrs[0]; nil: none yet
}

// maxPanel bounds the servers of a panel: a few nodes of a large cluster are enough.
const maxPanel = 64

func newPanel(a *remote.Access, seeds []string) *panel {
	p := &panel{Access: a, seeds: seeds, addrs: slices.Clone(seeds)}
	rand.Shuffle(len(p.addrs), func(i, j int) { p.addrs[i], p.addrs[j] = p.addrs[j], p.addrs[i] })
	return p
}

// ask asks the servers in turn until accept returns nil for a reply. If another is set, it begins
// behind the server that answered last.
func (p *panel) ask(ctx context.Context, another bool, accept func(reply []any, from string) error, words ...string) error {
	if another {
		p.next()
	}
	var errs []error
	for range len(p.addrs) {
		reply, err := p.one(ctx, words...)
		if err == nil {
			err = accept(reply, p.addrs[0])
		}
		if err == nil || ctx.Err() != nil {
			return err
		}
		errs = append(errs, err)
		p.next()
	}
	return remote.JoinErrors(errs)
}

// one asks only the current server.
func (p *panel) one(ctx context.Context, words ...string) ([]any, error) {
	if p.link == nil {
		p.link = remote.NewLink(p.Access, p.addrs[0])
	}
	q := question{words: words}
	if err := p.link.Do(ctx, &q); err != nil {
		return nil, err
	}
	return q.reply, q.refused
}

// next makes the next server the current one.
func (p *panel) next() {
	p.close()
	p.addrs = append(p.addrs[1:], p.addrs[0])
}

// learn sets the servers: those of the configuration and addrs.
func (p *panel) learn(addrs []string) {
	known := append(slices.Clone(addrs[:min(len(addrs), maxPanel)]), p.seeds...)
	p.addrs = slices.DeleteFunc(p.addrs, func(a string) bool { return !slices.Contains(known, a) })
	if p.link != nil && (len(p.addrs) == 0 || p.addrs[0] != p.link.Addr) {
		p.close()
	}
	for _, a := range known {
		if !slices.Contains(p.addrs, a) {
			p.addrs = append(p.addrs, a)
		}
	}
}

func (p *panel) close() {
	if p.link != nil {
		p.link.Close()
		p.link = nil
	}
}

// maxHost is the longest name in DNS, in bytes.
const maxHost = 255

// joinAddr is where a server is that another one named. A server that does not
// know under which name it is reached leaves the host empty, which means the
// one that was asked.
func joinAddr(host, port, asked string) (string, error) {
	if n, err := strconv.Atoi(port); err != nil || n <= 0 || n > 65535 {
		return "", fmt.Errorf("redis: %s names a server on port %.20q", asked, port)
	}
	if len(host) > maxHost {
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
