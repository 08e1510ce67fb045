package settings

// ServerTLS is the TLS of one port.
type ServerTLS struct {
	On        bool
	Cert, Key string // files
	// ClientCA is a file: clients then need a certificate from these authorities.
	// ClientName is the DNS name that it must have; empty: any.
	ClientCA, ClientName string
}

// declareGRPC names the variables of the gRPC port, which are upstream's.
func (t *ServerTLS) declareGRPC(r *reader) {
	r.flag(&t.On, "GRPC_SERVER_USE_TLS", false, "TLS, 1.2 or newer, on the gRPC port. All files of this section are checked every second, and new ones are used if they are valid")
	r.text(&t.Cert, "GRPC_SERVER_TLS_CERT", "", "PEM file of the certificate chain")
	r.text(&t.Key, "GRPC_SERVER_TLS_KEY", "", "PEM file of its key")
	r.text(&t.ClientCA, "GRPC_CLIENT_TLS_CACERT", "", "PEM file of authorities. Clients then need a certificate from one of these, or of the system's")
	r.text(&t.ClientName, "GRPC_CLIENT_TLS_SAN", "", "DNS name that this certificate must have")
}

// declare names the variables of another port, which begin with prefix.
func (t *ServerTLS) declare(r *reader, prefix, port string) {
	r.text(&t.Cert, prefix+"TLS_CERT", "", "PEM file of the certificate chain with which "+port+" speaks TLS; empty: plain text")
	r.text(&t.Key, prefix+"TLS_KEY", "", "PEM file of its key")
	r.text(&t.ClientCA, prefix+"TLS_CLIENT_CACERT", "", "as `GRPC_CLIENT_TLS_CACERT`")
	r.text(&t.ClientName, prefix+"TLS_CLIENT_SAN", "", "as `GRPC_CLIENT_TLS_SAN`")
	t.On = t.Cert != "" || t.Key != ""
}

// validate checks what belongs together. names are those of the variables.
func (t *ServerTLS) validate(r *reader, cert, key, clientCA, clientName string) {
	switch {
	case t.On && t.Cert == "":
		r.problem(cert, "", "write the path of a PEM file with the certificate chain, and that of its key in "+key)
	case t.On && t.Key == "":
		r.problem(key, "", "write the path of a PEM file with the key of "+cert)
	case t.On && t.ClientName != "" && t.ClientCA == "":
		r.problem(clientName, t.ClientName, "clients need no certificate: set "+clientCA+", too")
	case !t.On && cert == "GRPC_SERVER_TLS_CERT":
		if !r.unreadable("GRPC_SERVER_USE_TLS") {
			r.warnUnused("GRPC_SERVER_USE_TLS is not true", "set GRPC_SERVER_USE_TLS=true", cert, key, clientCA, clientName)
		}
	case !t.On:
		r.warnUnused("that port speaks plain text", "set "+cert+" and "+key, clientCA, clientName)
	}
}

func (s *Settings) validateTLS(r *reader) {
	s.GRPCTLS.validate(r, "GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY", "GRPC_CLIENT_TLS_CACERT", "GRPC_CLIENT_TLS_SAN")
	for prefix, t := range map[string]*ServerTLS{"HTTP_": &s.HTTPTLS, "DEBUG_": &s.DebugTLS, "DIVVY_": &s.Divvy.TLS} {
		t.validate(r, prefix+"TLS_CERT", prefix+"TLS_KEY", prefix+"TLS_CLIENT_CACERT", prefix+"TLS_CLIENT_SAN")
	}
}
