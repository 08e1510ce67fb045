package redistest

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ratelimit/testbed/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// code is the first word of an error reply, or "" for none.
func code(err error) string {
	if e, ok := errors.AsType[Error](err); ok {
		return e.Code()
	}
	return fmt.Sprint(err)
}

func TestReplies(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{})
	c := s.Client(t)
	for _, step := range []struct {
		args []any
		want string // by %#v
	}{
		{[]any{"SET", "k", []byte("a\r\nb")}, `"OK"`},
		{[]any{"GET", "k"}, `"a\r\nb"`},
		{[]any{"GET", "nothing"}, `<nil>`},
		{[]any{"INCRBY", "n", 7}, `7`},
		{[]any{"MGET", "n", "nothing"}, `[]interface {}{"7", interface {}(nil)}`},
		{[]any{"KEYS", "none*"}, `[]interface {}{}`},
		{[]any{"EVAL", "return {1, {redis.error_reply('ERR x')}}", 0}, `[]interface {}{1, []interface {}{"ERR x"}}`},
	} {
		reply, err := c.Do(step.args...)
		if got := fmt.Sprintf("%#v", reply); err != nil || got != step.want {
			t.Errorf("%q: %s, %v, want %s", step.args, got, err, step.want)
		}
	}
	if _, err := c.Do("INCR", "k"); code(err) != "ERR" {
		t.Errorf("INCR of text: %v", err)
	}
	for range 3 { // a pipeline
		if err := c.Send("INCR", "n"); err != nil {
			t.Fatal(err)
		}
	}
	for want := int64(8); want <= 10; want++ {
		if reply, err := c.Receive(); err != nil || reply != want {
			t.Errorf("INCR: %v, %v, want %d", reply, err, want)
		}
	}
}

func TestClientTimesOut(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{})
	var c *Client
	harness.Await(t, harness.Deadline, "a connection within its time", func() (err error) {
		c, err = Dial(s.Addr, DialOptions{Timeout: 50 * time.Millisecond})
		return err
	})
	defer func() { _ = c.Close() }()
	s.Pause()
	begin := time.Now()
	if _, err := c.Do("PING"); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("PING: %v", err)
	}
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("it took %v", took)
	}
	s.Resume()
	if reply := s.Do(t, "PING"); reply != "PONG" {
		t.Errorf("PING: %v", reply)
	}
}

func TestLives(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{Args: []string{"--maxmemory", "3mb"}})
	for _, end := range []func(){s.Stop, s.Kill, func() {}, func() { s.Pause(); s.Stop() }} {
		s.Do(t, "SET", "k", 1)
		addr, pid := s.Addr, s.PID()
		end()
		s.Restart(t)
		if s.Addr != addr || s.PID() == pid {
			t.Errorf("restarted at %s, not %s; process %d after %d", s.Addr, addr, s.PID(), pid)
		}
		if reply := s.Do(t, "DBSIZE"); reply != int64(0) {
			t.Errorf("%v keys after a restart", reply)
		}
	}
	if got := s.Info(t, "memory")["maxmemory"]; got != "3145728" {
		t.Errorf("maxmemory is %s", got)
	}
	pid := s.PID()
	s.Stop()
	s.Stop()
	p, err := os.FindProcess(pid)
	if err == nil {
		err = p.Signal(syscall.Signal(0))
	}
	if !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("process %d after Stop: %v", pid, err)
	}
	if _, err := s.Try("PING"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("PING after Stop: %v", err)
	}
}

func TestStopInsists(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{})
	go func() { _, _ = s.Try("EVAL", "while true do end", 0) }() // deaf to SIGTERM
	harness.Await(t, harness.Deadline, "the server is not busy", func() error {
		c, err := Dial(s.Addr, DialOptions{Timeout: 100 * time.Millisecond})
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		if _, err = c.Do("PING"); err == nil {
			return errors.New("it answers")
		}
		return nil
	})
	begin := time.Now()
	s.Stop()
	if took := time.Since(begin); took < harness.StopTimeout || took > 3*harness.StopTimeout {
		t.Errorf("stopping took %v", took)
	}
}

func TestTakenPort(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	taken := l.Addr().(*net.TCPAddr).Port
	calls := 0
	s := newServer(t, Options{})
	s.Port = func() (int, error) {
		if calls++; calls < 3 {
			return taken, nil
		}
		return harness.FreePort()
	}
	if err := s.launch(nil); err != nil {
		t.Fatal(err)
	}
	if calls != 3 || s.Addr == l.Addr().String() {
		t.Errorf("%d ports were tried; the server is at %s", calls, s.Addr)
	}
}

func TestForeignServer(t *testing.T) {
	t.Parallel()
	// Another Redis has the port: ours must not be confused with it.
	other := Start(t, Options{})
	_, text, err := net.SplitHostPort(other.Addr)
	if err != nil {
		t.Fatal(err)
	}
	taken, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	first := true
	s := newServer(t, Options{})
	s.Port = func() (int, error) {
		if first {
			first = false
			return taken, nil
		}
		return harness.FreePort()
	}
	if err := s.launch(nil); err != nil || s.Addr == other.Addr {
		t.Errorf("at %s: %v", s.Addr, err)
	}
}

func TestStartTellsWhy(t *testing.T) {
	t.Parallel()
	err := newServer(t, Options{}).launch([]string{"no-such-directive 1"})
	if err == nil || !strings.Contains(err.Error(), "no-such-directive") {
		t.Errorf("the error does not show the log: %v", err)
	}
}

// verdict is a test that remembers how it was ended.
type verdict struct {
	testing.TB
	ended string
}

func (v *verdict) Helper() {}

func (v *verdict) Fatal(args ...any) {
	v.ended = "fatal: " + fmt.Sprint(args...)
	runtime.Goexit()
}

func (v *verdict) Skip(args ...any) {
	v.ended = "skip: " + fmt.Sprint(args...)
	runtime.Goexit()
}

func TestMissingProgram(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("REDIS_SERVER", "")
	for ci, want := range map[string]string{
		"":     "skip: this test needs redis-server",
		"true": "fatal: this test needs redis-server",
	} {
		t.Setenv("CI", ci)
		v := &verdict{TB: t}
		var ended sync.WaitGroup
		ended.Go(func() { Start(v, Options{}) })
		ended.Wait()
		if !strings.HasPrefix(v.ended, want) {
			t.Errorf("CI=%q: %q", ci, v.ended)
		}
	}
}

func TestPasswords(t *testing.T) {
	t.Parallel()
	const odd = `a"b\c d#é`
	for _, o := range []Options{{}, {Password: "secret"}, {Password: odd}, {User: "alice", Password: odd}} {
		s := Start(t, o)
		ping := func(user, password string) string {
			c, err := Dial(s.Addr, DialOptions{User: user, Password: password})
			if err != nil {
				return code(err)
			}
			defer func() { _ = c.Close() }()
			_, err = c.Do("PING")
			return code(err)
		}
		if got := ping(o.User, o.Password); got != "<nil>" {
			t.Errorf("%+v: %s", o, got)
		}
		if o.Password == "" {
			continue
		}
		if got := ping("", ""); got != "NOAUTH" {
			t.Errorf("%+v: without a password: %s", o, got)
		}
		if got := ping(o.User, "wrong"); got != "WRONGPASS" {
			t.Errorf("%+v: with a wrong password: %s", o, got)
		}
	}
}

func TestUnixSocket(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{UnixSocket: true, Password: "secret"})
	for range 2 {
		c, err := Dial(s.Socket, DialOptions{Password: "secret"})
		if err != nil {
			t.Fatal(err)
		}
		if reply, err := c.Do("INCR", "k"); err != nil || reply != int64(1) {
			t.Errorf("INCR: %v, %v", reply, err)
		}
		if reply := s.Do(t, "GET", "k"); reply != "1" {
			t.Errorf("by TCP: %v", reply)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		s.Restart(t)
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	certs := harness.NewCertificates(t)
	good := certs.ClientConfig(t)
	alone := &tls.Config{RootCAs: good.RootCAs}
	with := func(p harness.Pair) *tls.Config {
		pair, err := tls.LoadX509KeyPair(p.Cert, p.Key)
		if err != nil {
			t.Fatal(err)
		}
		return &tls.Config{RootCAs: good.RootCAs, Certificates: []tls.Certificate{pair}}
	}
	must := []string{"--tls-auth-clients", "yes"}
	for name, step := range map[string]struct {
		server Options
		client *tls.Config
		fails  string // what the error is like
	}{
		"good":                  {Options{}, good, ""},
		"no client certificate": {Options{}, alone, ""},
		"plain":                 {Options{}, nil, "EOF|reset"},
		"unknown authority":     {Options{}, &tls.Config{}, "unknown authority"},
		"expired server":        {Options{Certificate: certs.ExpiredServer}, good, "expired"},
		"wrong host":            {Options{Certificate: certs.WrongHost}, good, "127.0.0.1"},
		"other server":          {Options{Certificate: certs.OtherServer}, good, "unknown authority"},
		"must":                  {Options{Args: must}, good, ""},
		"must, none":            {Options{Args: must}, alone, "certificate required|reset"},
		"must, expired":         {Options{Args: must}, with(certs.ExpiredClient), "expired|reset"},
		"must, of other":        {Options{Args: must}, with(certs.OtherClient), "unknown certificate authority|reset"},
		"must, new under a name": {
			Options{Args: must},
			with(certs.Issue(t, "client", harness.Spec{CommonName: "again"})), "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			step.server.TLS = certs
			s := Start(t, step.server)
			s.Do(t, "PING")
			err := func() error {
				c, err := Dial(s.Addr, DialOptions{TLS: step.client})
				if err != nil {
					return err
				}
				defer func() { _ = c.Close() }()
				_, err = c.Do("PING") // TLS 1.3 refuses clients with the first read
				return err
			}()
			switch {
			case step.fails == "" && err != nil:
				t.Error(err)
			case step.fails != "" && (err == nil || !regexp.MustCompile(step.fails).MatchString(err.Error())):
				t.Errorf("error %v, want %q", err, step.fails)
			}
		})
	}
}

func TestHarnessOutlivesPasswords(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{Password: "old"})
	c, err := Dial(s.Addr, DialOptions{Password: "old"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	s.Do(t, "CONFIG", "SET", "requirepass", "new")
	s.Do(t, "CLIENT", "KILL", "USER", "default")
	if _, err := c.Do("PING"); err == nil {
		t.Error("a killed connection answers")
	}
	s.Do(t, "ACL", "SETUSER", "default", "off")
	if _, err := Dial(s.Addr, DialOptions{Password: "new"}); code(err) != "WRONGPASS" {
		t.Errorf("AUTH: %v", err)
	}
	s.Do(t, "PING")
}

func TestLoading(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{})
	s.Do(t, "SET", "k", "v")
	done := s.Loading(t)
	if _, err := s.Try("INCR", "n"); code(err) != "LOADING" {
		t.Errorf("INCR: %v", err)
	}
	done()
	done()
	if reply := s.Do(t, "MGET", "k", "n"); fmt.Sprint(reply) != "[v <nil>]" {
		t.Errorf("after loading: %v", reply)
	}
}

func TestCPU(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{})
	before := s.CPU()
	s.Do(t, "EVAL", "local n = 0; for i = 1, 4e6 do n = n + i % 7 end; return n", 0)
	if spent := s.CPU() - before; spent < 20*time.Millisecond || spent > 10*time.Second {
		t.Errorf("the loop took %v of CPU", spent)
	}
}
