package connlimit

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"ratelimit/src/sockets"
	"ratelimit/testbed/harness"
)

// fakeListener accepts what is sent on its channel: a *fakeConn or an error.
type fakeListener chan any

func (l fakeListener) Accept() (net.Conn, error) {
	switch next := (<-l).(type) {
	case *fakeConn:
		return next, nil
	case error:
		return nil, next
	}
	return nil, net.ErrClosed
}

func (l fakeListener) Close() error   { close(l); return nil }
func (l fakeListener) Addr() net.Addr { return nil }

// fakeConn takes all that is written, and reads as much as is asked for.
type fakeConn struct {
	net.Conn
	closed atomic.Bool
}

func (c *fakeConn) Read(p []byte) (int, error)  { return len(p), nil }
func (c *fakeConn) Write(p []byte) (int, error) { return len(p), nil }
func (c *fakeConn) Close() error                { c.closed.Store(true); return nil }

// port is a Listener under test.
type port struct {
	*Listener
	arrivals fakeListener
}

func newPort(cfg Config) port {
	arrivals := make(fakeListener, 2)
	return port{New(arrivals, cfg), arrivals}
}

// accept has a newcomer arrive. It returns nil if the newcomer was refused.
func (p port) accept() *Conn {
	raw := new(fakeConn)
	p.arrivals <- raw
	p.arrivals <- errNone
	c, _ := p.Accept()
	if c == nil {
		if !raw.closed.Load() {
			panic("a connection that was refused is open")
		}
		return nil
	}
	<-p.arrivals
	return c.(*Conn)
}

var errNone = errors.New("no connection")

func closed(c *Conn) bool { return c.Conn.(*fakeConn).closed.Load() }

// answer writes n times to c.
func answer(c *Conn, n int) {
	for range n {
		_, _ = c.Write([]byte("x"))
	}
}

// The steps: a letter accepts a connection of that name, "a!" answers it, "a*" makes
// it busy, "a." closes it, a digit passes so many seconds.
func TestWhichConnectionMakesRoom(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		max   int
		steps []string
		open  string // names of the connections that are open at the end
		stats Stats
	}{
		{"room is left", 3, []string{"a", "b", "c"}, "abc", Stats{Open: 3, Accepted: 3}},
		{"one that said nothing", 3, []string{"a", "b", "c", "d"}, "bcd", Stats{Open: 3, Accepted: 4, Evicted: 1}},
		{
			"the longest idle, not the oldest", 3,
			[]string{"a", "1", "b", "1", "c", "a!", "1", "d"},
			"acd",
			Stats{Open: 3, Accepted: 4, Evicted: 1},
		},
		{
			"one that was answered long ago", 2,
			[]string{"a", "a!", "1", "b", "b!", "3", "c", "d", "d!", "e"},
			"de",
			Stats{Open: 2, Accepted: 5, Evicted: 3},
		},
		{
			"none: all were just answered", 2,
			[]string{"a", "a!", "b", "b!", "c"},
			"ab",
			Stats{Open: 2, Accepted: 2, Refused: 1},
		},
		{"none: all are busy", 2, []string{"a", "a*", "b", "b*", "9", "c"}, "ab", Stats{Open: 2, Accepted: 2, Refused: 1}},
		{
			"one that was busy and got its answer", 2,
			[]string{"a", "a*", "b", "b*", "a!", "c", "9", "d"},
			"bd",
			Stats{Open: 2, Accepted: 3, Refused: 1, Evicted: 1},
		},
		{"none is needed after one has ended", 2, []string{"a", "b", "a.", "c"}, "bc", Stats{Open: 2, Accepted: 3}},
		// One of eight is left to newcomers, so one of the active ones makes room.
		{
			"an active one beyond seven eighths", 8,
			[]string{"a", "a!", "b", "b!", "c", "c!", "d", "d!", "e", "e!", "f", "f!", "g", "g!", "h", "h!", "i"},
			"abcdefgi",
			Stats{Open: 8, Accepted: 9, Evicted: 1},
		},
		{
			"one that was answered less often", 8,
			[]string{
				"a", "a!", "b", "b!", "c", "c!", "d", "d!", "e", "e!", "f", "f!", "g", "g!", "h", "h!", "h!", "i", "i!",
				"j",
			},
			"bcdefghj",
			Stats{Open: 8, Accepted: 10, Evicted: 2},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := newPort(Config{MaxConnections: tt.max})
				conns := make(map[byte]*Conn)
				for _, step := range tt.steps {
					c := conns[step[0]]
					switch {
					case step[0] <= '9':
						time.Sleep(time.Duration(step[0]-'0') * time.Second)
					case step[1:] == "!":
						answer(c, 1)
					case step[1:] == "*":
						c.MarkBusy()
					case step[1:] == ".":
						_ = c.Close()
					default:
						conns[step[0]] = p.accept()
					}
				}
				var open []byte
				for name, c := range conns {
					if c != nil && !closed(c) {
						open = append(open, name)
					}
				}
				slices.Sort(open)
				if string(open) != tt.open || p.Stats() != tt.stats {
					t.Errorf("open %s, %+v, want %s, %+v", open, p.Stats(), tt.open, tt.stats)
				}
				_ = p.Close()
			})
		})
	}
}

// Newcomers that say nothing, or as much as a handshake, close each other, and none
// of those that are answered: once a second, or once before the flood.
func TestFloodOfNewcomers(t *testing.T) {
	t.Parallel()
	for greeting, said := range map[int]int{0: 0, 3: 3} {
		t.Run(fmt.Sprintf("greeting of %d writes", greeting), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := newPort(Config{MaxConnections: 1000, GreetingWrites: greeting})
				var active, quiet []*Conn
				for range 200 {
					a, q := p.accept(), p.accept()
					answer(a, greeting+1)
					answer(q, greeting+1)
					active, quiet = append(active, a), append(quiet, q)
				}
				for range 10 {
					for range 5000 {
						answer(p.accept(), said)
						time.Sleep(time.Second / 5000)
					}
					for _, c := range active {
						answer(c, 1)
					}
				}
				for _, c := range append(active, quiet...) {
					if closed(c) {
						t.Fatal("a connection that was answered is closed")
					}
				}
				if st := p.Stats(); st.Refused > 0 || st.Open != 1000 || st.Evicted != 400+10*5000-1000 {
					t.Errorf("%+v, want none refused", st)
				}
				_ = p.Close()
			})
		})
	}
}

// While more than three quarters are open, idle connections are closed early.
func TestIdleUnderPressure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPort(Config{MaxConnections: 8, MaxIdleUnderPressure: 10 * time.Second})
		var conns []*Conn
		for range 6 {
			conns = append(conns, p.accept())
		}
		time.Sleep(time.Minute)
		if st := p.Stats(); st.Open != 6 {
			t.Fatalf("without pressure: %+v, want 6 open", st)
		}
		conns = append(conns, p.accept(), p.accept())
		answer(conns[0], 1)
		conns[1].MarkBusy()
		time.Sleep(2 * time.Second)
		if st := p.Stats(); st.ClosedIdle != 2 || closed(conns[0]) || closed(conns[1]) || closed(conns[7]) {
			t.Errorf("under pressure: %+v, want 2 expired until pressure ends, none that is active, busy or new", st)
		}
		_ = p.Close()
	})
}

// A port without file descriptors makes room and waits for its server to try again.
func TestOutOfDescriptors(t *testing.T) {
	t.Parallel()
	p := newPort(Config{MaxConnections: 8})
	a, b := p.accept(), p.accept()
	p.arrivals <- &net.OpError{Op: "accept", Err: syscall.EMFILE}
	c, err := p.Accept()
	if temporary, ok := err.(interface{ Temporary() bool }); c != nil || !ok || !temporary.Temporary() {
		t.Errorf("%v, %v, want the temporary error", c, err)
	}
	if !closed(a) || closed(b) || p.Stats().Evicted != 1 {
		t.Errorf("%+v, want the longest idle connection closed", p.Stats())
	}
	p.arrivals <- errNone
	if _, err := p.Accept(); !errors.Is(err, errNone) || closed(b) {
		t.Errorf("%v, closed %t, want another error to close nothing", err, closed(b))
	}
}

// Bytes that were read count until the answer, those being written meanwhile.
func TestBudget(t *testing.T) {
	t.Parallel()
	b := NewMemoryBudget(1000)
	p := newPort(Config{MaxConnections: 8, MemoryBudget: b})
	small, large := p.accept(), p.accept()
	read := func(c *Conn, n int) { _, _ = c.Read(make([]byte, n)) }
	read(small, 100)
	read(large, 500)
	answer(large, 1)
	if b.HeldBytes() != 600 {
		t.Errorf("%d bytes held, want 600", b.HeldBytes())
	}
	large.MarkAnswered()
	read(large, 400)
	if b.HeldBytes() != 500 {
		t.Errorf("%d bytes held after an answer, want 500", b.HeldBytes())
	}
	read(large, 300)
	read(small, 300)
	if !closed(large) || closed(small) || b.HeldBytes() != 400 || p.Stats().ClosedOverBudget != 1 || p.Stats().Open != 1 {
		t.Errorf("%d bytes held, %+v, want the larger one closed and 400 held", b.HeldBytes(), p.Stats())
	}
	if _, err := large.Write([]byte("x")); err == nil {
		t.Error("a closed connection can be written to")
	}
	_, _ = small.Write(make([]byte, 700))
	if !closed(small) || b.HeldBytes() != 0 {
		t.Errorf("%d bytes held, want an answer that does not fit to close its connection", b.HeldBytes())
	}
	p.cfg.MaxConnections = 0
	if p.accept() != nil || b.HeldBytes() != 0 {
		t.Error("a connection was accepted though there is no room")
	}
}

// A flood on a full port whose connections are all answered between two newcomers.
func BenchmarkAcceptWhenFull(b *testing.B) {
	for _, open := range []int{1000, 20_000} {
		b.Run(fmt.Sprint(open), func(b *testing.B) {
			l := New(nil, Config{MaxConnections: open})
			conns := make([]*Conn, open)
			for i := range conns {
				conns[i] = l.AdmitConn(new(fakeConn))
				answer(conns[i], 1)
			}
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				answer(conns[i%open], 1)
				l.AdmitConn(new(fakeConn))
				i++
			}
		})
	}
}

func BenchmarkWrite(b *testing.B) {
	for _, bytes := range []*MemoryBudget{nil, NewMemoryBudget(1 << 30)} {
		b.Run(fmt.Sprintf("budget=%t", bytes != nil), func(b *testing.B) {
			c := New(nil, Config{MaxConnections: 2, MemoryBudget: bytes}).AdmitConn(new(fakeConn))
			p := make([]byte, 100)
			b.ReportAllocs()
			for b.Loop() {
				_, _ = c.Write(p)
			}
		})
	}
}

// Only ports with short answers have the connections of package sockets.
func TestAnswersAreShort(t *testing.T) {
	t.Parallel()
	for _, short := range []bool{false, true} {
		l := New(harness.Listen(t), Config{MaxConnections: 1, AnswersAreShort: short})
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		inner := c.(*Conn).Conn
		if isPlain := inner == sockets.New(inner); isPlain != short {
			t.Errorf("AnswersAreShort is %t: got a %T", short, inner)
		}
		_, _, _ = client.Close(), c.Close(), l.Close()
	}
}
