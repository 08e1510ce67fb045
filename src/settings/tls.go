package settings

import "cmp"

// ServerTLS is the TLS of one port.
type ServerTLS struct {
	On         bool
	Cert       string `env:"TLS_CERT"`          // file
	Key        string `env:"TLS_KEY"`           // file
	ClientCA   string `env:"TLS_CLIENT_CACERT"` // file: clients then need a certificate from these authorities
	ClientName string `env:"TLS_CLIENT_SAN"`    // DNS name that it must have; empty: any
}

// validate checks what belongs together. prefix is that of the port's variables.
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

// TLSFiles are the files of TLS to a store, and whether to verify its name.
type TLSFiles struct {
	ClientCert   string `env:"CLIENT_CERT"`
	ClientKey    string `env:"CLIENT_KEY"`
	CACert       string `env:"CACERT"`
	SkipHostname bool   `env:"SKIP_HOSTNAME_VERIFICATION"`
}

// validate checks what belongs together. prefix is that of the variables.
func (f *TLSFiles) validate(r *reader, prefix string) {
	if (f.ClientCert == "") != (f.ClientKey == "") {
		r.problem(prefix+"CLIENT_CERT", f.ClientCert, "it goes with "+prefix+"CLIENT_KEY: set both or neither")
	}
}
