package awsiam

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ratelimit/src/backend/redis/credentials"
	"ratelimit/testbed/testfiles"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// secretMark is in all secrets of these tests.
const secretMark = "s3cr3t-mark-of-40-characters-as-aws-has."

// Tokens are those that botocore 1.43 makes with the same keys at the same time.
func TestTokens(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		cfg           Config
		session, want string
	}{
		{
			Config{Service: "elasticache", CacheName: "My-Cache"},
			"",
			"my-cache/?Action=connect&User=limits&X-Amz-Algorithm=AWS4-HMAC-SHA256" +
				"&X-Amz-Credential=AKIDEXAMPLE%2F20150830%2Feu-central-1%2Felasticache%2Faws4_request" +
				"&X-Amz-Date=20150830T123600Z&X-Amz-Expires=900&X-Amz-SignedHeaders=host" +
				"&X-Amz-Signature=8e3be2e52df9c66f12161aa18b67bc7e989962b5d4a36c1f1e25b87799bbeaf7",
		},
		{
			Config{Service: "elasticache", CacheName: "my-cache", Serverless: true},
			"a/session+token==",
			"my-cache/?Action=connect&ResourceType=ServerlessCache&User=limits&X-Amz-Algorithm=AWS4-HMAC-SHA256" +
				"&X-Amz-Credential=AKIDEXAMPLE%2F20150830%2Feu-central-1%2Felasticache%2Faws4_request" +
				"&X-Amz-Date=20150830T123600Z&X-Amz-Expires=900&X-Amz-Security-Token=a%2Fsession%2Btoken%3D%3D" +
				"&X-Amz-SignedHeaders=host" +
				"&X-Amz-Signature=b302353fa9f4a539ea647da4f8543bc7560bc5305562e8c7cd0080d1d197373e",
		},
		{
			Config{Service: "memorydb", CacheName: "my-cluster"},
			"",
			"my-cluster/?Action=connect&User=limits&X-Amz-Algorithm=AWS4-HMAC-SHA256" +
				"&X-Amz-Credential=AKIDEXAMPLE%2F20150830%2Feu-central-1%2Fmemorydb%2Faws4_request" +
				"&X-Amz-Date=20150830T123600Z&X-Amz-Expires=900&X-Amz-SignedHeaders=host" +
				"&X-Amz-Signature=28cb262eacfc4e49f036098699163fd6546b799484fa46461b07f4cb04abf386",
		},
	} {
		tt.cfg.UserID, tt.cfg.Region, tt.cfg.Getenv = "limits", "eu-central-1", os.Getenv
		k := vectorKeys
		k.session = tt.session
		got := New(tt.cfg).sign(k, vectorTime)
		if got.Password != tt.want || got.User != "limits" || !got.Expires.Equal(vectorTime.Add(tokenLife)) {
			t.Errorf("%s as %s until %v\nwant %s", got.Password, got.User, got.Expires, tt.want)
		}
	}
}

// A token ends with its keys. Its date is that of AWS' clock, its end that of this host's.
func TestTokenOfKeysThatEnd(t *testing.T) {
	t.Parallel()
	s := New(Config{Service: "elasticache", CacheName: "c", UserID: "u", Region: "r", Getenv: os.Getenv})
	k := vectorKeys
	k.expires, k.skew = vectorTime.Add(7*time.Minute), -2*time.Hour
	got := s.sign(k, vectorTime)
	if !got.Expires.Equal(k.expires) || !strings.Contains(got.Password, "X-Amz-Date=20150830T103600Z") {
		t.Errorf("%s until %v", got.Password, got.Expires)
	}
}

// cloud is a fake of the places that give keys.
type cloud struct {
	*httptest.Server
	requests []string
	date     string        // of the answers, if not empty
	life     time.Duration // of the keys
	reply    func(w http.ResponseWriter, r *http.Request) bool
}

// newCloud starts a cloud whose keys live for an hour.
func newCloud(t *testing.T) *cloud {
	c := &cloud{life: time.Hour, reply: func(http.ResponseWriter, *http.Request) bool { return false }}
	c.Server = httptest.NewServer(c)
	t.Cleanup(c.Close)
	return c
}

func (c *cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.requests = append(c.requests, r.Method+" "+r.URL.Path)
	if c.date != "" {
		w.Header().Set("Date", c.date)
	}
	if c.reply(w, r) {
		return
	}
	now := time.Now()
	if at, err := http.ParseTime(c.date); err == nil {
		now = at
	}
	end := now.Add(c.life).UTC().Format(time.RFC3339)
	asJSON := func(id string) {
		_ = json.NewEncoder(w).Encode(map[string]string{
			"Code": "Success", "AccessKeyId": id, "SecretAccessKey": secretMark, "Token": "session", "Expiration": end,
		})
	}
	isSession := r.Header.Get("X-Aws-Ec2-Metadata-Token") == "imds-session"
	const roles = "/latest/meta-data/iam/security-credentials/"
	switch {
	case r.Method == http.MethodPut && r.URL.Path == "/latest/api/token" &&
		r.Header.Get("X-Aws-Ec2-Metadata-Token-Ttl-Seconds") != "":
		_, _ = w.Write([]byte("imds-session"))
	case isSession && r.URL.Path == roles:
		_, _ = w.Write([]byte("limits-role\n"))
	case isSession && r.URL.Path == roles+"limits-role":
		asJSON("ASIAINSTANCE")
	case r.URL.Path == "/container" && r.Header.Get("Authorization") == "pod-token":
		asJSON("ASIACONTAINER")
	case r.Method == http.MethodPost && r.URL.Path == "/" && r.FormValue("Action") == "AssumeRoleWithWebIdentity" &&
		r.FormValue("Version") == "2011-06-15" && r.FormValue("RoleArn") == "arn:aws:iam::1:role/limits" &&
		r.FormValue("RoleSessionName") == "ratelimit" && r.FormValue("WebIdentityToken") == "service-account" &&
		r.URL.RawQuery == "":
		_, _ = fmt.Fprintf(w, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>ASIASTS</AccessKeyId><SecretAccessKey>%s</SecretAccessKey>
<SessionToken>session</SessionToken><Expiration>%s</Expiration></Credentials></AssumeRoleWithWebIdentityResult>
</AssumeRoleWithWebIdentityResponse>`, secretMark, end)
	default:
		w.WriteHeader(http.StatusForbidden)
	}
}

// env returns the variables that name a place of c.
func (c *cloud) env(t *testing.T, place string) map[string]string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	content := map[string]string{"STS": "service-account\n", "container": "pod-token"}[place]
	testfiles.Write(t, file, content)
	return map[string]map[string]string{
		"variables": {
			"AWS_ACCESS_KEY_ID": "AKIAVARIABLE", "AWS_SECRET_ACCESS_KEY": secretMark, "AWS_SESSION_TOKEN": "session",
		},
		"STS": {
			"AWS_WEB_IDENTITY_TOKEN_FILE": file, "AWS_ROLE_ARN": "arn:aws:iam::1:role/limits",
			"AWS_ENDPOINT_URL_STS": c.URL, "AWS_CONTAINER_CREDENTIALS_FULL_URI": c.URL + "/container",
		},
		"container": {
			"AWS_CONTAINER_CREDENTIALS_FULL_URI":     c.URL + "/container",
			"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": file,
			"AWS_EC2_METADATA_SERVICE_ENDPOINT":      c.URL,
		},
		"instance": {"AWS_EC2_METADATA_SERVICE_ENDPOINT": c.URL + "/"},
	}[place]
}

func lookup(env map[string]string) func(string) string {
	return func(name string) string { return env[name] }
}

// The keys come from the first place that the environment names.
func TestPlacesOfKeys(t *testing.T) {
	t.Parallel()
	for place, id := range map[string]string{
		"variables": "AKIAVARIABLE", "STS": "ASIASTS", "container": "ASIACONTAINER", "instance": "ASIAINSTANCE",
	} {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			c := newCloud(t)
			k, err := newProvider(lookup(c.env(t, place)), "eu-central-1").fetch(t.Context())
			if err != nil || k.id != id || k.secret != secretMark || k.session != "session" || k.skew != 0 {
				t.Fatalf("%s, %v, after %q", k.id, err, c.requests)
			}
			if left := time.Until(k.expires); place != "variables" && (left > time.Hour || left < time.Hour-time.Minute) {
				t.Errorf("%v left", left)
			}
		})
	}
}

// Without an endpoint of its own, STS is that of the region.
func TestEndpointOfSTS(t *testing.T) {
	t.Parallel()
	for region, want := range map[string]string{
		"eu-central-1": "https://sts.eu-central-1.amazonaws.com/", "cn-north-1": "https://sts.cn-north-1.amazonaws.com.cn/",
	} {
		if got := newProvider(func(string) string { return "" }, region).stsURL(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// A clock of this host that is hours ahead or behind changes nothing: answers have AWS' time.
func TestClockSkew(t *testing.T) {
	t.Parallel()
	for _, skew := range []time.Duration{-5 * time.Hour, 5 * time.Hour} {
		for _, place := range []string{"STS", "instance", "container"} {
			c := newCloud(t)
			there := time.Now().Add(skew)
			c.date = there.UTC().Format(http.TimeFormat)
			s := New(Config{
				Service: "elasticache", CacheName: "c", UserID: "u", Region: "r", Getenv: lookup(c.env(t, place)),
			})
			token := firstToken(t, s)
			if left := time.Until(token.Expires); left < 14*time.Minute || left > 15*time.Minute {
				t.Errorf("%s, %v: %v left", place, skew, left)
			}
			query, err := url.ParseQuery(token.Password)
			if err != nil {
				t.Fatal(err)
			}
			at, err := time.Parse("20060102T150405Z", query.Get("X-Amz-Date"))
			if off := at.Sub(there).Abs(); err != nil || off > time.Minute {
				t.Errorf("%s, %v: signed %v away from the time of AWS, %v", place, skew, off, err)
			}
		}
	}
}

// firstToken runs s until it has a token.
func firstToken(t *testing.T, s *Source) credentials.Token {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	ended := make(chan struct{})
	go func() { s.Run(ctx); close(ended) }()
	defer func() { stop(); <-ended }()
	token, err := s.Token(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// What a place answers wrongly is in no error, and neither are secrets.
func TestBadPlaces(t *testing.T) {
	t.Parallel()
	status := func(code int, text string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Location", "http://127.0.0.1:1/"+secretMark)
			w.WriteHeader(code)
			_, _ = w.Write([]byte(text))
			return true
		}
	}
	const stsError = `<ErrorResponse><Error><Code>ExpiredTokenException</Code><Message>` + secretMark +
		`</Message></Error></ErrorResponse>`
	for _, tt := range []struct {
		name, place string
		reply       func(http.ResponseWriter, *http.Request) bool
		want        string
	}{
		{"an error of STS", "STS", status(400, stsError), `status 400, "ExpiredTokenException"`},
		{"an error without a code", "STS", status(500, secretMark), "status 500"},
		{"garbage of STS", "STS", status(200, secretMark), "the answer has no keys"},
		{"other XML of STS", "STS", status(200, "<a>"+secretMark+"</a>"), "an access key id of 0 bytes with a secret of 0"},
		{"a redirect of STS", "STS", status(307, ""), "it answers with a redirect"},
		{"a long answer of STS", "STS", status(200, strings.Repeat(secretMark, 1<<14)), "the answer has no keys"},
		{
			"no role", "instance", func(_ http.ResponseWriter, r *http.Request) bool { return r.Method == http.MethodGet },
			"has no role",
		},
		{"IMDSv1", "instance", status(404, ""), "the instance's metadata: 127.0.0.1:"},
		{"garbage of an instance", "instance", status(200, secretMark), "no keys"},
		{"a denial of a container", "container", status(401, secretMark), "the container's endpoint: 127.0.0.1:"},
		{"garbage of a container", "container", status(200, `{"SecretAccessKey":"short"}`), "with a secret of 5"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newCloud(t)
			c.reply = tt.reply
			_, err := newProvider(lookup(c.env(t, tt.place)), "eu-central-1").fetch(t.Context())
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), secretMark) ||
				strings.Contains(err.Error(), "service-account") {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}

// Places that are away or misnamed are in the error.
func TestMisnamedPlaces(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1"}, "127.0.0.1:1: "},
		{map[string]string{"AWS_EC2_METADATA_SERVICE_ENDPOINT": ":"}, "is no URL"},
		{map[string]string{"AWS_EC2_METADATA_DISABLED": "true"}, "no variable names keys"},
		{
			map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://example.com/" + secretMark},
			"example.com, which must use https",
		},
		{map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": "::"}, "is no URL"},
		{map[string]string{"AWS_ROLE_ARN": "a", "AWS_WEB_IDENTITY_TOKEN_FILE": "/no/file"}, "open /no/file"},
		{map[string]string{"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "short"}, "a secret of 5"},
	} {
		_, err := newProvider(lookup(tt.env), "eu-central-1").fetch(t.Context())
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), secretMark) {
			t.Errorf("%v: got %v", tt.env, err)
		}
	}
}

// A source signs a newer token for a connection whose own one ends, with the keys that it has.
func TestRenewedTokens(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	s := New(Config{Service: "elasticache", CacheName: "c", UserID: "u", Region: "r", Getenv: lookup(c.env(t, "STS"))})
	if _, ok := s.Renewed(time.Now()); ok {
		t.Error("a token without keys")
	}
	first := firstToken(t, s)
	if _, ok := s.Renewed(first.Expires.Add(time.Minute)); ok {
		t.Error("a token that ends sooner than the one of the connection")
	}
	second, ok := s.Renewed(first.Expires.Add(-time.Minute))
	if !ok || second.Expires.Before(first.Expires) || len(c.requests) != 1 {
		t.Errorf("%v, %t, after %q", second, ok, c.requests)
	}
	k := keys{secret: secretMark, session: secretMark}
	if text := fmt.Sprintf("%v %+v %#v", k, k, k); strings.Contains(text, secretMark) {
		t.Error(text)
	}
}
