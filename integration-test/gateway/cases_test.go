package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"gopkg.in/yaml.v3"

	"ratelimit/testbed/harness"
)

// policyCase is a file of testdata/cases.
type policyCase struct {
	name  string // without .yaml; name.example is the host of its routes
	text  string
	steps []step
}

// step is a request and the answers that it gets, one after the other.
type step struct {
	line    int // of the file
	request request
	answers []answer
}

type request struct {
	method  string // GRPC calls gRPC's health service
	host    string
	path    string
	merged  bool // goes to the gateway "merged"
	from    string
	headers [][2]string
}

type answer struct {
	code    string
	poll    bool     // repeats the request until it gets the code
	headers []string // name=value, or !name
}

// readCases reads all files.
func readCases(t *testing.T) []*policyCase {
	t.Helper()
	files, err := filepath.Glob("testdata/cases/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	var cases []*policyCase
	for _, file := range files {
		c := &policyCase{name: strings.TrimSuffix(filepath.Base(file), ".yaml"), text: readFile(t, file)}
		number := 0
		for line := range strings.Lines(c.text) {
			number++
			text, found := strings.CutPrefix(line, "#> ")
			if !found {
				continue
			}
			s, err := parseStep(text)
			if err != nil {
				t.Fatalf("%s:%d: %v", file, number, err)
			}
			s.line, s.request.host = number, c.name+".example"
			c.steps = append(c.steps, s)
		}
		if len(c.steps) == 0 || !strings.HasPrefix(c.text, "# ") {
			t.Fatalf("%s: it needs the question in its first line, and lines such as #> GET / : 200 429", file)
		}
		cases = append(cases, c)
	}
	return cases
}

// parseStep reads "METHOD PATH name=value… : CODE header=value… …".
func parseStep(text string) (step, error) {
	ask, expect, found := strings.Cut(text, " : ")
	words := strings.Fields(ask)
	if !found || len(words) < 2 {
		return step{}, fmt.Errorf("%q: write METHOD PATH : CODE", text)
	}
	s := step{request: request{method: words[0]}}
	s.request.path, s.request.merged = strings.CutPrefix(words[1], "@merged")
	if !s.request.merged {
		s.request.path = words[1]
	}
	for _, word := range words[2:] {
		name, value, found := strings.Cut(word, "=")
		switch {
		case !found:
			return step{}, fmt.Errorf("%q: write name=value", word)
		case name == "from":
			s.request.from = value
		default:
			s.request.headers = append(s.request.headers, [2]string{name, value})
		}
	}
	for word := range strings.FieldsSeq(expect) {
		if strings.ContainsAny(word, "=!") {
			if len(s.answers) == 0 {
				return step{}, fmt.Errorf("%q: write a code before it", word)
			}
			last := &s.answers[len(s.answers)-1]
			last.headers = append(last.headers, word)
			continue
		}
		code, poll := strings.CutPrefix(word, "~")
		s.answers = append(s.answers, answer{code: code, poll: poll})
	}
	if len(s.answers) == 0 {
		return step{}, fmt.Errorf("%q: no code", text)
	}
	return s, nil
}

func TestParseStep(t *testing.T) {
	t.Parallel()
	got, err := parseStep("GET @merged/a?b=c x-user=ann from=127.0.0.2 : 200 x-a=1,2;w=3 !x-b ~429")
	want := step{
		request: request{
			method: "GET", path: "/a?b=c", merged: true, from: "127.0.0.2",
			headers: [][2]string{{"x-user", "ann"}},
		},
		answers: []answer{{code: "200", headers: []string{"x-a=1,2;w=3", "!x-b"}}, {code: "429", poll: true}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v\n got %+v\nwant %+v", err, got, want)
	}
	for text, problem := range map[string]string{
		"GET / 200":        "write METHOD PATH : CODE",
		"GET : 200":        "write METHOD PATH : CODE",
		"GET / x-user : 1": `"x-user": write name=value`,
		"GET / : x-a=1":    `"x-a=1": write a code before it`,
		"GET / :  ":        "no code",
	} {
		if _, err := parseStep(text); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%q: %v, want %s", text, err, problem)
		}
	}
}

// The files are what they should be: each has its question and its steps, and resources in YAML whose routes have its
// host.
func TestCaseFiles(t *testing.T) {
	t.Parallel()
	for _, c := range readCases(t) {
		kinds := make(map[string]int)
		decoder := yaml.NewDecoder(strings.NewReader(c.text))
		for {
			var resource struct {
				Kind string
				Spec struct{ Hostnames []string }
			}
			err := decoder.Decode(&resource)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			kinds[resource.Kind]++
			if hosts := resource.Spec.Hostnames; strings.HasSuffix(resource.Kind, "Route") &&
				(len(hosts) != 1 || hosts[0] != c.name+".example") {
				t.Errorf("%s: a route has the hosts %q, want its file's name", c.name, hosts)
			}
		}
		if kinds["BackendTrafficPolicy"] == 0 || kinds["HTTPRoute"]+kinds["GRPCRoute"] == 0 {
			t.Errorf("%s has %v, want a policy and a route", c.name, kinds)
		}
	}
}

// play sends the requests of a case.
func (s *stack) play(t *testing.T, c *policyCase) {
	t.Helper()
	for _, step := range c.steps {
		for i, want := range step.answers {
			try := func() error { return s.expect(t, step.request, want) }
			where := fmt.Sprintf("testdata/cases/%s.yaml:%d, answer %d", c.name, step.line, i+1)
			if want.poll {
				harness.Await(t, harness.Deadline, where, try)
			} else if err := try(); err != nil {
				t.Errorf("%s: %v", where, err)
			}
		}
	}
}

// expect sends a request and compares its answer.
func (s *stack) expect(t *testing.T, r request, want answer) error {
	t.Helper()
	code, header, err := s.do(t, r)
	if err != nil {
		return err
	}
	if code != want.code {
		return fmt.Errorf("%s %s%s: %s, want %s; %v", r.method, r.host, r.path, code, want.code, header)
	}
	for _, h := range want.headers {
		name, value, _ := strings.Cut(h, "=")
		name, absent := strings.CutPrefix(name, "!")
		if got := strings.ReplaceAll(header.Get(name), " ", ""); got != value {
			return fmt.Errorf("%s %s%s: %s is %q, want %q (absent: %v)", r.method, r.host, r.path, name, got, value, absent)
		}
	}
	return nil
}

// do sends a request over a connection of its own, and returns the code and the headers of the response.
func (s *stack) do(t *testing.T, r request) (string, http.Header, error) {
	t.Helper()
	address := s.listener
	if r.merged {
		address = s.merged
	}
	if r.method == "GRPC" {
		code, err := callHealth(t.Context(), address, r)
		return code, nil, err
	}
	req, err := http.NewRequestWithContext(t.Context(), r.method, "http://"+address+r.path, nil)
	if err != nil {
		return "", nil, err
	}
	req.Host = r.host
	for _, h := range r.headers {
		req.Header.Set(h[0], s.tokens.Replace(h[1]))
	}
	dialer := net.Dialer{}
	if r.from != "" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(r.from)}
	}
	client := http.Client{
		Timeout:   harness.Deadline,
		Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true},
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", nil, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return fmt.Sprint(resp.StatusCode), resp.Header, errors.Join(err, resp.Body.Close())
}

// callHealth calls gRPC's health service, and returns the name of the code.
func callHealth(ctx context.Context, address string, r request) (string, error) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority(r.host))
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, harness.Deadline)
	defer cancel()
	_, err = healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
	return status.Code(err).String(), conn.Close()
}
