// Package certs is the TLS of servers and clients, from files. Those of a server
// change while it runs: its certificate and key, and the authorities of its
// clients'. What replaces
// them is taken when it is good; else the old stay in use, and it is said why.
package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"ratelimit/src/files"
)

// Config says which files, and what clients have to show.
type Config struct {
	// Cert and Key are PEM files: the chain, the server's own certificate first,
	// and its key. Both are required.
	Cert, Key string
	// ClientCA is a PEM file of authorities. With it a client needs a certificate
	// of one of these or of the system's; without it nobody is asked for one.
	ClientCA string
	// ClientName is a DNS name that a client's certificate must carry; empty: any
	// will do. It goes with ClientCA.
	ClientName string
	// Protocols are offered in ALPN, "h2" for gRPC. Nil: none.
	Protocols []string
	// Every is how often the files are looked at; 0 is a second.
	Every time.Duration
	// ReadTimeout is how long looking at the files, or reading them, may take.
	// Defaults to 10s.
	ReadTimeout time.Duration
	// OnChange, if set, is told after the files have changed: nil when what is in
	// them is in use from now on, else why it is not.
	OnChange func(error)
}

// Stats are the figures of a Server.
type Stats struct {
	Loaded, Refused uint64    // changes of the files
	NotAfter        time.Time // when the first certificate of the chain in use ends
	Hanging         int       // reads that were given up and have not returned yet
}

// Server is the TLS of one server.
type Server struct {
	cfg             Config
	current         atomic.Pointer[loaded]
	seen            []state // the files, before they were first read
	loads, refusals atomic.Uint64

	looks, reads files.Reads // of Run
}

// loaded is what was in the files.
type loaded struct {
	tls                 *tls.Config
	notBefore, notAfter time.Time // of the first certificate of the chain
}

// good reports whether clients accept it now.
func (l *loaded) good(now time.Time) bool {
	return !now.Before(l.notBefore) && !now.After(l.notAfter)
}

// New reads the files for the first time. Its error names the file.
func New(cfg Config) (*Server, error) {
	s := &Server{cfg: cfg, looks: files.Reads{Timeout: cfg.ReadTimeout}, reads: files.Reads{Timeout: cfg.ReadTimeout}}
	if cfg.ClientName != "" && cfg.ClientCA == "" {
		return nil, errors.New("certs: a client's name can be asked for only with the authorities that vouch for it")
	}
	s.seen, _ = s.states() // what comes after, Run notices; the error is always nil
	l, err := s.read()
	if err != nil {
		return nil, err
	}
	s.current.Store(l)
	return s, nil
}

// TLS is what to serve with. Each connection is told what is in force then.
func (s *Server) TLS() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		NextProtos:         s.cfg.Protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.current.Load().tls, nil },
	}
}

// Stats reads the figures.
func (s *Server) Stats() Stats {
	return Stats{
		Loaded: s.loads.Load(), Refused: s.refusals.Load(), NotAfter: s.current.Load().notAfter,
		Hanging: s.looks.Hanging() + s.reads.Hanging(),
	}
}

// Run looks at the files until ctx ends. A certificate and its key are two
// files, and one is replaced before the other: what does not go together is
// looked at again when either has changed. A certificate that is refused because
// it has not begun is looked at again when it does. Files that cannot be read in
// time are read again when they have changed, or when that read has returned.
func (s *Server) Run(ctx context.Context) error {
	every := s.cfg.Every
	if every == 0 {
		every = time.Second
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	seen := s.seen
	var begins time.Time // of what was refused for that; zero: nothing
	hung := false        // the last attempt was given up
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		var l *loaded
		states, err := files.Read(ctx, &s.looks, s.states)
		now := time.Now()
		if err == nil {
			due := !begins.IsZero() && !now.Before(begins) || hung && s.reads.Hanging() == 0
			if slices.EqualFunc(seen, states, state.same) && !due {
				continue
			}
			seen, begins = states, time.Time{}
			l, err = files.Read(ctx, &s.reads, s.read)
		}
		if ctx.Err() != nil {
			return nil
		}
		var hangs *files.TimeoutError
		was := hung
		if hung = errors.As(err, &hangs); hung {
			if was { // it was said
				continue
			}
			err = fmt.Errorf("certs: %s, %s: %w", s.cfg.Cert, s.cfg.Key, err)
		}
		if err == nil {
			if err = s.worse(l, now); err != nil && now.Before(l.notBefore) {
				begins = l.notBefore
			}
		}
		if err != nil {
			s.refusals.Add(1)
		} else {
			s.current.Store(l)
			s.loads.Add(1)
		}
		if s.cfg.OnChange != nil {
			s.cfg.OnChange(err)
		}
	}
}

// worse says what speaks for the certificate in use: it is good now, and that of l
// has ended or not begun. Nobody would get through with l. If neither is good, l
// is no worse.
func (s *Server) worse(l *loaded, now time.Time) error {
	switch {
	case !s.current.Load().good(now):
		return nil
	case now.After(l.notAfter):
		return fmt.Errorf("certs: %s: it ended at %s, and the one in use has not: renew it", s.cfg.Cert, l.notAfter.Format(time.RFC3339))
	case now.Before(l.notBefore):
		return fmt.Errorf("certs: %s: it begins at %s, and is used from then on: are the clocks of this host and of who issued it right?", s.cfg.Cert, l.notBefore.Format(time.RFC3339))
	}
	return nil
}

// state is what a file looks like from outside; nil: it cannot be looked at.
type state struct{ info os.FileInfo }

func (a state) same(b state) bool {
	if a.info == nil || b.info == nil {
		return a.info == nil && b.info == nil
	}
	return os.SameFile(a.info, b.info) && a.info.ModTime().Equal(b.info.ModTime()) && a.info.Size() == b.info.Size()
}

// states follows links, as those that Kubernetes swaps.
func (s *Server) states() (list []state, _ error) {
	for _, file := range []string{s.cfg.Cert, s.cfg.Key, s.cfg.ClientCA} {
		info, err := os.Stat(file)
		if err != nil {
			info = nil
		}
		list = append(list, state{info})
	}
	return list, nil
}

func (s *Server) read() (*loaded, error) {
	chain, err := os.ReadFile(s.cfg.Cert)
	if err != nil {
		return nil, fmt.Errorf("certs: the certificate: %w", err)
	}
	key, err := os.ReadFile(s.cfg.Key)
	if err != nil {
		return nil, fmt.Errorf("certs: the key: %w", err)
	}
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, fmt.Errorf("certs: %s and %s: %w", s.cfg.Cert, s.cfg.Key, err)
	}
	cfg := &tls.Config{
		MinVersion:   tls.VersionTLS12,
		NextProtos:   s.cfg.Protocols,
		Certificates: []tls.Certificate{pair},
	}
	if s.cfg.ClientCA != "" {
		if cfg.ClientCAs, err = Authorities(s.cfg.ClientCA); err != nil {
			return nil, fmt.Errorf("certs: the clients' authorities: %w", err)
		}
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
		// A session that is resumed would not ask who vouches for the client now.
		cfg.SessionTicketsDisabled = true
		cfg.VerifyConnection = s.checkName
	}
	return &loaded{cfg, pair.Leaf.NotBefore, pair.Leaf.NotAfter}, nil
}

// checkName refuses clients, verified already, whose certificate lacks the name.
func (s *Server) checkName(c tls.ConnectionState) error {
	if s.cfg.ClientName == "" {
		return nil
	}
	if err := c.PeerCertificates[0].VerifyHostname(s.cfg.ClientName); err != nil {
		return fmt.Errorf("certs: the client: %w", err)
	}
	return nil
}

// Authorities are the system's and those in a PEM file.
func Authorities(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool, err := x509.SystemCertPool()
	if err != nil { // there are none
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: no certificate in PEM form in it", file)
	}
	return pool, nil
}
