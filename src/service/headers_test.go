package service

import (
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// LIMIT_RESPONSE_HEADERS_FORMAT chooses the headers of answers.
func TestHeaderFormats(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		env  []string
		want string // matches the headers that are not of every HTTP answer, sorted
	}{
		{nil, `^$`},
		{
			[]string{"LIMIT_RESPONSE_HEADERS_ENABLED=true"},
			`^Ratelimit-Limit: 2\r\nRatelimit-Remaining: 1\r\nRatelimit-Reset: \d+\r\n$`,
		},
		{
			[]string{"LIMIT_RESPONSE_HEADERS_ENABLED=true", "LIMIT_RESPONSE_HEADERS_FORMAT=ietf"},
			`^Ratelimit: "ip";r=1;t=\d+\r\nRatelimit-Policy: "ip";q=2;w=31536000\r\n$`,
		},
	} {
		s := launch(t, oneRule, tt.env...)
		s.until("ready", s.healthy)
		body := strings.NewReader(`{"domain":"d","descriptors":[{"entries":[{"key":"ip","value":"1"}]}]}`)
		resp, err := http.Post("http://"+s.address("http")+"/json", "application/json", body)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		var got strings.Builder
		if err := resp.Header.WriteSubset(&got,
			map[string]bool{
				"Content-Length": true, "Content-Type": true, "Date": true,
				"X-Content-Type-Options": true,
			}); err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile(tt.want).MatchString(got.String()) {
			t.Errorf("%q: the headers are\n%swant %s", tt.env, got.String(), tt.want)
		}
	}
}
