package memcached

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"ratelimit/src/backend/remote"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/memcachedtest"
)

// zone is a DNS server that knows one SRV record.
type zone struct {
	resolver *net.Resolver

	mu      sync.Mutex
	targets []string // host:port
	broken  bool
	asked   int
}

const record = "_memcache._tcp.example.com."

func startZone(t *testing.T, targets ...string) *zone {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	z := &zone{targets: targets}
	z.resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
	var serving sync.WaitGroup
	serving.Go(func() {
		buffer := make([]byte, 2048)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			reply, err := z.answer(buffer[:n])
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = conn.WriteTo(reply, from)
		}
	})
	t.Cleanup(func() {
		_ = conn.Close()
		serving.Wait()
	})
	return z
}

func (z *zone) answer(query []byte) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil {
		return nil, err
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	z.asked++
	m.Response, m.Additionals = true, nil
	q := m.Questions[0]
	switch {
	case z.broken:
		m.RCode = dnsmessage.RCodeServerFailure
	case q.Name.String() != record || q.Type != dnsmessage.TypeSRV:
		m.RCode = dnsmessage.RCodeNameError
	default:
		for _, target := range z.targets {
			host, port, err := net.SplitHostPort(target)
			if err != nil {
				return nil, err
			}
			n, err := strconv.Atoi(port)
			if err != nil {
				return nil, err
			}
			m.Answers = append(m.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 1},
				Body: &dnsmessage.SRVResource{
					Priority: 1, Weight: uint16(len(m.Answers)), Port: uint16(n),
					Target: dnsmessage.MustNewName(host + "."),
				},
			})
		}
	}
	return m.Pack()
}

func (z *zone) set(broken bool, targets ...string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.broken, z.targets = broken, targets
}

func (z *zone) lookups() int {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.asked
}

func srv(refresh time.Duration) *SRV {
	return &SRV{Service: "memcache", Proto: "tcp", Name: "example.com", RefreshPause: refresh}
}

// named are addresses as a record may name them: the resolver takes no numbers
// for names.
func named(addrs ...string) []string {
	list := make([]string, len(addrs))
	for i, addr := range addrs {
		_, port, _ := net.SplitHostPort(addr)
		list[i] = net.JoinHostPort("localhost", port)
	}
	slices.Sort(list)
	return list
}

// usedServers waits until the store uses these.
func usedServers(t *testing.T, s *Store, want ...string) {
	t.Helper()
	harness.Await(t, 20*time.Second, "other servers", func() error {
		if got := s.Table().Addrs; !slices.Equal(got, want) {
			return fmt.Errorf("it uses %v", got)
		}
		return nil
	})
}

// The servers follow the record; while it cannot be looked up they stay.
func TestSRV(t *testing.T) {
	t.Parallel()
	servers, addrs := three(t)
	addrs = named(addrs...)
	z := startZone(t, addrs[2], addrs[0])
	var mu sync.Mutex
	var changes []ServersChange
	s := open(t, Config{
		SRV: srv(20 * time.Millisecond), Resolver: z.resolver,
		OnServersChange: func(c ServersChange) {
			mu.Lock()
			defer mu.Unlock()
			changes = append(changes, c)
		},
	})
	usedServers(t, s, addrs[0], addrs[2])
	total := func() (sum int) {
		for _, server := range servers {
			n, _ := strconv.Atoi(server.Stats(t)["total_items"])
			sum += n
		}
		return sum
	}
	for n := range 200 {
		if v := send(t, s, spread(n)); v.Before != 0 || v.Err != nil {
			t.Fatalf("got %+v", v)
		}
	}
	for _, broken := range [][]string{nil, {}} {
		z.set(broken == nil, broken...)
		before := s.Counts.FailedLookups.Load()
		harness.Await(t, 20*time.Second, "a lookup that fails", func() error {
			if s.Counts.FailedLookups.Load() == before {
				return errors.New("none yet")
			}
			return nil
		})
		if v := send(t, s, spread(0)); v.Err != nil {
			t.Errorf("got %+v", v)
		}
	}
	z.set(false, addrs...)
	usedServers(t, s, addrs...)
	moved := 0
	for n := 1; n < 200; n++ {
		v := send(t, s, spread(n))
		if v.Err != nil {
			t.Fatal(v.Err)
		}
		if v.Before == 0 {
			moved++
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(changes) != 1 || !slices.Equal(changes[0].After, addrs) || len(changes[0].Before) != 2 ||
		s.Counts.ServerChanges.Load() != 1 {
		t.Fatalf("the changes are %+v", changes)
	}
	if said := changes[0].MovedKeyShare; moved < 80 || moved == 199 || said < 0.6 || said > 0.7 {
		t.Errorf("%d of 199 keys moved, and %.2f were told of", moved, said)
	}
	if total() < 200+moved {
		t.Errorf("the servers were given %d counters", total())
	}
}

// A server that leaves the list finishes what it was given; nothing is left of it.
func TestSRVUnderLoad(t *testing.T) {
	t.Parallel()
	_, addrs := three(t)
	addrs = named(addrs...)
	z := startZone(t, addrs...)
	s := open(t, Config{SRV: srv(5 * time.Millisecond), Resolver: z.resolver, Config: remote.Config{Connections: 2}})
	usedServers(t, s, addrs...)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for c := range 8 {
		wg.Go(func() {
			for n := c; ; n += 8 {
				select {
				case <-stop:
					return
				default:
				}
				if v := send(t, s, spread(n)); v.Err != nil {
					t.Error(v.Err)
					return
				}
			}
		})
	}
	for round := range 6 {
		list := addrs[:2+round%2]
		z.set(false, list...)
		usedServers(t, s, list...)
	}
	close(stop)
	wg.Wait()
	z.set(false, addrs[0])
	usedServers(t, s, addrs[0])
	harness.Await(t, 20*time.Second, "the connections of servers that left are closed", func() error {
		if n := s.Stats().OpenConnections; n > 2 {
			return fmt.Errorf("%d are open", n)
		}
		return nil
	})
}

// Without a refresh the record is looked up until it is found, and no more.
func TestSRVOnce(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t, memcachedtest.Options{})
	z := startZone(t)
	s := open(t, Config{SRV: srv(0), Resolver: z.resolver})
	if v := send(t, s, hot(0)); causeOf(v.Err) != causeServers {
		t.Errorf("got %+v", v)
	}
	if s.Ping(t.Context()) == nil {
		t.Error("it can be reached without a server")
	}
	z.set(false, named(server.Addr)...)
	usedServers(t, s, named(server.Addr)...)
	if v := send(t, s, hot(0)); v.Err != nil {
		t.Error(v.Err)
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	if s.Counts.ServerChanges.Load() != 0 {
		t.Error("to find the servers is no change")
	}
	before := z.lookups()
	z.set(true)
	for n := range 100 {
		send(t, s, spread(n))
	}
	if n := z.lookups(); n != before {
		t.Errorf("looked up %d times more", n-before)
	}
}
