package certs

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"time"
)

// Client is what a client speaks TLS with, from files.
type Client struct {
	// CA is a PEM file of authorities to trust besides the system's; empty: those
	// alone.
	CA string
	// Cert and Key are PEM files of what it shows; both empty: nothing.
	Cert, Key string
	// CAName and PairName stand in front of what is wrong with the files: where
	// they were named. Empty: nothing does.
	CAName, PairName string
}

// TLS reads the files, so that whoever asks for each connection has what is in
// them then.
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

// NotAfter is when the first certificate in a PEM file ends.
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
