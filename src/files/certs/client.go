package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"time"

	"ratelimit/src/files"
)

// Client is the configuration of a TLS client. Files are PEM files.
type Client struct {
	CA        string // path of authorities to trust in addition to the system's; empty for none
	Cert, Key string // paths of the client's certificate and its key; both are empty for none
	// CAName and PairName are the names of the settings, which errors of CA, and of Cert and Key, start with. They may be
	// empty.
	CAName, PairName string
	// ServerName is the name that the server's certificate must have. Defaults to the host name of the connection.
	ServerName string
	// AnyName accepts any name in the server's certificate. Its chain is still verified.
	AnyName bool

	reads files.Reads
}

// TLS reads the files and returns the configuration of a connection. Call it for each connection, because the files may
// change. It returns an error if they are not read within files.DefaultTimeout.
func (c *Client) TLS() (*tls.Config, error) {
	cfg, err := files.Read(context.Background(), &c.reads, c.read)
	if _, timedOut := errors.AsType[*files.TimeoutError](err); timedOut {
		err = withName(strings.Trim(c.CAName+", "+c.PairName, ", "), err)
	}
	return cfg, err
}

func (c *Client) read() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName}
	if c.CA != "" {
		var err error
		if cfg.RootCAs, err = Authorities(c.CA); err != nil {
			return nil, withName(c.CAName, err)
		}
	}
	if c.Cert != "" || c.Key != "" {
		pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, withName(c.PairName, err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	if c.AnyName {
		cfg.InsecureSkipVerify = true // skips the checks of the name and of the chain; verifyChain makes up for the latter
		cfg.VerifyConnection = func(state tls.ConnectionState) error { return verifyChain(state, cfg.RootCAs) }
	}
	return cfg, nil
}

// verifyChain verifies the chain of the server's certificate, but not its name.
func verifyChain(state tls.ConnectionState, roots *x509.CertPool) error {
	intermediates := x509.NewCertPool()
	for _, cert := range state.PeerCertificates[1:] {
		intermediates.AddCert(cert)
	}
	_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates})
	return err
}

// ClientStats returns a function that reads when the first certificate in a PEM file expires. Each call reads the file,
// as each new connection does, and waits 1 s at most. A certificate that cannot be read has expired in 1970.
func ClientStats(file string) func() Stats {
	reads := &files.Reads{Timeout: time.Second}
	return func() Stats {
		text, err := reads.File(context.Background(), file)
		if cert := firstCertificate(text); err == nil && cert != nil {
			return Stats{NotAfter: cert.NotAfter}
		}
		return Stats{NotAfter: time.Unix(0, 0)}
	}
}

// firstCertificate returns the first certificate in the text of a PEM file; nil if there is none.
func firstCertificate(text []byte) *x509.Certificate {
	block, rest := pem.Decode(text)
	for block != nil && block.Type != "CERTIFICATE" {
		block, rest = pem.Decode(rest)
	}
	if block == nil {
		return nil
	}
	cert, _ := x509.ParseCertificate(block.Bytes) // It returns nil with an error.
	return cert
}

// withName puts the name of a setting before err, unless name is empty.
func withName(name string, err error) error {
	if name == "" {
		return err
	}
	return fmt.Errorf("%s: %w", name, err)
}
