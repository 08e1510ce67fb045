package settings

import "cmp"

// ServerTLS is the TLS configuration of one port. All files are PEM files.
type ServerTLS struct {
	On         bool
	Cert       string `env:"TLS_CERT"`          // path of the certificate chain
	Key        string `env:"TLS_KEY"`           // path of the key
	ClientCA   string `env:"TLS_CLIENT_CACERT"` // path of the authorities of client certificates; empty: clients need none
	ClientName string `env:"TLS_CLIENT_SAN"`    // DNS name in client certificates; empty: any
}

// validate checks variables that depend on each other. prefix is the start of their names.
func (t *ServerTLS) validate(r *reader, prefix string) {
	called := func(name string) string { return cmp.Or(upstreamNames[prefix+name], prefix+name) }
	cert, key := called("TLS_CERT"), called("TLS_KEY")
	switch {
	case !t.On:
	case t.Cert == "":
		r.problem(cert, "", "write the path of a PEM file with the certificate chain, and that of its key in "+key)
	case t.Key == "":
		r.problem(key, "", "write the path of a PEM file with the key of "+cert)
	case t.ClientName != "" && t.ClientCA == "":
		r.problem(called("TLS_CLIENT_SAN"), t.ClientName, "clients need no certificate: set "+called("TLS_CLIENT_CACERT")+", too")
	}
}

// TLSFiles has the paths of the PEM files for TLS connections to a store.
type TLSFiles struct {
	ClientCert   string `env:"CLIENT_CERT"`
	ClientKey    string `env:"CLIENT_KEY"`
	CACert       string `env:"CACERT"`
	SkipHostname bool   `env:"SKIP_HOSTNAME_VERIFICATION"` // accept any name in the store's certificate
}

// validate checks variables that depend on each other. prefix is the start of their names.
func (f *TLSFiles) validate(r *reader, prefix string) {
	if (f.ClientCert == "") != (f.ClientKey == "") {
		r.problem(prefix+"CLIENT_CERT", f.ClientCert, "it goes with "+prefix+"CLIENT_KEY: set both or neither")
	}
}
