package integration

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// exampleStep sends a request several times and knows the last answer.
type exampleStep struct {
	times int
	ask   []string
	want  []string // by descriptor: status, remaining/limit, window
}

// ask lists what a request or an answer has for each descriptor.
func ask(descriptors ...string) []string { return descriptors }

var exampleCases = []struct {
	file, domain string
	realUnits    bool // keep them; only for steps that count to one
	steps        []exampleStep
}{
	{file: "example.yaml", domain: "rl", steps: []exampleStep{
		{3, ask("route=test"), ask("OK 0/3 YEAR")},
		{1, ask("route=test"), ask("OVER_LIMIT 0/3 YEAR")},
		{2, ask("foo=a"), ask("OK 0/2 YEAR")},
		{5, ask("foo=a,bar=b"), ask("OK 0/5 YEAR")}, // not held up by foo=a
		{1, ask("foo=a,bar=banned"), ask("OVER_LIMIT 0/0 YEAR")},
		{9, ask("foo=a,baz=shady"), ask("OK 0/1 YEAR")},
	}},
	{file: "config.yaml", domain: "checkout", steps: []exampleStep{
		{20, ask("customer=1042"), ask("OK 0/20 YEAR")},
		{1, ask("customer=1042"), ask("OVER_LIMIT 0/20 YEAR")},
		{1, ask("customer=1043", "customer=1043,action=place_order"), ask("OK 19/20 YEAR", "OK 29/30 YEAR")},
		{1, ask("customer=1043", "customer=1043,action=view_cart"), ask("OK 18/20 YEAR", "OK")},
		{29, ask("customer=1043,action=place_order"), ask("OK 0/30 YEAR")},
		{1, ask("customer=1043,action=place_order"), ask("OVER_LIMIT 0/30 YEAR")},
		{12, ask("customer=1043,action=apply_coupon"), ask("OK 0/10 YEAR")},
		{1, ask("customer=8813", "customer=8813,action=place_order"), ask("OVER_LIMIT 0/0 YEAR", "OK")},
	}},
	{file: "messages.yaml", domain: "messages", steps: []exampleStep{
		{5, ask("message_type=marketing,to_number=206", "to_number=206"), ask("OK 0/5 YEAR", "OK 95/100 YEAR")},
		{1, ask("message_type=marketing,to_number=206", "to_number=206"), ask("OVER_LIMIT 0/5 YEAR", "OK 94/100 YEAR")},
		{1, ask("message_type=delivery,to_number=206", "to_number=206"), ask("OK", "OK 93/100 YEAR")},
		{1, ask("message_type=marketing,to_number=207", "to_number=207"), ask("OK 4/5 YEAR", "OK 99/100 YEAR")},
	}},
	{file: "banned-address.yaml", domain: "banned_address", steps: []exampleStep{
		{1, ask("remote_address=192.0.2.7"), ask("OVER_LIMIT 0/0 YEAR")},
		{10, ask("remote_address=198.51.100.3"), ask("OK 0/10 YEAR")},
		{1, ask("remote_address=198.51.100.3"), ask("OVER_LIMIT 0/10 YEAR")},
	}},
	{file: "depth.yaml", domain: "depth", steps: []exampleStep{
		{4, ask("tenant=acme,path=/search"), ask("OK 0/4 YEAR")},
		{1, ask("tenant=acme,path=/search"), ask("OVER_LIMIT 0/4 YEAR")},
		{1, ask("tenant=acme"), ask("OK 19/20 YEAR")},
		{1, ask("tenant=acme,path=/home"), ask("OK")},
		{1, ask("path=/search"), ask("OK")},
	}},
	{file: "unlimited.yaml", domain: "unlimited", steps: []exampleStep{
		{5, ask("caller=web"), ask("OK 0/5 YEAR")},
		{1, ask("caller=web"), ask("OVER_LIMIT 0/5 YEAR")},
		{9, ask("caller=batch"), ask("OK 4294967295")},
		{9, ask("caller=monitor"), ask("OK")},
	}},
	{file: "wildcards.yaml", domain: "wildcards", steps: []exampleStep{
		{2, ask("path=/files/report.pdf"), ask("OK 0/2 YEAR")},
		{1, ask("path=/files/report.pdf"), ask("OVER_LIMIT 0/2 YEAR")},
		{1, ask("path=/files/logo.png"), ask("OK 1/2 YEAR")},
		{1, ask("path=/files/private/keys.txt"), ask("OK 1/2 YEAR")},
		{1, ask("path=/files/index.html"), ask("OK 9/10 YEAR")},
		{1, ask("path=/avatars/anna.png"), ask("OK 2/3 YEAR")},
		{1, ask("path=/about"), ask("OK")},
	}},
	{file: "networks.yaml", domain: "networks", steps: []exampleStep{
		{2, ask("remote_address=198.51.100.7"), ask("OK 1/3 YEAR")},
		{1, ask("remote_address=::ffff:198.51.100.8"), ask("OK 0/3 YEAR")},
		{1, ask("remote_address=198.51.100.9"), ask("OVER_LIMIT 0/3 YEAR")},
		{3, ask("remote_address=2001:db8::1"), ask("OK 0/3 YEAR")},
		{1, ask("remote_address=2001:DB8:0:0:1::"), ask("OVER_LIMIT 0/3 YEAR")},
		{9, ask("remote_address=192.0.2.7"), ask("OK 4294967295")},
		{1, ask("remote_address=192.0.2.200"), ask("OK 1/2 YEAR")},
		{1, ask("remote_address=192.0.2.201"), ask("OK 0/2 YEAR")},
		{1, ask("path=/api/v1/users"), ask("OK 4/5 YEAR")},
		{1, ask("path=/api/v2/users"), ask("OK 3/5 YEAR")},
		{1, ask("path=/api/v3/users"), ask("OK")},
	}},
	{file: "windows.yaml", domain: "windows", realUnits: true, steps: []exampleStep{
		{1, ask("action=login"), ask("OK 9/10 5 MINUTE")},
		{1, ask("action=export"), ask("OK 2/3 12 HOUR")},
		{1, ask("action=postcard"), ask("OK 99/100 2 WEEK")},
	}},
	{file: "billing-months.yaml", domain: "billing-months", realUnits: true, steps: []exampleStep{
		{1, ask("plan=free,customer=acme"), ask("OK 999/1000 MONTH")},
		{1, ask("plan=team,customer=acme"), ask("OK 199/200 DAY")},
		{1, ask("report=weekly"), ask("OK 0/1 WEEK")},
		{1, ask("report=quarterly"), ask("OK 0/1 3 MONTH")},
	}},
	{file: "shadow.yaml", domain: "shadow", steps: []exampleStep{
		{10, ask("plan=free,endpoint=/render"), ask("OK 0/10 YEAR")},
		{1, ask("plan=free,endpoint=/render"), ask("OVER_LIMIT 0/10 YEAR")},
		{5, ask("plan=trial,endpoint=/render"), ask("OK 0/5 YEAR")},
		{1, ask("plan=trial,endpoint=/render"), ask("OK 0/5 YEAR")},
	}},
}

// What the comments of each example promise. A step asks for all its
// descriptors in one request, some times over, and looks at the last answer;
// every earlier answer must have been OK.
func TestExampleRules(t *testing.T) {
	var tested, inYears []string
	for _, test := range exampleCases {
		tested = append(tested, test.file)
		if !test.realUnits {
			inYears = append(inYears, test.file)
		}
	}
	slices.Sort(tested)
	if files := exampleRules(t); !slices.Equal(files, tested) {
		t.Errorf("the examples are %q, and tested are %q", files, tested)
	}

	rules := newRuleDir(t)
	for _, name := range inYears {
		rules.putExample(t, name)
	}
	counting := startService(t, rules.env()...)
	asTheyAre := startService(t, "RUNTIME_ROOT="+filepath.Join(repository, "examples"), "RUNTIME_SUBDIRECTORY=ratelimit")
	for _, test := range exampleCases {
		t.Run(test.file, func(t *testing.T) {
			s := counting
			if test.realUnits {
				s = asTheyAre
			}
			for i, step := range test.steps {
				for n := 1; n <= step.times; n++ {
					code, answer := s.ask(t, test.domain, step.ask...)
					got := describe(answer)
					if want := httpStatus(got); code != want {
						t.Fatalf("step %d, request %d: HTTP %d to %q, want %d", i+1, n, code, got, want)
					}
					if n < step.times && code != http.StatusOK {
						t.Fatalf("step %d, request %d: %q too early", i+1, n, got)
					}
					if n == step.times && !slices.Equal(got, step.want) {
						t.Errorf("step %d, request %d: %q, want %q", i+1, n, got, step.want)
					}
				}
			}
		})
	}
}

// exampleRules are the names of the files in examples/ratelimit/config, sorted.
func exampleRules(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(repository, "examples/ratelimit/config"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// describe writes each status of an answer as "OK 4/5 2 WEEK": four left of
// five in two weeks. Without a limit there is nothing behind the code, but for
// an unlimited rule's remaining.
func describe(answer *rlsv3.RateLimitResponse) []string {
	var all []string
	for _, status := range answer.GetStatuses() {
		text := status.GetCode().String()
		switch limit := status.GetCurrentLimit(); {
		case limit != nil:
			text += fmt.Sprintf(" %d/%d ", status.GetLimitRemaining(), limit.GetRequestsPerUnit())
			if m := limit.GetUnitMultiplier(); m != nil {
				text += fmt.Sprintf("%d ", m.GetValue())
			}
			text += limit.GetUnit().String()
		case status.GetLimitRemaining() != 0:
			text += fmt.Sprintf(" %d", status.GetLimitRemaining())
		}
		all = append(all, text)
	}
	return all
}

// httpStatus is what /json answers with these statuses.
func httpStatus(described []string) int {
	if slices.ContainsFunc(described, func(s string) bool { return strings.HasPrefix(s, "OVER_LIMIT") }) {
		return http.StatusTooManyRequests
	}
	return http.StatusOK
}
