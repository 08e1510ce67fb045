package settings

import (
	"cmp"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Redis describes one Redis: a single server, the sentinels of a primary, or a cluster.
type Redis struct {
	Type       string `env:"TYPE"`        // SINGLE, SENTINEL or CLUSTER
	SocketType string `env:"SOCKET_TYPE"` // only for SINGLE: tcp, tcp4, tcp6 or unix
	URL        string `env:"URL"`         // the value of the variable
	// Primary is the name that the sentinels use for the primary. Only for SENTINEL.
	Primary string
	// Addrs lists the server, the sentinels or nodes of the cluster, as host:port or as the
	// path of a socket.
	Addrs []string
	DB    string // number of the database; empty: 0
	// Auth is "password" or "user:password", from the variable or else from the URL.
	Auth             string        `env:"AUTH"`
	AuthFile         string        `env:"AUTH_FILE"`
	SentinelAuth     string        `env:"SENTINEL_AUTH"`
	SentinelAuthFile string        `env:"SENTINEL_AUTH_FILE"`
	PoolSize         int           `env:"POOL_SIZE"`
	TLS              bool          `env:"TLS"`
	Timeout          time.Duration `env:"TIMEOUT"`
	PipelineWindow   time.Duration `env:"PIPELINE_WINDOW"`
	PipelineLimit    int           `env:"PIPELINE_LIMIT"`
	Parallelism      int           `env:"CLUSTER_PIPELINE_PARALLELISM"`
}

// validate checks variables that depend on each other, and reads the URL. prefix is the start
// of the names of the variables, such as REDIS_.
func (c *Redis) validate(r *reader, prefix string) {
	if c.Parallelism < 0 && c.Type == "CLUSTER" {
		r.problem(prefix+"CLUSTER_PIPELINE_PARALLELISM", strconv.Itoa(c.Parallelism), "write 0 or more; it has no effect")
	}
	if c.Timeout > 0 && c.PipelineWindow >= c.Timeout && !r.unreadable[prefix+"TIMEOUT"] {
		r.problem(prefix+"PIPELINE_WINDOW", c.PipelineWindow.String(), "no call would be answered within "+prefix+"TIMEOUT, "+c.Timeout.String()+": write a shorter one")
	}
	if !r.unreadable[prefix+"TYPE"] {
		c.place(r, func(word string) string { return prefix + word })
	}
}

// PlaceRedis returns the Redis for the values that REDIS_TYPE and REDIS_URL may have. Errors
// contain called("TYPE"), called("URL") or called("SOCKET_TYPE") as the name of the value.
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

// place sets the addresses, credentials, TLS and database that URL contains. Errors never show
// URL, because it may contain a password.
func (c *Redis) place(r *reader, called func(word string) string) {
	refuse := func(fix string) { r.problem(called("URL"), "…", fix) }
	items := list(c.URL)
	switch {
	case c.Type == "SENTINEL" && (len(items) < 2 || strings.Contains(items[0], ":")):
		refuse("with " + called("TYPE") + "=SENTINEL write the primary's name and the sentinels: mymaster,host:26379,host:26379")
	case c.Type == "SENTINEL":
		c.Primary = items[0]
		c.SentinelAuth = cmp.Or(c.SentinelAuth, c.placeAll(items[1:], "26379", "a sentinel", refuse))
	case c.Type == "CLUSTER" && len(items) == 0:
		r.problem(called("URL"), "", "write some nodes of the cluster: host:port,host:port")
	case c.Type == "CLUSTER":
		c.Auth = cmp.Or(c.Auth, c.placeAll(items, "6379", "a node", refuse))
	case c.URL == "":
		r.problem(called("URL"), "", "write host:port, the path of a socket, or redis://host:port")
	case strings.Contains(c.URL, "://"):
		at, ok := c.parse(c.URL, "6379")
		if !ok {
			refuse("it begins like a URL: write redis://user:password@host:port/db, or rediss://")
			return
		}
		if c.SocketType != "tcp4" && c.SocketType != "tcp6" {
			c.SocketType = "tcp"
		}
		c.Addrs, c.DB, c.Auth = []string{at.addr}, at.db, cmp.Or(c.Auth, at.auth)
	default:
		c.placeText(r, called)
	}
}

// placeAll adds the addresses of items, which are host:port or URLs, to Addrs. It returns the
// first credentials in them. port is the default; what names an item in errors.
func (c *Redis) placeAll(items []string, port, what string, refuse func(fix string)) (auth string) {
	for _, item := range items {
		at, ok := c.parse(item, port)
		if !ok {
			refuse(what + " is not host:port")
			return auth
		}
		if c.Type == "CLUSTER" && at.db != "" && at.db != "0" {
			refuse("a cluster has no databases: leave the number out")
		}
		c.Addrs = append(c.Addrs, at.addr)
		auth = cmp.Or(auth, at.auth)
	}
	return auth
}

// placeText sets Addrs and SocketType if URL is host:port or the path of a socket.
func (c *Redis) placeText(r *reader, called func(word string) string) {
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
		r.problem(called("URL"), "…", "these are several servers: set "+called("TYPE")+" to SENTINEL or CLUSTER")
	}
}

// place is the address of a server, and the credentials and database of its URL.
type place struct{ addr, auth, db string }

// parse reads host:port, or a URL; port is the default for a URL. rediss:// sets c.TLS. It
// returns false if text is neither.
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

// isHostPort reports whether text is host:port, with a port from 1 to 65535.
func isHostPort(text string) bool {
	host, port, err := net.SplitHostPort(text)
	n, err2 := strconv.ParseUint(port, 10, 16)
	return err == nil && err2 == nil && host != "" && n > 0
}
