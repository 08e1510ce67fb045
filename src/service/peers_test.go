package service

import (
	"bufio"
	"cmp"
	"crypto/tls"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"ratelimit/src/frontend/admin"
	"ratelimit/testbed/harness"
)

// firstSum returns the first update of all replicas that the debug port of s sends.
func (s *service) firstSum(cfg *tls.Config, token string) (u admin.Update) {
	s.t.Helper()
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet,
		"https://"+s.address("debug")+"/api/events?replicas=all", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	transport := &http.Transport{TLSClientConfig: cfg.Clone(), DisableKeepAlives: true}
	resp, err := transport.RoundTrip(request)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewReader(resp.Body)
	for range 2 {
		line, err := lines.ReadString('\n')
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			err = json.Unmarshal([]byte(data), &u)
		}
		if err != nil {
			s.t.Fatalf("%d %q: %v", resp.StatusCode, line, err)
		}
	}
	return u
}

// Replicas reach each other with TLS, certificates of clients and the token. What lacks is named, and no secret.
func TestPeersOverTLS(t *testing.T) {
	t.Parallel()
	c := harness.NewCertificates(t)
	port := []string{
		"DEBUG_TLS_CERT=" + c.Server.Cert, "DEBUG_TLS_KEY=" + c.Server.Key, "DEBUG_TLS_CLIENT_CACERT=" + c.CA,
	}
	other := launch(t, oneRule, append(port, "DEBUG_TOKEN=t0ken-of-all")...)
	peers := "DEBUG_PEERS=" + other.address("debug")
	pair := []string{"DEBUG_PEERS_TLS_CERT=" + c.Client.Cert, "DEBUG_PEERS_TLS_KEY=" + c.Client.Key}
	ca := "DEBUG_PEERS_TLS_CACERT=" + c.CA
	for _, tt := range []struct {
		token string
		vars  []string
		want  string // is in the error of the other replica.
	}{
		{"t0ken-of-all", append(pair, ca), ""},
		{"t0ken-of-one", append(pair, ca), " refuses the token: send the DEBUG_TOKEN that the service was started with"},
		{"t0ken-of-all", pair, ": name the authority of its certificate with DEBUG_PEERS_TLS_CACERT"},
		{"t0ken-of-all", []string{ca}, "certificate required"},
		{"t0ken-of-all", append(pair, "DEBUG_PEERS_TLS_CACERT="+c.OtherCA), "DEBUG_PEERS_TLS_CACERT"},
	} {
		s := launch(t, oneRule, append(append(append([]string{}, port...), tt.vars...), peers, "DEBUG_TOKEN="+tt.token)...)
		var u admin.Update
		s.until("a sum with "+cmp.Or(tt.want, "both"), func() bool { // A busy machine may not answer within a second.
			u = s.firstSum(c.ClientConfig(t), tt.token)
			return len(u.Replicas) == 2 && u.Replicas[0].IsThis && u.Replicas[0].Error == "" &&
				(u.Replicas[1].Error == "") == (tt.want == "") && strings.Contains(u.Replicas[1].Error, tt.want)
		})
		if text, err := json.Marshal(u); err != nil || strings.Contains(string(text), "t0ken") || s.logged("t0ken")() {
			t.Errorf("%q: a token is told: %v", tt.vars, err)
		}
	}
}

func TestPeersAreChecked(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ peers, want string }{
		{"http://me:hunter2@a:1", "DEBUG_PEERS: address of a:1: leave out the password"},
		{"a:1,b/c", "DEBUG_PEERS: address b/c: write only the host and the port"},
	} {
		s := launch(t, oneRule, "DEBUG_PEERS="+tt.peers)
		err := s.wait()
		if err == nil || !strings.HasPrefix(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %s", tt.peers, err, tt.want)
		}
	}
	s := launch(t, oneRule, "DEBUG_PEERS_TLS_CACERT=/ca.crt")
	s.until("a warning", s.logged("DEBUG_PEERS_TLS_CACERT"))
}
