// Package certs reads the TLS files of servers and clients. The files of a server may
// change while it runs: new ones are used if they are valid, and else the old ones stay.
package certs

import (
	"cmp"
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

// Config names the files of a server, and what clients must show.
type Config struct {
	Cert, Key  string   // PEM files: the chain, the server's own certificate first, and its key. Required.
	ClientCA   string   // PEM file: clients need a certificate from these authorities or the system's; empty: none
	ClientName string   // DNS name that a client's certificate must have, with ClientCA; empty: any
	Protocols  []string // offered in ALPN, "h2" for gRPC; nil: none

	Every       time.Duration // how often the files are checked. Defaults to 1 s.
	ReadTimeout time.Duration // how long a check or a read may take. Defaults to 10 s.
	// OnChange, if set, is called after the files changed: with nil if they are in use
	// from now on, or else with the reason why not.
	OnChange func(error)
}

// Stats are the figures of a Server.
type Stats struct {
	Loaded, Refused uint64    // changes of the files
	NotAfter        time.Time // when the first certificate of the chain in use expires
	Hanging         int       // reads that were abandoned and have not returned yet
}

// Server is the TLS of one server.
type Server struct {
	cfg             Config
	current         atomic.Pointer[loaded]
	first           []os.FileInfo // of the files, before they were first read
	loads, refusals atomic.Uint64

	checks, reads files.Reads // of Run
}

// loaded is the content of the files.
type loaded struct {
	tls                 *tls.Config
	notBefore, notAfter time.Time // of the first certificate of the chain
}

// isValid reports whether clients accept the certificate now.
func (l *loaded) isValid(now time.Time) bool {
	return !now.Before(l.notBefore) && !now.After(l.notAfter)
}

// New reads the files for the first time. Its error names the file.
func New(cfg Config) (*Server, error) {
	if cfg.ClientName != "" && cfg.ClientCA == "" {
		return nil, errors.New("certs: a client's name needs the authorities of its certificate: set ClientCA")
	}
	s := &Server{cfg: cfg, checks: files.Reads{Timeout: cfg.ReadTimeout}, reads: files.Reads{Timeout: cfg.ReadTimeout}}
	s.first, _ = s.check() // before the read, so that Run notices changes after it; the error is always nil
	l, err := s.read()
	if err != nil {
		return nil, err
	}
	s.current.Store(l)
	return s, nil
}

// TLS returns the configuration of a listener. Each connection uses the files that are
// in use when it is made.
func (s *Server) TLS() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		NextProtos:         s.cfg.Protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.current.Load().tls, nil },
	}
}

// Stats returns the figures.
func (s *Server) Stats() Stats {
	return Stats{
		Loaded: s.loads.Load(), Refused: s.refusals.Load(), NotAfter: s.current.Load().notAfter,
		Hanging: s.checks.Hanging() + s.reads.Hanging(),
	}
}

// Run checks the files until ctx ends. It reads them when one of them changed, when a
// certificate becomes valid that was refused as too early, and when a read returns that
// was abandoned. A certificate and its key are two files that change one after the
// other, so the first change may be refused and the second succeed.
func (s *Server) Run(ctx context.Context) error {
	tick := time.NewTicker(cmp.Or(s.cfg.Every, time.Second))
	defer tick.Stop()
	seen := s.first
	var validFrom time.Time // of a certificate that was refused as too early; zero: none
	hung := false           // the last attempt was abandoned
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		var l *loaded
		found, err := files.Read(ctx, &s.checks, s.check)
		now := time.Now()
		if err == nil {
			due := !validFrom.IsZero() && !now.Before(validFrom) || hung && s.reads.Hanging() == 0
			if slices.EqualFunc(seen, found, isSame) && !due {
				continue
			}
			seen, validFrom = found, time.Time{}
			l, err = files.Read(ctx, &s.reads, s.read)
		}
		if ctx.Err() != nil {
			return nil
		}
		if _, timedOut := errors.AsType[*files.TimeoutError](err); timedOut {
			if hung { // OnChange knows already
				continue
			}
			hung = true
			err = fmt.Errorf("certs: %s, %s: %w", s.cfg.Cert, s.cfg.Key, err)
		} else {
			hung = false
		}
		if err == nil {
			if err = s.isWorse(l, now); err != nil && now.Before(l.notBefore) {
				validFrom = l.notBefore
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

// isWorse returns an error if the certificate in use is valid and that of l is not, so
// that no client would accept it.
func (s *Server) isWorse(l *loaded, now time.Time) error {
	switch {
	case !s.current.Load().isValid(now) || l.isValid(now):
		return nil
	case now.After(l.notAfter):
		return fmt.Errorf("certs: %s: it expired at %s, and the one in use has not: renew it", s.cfg.Cert, l.notAfter.Format(time.RFC3339))
	}
	return fmt.Errorf("certs: %s: it is valid from %s, and is used from then on: check the clocks of this host and of its issuer", s.cfg.Cert, l.notBefore.Format(time.RFC3339))
}

func isSame(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == b
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// check returns the state of each file, nil for one that cannot be read. It follows
// links, such as those that Kubernetes swaps.
func (s *Server) check() (list []os.FileInfo, _ error) {
	for _, file := range []string{s.cfg.Cert, s.cfg.Key, s.cfg.ClientCA} {
		info, _ := os.Stat(file) // nil with an error
		list = append(list, info)
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
		// Resumed sessions would skip the check of the client's certificate.
		cfg.SessionTicketsDisabled = true
		cfg.VerifyConnection = s.checkName
	}
	return &loaded{cfg, pair.Leaf.NotBefore, pair.Leaf.NotAfter}, nil
}

// checkName refuses a client if its certificate, which is verified, lacks the name.
func (s *Server) checkName(c tls.ConnectionState) error {
	if s.cfg.ClientName == "" {
		return nil
	}
	if err := c.PeerCertificates[0].VerifyHostname(s.cfg.ClientName); err != nil {
		return fmt.Errorf("certs: the client: %w", err)
	}
	return nil
}

// Authorities returns the system's authorities and those in a PEM file.
func Authorities(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool, err := x509.SystemCertPool()
	if err != nil { // the system has none
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: no certificate in PEM form in it", file)
	}
	return pool, nil
}
