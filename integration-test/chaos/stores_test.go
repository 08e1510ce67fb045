package chaos

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/memcachedtest"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/testfiles"
)

// storeName is a column of the table.
type storeName string

const (
	single    storeName = "Redis"
	sentinel  storeName = "Sentinel"
	cluster   storeName = "Cluster"
	memcached storeName = "Memcached"
)

var storeNames = []storeName{single, sentinel, cluster, memcached}

// patient is how long sentinels and nodes wait before they replace a server. It is
// longer than any fault, so that only the fault "failover" causes a failover.
const patient = time.Minute

// store is the servers of a column, which all its trials share. Faults are those
// of one of them, the victim: the one there is, or the primary, or the primary
// that has the first third of a cluster.
type store struct {
	name     storeName
	single   *redistest.Server
	sentinel *redistest.Sentinel
	cluster  *redistest.Cluster

	memcached *memcachedtest.Server
	way       *harness.Proxy // to memcached

	passwords string // a file
}

const firstPassword = "one"

func startStore(t *testing.T, name storeName) *store {
	t.Helper()
	s := &store{name: name, passwords: filepath.Join(t.TempDir(), "password")}
	s.putPassword(t, firstPassword)
	options := redistest.Options{Password: firstPassword, Proxy: true}
	switch name {
	case single:
		s.single = redistest.Start(t, options)
	case sentinel:
		s.sentinel = redistest.StartSentinel(t, redistest.SentinelOptions{Server: options, DownAfter: patient})
	case cluster:
		s.cluster = redistest.StartCluster(t, redistest.ClusterOptions{Server: options, NodeTimeout: patient})
	case memcached:
		s.memcached = memcachedtest.Start(t, memcachedtest.Options{Args: []string{"-M", "-m", "2"}}) // 2 MB, and no eviction
		s.way = harness.StartProxy(t, s.memcached.Addr)
	}
	return s
}

func (s *store) putPassword(t *testing.T, password string) {
	t.Helper()
	draft := s.passwords + ".draft"
	testfiles.Write(t, draft, password+"\n")
	if err := os.Rename(draft, s.passwords); err != nil {
		t.Fatal(err)
	}
}

// credentials are what is in the file.
func (s *store) credentials() (user, password string, err error) {
	text, err := os.ReadFile(s.passwords)
	return "", strings.TrimSpace(string(text)), err
}

// env points the service at the store. A host, if there is one, stands for the
// address of its proxy.
func (s *store) env(t *testing.T, host string) []string {
	t.Helper()
	named := func(addr string) string {
		if host == "" {
			return addr
		}
		_, port, err := net.SplitHostPort(addr)
		if err != nil {
			t.Fatal(err)
		}
		return net.JoinHostPort(host, port)
	}
	if s.name == memcached {
		return []string{"BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT=" + named(s.way.Addr)}
	}
	env := []string{"BACKEND_TYPE=redis", "REDIS_AUTH_FILE=" + s.passwords}
	switch s.name {
	case sentinel:
		return append(env, "REDIS_TYPE=sentinel",
			fmt.Sprintf("REDIS_URL=%s,%s", s.sentinel.PrimaryName, strings.Join(s.sentinel.SentinelAddrs, ",")))
	case cluster:
		return append(env, "REDIS_TYPE=cluster", "REDIS_URL="+strings.Join(s.cluster.Addrs, ","))
	}
	return append(env, "REDIS_URL="+named(s.single.PublicAddr()))
}

// servers are all that keep counts, of Redis.
func (s *store) servers() []*redistest.Server {
	switch s.name {
	case single:
		return []*redistest.Server{s.single}
	case sentinel:
		return s.sentinel.Servers
	case cluster:
		return s.cluster.Nodes
	}
	return nil
}

// victim is the Redis that has the fault. There is none for Memcached.
func (s *store) victim(t *testing.T) *redistest.Server {
	t.Helper()
	switch s.name {
	case sentinel:
		return s.sentinel.Primary(t)
	case cluster:
		return s.cluster.NodeForSlot(t, 0)
	}
	return s.single
}

// proxy is the way to the victim.
func (s *store) proxy(t *testing.T) *harness.Proxy {
	t.Helper()
	if s.name == memcached {
		return s.way
	}
	return s.victim(t).Proxy
}

// server is any victim's process.
type server interface {
	Pause()
	Resume()
	Kill()
	Restart(testing.TB)
}

func (s *store) server(t *testing.T) server {
	t.Helper()
	if s.name == memcached {
		return s.memcached
	}
	return s.victim(t)
}

// stands returns once a trial has left nothing behind that the next would suffer
// from.
func (s *store) stands(t *testing.T) {
	t.Helper()
	switch s.name {
	case sentinel:
		s.sentinel.Primary(t)
	case cluster:
		s.cluster.AwaitStable(t)
	}
}
