package memcachedtest

import (
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"ratelimit/src/testbed/harness"
)

// Options configure a server. The zero value is plain TCP.
type Options struct {
	// UnixSocket makes the server listen at Server.Socket alone.
	UnixSocket bool
	// TLS makes Addr speak TLS only. Clients have to show a certificate by TLS.CA.
	TLS *harness.Certificates
	// Certificate, if not zero, is shown instead of TLS.Server.
	Certificate harness.Pair
	// Args are appended to the command line, such as "-m", "1".
	Args []string
}

// Server is one memcached.
type Server struct {
	harness.Server
	o Options
}

// Start runs a memcached and returns once it answers.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	s := &Server{Server: harness.NewServer(t, "memcached", "memcached"), o: o}
	s.Configure = s.configure
	s.AskPID = func(timeout time.Duration) (string, error) {
		stats, err := s.stats(timeout)
		return stats["pid"], err
	}
	if o.UnixSocket {
		if err := s.UseSocket(); err != nil {
			t.Fatalf("memcachedtest: %v", err)
		}
	}
	if err := s.Launch(); err != nil {
		t.Fatalf("memcachedtest: %v", err)
	}
	return s
}

func (s *Server) configure() error {
	args := []string{"-t", "2", "-c", "4096"}
	if os.Geteuid() == 0 {
		args = append(args, "-u", "root")
	}
	if s.Socket != "" {
		s.Addr = s.Socket
		args = append(args, "-s", s.Socket)
	} else {
		port, err := s.UseFreePort()
		if err != nil {
			return err
		}
		args = append(args, "-l", "127.0.0.1", "-U", "0", "-p", strconv.Itoa(port))
	}
	if s.o.TLS != nil {
		pair := s.o.Certificate
		if pair == (harness.Pair{}) {
			pair = s.o.TLS.Server
		}
		args = append(args, "-Z", "-o",
			"ssl_chain_cert="+pair.Cert+",ssl_key="+pair.Key+",ssl_ca_cert="+s.o.TLS.CA+",ssl_verify_mode=2")
	}
	s.Args = slices.Concat(args, s.o.Args)
	return nil
}
