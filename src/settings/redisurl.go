package settings

import (
	"cmp"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// PlaceRedis is the Redis that REDIS_TYPE and REDIS_URL of these values name.
// Messages call them, and REDIS_SOCKET_TYPE, as called does, given TYPE and so
// on.
func PlaceRedis(kind, url string, called func(word string) string) (Redis, error) {
	r := new(reader)
	c := Redis{Type: strings.ToUpper(kind), URL: url}
	switch c.Type {
	case "SINGLE", "SENTINEL", "CLUSTER":
		c.place(r, called)
	default:
		r.problem(called("TYPE"), kind, "write single, sentinel or cluster")
	}
	return c, r.err()
}

// place takes the URL apart, by the type: where the servers are, and what else
// it says of them. It may hold a password and is never shown. called is how a
// setting is called in messages.
func (c *Redis) place(r *reader, called func(word string) string) {
	name := called("URL")
	switch c.Type {
	case "SENTINEL":
		items := list(c.URL)
		if len(items) < 2 || strings.Contains(items[0], ":") {
			r.problem(name, "…", "with "+called("TYPE")+"=SENTINEL write the primary's name and the sentinels: mymaster,host:26379,host:26379")
			return
		}
		c.Primary = items[0]
		for _, item := range items[1:] {
			at, ok := c.parse(item, "26379")
			if !ok {
				r.problem(name, "…", "a sentinel is not host:port")
				return
			}
			c.Addrs = append(c.Addrs, at.addr)
			c.SentinelAuth = cmp.Or(c.SentinelAuth, at.auth)
		}
	case "CLUSTER":
		for _, item := range list(c.URL) {
			at, ok := c.parse(item, "6379")
			if !ok {
				r.problem(name, "…", "a node is not host:port")
				return
			}
			c.Addrs = append(c.Addrs, at.addr)
			c.Auth = cmp.Or(c.Auth, at.auth)
			if at.db != "" && at.db != "0" {
				r.problem(name, "…", "a cluster has no databases: leave the number out")
			}
		}
		if len(c.Addrs) == 0 {
			r.problem(name, "", "write some nodes of the cluster: host:port,host:port")
		}
	default:
		c.placeOne(r, called)
	}
}

// placeOne is place for a single server.
func (c *Redis) placeOne(r *reader, called func(word string) string) {
	name := called("URL")
	switch {
	case c.URL == "":
		r.problem(name, "", "write host:port, the path of a socket, or redis://host:port")
		return
	case strings.Contains(c.URL, "://"):
		at, ok := c.parse(c.URL, "6379")
		if !ok {
			r.problem(name, "…", "it begins like a URL: write redis://user:password@host:port/db, or rediss://")
			return
		}
		if c.SocketType != "tcp4" && c.SocketType != "tcp6" {
			c.SocketType = "tcp"
		}
		c.Addrs, c.DB, c.Auth = []string{at.addr}, at.db, cmp.Or(c.Auth, at.auth)
		return
	}
	c.Addrs = []string{c.URL}
	switch c.SocketType {
	case "":
		c.SocketType = "tcp"
		if strings.Contains(c.URL, "/") {
			c.SocketType = "unix"
		}
	case "tcp", "tcp4", "tcp6", "unix":
	default:
		r.problem(called("SOCKET_TYPE"), c.SocketType, "write tcp, tcp4, tcp6 or unix")
	}
	if strings.Contains(c.URL, ",") && c.SocketType != "unix" {
		r.problem(name, "…", "these are several servers: set "+called("TYPE")+" to SENTINEL or CLUSTER")
	}
}

// place is where a server is, and what its URL says besides.
type place struct{ addr, auth, db string }

// parse reads host:port, or a URL with or without a port. rediss:// turns TLS on.
func (c *Redis) parse(text, port string) (place, bool) {
	if !strings.Contains(text, "://") {
		return place{addr: text}, isHostPort(text)
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "redis" && u.Scheme != "rediss" || u.Hostname() == "" {
		return place{}, false
	}
	q := u.Query()
	at := place{
		addr: net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port)),
		db:   cmp.Or(q.Get("db"), strings.Trim(u.Path, "/")),
	}
	if password, ok := u.User.Password(); ok {
		at.auth = u.User.Username() + ":" + password
	} else if q.Get("password") != "" {
		at.auth = q.Get("username") + ":" + q.Get("password")
	}
	if _, err := strconv.ParseUint(cmp.Or(at.db, "0"), 10, 31); err != nil {
		return place{}, false
	}
	c.TLS = c.TLS || u.Scheme == "rediss"
	return at, isHostPort(at.addr)
}

func isHostPort(text string) bool {
	host, port, err := net.SplitHostPort(text)
	n, err2 := strconv.ParseUint(port, 10, 16)
	return err == nil && err2 == nil && host != "" && n > 0
}

// list splits at commas; blanks around items, and empty items, do not count.
func list(text string) []string {
	var items []string
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}
