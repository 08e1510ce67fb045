package harness

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Pair holds the paths of two PEM files: a certificate and its key.
type Pair struct{ Cert, Key string }

// Certificates are files for tests of TLS. All certificates are valid for 127.0.0.1 and localhost, for a day, unless
// their name says otherwise.
type Certificates struct {
	Dir string

	CA     string // the path of the PEM file of an authority
	Server Pair
	Client Pair // a client certificate; its common name is "client"

	ExpiredServer Pair // signed by CA; expired an hour ago
	ExpiredClient Pair // signed by CA; expired an hour ago
	WrongHost     Pair // signed by CA, for elsewhere.example only

	OtherCA     string // the path of another authority, which is independent of CA
	OtherServer Pair   // signed by OtherCA
	OtherClient Pair   // signed by OtherCA

	// AnyServer accepts the certificates of all servers, and shows the certificate Client.
	AnyServer *tls.Config

	ca, otherCA authority
}

// Spec describes a certificate to issue.
type Spec struct {
	CommonName string
	Hosts      []string // the DNS names of the certificate; nil means localhost and the address 127.0.0.1
	Expired    bool
	Begins     time.Duration // the time until the certificate becomes valid; 0 means that it became valid two days ago
	Lasts      time.Duration // how long the certificate stays valid; 0 means a day
	Other      bool          // says that OtherCA signs the certificate, not CA
}

// authority is a certificate that signs others.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewCertificates makes two authorities and the certificates that they sign.
func NewCertificates(t testing.TB) *Certificates {
	t.Helper()
	c := &Certificates{Dir: t.TempDir()}
	c.CA, c.ca = c.newAuthority(t, "ca")
	c.OtherCA, c.otherCA = c.newAuthority(t, "other-ca")
	c.Server = c.Issue(t, "server", Spec{CommonName: "server"})
	c.Client = c.Issue(t, "client", Spec{CommonName: "client"})
	c.ExpiredServer = c.Issue(t, "expired-server", Spec{CommonName: "server", Expired: true})
	c.ExpiredClient = c.Issue(t, "expired-client", Spec{CommonName: "client", Expired: true})
	c.WrongHost = c.Issue(t, "wrong-host", Spec{CommonName: "server", Hosts: []string{"elsewhere.example"}})
	c.OtherServer = c.Issue(t, "other-server", Spec{CommonName: "server", Other: true})
	c.OtherClient = c.Issue(t, "other-client", Spec{CommonName: "client", Other: true})
	c.AnyServer = c.ClientConfig(t)
	c.AnyServer.InsecureSkipVerify = true
	return c
}

// ClientConfig returns a configuration that verifies servers by CA and shows the certificate Client.
func (c *Certificates) ClientConfig(t testing.TB) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(c.Client.Cert, c.Client.Key)
	if err != nil {
		t.Fatalf("harness: %v", err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(c.ca.cert)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}
}

// Issue writes name.crt and name.key to Dir. It replaces existing files, each in one step: the certificate first, then
// its key.
func (c *Certificates) Issue(t testing.TB, name string, spec Spec) Pair {
	t.Helper()
	begins := cmp.Or(spec.Begins, -48*time.Hour)
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: spec.CommonName},
		NotBefore:   time.Now().Add(begins),
		NotAfter:    time.Now().Add(max(begins, 0) + cmp.Or(spec.Lasts, 24*time.Hour)),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:    spec.Hosts,
	}
	if spec.Expired {
		template.NotAfter = time.Now().Add(-time.Hour)
	}
	if spec.Hosts == nil {
		template.DNSNames, template.IPAddresses = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	by := &c.ca
	if spec.Other {
		by = &c.otherCA
	}
	pair, _ := c.sign(t, name, template, by)
	return pair
}

// newAuthority writes name.crt, the certificate of a new authority.
func (c *Certificates) newAuthority(t testing.TB, name string) (string, authority) {
	t.Helper()
	pair, made := c.sign(t, name, &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             time.Now().Add(-72 * time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		IsCA:                  true,
		BasicConstraintsValid: true,
	}, nil)
	return pair.Cert, made
}

// sign makes a key, and writes it with its certificate. If by is nil, the certificate signs itself.
func (c *Certificates) sign(t testing.TB, name string, template *x509.Certificate, by *authority) (Pair, authority) {
	t.Helper()
	check := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatalf("harness: certificate %s: %v", name, err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	if by == nil {
		by = &authority{template, key}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by.cert, &key.PublicKey, by.key)
	check(err)
	cert, err := x509.ParseCertificate(der)
	check(err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	check(err)
	write := func(suffix, kind string, der []byte) string {
		path := filepath.Join(c.Dir, name+suffix)
		check(os.WriteFile(path+".new", pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		check(os.Rename(path+".new", path))
		return path
	}
	return Pair{write(".crt", "CERTIFICATE", der), write(".key", "PRIVATE KEY", keyDER)}, authority{cert, key}
}
