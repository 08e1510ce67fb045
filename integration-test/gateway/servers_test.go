package gateway

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"ratelimit/testbed/harness"
)

// startHTTPServer starts the server behind Envoy, which answers x-tokens with the same header, and returns its port.
func startHTTPServer(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header()["X-Tokens"] = r.Header["X-Tokens"]
	}))
	t.Cleanup(s.Close)
	return portOf(s.Listener.Addr().String())
}

// startGRPCServer starts gRPC's health service behind Envoy, and returns its port.
func startGRPCServer(t *testing.T) string {
	t.Helper()
	l := harness.Listen(t)
	s := grpc.NewServer()
	healthv1.RegisterHealthServer(s, health.NewServer())
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-served; err != nil {
			t.Errorf("the gRPC server: %v", err)
		}
	})
	return portOf(l.Addr().String())
}

// newIssuer returns the public key of an issuer of tokens as a JWKS, and a function that issues a token for a subject.
func newIssuer(t *testing.T) (jwks string, sign func(subject string) string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public, err := key.PublicKey.Bytes() // 4, x, y
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	jwks = fmt.Sprintf(`{"keys":[{"kty":"EC","crv":"P-256","alg":"ES256","use":"sig","x":%q,"y":%q}]}`,
		encode(public[1:33]), encode(public[33:]))
	return jwks, func(subject string) string {
		t.Helper()
		text := encode([]byte(`{"alg":"ES256","typ":"JWT"}`)) + "." + encode(fmt.Appendf(nil, `{"iss":"test","sub":%q}`,
			subject))
		sum := sha256.Sum256([]byte(text))
		r, s, err := ecdsa.Sign(rand.Reader, key, sum[:])
		if err != nil {
			t.Fatal(err)
		}
		signature := make([]byte, 64)
		r.FillBytes(signature[:32])
		s.FillBytes(signature[32:])
		return text + "." + encode(signature)
	}
}
