package connlimit

import "time"

// list is a ring of connections, longest idle first. The links are in the connections,
// so a move allocates nothing.
type list struct {
	root *Conn // only next and prev are used
	len  int
}

func (l *list) init() {
	l.root = new(Conn)
	l.root.next, l.root.prev = l.root, l.root
}

// oldest returns the longest idle connection, or nil.
func (l *list) oldest() *Conn { return l.after(l.root) }

// after returns the connection behind c, or nil.
func (l *list) after(c *Conn) *Conn {
	if c.next == l.root {
		return nil
	}
	return c.next
}

// push appends c, which must be in no list.
func (l *list) push(c *Conn, now time.Time) {
	c.list, c.since = l, now
	c.prev, c.next = l.root.prev, l.root
	c.prev.next, c.next.prev = c, c
	l.len++
}

func (l *list) remove(c *Conn) {
	c.prev.next, c.next.prev = c.next, c.prev
	c.list, c.next, c.prev = nil, nil, nil
	l.len--
}
