package memcached

import (
	"io"
	"net"
	"testing"

	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/memcachedtest"
	"ratelimit/testbed/remotetest"
)

// suite is the driver of Memcached for remotetest.
var suite = remotetest.Driver{
	Start: func(t testing.TB, certs *harness.Certificates, pair harness.Pair) remotetest.Server {
		s := memcachedtest.Start(t, memcachedtest.Options{TLS: certs, Certificate: pair})
		return remotetest.Server{Addr: s.Addr, Process: s}
	},
	AsksForCertificates: true,
	Cluster: func(t testing.TB) ([]string, remotetest.Server) {
		servers, addrs := three(t)
		return addrs, remotetest.Server{Addr: addrs[1], Process: servers[1]}
	},
	New: func(addrs []string, cfg remote.Config) (remotetest.Store, error) {
		s, err := New(Config{Servers: addrs, Config: cfg})
		if err != nil {
			return remotetest.Store{}, err
		}
		return remotetest.Store{Store: s.Store, Stats: s.Stats}, nil
	},
	Key:     func(h *backend.Hit) []byte { return appendKey(nil, h, epoch.UnixNano(), false, 0) },
	CauseOf: causeOf,
	Answer: func(t testing.TB, reply string) string {
		return liar(t, func(_ string, to net.Conn) { _, _ = io.WriteString(to, reply) })
	},
	ErrorReplies: []string{
		"SERVER_ERROR out of memory\r\n", "CLIENT_ERROR no\r\n",
		"ERROR Too many open connections\r\n",
	},
}

func TestRemote(t *testing.T) { suite.Run(t) }
