package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
)

// A sentence is one thing that is said of how envoyproxy/ratelimit answers or
// counts, and the requests that show it. Files named upstream_*_test.go hold
// all of them, by subject. A name that begins with "differs:" says where this
// service departs from the original on purpose.
//
// Each sentence has a domain to itself, so that many share a process, and is
// told twice: over gRPC and over /json. Windows are a day or longer, and every
// answer's time until reset is held against the clock.
type sentence struct {
	name  string
	rules string // the domain's file, without the line that names the domain
	more  string // a second file of the same domain
	steps []step
}

// A step is a request and what is to come of it.
type step struct {
	ask    string // as newRequest reads it
	hits   uint32 // hits_addend of the request
	times  int    // ask that often and look at the last answer; 0: once
	domain string // instead of the sentence's own; noDomain for none

	want     string     // as answerText writes it
	fails    codes.Code // instead of an answer
	headers  string     // as headersMatch reads it
	metadata string     // JSON, with $domain for the domain

	// counts says by how much the counters of the domain's rules moved:
	// "key: name n, name n; key: ...". Those not named must not have moved.
	// "none": none moved. "": not checked.
	counts string
	// service is the same for counters of the whole service: "name n, name n".
	service string

	// put is a new file of the domain, to be loaded before the request.
	put string
}

const noDomain = "-"

// upstream is a service that sentences are held against.
type upstream struct {
	*service
	rules ruleDir
	conn  *grpc.ClientConn
}

// startUpstream starts a service with the domains of these sentences.
func startUpstream(t *testing.T, env []string, sentences []sentence) *upstream {
	t.Helper()
	rules := newRuleDir(t)
	for i, s := range sentences {
		for _, protocol := range protocols {
			domain := s.domain(i, protocol)
			rules.put(t, domain+".yaml", "domain: "+domain+"\n"+s.rules)
			if s.more != "" {
				rules.put(t, domain+"-more.yaml", "domain: "+domain+"\n"+s.more)
			}
		}
	}
	return startWith(t, rules, env...)
}

// startWith starts a service with these rules.
func startWith(t *testing.T, rules ruleDir, env ...string) *upstream {
	t.Helper()
	u := &upstream{rules: rules}
	u.service = startService(t, slices.Concat(rules.env(), []string{"RUNTIME_DEBOUNCE=10ms"}, env)...)
	u.dial(t)
	return u
}

func (u *upstream) dial(t *testing.T) {
	t.Helper()
	var err error
	u.conn, err = grpc.NewClient(u.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := u.conn.Close(); err != nil {
			t.Error(err)
		}
	})
}

// prove starts services with env, one for each GRPC_ENGINE, and holds the sentences against them.
func prove(t *testing.T, env []string, sentences []sentence) {
	t.Helper()
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			u := startUpstream(t, append([]string{"GRPC_ENGINE=" + engine}, env...), sentences)
			for i, s := range sentences {
				t.Run(s.name, func(t *testing.T) { u.prove(t, i, s) })
			}
		})
	}
}

// prove holds sentence i against u, over each protocol.
func (u *upstream) prove(t *testing.T, i int, s sentence) {
	for _, protocol := range protocols {
		t.Run(protocol, func(t *testing.T) {
			for n, st := range s.steps {
				if !u.runStep(t, protocol, s.domain(i, protocol), n+1, st) {
					return // later steps build on this one
				}
			}
		})
	}
}

var protocols = []string{"grpc", "json"}

func (s sentence) domain(i int, protocol string) string { return fmt.Sprintf("%s%d", protocol, i) }

// runStep makes one step and reports whether all was as it should be.
func (u *upstream) runStep(t *testing.T, protocol, domain string, n int, st step) bool {
	t.Helper()
	wrong := false
	errorf := func(format string, args ...any) {
		t.Helper()
		wrong = true
		t.Errorf("step %d, %q: %s", n, st.ask, fmt.Sprintf(format, args...))
	}
	if st.put != "" {
		u.reload(t, func() { u.rules.put(t, domain+".yaml", "domain: "+domain+"\n"+st.put) }, "config_load_success")
	}
	switch st.domain {
	case "":
	case noDomain:
		domain = ""
	default:
		domain = st.domain
	}
	before := u.stats(t)
	var r reply
	for range max(1, st.times) {
		r = u.send(t, protocol, domain, st)
	}
	if r.code != st.fails {
		errorf("it ended with %v (%s), want %v", r.code, r.text, st.fails)
		return false
	}
	if st.fails == codes.OK {
		if got := answerText(r.answer); got != st.want {
			errorf("got %q\nwant %q", got, st.want)
		}
		for _, problem := range r.problems(st, domain) {
			errorf("%s", problem)
		}
	}
	for _, problem := range u.counted(t, before, domain, st) {
		errorf("%s", problem)
	}
	return !wrong
}

// reply is what came of a request, over either protocol.
type reply struct {
	answer   *rlsv3.RateLimitResponse
	code     codes.Code
	text     string         // of the failure
	http     *http.Response // nil over gRPC; its body has been read
	from, to time.Time      // between which the service looked at its clock
}

func (u *upstream) send(t *testing.T, protocol, domain string, st step) reply {
	t.Helper()
	req, err := newRequest(domain, st.ask)
	if err != nil {
		t.Fatal(err)
	}
	req.HitsAddend = st.hits
	if protocol == "json" {
		body, err := protojson.Marshal(req)
		if err != nil {
			t.Fatal(err)
		}
		return u.post(t, string(body))
	}
	r := reply{from: time.Now()}
	r.answer, err = u.call(t, req)
	r.to = time.Now()
	r.code, r.text = status.Code(err), fmt.Sprint(err)
	return r
}

// call asks over gRPC.
func (u *upstream) call(t *testing.T, req *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return rlsv3.NewRateLimitServiceClient(u.conn).ShouldRateLimit(ctx, req)
}

// post sends a body to /json. HTTP's status is turned into the gRPC code that
// means the same, and must suit the answer.
func (u *upstream) post(t *testing.T, body string) reply {
	t.Helper()
	r := reply{from: time.Now()}
	var err error
	r.http, err = client.Post("http://"+u.service.http+"/json", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer r.http.Body.Close()
	text, err := io.ReadAll(r.http.Body)
	if err != nil {
		t.Fatal(err)
	}
	r.to, r.text = time.Now(), string(text)
	switch r.http.StatusCode {
	case http.StatusOK, http.StatusTooManyRequests:
	case http.StatusBadRequest:
		r.code = codes.InvalidArgument
		return r
	case http.StatusServiceUnavailable:
		r.code = codes.Unavailable
		return r
	default:
		r.code = codes.Unknown
		return r
	}
	r.answer = new(rlsv3.RateLimitResponse)
	if err := protojson.Unmarshal(text, r.answer); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	over := r.answer.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT
	if over != (r.http.StatusCode == http.StatusTooManyRequests) {
		t.Errorf("HTTP %s with %s", r.http.Status, text)
	}
	return r
}

// problems is what is wrong with an answer beside its text.
func (r reply) problems(st step, domain string) []string {
	found := r.checkResets()
	if problem := r.headersMatch(st.headers); problem != "" {
		found = append(found, problem)
	}
	if problem := metadataMatch(r.answer, strings.ReplaceAll(st.metadata, "$domain", domain)); problem != "" {
		found = append(found, problem)
	}
	if len(r.answer.GetRequestHeadersToAdd()) > 0 || len(r.answer.GetRawBody()) > 0 || r.answer.GetQuota() != nil {
		found = append(found, fmt.Sprintf("fields that are never set are: %v", r.answer))
	}
	return found
}

// checkResets holds the time until reset of each status against the clock.
func (r reply) checkResets() []string {
	var found []string
	for i, s := range r.answer.GetStatuses() {
		limit, reset := s.GetCurrentLimit(), s.GetDurationUntilReset()
		if limit == nil {
			if reset != nil {
				found = append(found, fmt.Sprintf("descriptor %d has no limit, but a reset in %v", i, reset.AsDuration()))
			}
			continue
		}
		window := unitSeconds[limit.GetUnit().String()]
		if m := limit.GetUnitMultiplier(); m != nil {
			window *= int64(m.GetValue())
		}
		if reset.GetNanos() != 0 || !r.isReset(reset.GetSeconds(), window) {
			found = append(found, fmt.Sprintf("descriptor %d resets in %v, which no window of %d s does", i, reset.AsDuration(),
				window))
		}
	}
	return found
}

// isReset reports whether a window of that many seconds, counted from the
// epoch, had so many left when the service looked.
func (r reply) isReset(seconds, window int64) bool {
	for now := r.from.Unix(); now <= r.to.Unix(); now++ {
		if seconds == window-now%window {
			return true
		}
	}
	return false
}

// headersMatch says what is wrong with an answer's headers. They are written
// "name value, name value"; a unit as the value stands for the seconds until a
// window of that unit ends. Over /json HTTP's own headers are looked at too.
func (r reply) headersMatch(want string) string {
	var got []string
	wanted := strings.Split(want, ", ")
	for i, h := range r.answer.GetResponseHeadersToAdd() {
		text := h.GetKey() + " " + h.GetValue()
		if i < len(wanted) {
			_, unit, _ := strings.Cut(wanted[i], " ")
			n, err := strconv.ParseInt(h.GetValue(), 10, 64)
			if window := unitSeconds[unit]; window > 0 && err == nil && r.isReset(n, window) {
				text = h.GetKey() + " " + unit
			}
		}
		got = append(got, text)
		if r.http != nil && r.http.Header.Get(h.GetKey()) != h.GetValue() {
			return fmt.Sprintf("the HTTP header %s is %q, want %q", h.GetKey(), r.http.Header.Get(h.GetKey()), h.GetValue())
		}
	}
	if text := strings.Join(got, ", "); text != want {
		return fmt.Sprintf("headers %q\nwant    %q", text, want)
	}
	return ""
}

// metadataMatch says what is wrong with an answer's dynamic metadata. A limit
// that came with the request is shown there as text that may change: "*".
func metadataMatch(answer *rlsv3.RateLimitResponse, want string) string {
	got := answer.GetDynamicMetadata().AsMap()
	if list, ok := got["descriptors"].([]any); ok {
		for _, d := range list {
			if fields := d.(map[string]any); fields["limit"] != nil && fields["limit"] != "" {
				fields["limit"] = "*"
			}
		}
	}
	wanted := make(map[string]any)
	if want != "" {
		if err := json.Unmarshal([]byte(want), &wanted); err != nil {
			return fmt.Sprintf("the test is wrong: %v in %s", err, want)
		}
	}
	if !reflect.DeepEqual(got, wanted) && len(got)+len(wanted) > 0 {
		var text bytes.Buffer
		_ = json.NewEncoder(&text).Encode(got) // it came as JSON does
		return fmt.Sprintf("metadata %swant     %s", text.String(), want)
	}
	return ""
}
