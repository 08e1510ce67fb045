package service

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	"ratelimit/src/files"
	"ratelimit/src/files/certs"
	"ratelimit/src/settings"
)

// clientTLS returns a function that reads the files of c for each connection, so they may
// change, and then calls adjust.
func clientTLS(c certs.Client, adjust func(*tls.Config)) func() (*tls.Config, error) {
	reads := new(files.Reads)
	return func() (*tls.Config, error) {
		cfg, err := files.Read(context.Background(), reads, c.TLS)
		if _, late := errors.AsType[*files.TimeoutError](err); late {
			return nil, fmt.Errorf("%s, %s: %w", c.CAName, c.PairName, err)
		}
		if err != nil {
			return nil, err
		}
		adjust(cfg)
		return cfg, nil
	}
}

// storeTLS is clientTLS for a store. The names of its settings begin with prefix. It
// returns an error if the files cannot be used now.
func storeTLS(prefix string, f settings.TLSFiles) (func() (*tls.Config, error), error) {
	c := certs.Client{CA: f.CACert, Cert: f.ClientCert, Key: f.ClientKey, CAName: prefix + "CACERT", PairName: prefix + "CLIENT_CERT"}
	read := clientTLS(c, func(cfg *tls.Config) {
		if f.SkipHostname {
			cfg.InsecureSkipVerify = true // skips only the name: the chain is verified below
			cfg.VerifyConnection = func(state tls.ConnectionState) error { return verifyChain(state, cfg.RootCAs) }
		}
	})
	_, err := read()
	return read, err
}

// verifyChain verifies the server's certificate, whatever name is in it.
func verifyChain(state tls.ConnectionState, roots *x509.CertPool) error {
	intermediates := x509.NewCertPool()
	for _, cert := range state.PeerCertificates[1:] {
		intermediates.AddCert(cert)
	}
	_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates})
	return err
}
