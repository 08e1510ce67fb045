package redis

import (
	"testing"

	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/remotetest"
)

// do returns the start or the repair of a fault that is a command.
func do(command ...any) func(testing.TB, remotetest.Server, *harness.Proxy) {
	return func(t testing.TB, s remotetest.Server, _ *harness.Proxy) {
		s.Process.(*redistest.Server).Do(t, command...)
	}
}

// suite is the driver of Redis for remotetest.
var suite = remotetest.Driver{
	Start: func(t testing.TB, certs *harness.Certificates, pair harness.Pair) remotetest.Server {
		o := redistest.Options{TLS: certs, Certificate: pair}
		if certs != nil { // A login takes further round trips when a connection is made.
			o.Password = "secret"
		}
		s := redistest.Start(t, o)
		return remotetest.Server{Addr: s.Addr, Process: s}
	},
	Cluster: func(t testing.TB) ([]string, remotetest.Server) {
		c := redistest.StartCluster(t, redistest.ClusterOptions{})
		for _, s := range c.Nodes {
			s.Do(t, "CONFIG", "SET", "cluster-replica-no-failover", "yes") // a server that stands still keeps its slots
		}
		one := c.Primaries(t)[0]
		return c.Addrs, remotetest.Server{Addr: one.Addr, Process: one}
	},
	New: func(addrs []string, cfg remote.Config) (remotetest.Store, error) {
		c := Config{Addr: addrs[0], Config: cfg}
		if len(addrs) > 1 {
			c = Config{Cluster: addrs, Config: cfg}
		}
		if cfg.TLS != nil {
			c.DB, c.Credentials = "3", secret("secret")
		}
		s, err := New(c)
		if err != nil {
			return remotetest.Store{}, err
		}
		return remotetest.Store{Store: s, Stats: s.Stats}, nil
	},
	Key:     func(h *backend.Hit) []byte { return remote.AppendKey(nil, h, epoch.UnixNano(), false) },
	CauseOf: causeOf,
	Answer: func(t testing.TB, reply string) string {
		return parrot(t, func([]string) string { return reply })
	},
	ErrorReplies: []string{
		"-LOADING wait\r\n", "-READONLY no\r\n", "-OOM full\r\n", "-NOAUTH who\r\n",
		"-ERR max number of clients reached\r\n",
	},
	Faults: []remotetest.Fault{
		{
			Name: "full", Causes: []string{causeMemory},
			Start:  do("CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "1"),
			Repair: do("CONFIG", "SET", "maxmemory", "0"),
		},
		{
			Name: "read only", Causes: []string{causeReadOnly}, Start: do("REPLICAOF", "127.0.0.1", "1"),
			Repair: do("REPLICAOF", "NO", "ONE"),
		},
		{
			Name: "not allowed", Causes: []string{causeAuth},
			Start: do("ACL", "SETUSER", "default", "nocommands"), Repair: do("ACL", "SETUSER", "default",
				"allcommands"),
		},
		{
			Name: "revoked", Causes: []string{causeAuth},
			Start: func(t testing.TB, s remotetest.Server, p *harness.Proxy) {
				do("ACL", "SETUSER", "default", "resetpass", ">other")(t, s, p)
				do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")(t, s, p)
			},
			Repair: do("ACL", "SETUSER", "default", "nopass"),
		},
	},
}

func TestRemote(t *testing.T) { suite.Run(t) }
