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
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Pair is a certificate and its key, as paths of PEM files.
type Pair struct{ Cert, Key string }

// Certificates are files for tests of TLS. All are valid for 127.0.0.1 and localhost, for a day, unless their name says
// otherwise.
type Certificates struct {
	Dir string

	CA     string // the path of a PEM file
	Server Pair
	Client Pair // its common name is "client"

	ExpiredServer Pair // by CA, expired an hour ago
	ExpiredClient Pair
	WrongHost     Pair // by CA, for elsewhere.example only

	OtherCA     string // independent of CA
	OtherServer Pair   // by OtherCA
	OtherClient Pair

	// Any accepts all certificates of servers, and shows the certificate Client.
	Any *tls.Config

	ca, other authority
}

// Spec is a certificate to issue.
type Spec struct {
	CommonName string
	Hosts      []string // names and addresses; nil is 127.0.0.1 and localhost
	Expired    bool
	Begins     time.Duration // from now; 0: two days ago
	Other      bool          // issued by OtherCA
}

type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewCertificates makes two authorities and their certificates.
func NewCertificates(t testing.TB) *Certificates {
	t.Helper()
	c := &Certificates{Dir: t.TempDir()}
	c.CA, c.ca = c.newAuthority(t, "ca")
	c.OtherCA, c.other = c.newAuthority(t, "other-ca")
	c.Server = c.Issue(t, "server", Spec{CommonName: "server"})
	c.Client = c.Issue(t, "client", Spec{CommonName: "client"})
	c.ExpiredServer = c.Issue(t, "expired-server", Spec{CommonName: "server", Expired: true})
	c.ExpiredClient = c.Issue(t, "expired-client", Spec{CommonName: "client", Expired: true})
	c.WrongHost = c.Issue(t, "wrong-host", Spec{CommonName: "server", Hosts: []string{"elsewhere.example"}})
	c.OtherServer = c.Issue(t, "other-server", Spec{CommonName: "server", Other: true})
	c.OtherClient = c.Issue(t, "other-client", Spec{CommonName: "client", Other: true})

	c.Any = &tls.Config{InsecureSkipVerify: true, Certificates: c.ClientConfig(t).Certificates}
	return c
}

// ClientConfig verifies servers by CA and shows the certificate Client.
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

// Issue writes name.crt and name.key to Dir. It replaces existing files, each in one step: the certificate first, then its key.
func (c *Certificates) Issue(t testing.TB, name string, spec Spec) Pair {
	t.Helper()
	now := time.Now()
	begins := cmp.Or(spec.Begins, -48*time.Hour)
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: spec.CommonName},
		NotBefore:   now.Add(begins),
		NotAfter:    now.Add(max(begins, 0) + 24*time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if spec.Expired {
		template.NotAfter = now.Add(-time.Hour)
	}
	if spec.Hosts == nil {
		spec.Hosts = []string{"127.0.0.1", "localhost"}
	}
	for _, host := range spec.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	by := c.ca
	if spec.Other {
		by = c.other
	}
	pair, _ := c.sign(t, name, template, &by)
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

// sign makes a key, and writes it with its certificate. A nil authority is the certificate itself.
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
	template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100))
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
	path := filepath.Join(c.Dir, name)
	for _, file := range []struct {
		suffix, kind string
		der          []byte
	}{{".crt", "CERTIFICATE", der}, {".key", "PRIVATE KEY", keyDER}} {
		text := pem.EncodeToMemory(&pem.Block{Type: file.kind, Bytes: file.der})
		check(os.WriteFile(path+file.suffix+".new", text, 0o600))
		check(os.Rename(path+file.suffix+".new", path+file.suffix))
	}
	return Pair{Cert: path + ".crt", Key: path + ".key"}, authority{cert, key}
}
