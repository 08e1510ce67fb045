package redistest

import (
	"fmt"
	"io"
	"net"
	"regexp"
	"sync"
	"testing"
	"time"
)

// TokenUser is the user of Tokens.
const TokenUser = "app"

// Tokens changes the password of a user of a Server again and again, as services whose tokens expire do: for a while
// two passwords are valid, then the old one is removed, and each session ends whose last AUTH had it. Redis does not
// tell with which password a session authenticated, so sessions go through Addr.
type Tokens struct {
	Addr string // where the sessions begin

	t       testing.TB
	server  *Server
	publish func(password string, ends time.Time)

	mu       sync.Mutex // guards the fields below
	sessions map[*session]struct{}
	counts   TokenCounts
}

// TokenCounts are what happened at Addr.
type TokenCounts struct {
	Rotations int // passwords that were removed
	Sessions  int // connections
	Auths     int
	Ended     int // sessions that ended with their password
}

// session is a connection through Addr.
type session struct {
	client, server net.Conn
	password       string // of the last AUTH
}

// StartTokens begins with a first password. Each following one comes after every, and the one before it is valid for
// another grace. publish is called with each before it returns, or before the password is valid.
func StartTokens(t testing.TB, s *Server, every, grace time.Duration, publish func(string, time.Time)) *Tokens {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	k := &Tokens{Addr: listener.Addr().String(), t: t, server: s, publish: publish, sessions: make(map[*session]struct{})}
	var goroutines sync.WaitGroup
	stop := make(chan struct{})
	t.Cleanup(func() {
		close(stop)
		_ = listener.Close()
		k.end(func(*session) bool { return true })
		goroutines.Wait()
	})
	begin := time.Now()
	s.Do(t, "ACL", "SETUSER", TokenUser, "reset", "on", "~*", "&*", "+@all")
	k.add(0, begin.Add(every+grace))
	goroutines.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			goroutines.Go(func() { k.serve(conn, &goroutines) })
		}
	})
	goroutines.Go(func() {
		for n := 1; ; n++ {
			at := begin.Add(time.Duration(n) * every)
			for _, step := range []struct {
				at   time.Time
				what func()
			}{
				{at, func() { k.add(n, at.Add(every+grace)) }},
				{at.Add(grace), func() { k.remove(n - 1) }},
			} {
				select {
				case <-time.After(time.Until(step.at)):
					step.what()
				case <-stop:
					return
				}
			}
		}
	})
	return k
}

func password(n int) string { return fmt.Sprintf("token-of-rotation-%d", n) }

// add makes another password valid, and publishes it.
func (k *Tokens) add(n int, ends time.Time) {
	if _, err := k.server.Try("ACL", "SETUSER", TokenUser, ">"+password(n)); err != nil {
		k.t.Errorf("redistest: a new password: %v", err)
	}
	k.publish(password(n), ends)
}

// remove makes a password invalid, and ends its sessions.
func (k *Tokens) remove(n int) {
	if _, err := k.server.Try("ACL", "SETUSER", TokenUser, "<"+password(n)); err != nil {
		k.t.Errorf("redistest: an old password: %v", err)
	}
	ended := k.end(func(s *session) bool { return s.password == password(n) })
	k.mu.Lock()
	defer k.mu.Unlock()
	k.counts.Rotations++
	k.counts.Ended += ended
}

// end closes the sessions that choose picks, and returns their number.
func (k *Tokens) end(choose func(*session) bool) (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for s := range k.sessions {
		if choose(s) {
			n++
			_, _ = s.client.Close(), s.server.Close()
		}
	}
	return n
}

// authCommand matches AUTH with a user and a password.
var authCommand = regexp.MustCompile(`\*3\r\n\$4\r\n(?i:AUTH)\r\n\$\d+\r\n[^\r]*\r\n\$\d+\r\n([^\r]*)\r\n`)

// serve passes a session on to the server.
func (k *Tokens) serve(client net.Conn, goroutines *sync.WaitGroup) {
	server, err := net.Dial("tcp", k.server.Addr)
	if err != nil {
		_ = client.Close()
		return
	}
	s := &session{client: client, server: server}
	k.mu.Lock()
	k.sessions[s] = struct{}{}
	k.counts.Sessions++
	k.mu.Unlock()
	goroutines.Go(func() {
		_, _ = io.Copy(client, server)
		_ = client.Close()
	})
	buffer := make([]byte, 64<<10)
	for {
		n, err := client.Read(buffer)
		if err == nil {
			k.note(s, buffer[:n])
			_, err = server.Write(buffer[:n])
		}
		if err != nil {
			break
		}
	}
	_ = server.Close()
	k.mu.Lock()
	delete(k.sessions, s)
	k.mu.Unlock()
}

// note finds AUTH in what a client sent.
func (k *Tokens) note(s *session, sent []byte) {
	for _, m := range authCommand.FindAllSubmatch(sent, -1) {
		k.mu.Lock()
		s.password = string(m[1])
		k.counts.Auths++
		k.mu.Unlock()
	}
}

// Counts returns what happened so far.
func (k *Tokens) Counts() TokenCounts {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.counts
}
