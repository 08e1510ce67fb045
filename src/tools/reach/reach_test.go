package reach

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"ratelimit/src/operator/debugport"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

// debug returns a Service from the flags of a debug port.
func debug(t *testing.T, args ...string) *Service {
	t.Helper()
	var s Service
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	s.AddDebugFlags(f)
	if err := f.Parse(args); err != nil {
		t.Fatal(err)
	}
	return &s
}

// write writes a file and returns its path.
func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	testfiles.Write(t, path, text)
	return path
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"localhost:6070":         "http://localhost:6070",
		"rl.example":             "http://rl.example:6070",
		"10.0.0.7":               "http://10.0.0.7:6070",
		"[::1]:7070":             "http://[::1]:7070",
		"[::1]":                  "http://[::1]:6070",
		"http://rl.example/":     "http://rl.example:6070",
		"https://rl.example:443": "https://rl.example:443",
		"":                       "address : write host:port, such as localhost:6070, or https://host:port",
		"a\x1b[2J":               `address "a\x1b[2J": write host:port, such as localhost:6070, or https://host:port`,
		"ftp://a":                "address ftp://a: write host:port, such as localhost:6070, or https://host:port",
		"http://me:secret@a:1": "address of a:1: leave out the password, which other users of this machine could read; " +
			"set DEBUG_TOKEN or use --token-file",
		"localhost:6070/api/state": "address localhost:6070/api/state: write only the host and the port, such as " +
			"localhost:6070",
	} {
		var got string
		if u, err := debugport.ParseAddress(address, "6070"); err != nil {
			got = err.Error()
		} else {
			got = u.String()
		}
		if got != want {
			t.Errorf("%q: %s\nwant %s", address, got, want)
		}
	}
}

// Each command finds its own port of a service that RATELIMIT_ADDRESS names, and --address comes first.
func TestWhichService(t *testing.T) {
	for _, tt := range []struct{ variable, flag, debug, grpc string }{
		{"", "", "http://localhost:6070", "localhost:8081"},
		{"rl.example", "", "http://rl.example:6070", "rl.example:8081"},
		{"rl.example:1", "", "http://rl.example:1", "rl.example:1"},
		{"rl.example", "10.0.0.7:2", "http://10.0.0.7:2", "10.0.0.7:2"},
		{"https://rl.example", "", "https://rl.example:6070", "rl.example:8081 with TLS"},
		{"rl.example", "unix:///run/rl", "", "unix:///run/rl"},
		{"rl.example", "dns:///rl:3", "", "dns:///rl:3"},
		{
			"a/b", "", "address a/b: write only the host and the port, such as a",
			"address a/b: write only the host and the port, such as a",
		},
	} {
		t.Setenv("RATELIMIT_ADDRESS", tt.variable)
		var args []string
		if tt.flag != "" {
			args = []string{"--address", tt.flag}
		}
		if c, err := debug(t, args...).newClient(); tt.debug != "" &&
			(err == nil && c.String() != tt.debug || err != nil && err.Error() != tt.debug) {
			t.Errorf("%+v: %v", tt, err)
		}
		var s Service
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		s.AddGRPCFlags(f)
		if err := f.Parse(args); err != nil {
			t.Fatal(err)
		}
		target, tls, err := s.GRPC()
		if tls != nil {
			target += " with TLS"
		}
		if err != nil {
			target = err.Error()
		}
		if target != tt.grpc {
			t.Errorf("%+v: %s", tt, target)
		}
	}
}

func TestInvalidFlags(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args []string
		want string // is in the error
	}{
		{[]string{"--token-file", "/none"}, "--token-file: open /none"},
		{[]string{"--token-file", write(t, " \n")}, "write the token in the file, on one line"},
		{[]string{"--token-file", write(t, "a\nb\n")}, "write the token in the file, on one line"},
		{[]string{"--tls-ca", "ca.crt"}, "have no effect without TLS: add --tls"},
		{[]string{"--tls", "--tls-ca", "/none"}, "--tls-ca"},
		{[]string{"--tls", "--tls-cert", "/none"}, "--tls-cert and --tls-key"},
	} {
		if _, err := debug(t, tt.args...).newClient(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v, want %s", tt.args, err, tt.want)
		}
	}
}

// client returns a client of the debug port at address.
func client(t *testing.T, address string, args ...string) *debugport.Client {
	t.Helper()
	c, err := debug(t, append(args, "--address", address)...).newClient()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// get asks a server for /api/state, and returns the answer or the error, in which ADDRESS stands for that of the
// server.
func get(t *testing.T, address string, args ...string) (answer string, err error) {
	t.Helper()
	c := client(t, address, args...)
	err = c.Get(t.Context(), "/api/state", url.Values{"a": {"b c"}}, &answer)
	return answer, err
}

func TestToken(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `"`+r.URL.RequestURI()+" "+r.Header.Get("Authorization")+`"`)
	}))
	defer s.Close()
	for _, tt := range []struct {
		variable string
		args     []string
		want     string
	}{
		{"", nil, "/api/state?a=b+c "},
		{"secret", nil, "/api/state?a=b+c Bearer secret"},
		{"secret", []string{"--token-file", write(t, "other\n")}, "/api/state?a=b+c Bearer other"},
	} {
		t.Setenv("DEBUG_TOKEN", tt.variable)
		if got, err := get(t, s.URL, tt.args...); got != tt.want || err != nil {
			t.Errorf("%+v: %q, %v", tt, got, err)
		}
	}
}

// Errors say what to do.
func TestAnswersThatAreErrors(t *testing.T) {
	for _, tt := range []struct {
		status      int
		body, token string
		want        string // A stands for the address.
		isTemporary bool
	}{
		{
			401, "send DEBUG_TOKEN", "", "A needs a token: set DEBUG_TOKEN, or name a file that has it with --token-file",
			false,
		},
		{401, "send DEBUG_TOKEN", "x", "A refuses the token: send the DEBUG_TOKEN that the service was started with", false},
		{
			403, "the Host header \"rl\" is not in DEBUG_ALLOWED_HOSTS\n", "",
			`A/api/state: status 403: the Host header "rl" is not in DEBUG_ALLOWED_HOSTS`, false,
		},
		{
			404, "there is no such page; see / for the list\n", "",
			"A has no /api/state (there is no such page; see / for the list): name the debug port of a service that is as new " +
				"as this program, localhost:6070 by default", false,
		},
		{400, "limit=\"x\" is not allowed", "", `A/api/state: status 400: limit="x" is not allowed`, false},
		{500, "\x1b[2Jbroken\xff\nmore", "", `A/api/state: status 500: "\x1b[2Jbroken?"`, true},
		{503, "", "", "A/api/state: status 503: 503 Service Unavailable", true},
		{302, "", "", "A/api/state: status 302: 302 Found", false},
		{200, "<html>", "", "A/api/state does not answer with the JSON of a rate limit service (invalid character '<' " +
			"looking for beginning of value); name its debug port, localhost:6070 by default", false},
	} {
		t.Setenv("DEBUG_TOKEN", tt.token)
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/elsewhere" {
				t.Error("a redirect was followed")
			}
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(tt.status)
			_, _ = io.WriteString(w, tt.body)
		}))
		_, err := get(t, s.URL)
		problem, ok := errors.AsType[*debugport.Error](err)
		if !ok || strings.ReplaceAll(err.Error(), strings.TrimPrefix(s.URL, "http://"), "A") != tt.want ||
			problem.Temporary != tt.isTemporary || problem.Status != tt.status {
			t.Errorf("%d: %v\nwant %s", tt.status, err, tt.want)
		}
		s.Close()
	}
}

func TestNoAnswer(t *testing.T) {
	t.Parallel()
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_,
			_ = io.WriteString(w, `"hello"`)
	}))
	defer secure.Close()
	release := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer slow.Close()
	defer close(release)
	other := harness.Listen(t)
	defer func() { _ = other.Close() }()
	go func() {
		for {
			conn, err := other.Accept()
			if err != nil {
				return
			}
			// As a gRPC server: SETTINGS of HTTP/2.
			_, _ = conn.Write([]byte("\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00\x40\x00\n"))
			_ = conn.Close()
		}
	}()
	host := func(s *httptest.Server) string { _, host, _ := strings.Cut(s.URL, "://"); return host }
	ca := write(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})))
	for _, tt := range []struct {
		name, address string
		args          []string
		want          string // is in the error
	}{
		{"nothing listens", host(closed), nil, "connection refused: start the service, or name its debug port (DEBUG_PORT)"},
		{"slow", host(slow), []string{"--timeout", "500ms"}, "no answer within 500ms"},
		{"TLS to a port without", host(plain), []string{"--tls"}, "the port does not use TLS: leave out --tls and https://"},
		{"no TLS to a port with it", host(secure), nil, "uses TLS: add --tls"},
		{"gRPC", other.Addr().String(), nil, "it may be the gRPC port: name the debug port"},
		{
			"unknown authority", host(secure),
			[]string{"--tls"},
			"name the authority of the service's certificate with --tls-ca",
		},
	} {
		if _, err := get(t, tt.address, tt.args...); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
	}
	for _, args := range [][]string{{"--tls", "--tls-ca", ca}, {"--tls-ca", ca}} {
		address := host(secure)
		if len(args) == 2 {
			address = secure.URL
		}
		if got, err := get(t, address, args...); got != "hello" || err != nil {
			t.Errorf("%q: %q, %v", args, got, err)
		}
	}
}

func TestDo(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = io.WriteString(w, `["`+r.Method+`","`+r.Header.Get("Content-Type")+`",`+string(body)+`]`)
	}))
	defer s.Close()
	c := client(t, s.URL)
	if s := debug(t); s.Timeout != 5*time.Second {
		t.Errorf("the default timeout is %v", s.Timeout)
	}
	var got []any
	if err := c.Do(t.Context(), http.MethodPost, "/x", nil, map[string]int{"a": 1}, &got); err != nil || len(got) != 3 ||
		got[0] != "POST" || got[1] != "application/json" {
		t.Errorf("%v, %v", got, err)
	}
}

// Stream passes on line after line, and stops at the first error.
func TestStream(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") != "application/x-ndjson" {
			http.Error(w, "what?", http.StatusTeapot)
			return
		}
		_, _ = io.WriteString(w, "one\ntwo\nthree\n") // A failed write fails the test.
	}))
	defer server.Close()
	c := client(t, server.URL)
	var lines []string
	errEnough := errors.New("enough")
	err := c.Stream(t.Context(), http.MethodPost, "/api/counters", map[string]int{}, func(text []byte) error {
		if lines = append(lines, string(text)); len(lines) == 2 {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) || strings.Join(lines, " ") != "one two" {
		t.Errorf("%q, %v", lines, err)
	}
}

// A command that asks several replicas takes a list, and a name for all its addresses.
func TestReplicas(t *testing.T) {
	t.Parallel()
	for addresses, want := range map[string]string{
		"a, b:7,https://c":        "http://a:6070 http://b:7 https://c:6070",
		"dns:///localhost:7":      "http://127.0.0.1:7",
		"dns:///127.0.0.1,[::1]":  "http://127.0.0.1:6070 http://[::1]:6070",
		"a,a:6070":                "address a:6070: name each replica once",
		"a,":                      "address : write host:port, such as localhost:6070, or https://host:port",
		"dns:///a/b":              "address a/b: write only the host and the port, such as a",
		"dns:///none.invalid":     "address dns:///none.invalid: lookup none.invalid",
		strings.Repeat("a,", 200): "201 addresses: name at most 100",
	} {
		clients, err := debug(t, "--address", addresses).newClients(t.Context())
		var got []string
		for _, c := range clients {
			got = append(got, c.String())
		}
		text := strings.Join(got, " ")
		if err != nil {
			text = err.Error()
		}
		if text != want && (err == nil || !strings.HasPrefix(text, want)) {
			t.Errorf("%s: %s, want %s", addresses, text, want)
		}
	}
	if _, err := debug(t, "--address", "a,b").newClient(); err == nil ||
		!strings.Contains(err.Error(), "address a,b: name one replica for this command") {
		t.Errorf("one replica: %v", err)
	}
}

// A replica that hangs does not keep the answers of the others for its whole timeout.
func TestEachIsNotPatient(t *testing.T) {
	t.Parallel()
	quick := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `"here"`)
	}))
	defer quick.Close()
	slow := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer slow.Close()
	clients := []*debugport.Client{client(t, slow.URL, "--timeout", "1m"), client(t, quick.URL)}
	var answers [2]string
	errs := debugport.Each(t.Context(), 2, func(ctx context.Context, i int) error {
		return clients[i].Get(ctx, "/api/state", nil, &answers[i])
	})
	if errs[1] != nil || answers[1] != "here" || errs[0] == nil ||
		errs[0].Error() != clients[0].Address+": no answer within 1s of the first replica's" {
		t.Errorf("%v, %q", errs, answers)
	}
}
