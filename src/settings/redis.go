package settings

import (
	"cmp"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Redis describes one Redis: a single server, the sentinels of a primary, or a cluster.
type Redis struct {
	Type       string `env:"TYPE"`        // SINGLE, SENTINEL or CLUSTER.
	SocketType string `env:"SOCKET_TYPE"` // tcp, tcp4, tcp6 or unix, for SINGLE.
	URL        string `env:"URL"`         // as the user wrote it.
	// Primary is the name that the sentinels use for the primary. Only for SENTINEL.
	Primary string
	// Addrs lists the server, the sentinels or nodes of the cluster, as host:port or as the path of a socket.
	Addrs []string
	DB    string // the number of the database; empty for 0.
	// Auth is "password" or "user:password", from the variable or else from the URL.
	Auth                string `env:"AUTH"`
	AuthFile            string `env:"AUTH_FILE"`
	AuthCommand         string `env:"AUTH_COMMAND"` // a program that prints tokens, with arguments.
	AuthUser            string `env:"AUTH_USER"`    // for tokens that AuthCommand prints without a user.
	IAM                 AWSIAM `env:"AWS_IAM_"`
	SentinelAuth        string `env:"SENTINEL_AUTH"`
	SentinelAuthFile    string `env:"SENTINEL_AUTH_FILE"`
	SentinelAuthCommand string `env:"SENTINEL_AUTH_COMMAND"`

	PoolSize           int           `env:"POOL_SIZE"`
	TLS                bool          `env:"TLS"`
	Timeout            time.Duration `env:"TIMEOUT"`
	PipelineWindow     time.Duration `env:"PIPELINE_WINDOW"`
	PipelineLimit      int           `env:"PIPELINE_LIMIT"`
	ClusterParallelism int           `env:"CLUSTER_PIPELINE_PARALLELISM"`
}

// validate checks variables that depend on each other, and reads the URL. prefix is the start of the names of the
// variables, such as REDIS_.
func (c *Redis) validate(r *reader, prefix string) {
	if c.ClusterParallelism < 0 && c.Type == "CLUSTER" {
		r.problem(prefix+"CLUSTER_PIPELINE_PARALLELISM", strconv.Itoa(c.ClusterParallelism),
			"write 0 or more; it has no effect")
	}
	if c.Timeout > 0 && c.PipelineWindow >= c.Timeout && !r.hasRefusedValue[prefix+"TIMEOUT"] {
		r.forgive(prefix+"PIPELINE_WINDOW", c.PipelineWindow.String(),
			"no call would be answered within "+prefix+"TIMEOUT, "+c.Timeout.String()+": write a shorter one", "0s is used")
		c.PipelineWindow = 0
	}
	r.warnLongTimeout(prefix+"TIMEOUT", c.Timeout)
	c.warnBatches(r, prefix)
	if trimmed := strings.Trim(c.URL, " \t\r\n\"'"); trimmed != c.URL {
		r.warn("%sURL begins or ends with blanks or quotes, which are left out", prefix)
		c.URL = trimmed
	}
	r.warnOddPassword(prefix+"AUTH", c.Auth)
	r.warnOddPassword(prefix+"SENTINEL_AUTH", c.SentinelAuth)
	if !r.hasRefusedValue[prefix+"TYPE"] {
		c.readURL(r, func(word string) string { return prefix + word })
	}
	c.validateAuth(r, prefix)
}

// maxUsualTimeout is the longest time for a call of the store that is no likely mistake.
const maxUsualTimeout = time.Second

// warnLongTimeout warns of a timeout that is longer than callers wait: they get no answer while the store is silent,
// and on_store_failure decides too late. Manifests of envoyproxy/ratelimit have 5s or 10s, which bounds connecting.
func (r *reader) warnLongTimeout(name string, timeout time.Duration) {
	if timeout > maxUsualTimeout {
		r.warn("%s=%v bounds every call here, not only connecting, and is longer than callers wait (Envoy: 20ms), so they "+
			"get no answer while the store is silent; remove it: the default is 50ms", name, timeout)
	}
}

// warnBatches warns of settings of batches that envoyproxy/ratelimit ignores, so that its manifests have them.
func (c *Redis) warnBatches(r *reader, prefix string) {
	if c.PipelineWindow > 0 && c.Type != "CLUSTER" {
		r.warn("%sPIPELINE_WINDOW=%v has an effect here, where envoyproxy/ratelimit uses it for clusters only: calls wait "+
			"that long, and about a millisecond at least; remove it unless Redis is short of CPU", prefix, c.PipelineWindow)
	}
	if c.PipelineLimit > 0 {
		r.warn("%sPIPELINE_LIMIT=%d has an effect here, and none in envoyproxy/ratelimit: smaller batches cost CPU; remove "+
			"it unless calls in a flood wait too long", prefix, c.PipelineLimit)
	}
}

// warnOddPassword warns of a password that begins or ends with a blank or a quote. Few have them, but shells and files
// of variables add them.
func (r *reader) warnOddPassword(name, password string) {
	if strings.Trim(password, " \t\"'") != password {
		r.warn("%s begins or ends with a blank or a quote, which is sent as a part of the password; remove it if Redis "+
			"refuses the password", name)
	}
}

// ParseRedis returns the Redis for the values that REDIS_TYPE and REDIS_URL may have. Errors contain nameOf("TYPE"),
// nameOf("URL") or nameOf("SOCKET_TYPE") as the name of the value.
func ParseRedis(kind, url string, nameOf func(word string) string) (Redis, error) {
	r := new(reader)
	c := Redis{Type: strings.ToUpper(kind), URL: url}
	switch c.Type {
	case "SINGLE", "SENTINEL", "CLUSTER":
		c.readURL(r, nameOf)
	default:
		r.problem(nameOf("TYPE"), kind, "write single, sentinel or cluster")
	}
	_, err := r.result()
	return c, err
}

// readURL sets the addresses, credentials, TLS and database that URL contains. Errors never show URL, because it may
// contain a password.
func (c *Redis) readURL(r *reader, nameOf func(word string) string) {
	refuse := func(fix string) { r.problem(nameOf("URL"), "…", fix) }
	items := list(c.URL)
	switch {
	case c.Type == "SENTINEL" && (len(items) < 2 || strings.Contains(items[0], ":")):
		refuse("with " + nameOf("TYPE") + "=SENTINEL write the primary's name and the sentinels: " +
			"mymaster,host:26379,host:26379")
	case c.Type == "SENTINEL":
		c.Primary = items[0]
		c.SentinelAuth = cmp.Or(c.SentinelAuth, c.addServers(items[1:], "26379", "a sentinel", refuse))
	case c.Type == "CLUSTER" && len(items) == 0:
		r.problem(nameOf("URL"), "", "write some nodes of the cluster: host:port,host:port")
	case c.Type == "CLUSTER":
		c.Auth = cmp.Or(c.Auth, c.addServers(items, "6379", "a node", refuse))
	case c.URL == "":
		r.problem(nameOf("URL"), "", "write host:port, the path of a socket, or redis://host:port")
	case strings.Contains(c.URL, "://"):
		server, ok := c.parseServer(c.URL, "6379")
		if !ok {
			refuse("it begins like a URL: write redis://user:password@host:port/db, or rediss://")
			return
		}
		if c.SocketType != "tcp4" && c.SocketType != "tcp6" {
			c.SocketType = "tcp"
		}
		c.Addrs, c.DB, c.Auth = []string{server.addr}, server.db, cmp.Or(c.Auth, server.auth)
	default:
		c.Addrs = []string{c.URL}
		if c.SocketType == "" && strings.Contains(c.URL, "/") {
			c.SocketType = "unix"
		}
		c.SocketType = cmp.Or(c.SocketType, "tcp")
		if !slices.Contains([]string{"tcp", "tcp4", "tcp6", "unix"}, c.SocketType) {
			r.problem(nameOf("SOCKET_TYPE"), c.SocketType, "write tcp, tcp4, tcp6 or unix")
		}
		host, _, _ := strings.Cut(c.URL, "/")
		_, _, err := net.SplitHostPort(c.URL)
		switch {
		case c.SocketType == "unix" && isHostPort(host):
			refuse("this is no path of a socket: write redis://host:port/db to name a database")
		case c.SocketType == "unix":
		case strings.Contains(c.URL, ","):
			refuse("these are several servers: set " + nameOf("TYPE") + " to SENTINEL or CLUSTER")
		case err != nil:
			refuse("this is no host:port: write host:port, the path of a socket, or redis://host:port")
		}
	}
}

// addServers adds the addresses of items, which are host:port or URLs, to Addrs. It returns the first credentials in
// them. defaultPort is that of URLs; errors call an item what.
func (c *Redis) addServers(items []string, defaultPort, what string, refuse func(fix string)) (auth string) {
	for _, item := range items {
		server, ok := c.parseServer(item, defaultPort)
		if !ok {
			refuse(what + " is not host:port")
			return auth
		}
		if c.Type == "CLUSTER" && server.db != "" && server.db != "0" {
			refuse("a cluster has no databases: leave the number out")
		}
		c.Addrs = append(c.Addrs, server.addr)
		auth = cmp.Or(auth, server.auth)
	}
	return auth
}

// redisServer is the address of a server, and the credentials and database of its URL.
type redisServer struct{ addr, auth, db string }

// parseServer reads host:port, or a URL, which sets TLS if it starts with rediss://. ok is false if text is neither.
func (c *Redis) parseServer(text, defaultPort string) (server redisServer, ok bool) {
	if !strings.Contains(text, "://") {
		return redisServer{addr: text}, isHostPort(text)
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "redis" && u.Scheme != "rediss" || u.Hostname() == "" {
		return redisServer{}, false
	}
	q := u.Query()
	server.addr = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), defaultPort))
	server.db = cmp.Or(q.Get("db"), strings.Trim(u.Path, "/"))
	if password, ok := u.User.Password(); ok {
		server.auth = u.User.Username() + ":" + password
	} else if q.Get("password") != "" {
		server.auth = q.Get("username") + ":" + q.Get("password")
	}
	if _, err := strconv.ParseUint(cmp.Or(server.db, "0"), 10, 31); err != nil {
		return redisServer{}, false
	}
	c.TLS = c.TLS || u.Scheme == "rediss"
	return server, isHostPort(server.addr)
}

// isHostPort reports whether text is host:port, with a port from 1 to 65535.
func isHostPort(text string) bool {
	host, port, err := net.SplitHostPort(text)
	n, err2 := strconv.ParseUint(port, 10, 16)
	return err == nil && err2 == nil && host != "" && n > 0
}
