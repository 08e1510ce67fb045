// Package certs reads the TLS files of servers and clients. When the files of a running server
// change, it uses the new ones if they are valid, and otherwise continues with the old ones.
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
	// Cert and Key are the paths of PEM files: the certificate chain, which starts with the
	// server's certificate, and its key. Required.
	Cert, Key string
	// ClientCA is the path of a PEM file. If it is set, clients must have a certificate from
	// one of its authorities or of the system's.
	ClientCA string
	// ClientName is the DNS name that the certificate of a client must have. It requires
	// ClientCA. Empty: any name.
	ClientName string
	Protocols  []string // the protocols that ALPN offers, such as "h2" for gRPC

	Every       time.Duration // time between two checks of the files. Defaults to 1 s.
	ReadTimeout time.Duration // longest time for a check or a read. Defaults to 10 s.
	// OnChange, if set, is called after the files changed. The error is nil if the new files
	// are in use, and otherwise the reason why they are not.
	OnChange func(error)
}

// Stats are the figures of a Server.
type Stats struct {
	Loaded, Refused uint64    // changes of the files that are in use, and that were refused
	NotAfter        time.Time // expiry of the first certificate of the chain in use
	Hanging         int       // reads that were abandoned and have not returned
}

// Server has the TLS configuration of one server.
type Server struct {
	cfg             Config
	current         atomic.Pointer[loaded] // in use
	first           []os.FileInfo          // result of check before the first read
	loads, refusals atomic.Uint64

	checks, reads files.Reads // of Run
}

// loaded is the content of the files.
type loaded struct {
	tls                 *tls.Config
	notBefore, notAfter time.Time // validity of the first certificate of the chain
}

// isValid reports whether the certificate is valid at now.
func (l *loaded) isValid(now time.Time) bool {
	return !now.Before(l.notBefore) && !now.After(l.notAfter)
}

// New reads the files and returns a Server. Errors contain the path of the file.
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

// TLS returns the configuration for a listener. Each new connection uses the current files.
func (s *Server) TLS() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		NextProtos:         s.cfg.Protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.current.Load().tls, nil },
	}
}

// Stats returns the current figures.
func (s *Server) Stats() Stats {
	return Stats{
		Loaded: s.loads.Load(), Refused: s.refusals.Load(), NotAfter: s.current.Load().notAfter,
		Hanging: s.checks.Hanging() + s.reads.Hanging(),
	}
}

// Run checks the files until ctx ends; its error is always nil. It reads the files
//   - when one of them changed,
//   - when a certificate becomes valid that was refused because it was not valid yet,
//   - when an abandoned read has returned.
//
// If only the certificate or only its key has changed, the pair is refused. The change of the
// other file then succeeds.
func (s *Server) Run(ctx context.Context) error {
	tick := time.NewTicker(cmp.Or(s.cfg.Every, time.Second))
	defer tick.Stop()
	seen := s.first
	var validFrom time.Time // of a refused certificate that is not valid yet; zero: none
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
			if hung { // OnChange was called for it
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

// isWorse returns an error if the certificate in use is valid at now and that of l is not. If
// neither is valid, it returns nil.
func (s *Server) isWorse(l *loaded, now time.Time) error {
	switch {
	case !s.current.Load().isValid(now) || l.isValid(now):
		return nil
	case now.After(l.notAfter):
		return fmt.Errorf("certs: %s: it expired at %s, and the one in use has not: renew it", s.cfg.Cert, l.notAfter.Format(time.RFC3339))
	}
	return fmt.Errorf("certs: %s: it is valid from %s, and is used from then on: check the clocks of this host and of its issuer", s.cfg.Cert, l.notBefore.Format(time.RFC3339))
}

// isSame reports whether two results of check for one file are equal.
func isSame(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == b
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// check returns the size and time of change of each file, or nil for one that cannot be read.
// It follows symbolic links, which Kubernetes replaces. The error is always nil.
func (s *Server) check() (list []os.FileInfo, _ error) {
	for _, file := range []string{s.cfg.Cert, s.cfg.Key, s.cfg.ClientCA} {
		info, _ := os.Stat(file) // nil with an error
		list = append(list, info)
	}
	return list, nil
}

// read reads and parses the files.
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

// checkName returns an error if the client's certificate does not have ClientName. The chain of
// the certificate has been verified before.
func (s *Server) checkName(c tls.ConnectionState) error {
	if s.cfg.ClientName == "" {
		return nil
	}
	if err := c.PeerCertificates[0].VerifyHostname(s.cfg.ClientName); err != nil {
		return fmt.Errorf("certs: the client: %w", err)
	}
	return nil
}

// Authorities returns the system's certificate authorities and those in a PEM file.
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
