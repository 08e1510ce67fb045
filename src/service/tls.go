package service

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	"ratelimit/src/files"
)

// hangingFile adds to an error of package files the settings that name the files.
func hangingFile(settings string, err error) error {
	var hangs *files.TimeoutError
	if errors.As(err, &hangs) {
		return fmt.Errorf("%s: %w", settings, err)
	}
	return err
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
