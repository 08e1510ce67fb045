package main

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"ratelimit/src/settings"
)

// grpcTLS is the TLS of the gRPC port. Its files are looked at with each
// handshake, which costs far more than they do, and taken when they have
// changed; a set that makes no sense (half of it may be written) leaves the old
// one in force.
type grpcTLS struct {
	settings.GRPCTLS
	warn    func(error)
	trouble seldom

	mu      sync.Mutex // guards what follows
	content [][]byte   // of the files, as they were last seen
	config  *tls.Config
}

// newGRPCTLS is nil where there is to be none. It fails if the files make no
// sense.
func newGRPCTLS(from settings.GRPCTLS, warn func(error)) (*tls.Config, error) {
	if !from.On {
		return nil, nil
	}
	g := &grpcTLS{GRPCTLS: from, warn: warn}
	if _, err := g.refresh(); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			cfg, err := g.refresh()
			if err != nil {
				if n := g.trouble.add(time.Now()); n > 0 {
					g.warn(fmt.Errorf("%w; the files as they were before are still in use", err))
				}
			}
			return cfg, nil
		},
	}, nil
}

// refresh returns the newest configuration that made sense, and why there is no
// newer one.
func (g *grpcTLS) refresh() (*tls.Config, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var content [][]byte
	for _, file := range []struct{ variable, path string }{
		{"GRPC_SERVER_TLS_CERT", g.Cert}, {"GRPC_SERVER_TLS_KEY", g.Key}, {"GRPC_CLIENT_TLS_CACERT", g.ClientCA},
	} {
		if file.path == "" {
			content = append(content, nil)
			continue
		}
		data, err := os.ReadFile(file.path)
		if err != nil {
			return g.config, fmt.Errorf("%s: %w", file.variable, err)
		}
		content = append(content, data)
	}
	if g.config != nil && slices.EqualFunc(content, g.content, bytes.Equal) {
		return g.config, nil
	}
	pair, err := tls.X509KeyPair(content[0], content[1])
	if err != nil {
		return g.config, fmt.Errorf("GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY: %w", err)
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	if g.ClientCA != "" {
		if cfg.ClientCAs, err = authorities(g.ClientCA); err != nil {
			return g.config, fmt.Errorf("GRPC_CLIENT_TLS_CACERT: %w", err)
		}
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
		if g.ClientSAN != "" {
			cfg.VerifyConnection = g.verifyClient
		}
	}
	g.content, g.config = content, cfg
	return cfg, nil
}

var errClientName = errors.New("the client's certificate is not for the name in GRPC_CLIENT_TLS_SAN")

// verifyClient checks the name in a certificate whose chain and use are verified.
func (g *grpcTLS) verifyClient(state tls.ConnectionState) error {
	if state.PeerCertificates[0].VerifyHostname(g.ClientSAN) != nil {
		return errClientName
	}
	return nil
}
