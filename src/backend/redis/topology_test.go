package redis

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
	"ratelimit/src/backend/redis/credentials"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/backendtest"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/limitertest"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/remotetest"
)

func secret(password string) credentials.Source {
	return credentials.PerConnection(func() (string, string, error) { return "", password, nil })
}

func TestSuiteOnSentinel(t *testing.T) {
	t.Parallel()
	set := redistest.StartSentinel(t, redistest.SentinelOptions{
		Password: "watch",
		Server:   redistest.Options{Password: "secret"},
	})
	cfg := Config{
		Credentials: secret("secret"),
		Sentinel:    &Sentinel{Primary: set.PrimaryName, Addrs: set.SentinelAddrs, Credentials: secret("watch")},
	}
	store, primary := open(t, cfg), set.Primary(t)
	some.Run(t, func(t *testing.T) backend.Backend {
		primary.Do(t, "FLUSHALL")
		return store
	})
}

// oneSlot gives all keys the same tag, so that any hits may be a group.
type oneSlot struct {
	backend.Backend
	tag string
}

func (s oneSlot) Take(ctx context.Context, b *backend.Batch) error {
	if err := b.Validate(); err != nil {
		return err
	}
	tagged := backend.Batch{Hits: make([]backend.Hit, len(b.Hits)), Verdicts: b.Verdicts, Now: b.Now}
	for i, h := range b.Hits {
		h.Key, h.TagLength = append([]byte(s.tag), h.Key...), len(s.tag)
		tagged.Hits[i] = h
	}
	return s.Backend.Take(ctx, &tagged)
}

func TestSuiteOnCluster(t *testing.T) {
	t.Parallel()
	certs := harness.NewCertificates(t)
	c := redistest.StartCluster(t, redistest.ClusterOptions{Server: redistest.Options{Password: "secret", TLS: certs}})
	cfg := Config{Cluster: c.Addrs[2:4], Credentials: secret("secret"), Config: remote.Config{TLS: clientTLS(t, certs)}}
	t.Run("one slot", func(t *testing.T) {
		tagged := cfg
		tagged.TagKeys = true
		store, opened := open(t, tagged), 0
		backendtest.Suite{UpstreamCounts: true, Brief: true}.Run(t, func(*testing.T) backend.Backend {
			opened++
			return oneSlot{store, fmt.Sprintf("tag%d_", opened)}
		})
	})
	t.Run("all nodes", func(t *testing.T) {
		testSpread(t, open(t, cfg))
	})
	t.Run("a group over two slots", func(t *testing.T) {
		s := open(t, cfg)
		hit := func(key string, limit uint64) backend.Hit {
			return backend.Hit{Key: []byte(key), Limit: window(limit, time.Hour), Amount: 1, Atomic: true}
		}
		// What stands in one slot stands or falls together; what is in another
		// does not know of it.
		b := backend.Batch{Now: epoch, Verdicts: make([]backend.Verdict, 4), Hits: []backend.Hit{
			hit("{a}1_", 5), hit("{b}1_", 5), hit("{a}2_", 0), hit("{b}2_", 5),
		}}
		if err := s.Take(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
		for i, charged := range []bool{false, true, false, true} {
			if v := b.Verdicts[i]; v.Err != nil || v.Charged != charged {
				t.Errorf("hit %d: %+v", i, v)
			}
		}
	})
}

// testSpread sends random batches whose hits are on all nodes, and asks the
// memory store what is right. The hits of a group share a slot.
func testSpread(t *testing.T, s *Store) {
	rnd := rand.New(rand.NewPCG(1, 1))
	referee := limitertest.Store(t, memory.Config{})
	for round := range 500 {
		var hits []backend.Hit
		for group := range 1 + rnd.IntN(4) {
			tag := rnd.IntN(20)
			atomicGroup := rnd.IntN(2) == 0
			for range 1 + rnd.IntN(3) {
				// A raised limit has another count in memory, so each counter keeps its limit.
				key := rnd.IntN(3)
				limit := window(uint64(tag+key), time.Hour)
				limit.CountBlocked = rnd.IntN(2) == 0
				op := algorithm.Op(rnd.IntN(4))
				hits = append(hits, backend.Hit{
					Key: fmt.Appendf(nil, "{t%d}k%d_", tag, key), Limit: limit, Amount: uint64(rnd.IntN(3)),
					Op: op, GroupID: uint16(group), Atomic: atomicGroup &&
						op != algorithm.Refund, NoVeto: rnd.IntN(4) == 0,
				})
			}
		}
		got := backend.Batch{Hits: hits, Verdicts: make([]backend.Verdict, len(hits)), Now: epoch}
		want := backend.Batch{Hits: hits, Verdicts: make([]backend.Verdict, len(hits)), Now: epoch}
		if err := errors.Join(s.Take(t.Context(), &got), referee.Take(t.Context(), &want)); err != nil {
			t.Fatal(err)
		}
		for i := range hits {
			if !reflect.DeepEqual(got.Verdicts[i], want.Verdicts[i]) {
				t.Fatalf("round %d, hit %d %+v:\n got %+v\nwant %+v", round, i, hits[i], got.Verdicts[i],
					want.Verdicts[i])
			}
		}
	}
}

// parrot answers each command with what say returns for its words, and PING with
// PONG, unless that is an error.
func parrot(t testing.TB, say func(words []string) string) string {
	t.Helper()
	l := harness.Listen(t)
	parrotAt(t, l, say)
	return l.Addr().String()
}

// parrotAt is a parrot behind l.
func parrotAt(t testing.TB, l net.Listener, say func(words []string) string) {
	t.Helper()
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				in := bufio.NewReader(conn)
				for {
					words, err := readCommand(in)
					if err != nil {
						return
					}
					reply := say(words)
					if words[0] == "PING" && !strings.HasPrefix(reply, "-") {
						reply = "+PONG\r\n"
					}
					if _, err := conn.Write([]byte(reply)); err != nil {
						return
					}
				}
			}()
		}
	}()
}

func readCommand(in *bufio.Reader) ([]string, error) {
	number := func() (int, error) {
		line, err := in.ReadString('\n')
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := number()
	if err != nil {
		return nil, err
	}
	words := make([]string, n)
	for i := range words {
		size, err := number()
		if err != nil {
			return nil, err
		}
		word := make([]byte, size+2)
		if _, err := io.ReadFull(in, word); err != nil {
			return nil, err
		}
		words[i] = string(word[:size])
	}
	return words, nil
}

// Whatever sentinels and nodes say of the layout, the store neither breaks nor
// hangs.
func TestOddLayouts(t *testing.T) {
	t.Parallel()
	for _, reply := range []string{
		"*-1\r\n", "$-1\r\n", ":1\r\n", "+OK\r\n", "-ERR no\r\n", "*0\r\n", "*1\r\n*0\r\n", "*1000000000\r\n",
		"*1\r\n$-1\r\n",
		"*2\r\n$2\r\nip\r\n$1\r\nx\r\n",
		"*6\r\n$2\r\nip\r\n$1\r\nx\r\n$4\r\nport\r\n$1\r\n0\r\n$12\r\nconfig-epoch\r\n$1\r\n1\r\n",
		"*6\r\n$2\r\nip\r\n$1\r\nx\r\n$4\r\nport\r\n$1\r\n1\r\n$12\r\nconfig-epoch\r\n$1\r\nx\r\n",
		"*1\r\n*3\r\n:0\r\n:16384\r\n*2\r\n$1\r\nx\r\n:1\r\n", "*1\r\n*3\r\n:-1\r\n:1\r\n*2\r\n$1\r\nx\r\n:1\r\n",
		"*1\r\n*3\r\n:2\r\n:1\r\n*2\r\n$1\r\nx\r\n:1\r\n",
		"*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$1\r\nx\r\n:0\r\n", "*1\r\n*3\r\n:0\r\n:1\r\n*1\r\n$1\r\nx\r\n",
		"*1\r\n*3\r\n:0\r\n:1\r\n:5\r\n", "\r\n", "x\r\n",
	} {
		addr := parrot(t, func([]string) string { return reply })
		for _, cfg := range []Config{
			{Cluster: []string{addr}},
			{Sentinel: &Sentinel{Primary: "p", Addrs: []string{addr}}},
		} {
			cfg.Timeout = faultTimeout
			s := open(t, cfg)
			clock := remotetest.StartClock()
			v := send(t, s, backend.Hit{Key: []byte("k_"), Limit: window(10, time.Hour), Amount: 1})
			took := clock.Now()
			clock.Stop()
			if v.Err == nil {
				t.Errorf("%q: %+v", reply, v)
			}
			if took > 2*faultTimeout {
				t.Errorf("%q: an answer after %v", reply, took)
			}
			if err := s.Ping(t.Context()); err == nil {
				t.Errorf("%q: a ping got through", reply)
			}
		}
	}
}

func bulks(words ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(words))
	for _, w := range words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
	}
	return b.String()
}

// sentinelSays is what a sentinel answers that knows of no other.
func sentinelSays(words []string, host, port, epoch string) string {
	switch words[1] {
	case "SENTINELS":
		return "*0\r\n"
	case "GET-MASTER-ADDR-BY-NAME":
		return bulks(host, port)
	}
	return bulks("name", "p", "ip", host, "port", port, "config-epoch", epoch)
}

// After a failover, sentinels that have not heard of it are not believed; when
// all of them have forgotten it, they are in the end.
func TestOldNewsOfSentinels(t *testing.T) {
	t.Parallel()
	type answer struct{ port, epoch string }
	var answers [2]atomic.Pointer[answer]
	var addrs []string
	for i := range answers {
		addrs = append(addrs, parrot(t, func(words []string) string {
			a := answers[i].Load()
			if a.port == "" {
				return "-ERR no\r\n"
			}
			return sentinelSays(words, "192.0.2.1", a.port, a.epoch)
		}))
	}
	say := func(i int, port, epoch string) { answers[i].Store(&answer{port, epoch}) }
	var figures remote.Figures
	f := &sentinels{primaryName: "p", topologyServers: newTopologyServers(openAccess(faultTimeout, &figures), addrs)}
	defer f.close()
	find := func(want string) {
		t.Helper()
		got, err := f.findLayout(t.Context(), true)
		switch {
		case want == "" && err == nil:
			t.Errorf("it believes in %v", got.Addrs)
		case want != "" && (err != nil || got.Addrs[0] != "192.0.2.1:"+want):
			t.Errorf("got %v, %v, want %s", got.Addrs, err, want)
		}
	}
	say(0, "1", "1")
	say(1, "1", "1")
	find("1")
	say(0, "2", "2")
	for range 5 { // whichever is asked first
		f.newestEpoch = 2
		find("2")
	}
	say(0, "", "")
	say(1, "", "")
	for range resetAfterOldReplies { // no sentinel answers, which is not to know less
		find("")
	}
	say(0, "1", "1")
	for range resetAfterOldReplies - 1 {
		find("")
	}
	find("1")
	find("1")
}

// openAccess returns how to connect to a server that wants no credentials.
func openAccess(timeout time.Duration, figures *remote.Figures) *remote.Access {
	return &remote.Access{
		Name: "redis", Opener: &opener{network: "tcp"}, Timeout: timeout, DialTimeout: time.Second,
		Figures: figures,
	}
}

// Of the other sentinels those count that are there, and one that does not tell
// of them is not left for it.
func TestSentinelsLearn(t *testing.T) {
	t.Parallel()
	list := func(flags ...string) string {
		reply := fmt.Sprintf("*%d\r\n", len(flags))
		for i, f := range flags {
			reply += bulks("name", "x", "ip", "192.0.2.1", "port", strconv.Itoa(i+1), "flags", f)
		}
		return reply
	}
	for _, tt := range []struct {
		says   string
		learns []string
	}{
		{
			list("sentinel", "s_down,sentinel,disconnected", "sentinel,disconnected", "sentinel"),
			[]string{"192.0.2.1:1", "192.0.2.1:4"},
		},
		{list("s_down,sentinel", "s_down,sentinel"), nil}, // it is cut off
		{"*0\r\n", nil},
		{"-NOPERM no\r\n", nil},
	} {
		var addrs []string
		for range 3 {
			addrs = append(addrs, parrot(t, func(words []string) string {
				if words[1] == "SENTINELS" {
					return tt.says
				}
				return sentinelSays(words, "192.0.2.1", "1", "1")
			}))
		}
		var figures remote.Figures
		f := &sentinels{primaryName: "p", topologyServers: newTopologyServers(openAccess(faultTimeout, &figures),
			addrs)}
		for range 3 {
			if _, err := f.findLayout(t.Context(), false); err != nil {
				t.Error(err)
			}
		}
		f.close()
		for _, a := range addrs {
			f.topologyServers.addrsToAsk = slices.DeleteFunc(f.topologyServers.addrsToAsk,
				func(b string) bool { return a == b })
		}
		if !slices.Equal(f.topologyServers.addrsToAsk, tt.learns) {
			t.Errorf("%q: it learns of %v, want %v", tt.says, f.topologyServers.addrsToAsk, tt.learns)
		}
		if n := figures.Dials.Load(); n != 1 {
			t.Errorf("%q: %d connections", tt.says, n)
		}
	}
}

// The sentinel that carries out a failover has the new epoch and names the old
// primary, which still takes hits, until the last replica follows the new one.
func TestFailoverUnderWay(t *testing.T) {
	t.Parallel()
	set := redistest.StartSentinel(t, redistest.SentinelOptions{})
	old := set.Primary(t)
	for _, s := range set.Servers {
		if s != old { // this one will not be told, nor chosen
			s.Do(t, "ACL", "SETUSER", "redistest", "-replicaof", "-slaveof")
			s.Do(t, "CONFIG", "SET", "replica-priority", "0")
			break
		}
	}
	var figures remote.Figures
	var finders []*sentinels
	for _, addr := range set.SentinelAddrs {
		f := &sentinels{
			primaryName:     set.PrimaryName,
			topologyServers: newTopologyServers(openAccess(5*time.Second, &figures), []string{addr}),
		}
		defer f.close()
		finders = append(finders, f)
	}
	leader := set.Sentinels[0]
	harness.Await(t, 20*time.Second, "whom not to choose", func() error {
		for _, v := range leader.Do(t, "SENTINEL", "REPLICAS", set.PrimaryName).([]any) {
			if pairsToMap(v.([]any))["slave-priority"] == "0" {
				return nil
			}
		}
		return errors.New("not known yet")
	})
	leader.Do(t, "SENTINEL", "FAILOVER", set.PrimaryName)
	harness.Await(t, 20*time.Second, "the end of the failover", func() error {
		agreed := 0
		for i, f := range finders {
			found, err := f.findLayout(t.Context(), false)
			if err != nil {
				return err
			}
			if f.newestEpoch > 0 && found.Addrs[0] == old.Addr {
				t.Errorf("with epoch %d sentinel %d is believed to name the old primary", f.newestEpoch, i)
				return nil
			}
			if found.Addrs[0] != old.Addr {
				agreed++
			}
		}
		if agreed < len(finders) {
			return errors.New("not all name the new one")
		}
		return nil
	})
}

// Nodes that do not know their own name leave it out.
func TestReadSlots(t *testing.T) {
	t.Parallel()
	reply := []any{
		[]any{int64(0), int64(99), []any{"", int64(7000), "id"}, []any{"10.0.0.2", int64(7001)}},
		[]any{int64(100), int64(16382), []any{"::1", int64(7002)}},
		[]any{int64(16383), int64(16383), []any{"", int64(7000), "id"}, []any{"10.0.0.2", int64(7001)}},
	}
	l, all, err := readSlotsReply(reply, "10.0.0.1:6379")
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"10.0.0.1:7000", "[::1]:7002"}; !reflect.DeepEqual(l.Addrs, want) {
		t.Errorf("primaries %v, want %v", l.Addrs, want)
	}
	if want := []string{"10.0.0.1:7000", "10.0.0.2:7001", "[::1]:7002"}; !reflect.DeepEqual(all, want) {
		t.Errorf("all %v, want %v", all, want)
	}
	if l.SlotOwners[0] != 1 || l.SlotOwners[99] != 1 || l.SlotOwners[100] != 2 || l.SlotOwners[16383] != 1 {
		t.Errorf("slots %v", l.SlotOwners)
	}
}

// A layout, or a reply, may claim anything: it makes no more nodes than a cluster can
// have, and no long lines in a log.
func TestHostileLayouts(t *testing.T) {
	name := strings.Repeat("n", 1<<20)
	var everySlot strings.Builder
	fmt.Fprintf(&everySlot, "*%d\r\n", clusterSlots)
	for slot := range clusterSlots {
		fmt.Fprintf(&everySlot, "*3\r\n:%d\r\n:%d\r\n*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n", slot, slot, 10_000+slot)
	}
	for what, reply := range map[string]string{
		"a node for each slot": everySlot.String(),
		"a long name": fmt.Sprintf("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$%d\r\n%s\r\n:7000\r\n", len(name),
			name),
		"no slot numbers": fmt.Sprintf("*1\r\n*3\r\n$%d\r\n%s\r\n:16383\r\n*2\r\n$1\r\na\r\n:7000\r\n", len(name),
			name),
		"a long error":    "-ERR " + name[:3000] + "\r\n",
		"an endless line": "-ERR " + name + "\r\n",
	} {
		t.Run(what, func(t *testing.T) {
			addr := parrot(t, func([]string) string { return reply })
			before := runtime.NumGoroutine()
			s := open(t, Config{Cluster: []string{addr}, Config: remote.Config{Timeout: 20 * time.Second}})
			v := send(t, s, hot(0))
			if v.Err == nil || len(v.Err.Error()) > 1024 {
				t.Errorf("got %.2000v", v.Err)
			}
			if n := runtime.NumGoroutine() - before; n > 100 {
				t.Errorf("%d goroutines more", n)
			}
		})
	}
}

func TestRedirectOf(t *testing.T) {
	t.Parallel()
	for reply, want := range map[Error]*remote.Redirect{
		"MOVED 1 10.0.0.2:7001": {ToAddr: "10.0.0.2:7001"},
		"ASK 1 10.0.0.2:7001":   {ToAddr: "10.0.0.2:7001", SendAsking: true},
		"MOVED 1 :7001":         {ToAddr: "10.0.0.1:7001"},
		"MOVED 1 ?:7001":        {ToAddr: "10.0.0.1:7001"},
		"MOVED 1 ::1:7001":      {ToAddr: "[::1]:7001"},
		"MOVED 1 [::1]:7001":    {ToAddr: "[::1]:7001"},
		"TRYAGAIN later":        {AfterPause: true},
		"MOVED 1 10.0.0.2":      nil,
		"MOVED 1 10.0.0.2:x":    nil,
		"MOVED":                 nil,
	} {
		got := redirectFromReply(reply, "10.0.0.1:6379")
		if want == nil {
			if got != error(reply) {
				t.Errorf("%q: got %+v", reply, got)
			}
			continue
		}
		want.Err = reply
		if !reflect.DeepEqual(got, error(want)) {
			t.Errorf("%q: got %+v, want %+v", reply, got, want)
		}
	}
}

// A key whose slot no node has is an error at once, and those beside it are
// counted.
func TestASlotWithoutANode(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	_, port, err := net.SplitHostPort(server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	slot := redistest.KeySlot("k_1767225600")
	addr := parrot(t, func([]string) string {
		return fmt.Sprintf("*1\r\n*3\r\n:%d\r\n:%d\r\n*2\r\n$9\r\n127.0.0.1\r\n:%s\r\n", slot, slot, port)
	})
	s := open(t, Config{Cluster: []string{addr}, Config: remote.Config{Timeout: 5 * time.Second}})
	b := backend.Batch{Now: epoch, Verdicts: make([]backend.Verdict, 2), Hits: []backend.Hit{
		{Key: []byte("k_"), Limit: window(10, time.Hour), Amount: 1},
		{Key: []byte("other_"), Limit: window(10, time.Hour), Amount: 1, GroupID: 1},
	}}
	if err := s.Take(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	if v := b.Verdicts[0]; v.Err != nil || v.After != 1 {
		t.Errorf("got %+v", v)
	}
	if v := b.Verdicts[1]; !errors.Is(v.Err, remote.ErrSlotWithoutNode) {
		t.Errorf("got %+v", v)
	}
}

// sentinelOf is a sentinel that names the server at addr.
func sentinelOf(t *testing.T, addr string) string {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	return parrot(t, func(words []string) string { return sentinelSays(words, host, port, "1") })
}

// ACLs often forbid what is dangerous, and to Redis ROLE is.
func TestRoleIsForbidden(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	server.Do(t, "ACL", "SETUSER", "default", "-@dangerous")
	s := open(t, Config{Sentinel: &Sentinel{Primary: "p", Addrs: []string{sentinelOf(t, server.Addr)}}})
	for range 5 {
		if v := send(t, s, hot(0)); v.Err != nil {
			t.Error(v.Err)
		}
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

// A server that takes connections, but is of no use, is not dialled as often as
// we are called; nor is what stands before one that is down.
func TestUselessServer(t *testing.T) {
	t.Parallel()
	for _, reply := range []string{"-LOADING wait\r\n", "-READONLY no\r\n", "-NOAUTH who\r\n", "?\r\n"} {
		var says atomic.Pointer[string]
		says.Store(&reply)
		s := open(t, Config{
			Addr:   parrot(t, func([]string) string { return *says.Load() }),
			Config: remote.Config{Connections: 1},
		})
		begun, calls := time.Now(), 0
		for ; calls < 2000; calls++ {
			if v := send(t, s, hot(0)); v.Err == nil {
				t.Fatalf("%q: %+v", reply, v)
			}
		}
		// One at once, and then after 5 ms at least.
		if n := s.Stats().Dials; n > 1+int64(time.Since(begun)/(5*time.Millisecond)) {
			t.Errorf("%q: %d connections for %d calls in %v", reply, n, calls, time.Since(begun))
		}
		well := ":1\r\n"
		says.Store(&well)
		harness.Await(t, 10*time.Second, "answers", func() error { return send(t, s, hot(0)).Err })
	}
}

// slotsOf is what a node says of a cluster whose slots the servers at addrs
// have, in equal parts.
func slotsOf(t *testing.T, addrs ...string) string {
	t.Helper()
	reply := fmt.Sprintf("*%d\r\n", len(addrs))
	for i, addr := range addrs {
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			t.Fatal(err)
		}
		reply += fmt.Sprintf("*3\r\n:%d\r\n:%d\r\n*2\r\n$%d\r\n%s\r\n:%s\r\n",
			i*clusterSlots/len(addrs), (i+1)*clusterSlots/len(addrs)-1, len(host), host, port)
	}
	return reply
}

// The servers that were configured may go, once others are known, and of a
// cluster all but one: as long as calls are answered, so is a ping.
func TestPing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	gone := harness.StartProxy(t, server.Addr)
	gone.Blackhole()
	seed := harness.StartProxy(t, parrot(t, func([]string) string { return slotsOf(t, server.Addr, gone.Addr) }))
	sentinel := harness.StartProxy(t, sentinelOf(t, server.Addr))
	for _, cfg := range []Config{
		{Cluster: []string{seed.Addr}},
		{Sentinel: &Sentinel{Primary: "p", Addrs: []string{sentinel.Addr}}},
	} {
		cfg.Timeout = faultTimeout
		s := open(t, cfg)
		harness.Await(t, 20*time.Second, "a layout", func() error {
			if s.Stats().Servers == 0 {
				return errors.New("none yet")
			}
			return nil
		})
		seed.Refuse()
		seed.Reset()
		sentinel.Refuse()
		sentinel.Reset()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := s.Ping(ctx); err != nil {
			t.Error(err)
		}
		seed.Heal()
		sentinel.Heal()
	}
}

// A hit that is sent on to a node that is not known yet gets there, though those
// that are asked for the layout do not answer just then.
func TestDiscovered(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	var addr string
	var asked atomic.Int64
	over := make(chan struct{})
	addr = parrot(t, func(words []string) string {
		switch {
		case words[0] != "CLUSTER":
			return "-MOVED 1 " + server.Addr + "\r\n"
		case asked.Add(1) > 1:
			<-over
		}
		return slotsOf(t, addr)
	})
	defer close(over)
	s := open(t, Config{Cluster: []string{addr}, Config: remote.Config{Timeout: 20 * time.Second}})
	harness.Await(t, 20*time.Second, "a look without an answer", func() error {
		if asked.Load() < 2 {
			return errors.New("not yet")
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	b := backend.Batch{Hits: []backend.Hit{hot(0)}, Verdicts: make([]backend.Verdict, 1), Now: epoch}
	if err := errors.Join(s.Take(ctx, &b), b.Verdicts[0].Err); err != nil {
		t.Error(err)
	}
	if n := s.Stats().ResentHits; n != 1 {
		t.Errorf("%d hits were sent on, want 1", n)
	}
}
