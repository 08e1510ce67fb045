package memcached

import (
	"errors"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

// errDoubted is a connection that was made before the server was found not to
// answer. It may be dead, and nobody would notice before a command stalls.
var errDoubted = errors.New("the server did not answer on others")

// tell hears of the node's breaker.
func (n *node) tell(open bool, why error) {
	s := n.store
	if open {
		s.stats.opened.Add(1)
		select {
		case n.opened <- struct{}{}:
		default: // it will be seen
		}
	}
	if s.cfg.OnBreaker != nil {
		s.cfg.OnBreaker(string(n.addr), open, why)
	}
}

// probe asks the server whether it is there while the breaker is open, over all
// wires in turns, until no more ops come.
func (n *node) probe() {
	links := make([]*link, len(n.wires))
	for i, w := range n.wires {
		links[i] = newLink(n.addr, w.probe)
	}
	trusted := int64(0) // pipes made after so many times that the breaker opened
	for turn := 0; ; {
		due, wait := n.breaker.Probe(time.Now())
		if opened := n.breaker.Opened(); opened != trusted && wait > 0 {
			trusted = opened
			for _, w := range n.wires {
				w.end(errDoubted)
			}
		}
		if due {
			turn++
			if links[turn%len(links)].Do((*memcache.Client).Ping) == nil {
				n.gate.Prove() // else the gate would refuse the breaker's calls
			}
			continue
		}
		var next <-chan time.Time
		if wait > 0 {
			next = time.After(wait)
		}
		select {
		case <-n.opened:
		case <-next:
		case <-n.end:
			return
		}
	}
}
