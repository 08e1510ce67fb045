// Package certs reads the TLS files of servers and clients. When the files of a running server change, it uses the new
// ones if they are valid, and otherwise continues with the old ones.
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

// Config is the configuration of a Server.
type Config struct {
	// Cert and Key are the paths of PEM files: the certificate chain, which starts with the server's certificate, and its
	// key. Required.
	Cert, Key string
	// ClientCA is the path of a PEM file. If it is set, clients must have a certificate from one of its authorities or of
	// the system's.
	ClientCA string
	// ClientName is the DNS name that the certificate of a client must have. It requires ClientCA. Empty allows any name.
	ClientName string
	Protocols  []string // the protocols that ALPN offers, such as "h2" for gRPC

	CheckInterval time.Duration // time between two checks of the files. Defaults to 1 s.
	ReadTimeout   time.Duration // longest time for a check or a read. Defaults to 10 s.
	// OnChange is called after the files changed. The error is nil if the new files are in use, and otherwise the reason
	// why they are not. Required by Run.
	OnChange func(error)
}

// Stats are the figures of a Server.
type Stats struct {
	Loaded   uint64    // changes of the files after which the new ones were used
	Refused  uint64    // changes of the files after which the old ones stayed in use
	NotAfter time.Time // expiry of the certificate in use
	Hanging  int       // reads that were abandoned and have not returned
}

// Server has the TLS configuration of one server.
type Server struct {
	cfg             Config
	current         atomic.Pointer[tls.Config] // the configuration in use; its first certificate is the server's
	firstCheck      []os.FileInfo              // the result of check before the first read
	loads, refusals atomic.Uint64              // count changes of the files that were accepted and refused

	checks, reads files.Reads // bound the calls of check and read by Run
}

// New reads the files and returns a Server. Errors contain the path of the file.
func New(cfg Config) (*Server, error) {
	if cfg.ClientName != "" && cfg.ClientCA == "" {
		return nil, errors.New("certs: a client's name needs the authorities of its certificate: set ClientCA")
	}
	s := &Server{cfg: cfg, checks: files.Reads{Timeout: cfg.ReadTimeout}, reads: files.Reads{Timeout: cfg.ReadTimeout}}
	s.firstCheck, _ = s.check() // comes before the read, so that Run notices changes after it
	current, err := s.read()
	if err != nil {
		return nil, err
	}
	s.current.Store(current)
	return s, nil
}

// TLS returns the configuration for a listener. Each new connection uses the current files.
func (s *Server) TLS() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		NextProtos:         s.cfg.Protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.current.Load(), nil },
	}
}

// Stats returns the current figures.
func (s *Server) Stats() Stats {
	return Stats{
		s.loads.Load(), s.refusals.Load(), serverCert(s.current.Load()).NotAfter,
		s.checks.Hanging() + s.reads.Hanging(),
	}
}

func serverCert(c *tls.Config) *x509.Certificate { return c.Certificates[0].Leaf }

// Run checks the files until ctx ends; its error is always nil. It reads the files
//   - when one of them changed,
//   - when a certificate becomes valid that was refused because it was not valid yet,
//   - when an abandoned read has returned.
//
// If only the certificate or only its key has changed, the pair is refused. The change of the other file then succeeds.
func (s *Server) Run(ctx context.Context) error {
	tick := time.NewTicker(cmp.Or(s.cfg.CheckInterval, time.Second))
	defer tick.Stop()
	lastCheck := s.firstCheck
	var validFrom time.Time // when a refused certificate becomes valid; zero if none waits for that
	hung := false           // set if the last check or read was abandoned
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		var next *tls.Config
		check, err := files.Read(ctx, &s.checks, s.check)
		now := time.Now()
		if err == nil {
			isDue := !validFrom.IsZero() && !now.Before(validFrom) || hung && s.reads.Hanging() == 0
			if slices.EqualFunc(lastCheck, check, isSameFile) && !isDue {
				continue
			}
			lastCheck, validFrom = check, time.Time{}
			next, err = files.Read(ctx, &s.reads, s.read)
		}
		if ctx.Err() != nil {
			return nil
		}
		_, timedOut := errors.AsType[*files.TimeoutError](err)
		if timedOut && hung { // OnChange was called for the first timeout
			continue
		}
		hung = timedOut
		switch {
		case timedOut:
			err = fmt.Errorf("certs: %s, %s: %w", s.cfg.Cert, s.cfg.Key, err)
		case err == nil:
			if err = s.isWorse(serverCert(next), now); err != nil && now.Before(serverCert(next).NotBefore) {
				validFrom = serverCert(next).NotBefore
			}
		}
		if err != nil {
			s.refusals.Add(1)
		} else {
			s.current.Store(next)
			s.loads.Add(1)
		}
		s.cfg.OnChange(err)
	}
}

// isWorse returns an error if the certificate in use is valid at now and next is not. If neither is valid, it returns
// nil.
func (s *Server) isWorse(next *x509.Certificate, now time.Time) error {
	isValid := func(c *x509.Certificate) bool { return !now.Before(c.NotBefore) && !now.After(c.NotAfter) }
	switch {
	case !isValid(serverCert(s.current.Load())) || isValid(next):
		return nil
	case now.After(next.NotAfter):
		return fmt.Errorf("certs: %s: it expired at %s, and the one in use has not: renew it", s.cfg.Cert,
			next.NotAfter.Format(time.RFC3339))
	}
	return fmt.Errorf("certs: %s: it is valid from %s, and is used from then on: check the clocks of this host and of "+
		"its issuer", s.cfg.Cert, next.NotBefore.Format(time.RFC3339))
}

// isSameFile reports whether two results of check for one file are equal.
func isSameFile(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == b
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// check returns the size and time of change of each file, or nil for one that cannot be read. It follows symbolic
// links, which Kubernetes replaces. The error is always nil.
func (s *Server) check() (infos []os.FileInfo, _ error) {
	for _, file := range []string{s.cfg.Cert, s.cfg.Key, s.cfg.ClientCA} {
		info, _ := os.Stat(file) // the info is nil if there is an error
		infos = append(infos, info)
	}
	return infos, nil
}

func (s *Server) read() (*tls.Config, error) {
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
		if s.cfg.ClientName != "" {
			cfg.VerifyConnection = s.checkName
		}
	}
	return cfg, nil
}

// checkName returns an error if the client's certificate does not have ClientName. Its chain has been verified before.
func (s *Server) checkName(c tls.ConnectionState) error {
	if err := c.PeerCertificates[0].VerifyHostname(s.cfg.ClientName); err != nil {
		return fmt.Errorf("certs: the client: %w", err)
	}
	return nil
}

// Authorities returns the certificate authorities of the system and those in a PEM file.
func Authorities(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool, err := x509.SystemCertPool()
	if err != nil { // the system has no authorities
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: no certificate in PEM form in it", file)
	}
	return pool, nil
}
