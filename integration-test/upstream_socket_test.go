package integration

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// sink is a socket that statsd lines are sent to.
type sink struct {
	protocol string
	addr     net.Addr
	listener io.Closer
	reading  sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
	stats []stat
	odd   []string // lines that could not be read
}

// stat is one line, "name:value|kind|#tag,tag".
type stat struct {
	name        string // with "#" and the sorted tags, if there are any
	value, kind string
}

// listenSink listens until the test ends.
func listenSink(t *testing.T, protocol, address string) *sink {
	t.Helper()
	s := &sink{protocol: protocol}
	switch protocol {
	case "tcp":
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		s.addr, s.listener = l.Addr(), l
		s.reading.Go(func() { s.accept(l) })
	case "udp":
		c, err := net.ListenPacket("udp", address)
		if err != nil {
			t.Fatal(err)
		}
		s.addr, s.listener = c.LocalAddr(), c
		s.reading.Go(func() { s.receive(c) })
	}
	t.Cleanup(func() { s.close(t) })
	return s
}

func (s *sink) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return // closed
		}
		s.mu.Lock()
		s.conns = append(s.conns, conn)
		s.mu.Unlock()
		s.reading.Go(func() {
			lines := bufio.NewReader(conn)
			for {
				line, err := lines.ReadString('\n')
				if err != nil {
					return // closed, perhaps in the middle of a line
				}
				s.add(strings.TrimSuffix(line, "\n"))
			}
		})
	}
}

func (s *sink) receive(c net.PacketConn) {
	buf := make([]byte, 64<<10)
	for {
		n, _, err := c.ReadFrom(buf)
		if err != nil {
			return // closed
		}
		for line := range strings.Lines(string(buf[:n])) {
			s.add(strings.TrimSuffix(line, "\n"))
		}
	}
}

func (s *sink) add(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	part := strings.Split(line, "|")
	colon := strings.LastIndex(part[0], ":")
	if colon < 0 || len(part) < 2 {
		s.odd = append(s.odd, line)
		return
	}
	st := stat{name: part[0][:colon], value: part[0][colon+1:], kind: part[1]}
	for _, p := range part[2:] {
		if tags, ok := strings.CutPrefix(p, "#"); ok {
			list := strings.Split(tags, ",")
			slices.Sort(list)
			st.name += "#" + strings.Join(list, ",")
		}
	}
	s.stats = append(s.stats, st)
}

// close ends all listening and fails the test if a line could not be read. A
// second call does nothing.
func (s *sink) close(t *testing.T) {
	t.Helper()
	if s.listener == nil {
		return
	}
	if err := s.listener.Close(); err != nil {
		t.Error(err)
	}
	s.listener = nil
	s.mu.Lock()
	for _, c := range s.conns {
		_ = c.Close() // the other side may have closed it
	}
	s.mu.Unlock()
	s.reading.Wait()
	if len(s.odd) > 0 {
		t.Errorf("%d lines are no stats: %q", len(s.odd), s.odd[0])
	}
}

func portOf(t *testing.T, addr net.Addr) string {
	t.Helper()
	_, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// send sends a line to the sink itself.
func (s *sink) send(t *testing.T, line string) {
	t.Helper()
	c, err := net.Dial(s.protocol, s.addr.String())
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.WriteString(c, line)
	if err := errors.Join(err, c.Close()); err != nil {
		t.Fatal(err)
	}
}

// all is what has come so far.
func (s *sink) all() []stat {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.stats)
}

// values are those of one name and kind.
func (s *sink) values(name, kind string) []string {
	var values []string
	for _, st := range s.all() {
		if st.name == name && st.kind == kind {
			values = append(values, st.value)
		}
	}
	return values
}

// sums adds up the counters.
func (s *sink) sums() map[string]int64 {
	sums := make(map[string]int64)
	for _, st := range s.all() {
		if n, err := strconv.ParseFloat(st.value, 64); st.kind == "c" && err == nil {
			sums[st.name] += int64(n)
		}
	}
	return sums
}

// adds reports whether the counters have come to these, and no rule's counter
// beside them.
func (s *sink) adds(want map[string]int64) error { return sameCounts(s.sums(), want) }

func sameCounts(got, want map[string]int64) error {
	got = maps.Clone(got)
	maps.DeleteFunc(got, func(name string, _ int64) bool {
		_, wanted := want[name]
		return !wanted && !strings.HasPrefix(name, ruleStats)
	})
	if !maps.Equal(got, want) {
		return fmt.Errorf("got %v, want %v", got, want)
	}
	return nil
}
