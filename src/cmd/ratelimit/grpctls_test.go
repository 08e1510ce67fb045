package main

import (
	"os"
	"strings"
	"testing"

	"ratelimit/src/backend/redistest"
)

// askTLS asks the service with the client, and returns its exit status.
func (s *service) askTLS(flags ...string) int {
	args := append([]string{"ratelimit", "client", "-dial_string", s.address("grpc"), "-domain", "d", "-descriptors", "ip=1", "--hits", "0"}, flags...)
	return run(s.t.Context(), args, stdio{&output{}, &output{}})
}

func TestGRPCTLS(t *testing.T) {
	c := redistest.NewCertificates(t)
	named := c.Issue(t, "named", redistest.Spec{CommonName: "x", Hosts: []string{"envoy.example"}})
	own := []string{"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=" + c.Server.Cert, "GRPC_SERVER_TLS_KEY=" + c.Server.Key}
	verify := append(own, "GRPC_CLIENT_TLS_CACERT="+c.CA)
	trust := []string{"--grpc-use-tls", "--grpc-server-ca-file", c.CA}
	with := func(p redistest.Pair) []string {
		return append([]string{"--grpc-cert-file", p.Cert, "--grpc-key-file", p.Key}, trust...)
	}
	for _, tt := range []struct {
		name  string
		vars  []string
		flags []string
		ok    bool
	}{
		{"nobody needs a certificate", own, trust, true},
		{"plain text", own, nil, false},
		{"a client that does not know our authority", own, []string{"--grpc-use-tls"}, false},
		{"the authority's", verify, with(c.Client), true},
		{"none", verify, trust, false},
		{"another authority's", verify, with(c.OtherClient), false},
		{"an expired one", verify, with(c.ExpiredClient), false},
		{"the name", append(verify, "GRPC_CLIENT_TLS_SAN=envoy.example"), with(named), true},
		{"another name", append(verify, "GRPC_CLIENT_TLS_SAN=envoy.example"), with(c.Client), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := launch(t, oneRule, tt.vars...)
			s.until("ready", s.healthy)
			if code := s.askTLS(tt.flags...); (code == exitOK) != tt.ok {
				t.Errorf("exit status %d", code)
			}
		})
	}
}

func TestGRPCTLSFilesChange(t *testing.T) {
	c := redistest.NewCertificates(t)
	mine := c.Issue(t, "mine", redistest.Spec{CommonName: "mine", Other: true})
	s := launch(t, oneRule, "GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT="+mine.Cert, "GRPC_SERVER_TLS_KEY="+mine.Key)
	s.until("ready", s.healthy)
	other := []string{"--grpc-use-tls", "--grpc-server-ca-file", c.OtherCA}
	trust := []string{"--grpc-use-tls", "--grpc-server-ca-file", c.CA}
	if s.askTLS(other...) != exitOK || s.askTLS(trust...) == exitOK {
		t.Fatal("not the certificate of the other authority")
	}
	if err := os.WriteFile(mine.Key, []byte("half a k"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s.askTLS(other...) != exitOK {
		t.Error("half a key took the old one away")
	}
	if !s.logged("GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY: tls: failed to find any PEM data in key input; the files as they were before are still in use")() {
		t.Error("nothing is said of it")
	}
	c.Issue(t, "mine", redistest.Spec{CommonName: "mine"})
	if s.askTLS(trust...) != exitOK || s.askTLS(other...) == exitOK {
		t.Error("not the new certificate")
	}
}

func TestGRPCTLSIsChecked(t *testing.T) {
	c := redistest.NewCertificates(t)
	for want, vars := range map[string][]string{
		"set GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY, too": nil,
		"GRPC_SERVER_TLS_CERT: open /nowhere: no such file":     {"GRPC_SERVER_TLS_CERT=/nowhere", "GRPC_SERVER_TLS_KEY=" + c.Server.Key},
		"GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY: tls: ":   {"GRPC_SERVER_TLS_CERT=" + c.Server.Cert, "GRPC_SERVER_TLS_KEY=" + c.Client.Key},
		"GRPC_CLIENT_TLS_CACERT: " + c.Server.Key:               {"GRPC_SERVER_TLS_CERT=" + c.Server.Cert, "GRPC_SERVER_TLS_KEY=" + c.Server.Key, "GRPC_CLIENT_TLS_CACERT=" + c.Server.Key},
	} {
		err := launch(t, oneRule, append(vars, "GRPC_SERVER_USE_TLS=true")...).wait()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
