package certs

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"time"
)

// Client names the files of a TLS client.
type Client struct {
	// CA is a PEM file of authorities to trust in addition to the system's; empty: none.
	CA string
	// Cert and Key are PEM files of the client's certificate; both empty: none.
	Cert, Key string
	// CAName and PairName stand before errors in these files: the settings that name
	// them. Empty: nothing does.
	CAName, PairName string
}

// TLS reads the files. Call it for each connection to use their current content.
func (c *Client) TLS() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CA != "" {
		var err error
		if cfg.RootCAs, err = Authorities(c.CA); err != nil {
			return nil, named(c.CAName, err)
		}
	}
	if c.Cert != "" || c.Key != "" {
		pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, named(c.PairName, err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// NotAfter returns when the first certificate in a PEM file expires.
func NotAfter(file string) (time.Time, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return time.Time{}, err
	}
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return time.Time{}, fmt.Errorf("%s: no certificate in PEM form in it", file)
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return time.Time{}, fmt.Errorf("%s: %w", file, err)
		}
		return cert.NotAfter, nil
	}
}

func named(name string, err error) error {
	if name == "" {
		return err
	}
	return fmt.Errorf("%s: %w", name, err)
}
