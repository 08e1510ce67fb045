package main

import (
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"ratelimit/src/files/certs"
)

// tlsOptions are the flags with which a command asks a server over TLS.
type tlsOptions struct {
	use      bool
	caFile   string
	certFile string
	keyFile  string
}

func (o *tlsOptions) flags(f *pflag.FlagSet) {
	f.BoolVar(&o.use, "grpc-use-tls", false, "use TLS")
	f.StringVar(&o.caFile, "grpc-server-ca-file", "", "PEM file of authorities to trust, besides the system's")
	f.StringVar(&o.certFile, "grpc-cert-file", "", "PEM file of the client's certificate chain")
	f.StringVar(&o.keyFile, "grpc-key-file", "", "PEM file of the client's key")
}

func (o *tlsOptions) credentials() (credentials.TransportCredentials, error) {
	if !o.use {
		return insecure.NewCredentials(), nil
	}
	cfg, err := (&certs.Client{CA: o.caFile, Cert: o.certFile, Key: o.keyFile}).TLS()
	if err != nil {
		return nil, err
	}
	return credentials.NewTLS(cfg), nil
}

// dial prepares a connection to target; it is opened by the first call.
func (o *tlsOptions) dial(target string) (*grpc.ClientConn, error) {
	creds, err := o.credentials()
	if err != nil {
		return nil, err
	}
	return grpc.NewClient(target, grpc.WithTransportCredentials(creds))
}
