package certs_test

import (
	"context"
	"crypto/fips140"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ratelimit/src/files/certs"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// files are copies of certificates that a test replaces.
type files struct{ dir, cert, key, ca string }

func newFiles(t *testing.T, pair harness.Pair, ca string) files {
	t.Helper()
	dir := t.TempDir()
	f := files{dir, filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, "ca.crt")}
	f.put(t, pair, ca)
	return f
}

func (f files) put(t *testing.T, pair harness.Pair, ca string) {
	t.Helper()
	for to, from := range map[string]string{f.cert: pair.Cert, f.key: pair.Key, f.ca: ca} {
		text := testfiles.Read(t, from)
		write(t, to, string(text))
	}
}

// write replaces a file in one step.
func write(t *testing.T, path, text string) {
	t.Helper()
	testfiles.Write(t, path+".new", text)
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// serve echoes over TLS until the test ends, and returns the address.
func serve(t *testing.T, s *certs.Server) string {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", s.TLS())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				_, _ = io.Copy(c, c) // a client that is refused hears of it by itself
			}()
		}
	}()
	return l.Addr().String()
}

// ask says hello to a server and returns the name in its certificate.
func ask(t *testing.T, addr string, cfg *tls.Config) (name string, err error) {
	t.Helper()
	raw, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	c := tls.Client(raw, cfg)
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("?")); err != nil {
		return "", err
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		return "", err // of TLS 1.3, a refusal comes only now
	}
	return c.ConnectionState().PeerCertificates[0].Subject.CommonName, nil
}

func client(t *testing.T, ca string, pair harness.Pair) *tls.Config {
	t.Helper()
	roots, err := certs.Authorities(ca)
	if err != nil {
		t.Fatal(err)
	}
	cfg := &tls.Config{RootCAs: roots, ServerName: "localhost", MinVersion: tls.VersionTLS10}
	if pair.Cert != "" {
		own, err := tls.LoadX509KeyPair(pair.Cert, pair.Key)
		if err != nil {
			t.Fatal(err)
		}
		// Shown also to a server that does not know its issuer.
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &own, nil }
	}
	return cfg
}

func TestClients(t *testing.T) {
	t.Parallel()
	c := harness.NewCertificates(t)
	named := c.Issue(t, "gateway", harness.Spec{CommonName: "gateway", Hosts: []string{"gateway.example"}})
	for _, tt := range []struct {
		name   string
		cfg    certs.Config
		client harness.Pair
		change func(*tls.Config)
		want   string // the server's name, or what is in the error
	}{
		{"no certificate needed", certs.Config{}, harness.Pair{}, nil, "server"},
		{"TLS 1.2", certs.Config{}, harness.Pair{}, func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }, "server"},
		{
			"TLS 1.1",
			certs.Config{},
			harness.Pair{},
			func(c *tls.Config) { c.MaxVersion = tls.VersionTLS11 },
			"protocol version",
		},
		{"no certificate", certs.Config{ClientCA: c.CA}, harness.Pair{}, nil, "certificate required"},
		{"a good one", certs.Config{ClientCA: c.CA}, c.Client, nil, "server"},
		{"one that has ended", certs.Config{ClientCA: c.CA}, c.ExpiredClient, nil, "expired certificate"},
		{"of another authority", certs.Config{ClientCA: c.CA}, c.OtherClient, nil, "unknown certificate authority"},
		{"the name", certs.Config{ClientCA: c.CA, ClientName: "gateway.example"}, named, nil, "server"},
		{"another name", certs.Config{ClientCA: c.CA, ClientName: "gateway.example"}, c.Client, nil, "bad certificate"},
		{
			"HTTP/2",
			certs.Config{Protocols: []string{"h2"}},
			harness.Pair{},
			func(c *tls.Config) { c.NextProtos = []string{"h2"} }, "server",
		},
		{
			"another protocol",
			certs.Config{Protocols: []string{"h2"}},
			harness.Pair{},
			func(c *tls.Config) { c.NextProtos = []string{"spdy/3"} }, "no application protocol",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.name == "TLS 1.1" && fips140.Enforced() {
				t.Skip("the client refuses to speak TLS 1.1 itself")
			}
			tt.cfg.Cert, tt.cfg.Key = c.Server.Cert, c.Server.Key
			s, err := certs.New(tt.cfg)
			if err != nil {
				t.Fatal(err)
			}
			cfg := client(t, c.CA, tt.client)
			if tt.change != nil {
				tt.change(cfg)
			}
			got, err := ask(t, serve(t, s), cfg)
			if err != nil {
				got = err.Error()
			}
			if !strings.Contains(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	c := harness.NewCertificates(t)
	empty := filepath.Join(t.TempDir(), "empty.pem")
	write(t, empty, "nothing\n")
	for _, tt := range []struct {
		cfg  certs.Config
		want string
	}{
		{
			certs.Config{Cert: "/nowhere.crt", Key: c.Server.Key},
			"certs: the certificate: open /nowhere.crt: no such file or directory",
		},
		{
			certs.Config{Cert: c.Server.Cert, Key: "/nowhere.key"},
			"certs: the key: open /nowhere.key: no such file or directory",
		},
		{
			certs.Config{Cert: c.Server.Cert, Key: c.Client.Key},
			"certs: " + c.Server.Cert + " and " + c.Client.Key + ": tls: private key does not match public key",
		},
		{
			certs.Config{Cert: empty, Key: c.Server.Key},
			"certs: " + empty + " and " + c.Server.Key + ": tls: failed to find any PEM data in certificate input",
		},
		{
			certs.Config{Cert: c.Server.Cert, Key: c.Server.Key, ClientCA: empty},
			"certs: the clients' authorities: " + empty + ": no certificate in PEM form in it",
		},
		{
			certs.Config{Cert: c.Server.Cert, Key: c.Server.Key, ClientName: "a"},
			"certs: a client's name needs the authorities of its certificate: set ClientCA",
		},
	} {
		if _, err := certs.New(tt.cfg); err == nil || err.Error() != tt.want {
			t.Errorf("got  %v\nwant %s", err, tt.want)
		}
	}
}

// replaced is a server of TLS whose files a test replaces.
type replaced struct {
	t       *testing.T
	c       *harness.Certificates
	f       files
	s       *certs.Server
	addr    string
	changes chan error
}

func newReplaced(t *testing.T) *replaced {
	t.Helper()
	c := harness.NewCertificates(t)
	r := &replaced{t: t, c: c, f: newFiles(t, c.Server, c.CA)}
	r.start(certs.Config{ClientCA: r.f.ca}, func() {})
	return r
}

// start runs the server until the test ends. between is called after New and before Run.
func (r *replaced) start(cfg certs.Config, between func()) {
	t := r.t
	t.Helper()
	r.changes = make(chan error, 100)
	cfg.Cert, cfg.Key, cfg.CheckInterval = r.f.cert, r.f.key, 10*time.Millisecond
	cfg.OnChange = func(err error) { r.changes <- err }
	s, err := certs.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	between()
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	r.s, r.addr = s, serve(t, s)
}

// expect connects as the client pair, and compares the server's name or the error.
func (r *replaced) expect(when, want string, pair harness.Pair) {
	r.t.Helper()
	got, err := ask(r.t, r.addr, client(r.t, r.c.CA, pair))
	if err != nil {
		got = err.Error()
	}
	if !strings.Contains(got, want) {
		r.t.Errorf("%s: got %q, want %q", when, got, want)
	}
}

// change waits until a change is in use, or refused for a reason.
func (r *replaced) change(reason string) {
	r.t.Helper()
	for {
		select {
		case err := <-r.changes:
			if reason == "" && err == nil || reason != "" && err != nil && strings.Contains(err.Error(), reason) {
				return
			}
		case <-time.After(20 * time.Second):
			r.t.Fatalf("no change: %q", reason)
		}
	}
}

// await waits until the server has that name.
func (r *replaced) await(want string) {
	r.t.Helper()
	harness.Await(r.t, harness.Deadline, want+" is in use", func() error {
		name, err := ask(r.t, r.addr, client(r.t, r.c.CA, r.c.Client))
		if err == nil && name != want {
			err = errors.New(name)
		}
		return err
	})
}

// The next connection uses new files if they are valid and belong together.
func TestReplaced(t *testing.T) {
	t.Parallel()
	r := newReplaced(t)
	second := r.c.Issue(t, "second", harness.Spec{CommonName: "second"})
	r.expect("at first", "server", r.c.Client)
	before := r.s.Stats()
	if until := time.Until(before.NotAfter); until < 0 || until > 25*time.Hour {
		t.Errorf("it ends in %v", until)
	}

	text := testfiles.Read(t, second.Cert)
	write(t, r.f.cert, string(text))
	r.change("private key does not match")
	r.expect("half of a pair", "server", r.c.Client)
	r.f.put(t, second, r.c.CA)
	r.change("")
	r.expect("the whole pair", "second", r.c.Client)

	write(t, r.f.ca, "rubbish")
	r.change("no certificate in PEM form")
	r.expect("authorities that are none", "second", r.c.Client)
	r.f.put(t, second, r.c.OtherCA)
	r.change("")
	r.expect("other authorities", "unknown certificate authority", r.c.Client)
	r.expect("their client", "second", r.c.OtherClient)

	if err := os.Remove(r.f.key); err != nil {
		t.Fatal(err)
	}
	r.change("no such file")
	r.expect("no key", "second", r.c.OtherClient)
	if st := r.s.Stats(); st.Loaded < 2 || st.Refused < 3 {
		t.Errorf("%+v", st)
	}
}

// A certificate that is not valid now does not replace one that is. One that becomes
// valid later is used from then on.
func TestReplacedByAnInvalidOne(t *testing.T) {
	t.Parallel()
	r := newReplaced(t)
	second := r.c.Issue(t, "second", harness.Spec{CommonName: "second"})
	r.f.put(t, second, r.c.CA)
	r.await("second")
	r.f.put(t, r.c.ExpiredServer, r.c.CA)
	r.change("the one in use has not: renew it")
	r.expect("an expired one", "second", r.c.Client)
	r.f.put(t, second, r.c.CA)
	r.change("")

	r.f.put(t, r.c.Issue(t, "tomorrow", harness.Spec{CommonName: "tomorrow", Begins: 24 * time.Hour}), r.c.CA)
	r.change("and is used from then on")
	r.expect("one of tomorrow", "second", r.c.Client)
	r.f.put(t, r.c.Issue(t, "soon", harness.Spec{CommonName: "soon", Begins: 3 * time.Second}), r.c.CA)
	r.await("soon") // by itself, once it is valid
	r.f.put(t, second, r.c.CA)
	r.await("second")
}

// An expired certificate is used if there is no other: at the start, and after another
// expired one.
func TestEnded(t *testing.T) {
	t.Parallel()
	c := harness.NewCertificates(t)
	r := &replaced{t: t, c: c, f: newFiles(t, c.ExpiredServer, c.CA)}
	r.start(certs.Config{}, func() { // Run has to notice a change before it.
		r.f.put(t, c.Issue(t, "again", harness.Spec{CommonName: "again", Expired: true}), c.CA)
	})
	r.change("")
	trusting := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}
	if got, err := ask(t, r.addr, trusting); got != "again" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

// A client certificate that cannot be read is shown as one that has expired in 1970.
func TestClientStats(t *testing.T) {
	t.Parallel()
	c := harness.NewCertificates(t)
	expiresIn := func(file string) time.Duration { return time.Until(certs.ClientStats(file)().NotAfter) }
	if left := expiresIn(c.Client.Cert); left > 24*time.Hour || left < 23*time.Hour {
		t.Errorf("it expires in %v, want a day", left)
	}
	if left := expiresIn(c.ExpiredClient.Cert); left > 0 || left < -24*time.Hour {
		t.Errorf("it expires in %v, want an hour ago", left)
	}
	broken := filepath.Join(t.TempDir(), "broken.pem")
	write(t, broken, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
	for _, file := range []string{c.Client.Key, broken, "/nowhere.crt"} {
		if got := certs.ClientStats(file)().NotAfter; !got.Equal(time.Unix(0, 0)) {
			t.Errorf("%s: %v", file, got)
		}
	}
}

// A file that cannot be read, as its file system does not answer, is told once, and
// what replaces it is read. A pipe that is never written to stands for it.
func TestReadHangs(t *testing.T) {
	t.Parallel()
	c := harness.NewCertificates(t)
	f := newFiles(t, c.Server, c.CA)
	r := &replaced{t: t, c: c, f: f}
	r.start(certs.Config{ReadTimeout: 500 * time.Millisecond}, func() {})
	s := r.s
	pipe := filepath.Join(f.dir, "pipe")
	if err := harness.MakePipe(pipe); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(pipe, f.cert); err != nil {
		t.Fatal(err)
	}
	r.change("certs: " + f.cert + ", " + f.key + ": not read within 500ms: check the file system (NFS, FUSE)")
	if n := s.Stats().Hanging; n != 1 {
		t.Errorf("%d reads hang, want 1", n)
	}
	if err := os.Rename(f.cert, pipe); err != nil { // to let it return at the end
		t.Fatal(err)
	}
	f.put(t, c.Issue(t, "second", harness.Spec{CommonName: "second"}), c.CA)
	r.change("") // after a refusal, because the key follows its certificate
	if st := s.Stats(); st.Hanging != 1 || st.Loaded != 1 {
		t.Errorf("%+v", st)
	}
	if name, err := ask(t, r.addr, client(t, c.CA, harness.Pair{})); name != "second" {
		t.Errorf("got %q, %v", name, err)
	}
	w, err := os.OpenFile(pipe, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	harness.Until(t, "the read has returned", func() bool { return s.Stats().Hanging == 0 })
}
