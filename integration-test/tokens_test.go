package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/testfiles"
)

// tokenRules have limits that nothing reaches.
const tokenRules = `
domain: d
descriptors:
  - {key: year, rate_limit: {unit: year, requests_per_unit: 1000000000}}
  - {key: second, rate_limit: {unit: second, requests_per_unit: 1000000000}}
`

// tokenProgram is a program that prints tokens, and which a test can break.
type tokenProgram struct {
	dir  string
	line string // for REDIS_AUTH_COMMAND
}

// newTokenProgram makes a program that does what the file "do" says: a shell script that may print the file "token".
func newTokenProgram(t *testing.T) *tokenProgram {
	t.Helper()
	dir := t.TempDir()
	p := &tokenProgram{dir: dir, line: "/bin/sh '" + filepath.Join(dir, "do") + "'"}
	p.does(t, `cat "`+filepath.Join(dir, "token")+`"`)
	return p
}

// put replaces a file in one step.
func (p *tokenProgram) put(t testing.TB, name, text string) {
	t.Helper()
	path := filepath.Join(p.dir, name)
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Error(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Error(err)
	}
}

func (p *tokenProgram) does(t testing.TB, script string) {
	t.Helper()
	p.put(t, "do", script+"\n")
}

// gives makes the program print a token.
func (p *tokenProgram) gives(t testing.TB, password string, ends time.Time) {
	t.Helper()
	p.put(t, "token", fmt.Sprintf(`{"kind": "ExecCredential", "status": {"token": %q, "expirationTimestamp": %q}}`,
		password, ends.Format(time.RFC3339Nano)))
}

// startWithTokens starts the service with rules, on a Redis with tokens.
func startWithTokens(t *testing.T, env ...string) *service {
	t.Helper()
	rules := newRuleDir(t)
	rules.put(t, "d.yaml", tokenRules)
	env = append(env, "DISABLE_STATS=true", "REDIS_TIMEOUT=2s", "LOG_LEVEL=trace")
	return runService(t, append(rules.env(), env...)...)
}

// load sends calls until stop is called, which returns how many were sent. Each that fails fails the test.
func (s *service) load(t *testing.T, callers int) (stop func() int64) {
	t.Helper()
	conn, err := grpc.NewClient(s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var calls atomic.Int64
	var group sync.WaitGroup
	for i := range callers {
		group.Go(func() {
			for ctx.Err() == nil {
				calls.Add(1)
				_, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(),
					request("d", fmt.Sprintf("year=%d", i), fmt.Sprintf("second=%d", i)))
				if err != nil {
					t.Error(err)
				}
				time.Sleep(2 * time.Millisecond)
			}
		})
	}
	return func() int64 {
		cancel()
		group.Wait()
		_ = conn.Close()
		return calls.Load()
	}
}

// hidesTokens fails the test if the log has a token.
func (s *service) hidesTokens(t *testing.T) {
	t.Helper()
	for _, secret := range []string{"token-of-", secretMark, "X-Amz-Signature"} {
		if log := s.log(t); strings.Contains(log, secret) {
			t.Errorf("the log has %s", secret)
		}
	}
}

// The password of the user changes every 5 s in both stores, and 2 s later sessions of the old password end. No call
// fails for three rotations, and no connection is opened again.
func TestTokensRotate(t *testing.T) {
	t.Parallel()
	const rotations = 3
	if _, err := harness.BuiltService(); err != nil { // It takes longer than a rotation.
		t.Fatal(err)
	}
	env := []string{"REDIS_PERSECOND=true", "REDIS_PERSECOND_TIMEOUT=2s"}
	var stores []*redistest.Tokens
	for _, prefix := range []string{"REDIS_", "REDIS_PERSECOND_"} {
		p := newTokenProgram(t)
		k := redistest.StartTokens(t, redistest.Start(t, redistest.Options{}), 5*time.Second, 2*time.Second,
			func(password string, ends time.Time) { p.gives(t, password, ends) })
		stores = append(stores, k)
		env = append(env, prefix+"URL="+k.Addr, prefix+"AUTH_COMMAND="+p.line, prefix+"AUTH_USER="+redistest.TokenUser,
			prefix+"POOL_SIZE=2")
	}
	s := startWithTokens(t, env...)
	s.awaitReady(t)
	before := stores[1].Counts()
	stop := s.load(t, 4)
	s.until(t, "the rotations", func() error {
		if n := stores[1].Counts().Rotations - before.Rotations; n < rotations {
			return fmt.Errorf("%d rotations", n)
		}
		return nil
	})
	calls := stop()
	for _, k := range stores {
		counts := k.Counts()
		t.Logf("%d calls: %+v", calls, counts)
		if counts.Ended > 0 || counts.Auths < 2*rotations || counts.Sessions > before.Sessions+2 {
			t.Errorf("connections did not renew their token in place: %+v at first, then %+v", before, counts)
		}
	}
	s.hidesTokens(t)
}

// A program that fails in any way is bounded, and said in the log and on /readyz. The old token serves to its end, open
// connections beyond it, and new ones when the program works again.
func TestTokenProgramBreaks(t *testing.T) {
	t.Parallel()
	const hangs = "hangs"
	for name, tt := range map[string]struct{ script, log string }{
		hangs: {"sleep 1000", "the program did not end within 10s and was killed"},
		"fails": {
			"echo " + secretMark + "; echo " + secretMark + " >&2; exit 3",
			"the program failed: exit status 3; what it wrote to stderr is not logged",
		},
		"prints garbage":  {"echo " + secretMark, "the program printed 7 bytes that are not the JSON"},
		"prints too much": {"yes " + secretMark, "the program printed more than 65536 bytes and was killed"},
		"prints an expired token": {`echo '{"kind":"ExecCredential","status":{"token":"` + secretMark +
			`","expirationTimestamp":"2026-01-02T03:04:05Z"}}'`, "what it gave expired at 2026-01-02T03:04:05Z"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, redistest.Options{User: redistest.TokenUser, Password: "token-of-today"})
			p := newTokenProgram(t)
			life := 10 * time.Second
			if name == hangs { // It is killed 10 s after half of the life.
				life = 26 * time.Second
			}
			end := time.Now().Add(life)
			p.gives(t, "token-of-today", end)
			s := startWithTokens(t, "REDIS_URL="+server.Addr, "REDIS_AUTH_COMMAND="+p.line, "REDIS_POOL_SIZE=1",
				"REDIS_AUTH_USER="+redistest.TokenUser, "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true")
			s.awaitReady(t)
			p.does(t, tt.script)
			stop := s.load(t, 1)
			const none = "REDIS_AUTH_COMMAND gives no credentials, and there are none left"
			const note = "REDIS_AUTH_COMMAND gives no new credentials; the last ones end at 20"
			harness.Await(t, life, "the log has "+tt.log, func() error {
				if log := s.log(t); !strings.Contains(log, tt.log) || !strings.Contains(log, note) {
					return errors.New("it has not")
				}
				return nil
			})
			if status, page := s.readyz(t); status != http.StatusOK || !strings.Contains(page, note) {
				t.Errorf("/readyz before the end: %d %s", status, page)
			}
			s.until(t, "the end of the token", func() error { // Pings open new connections.
				status, page := s.readyz(t)
				if status == http.StatusOK || !strings.Contains(page, none) {
					return fmt.Errorf("/readyz is %d %s", status, page)
				}
				return nil
			})
			if time.Now().Before(end) {
				t.Error("it is unready before the end of the token")
			}
			stop() // The open connection has served all the time.
			p.does(t, `cat "`+filepath.Join(p.dir, "token")+`"`)
			p.gives(t, "token-of-today", time.Now().Add(time.Hour))
			s.untilLogged(t, "REDIS_AUTH_COMMAND gives new credentials again")
			s.until(t, "it is ready again", func() error {
				if status, page := s.readyz(t); status != http.StatusOK {
					return fmt.Errorf("/readyz is %d %s", status, page)
				}
				return nil
			})
			s.hidesTokens(t)
		})
	}
}

// readyz asks for the page for callers.
func (s *service) readyz(t *testing.T) (status int, page string) {
	t.Helper()
	resp, err := client.Get("http://" + s.http + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text := new(strings.Builder)
	if err := resp.Write(text); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, text.String()
}

// Sentinels and servers authenticate with a program each.
func TestTokensWithSentinel(t *testing.T) {
	t.Parallel()
	set := redistest.StartSentinel(t, redistest.SentinelOptions{
		Password: "token-of-sentinels", Server: redistest.Options{User: redistest.TokenUser, Password: "token-of-servers"},
	})
	servers, sentinels := newTokenProgram(t), newTokenProgram(t)
	servers.gives(t, "token-of-servers", time.Now().Add(10*time.Second))
	sentinels.gives(t, "token-of-sentinels", time.Now().Add(10*time.Second))
	s := startWithTokens(t, "REDIS_TYPE=SENTINEL", "REDIS_URL="+set.PrimaryName+","+strings.Join(set.SentinelAddrs, ","),
		"REDIS_AUTH_COMMAND="+servers.line, "REDIS_AUTH_USER="+redistest.TokenUser,
		"REDIS_SENTINEL_AUTH_COMMAND="+sentinels.line)
	s.awaitReady(t)
	defer s.load(t, 1)()
	for _, p := range []*tokenProgram{servers, sentinels} {
		p.put(t, "token", strings.Replace(readFile(t, filepath.Join(p.dir, "token")), "ExecCredential", "none", 1))
	}
	for _, variable := range []string{"REDIS_AUTH_COMMAND", "REDIS_SENTINEL_AUTH_COMMAND"} {
		s.untilLogged(t, variable+" gives no new credentials")
	}
	s.hidesTokens(t)
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text := testfiles.Read(t, path)
	return string(text)
}

// Tokens for ElastiCache are signed with keys of STS for the first Redis, and with those of the instance without STS.
// Redis knows the user, whose password it does not ask for.
func TestTokensOfIAM(t *testing.T) {
	t.Parallel()
	for _, place := range []string{"STS", "IMDS"} {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, redistest.Options{})
			server.Do(t, "ACL", "SETUSER", "default", "reset", "off")
			server.Do(t, "ACL", "SETUSER", "limits", "reset", "on", "nopass", "~*", "&*", "+@all")
			var asked []string
			var mu sync.Mutex // guards asked
			end := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
			aws := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				asked = append(asked, r.Method+" "+r.URL.Path)
				mu.Unlock()
				const roles = "/latest/meta-data/iam/security-credentials/"
				switch {
				case r.URL.Path == "/" && r.FormValue("WebIdentityToken") == secretMark+"-account":
					_, _ = fmt.Fprintf(w, "<r><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>ASIA</AccessKeyId>"+
						"<SecretAccessKey>%s-of-sixteen-bytes</SecretAccessKey><SessionToken>%s</SessionToken>"+
						"<Expiration>%s</Expiration></Credentials></AssumeRoleWithWebIdentityResult></r>",
						secretMark, secretMark, end)
				case r.URL.Path == "/latest/api/token", r.URL.Path == roles:
					_, _ = w.Write([]byte("text"))
				case r.URL.Path == roles+"text" && r.Header.Get("X-Aws-Ec2-Metadata-Token") == "text":
					_, _ = fmt.Fprintf(w,
						`{"AccessKeyId":"ASIA","SecretAccessKey":"%s-of-sixteen-bytes","Token":"%s","Expiration":"%s"}`,
						secretMark, secretMark, end)
				default:
					w.WriteHeader(http.StatusForbidden)
				}
			}))
			defer aws.Close()
			file := filepath.Join(t.TempDir(), "account")
			testfiles.Write(t, file, secretMark+"-account")
			env := map[string][]string{
				"STS": {
					"AWS_WEB_IDENTITY_TOKEN_FILE=" + file, "AWS_ROLE_ARN=arn:aws:iam::1:role/limits",
					"AWS_ENDPOINT_URL_STS=" + aws.URL,
				},
				"IMDS": {"AWS_EC2_METADATA_SERVICE_ENDPOINT=" + aws.URL},
			}[place]
			s := startWithTokens(t, append(env, "REDIS_URL="+server.Addr, "AWS_REGION=eu-central-1",
				"REDIS_AWS_IAM_AUTH=true", "REDIS_AWS_IAM_CACHE_NAME=Limits", "REDIS_AWS_IAM_USER_ID=limits",
				"GODEBUG=fips140=only")...)
			s.awaitReady(t)
			s.load(t, 1)()
			if clients := fmt.Sprint(server.Do(t, "CLIENT", "LIST")); !strings.Contains(clients, "user=limits") {
				t.Error(clients)
			}
			mu.Lock()
			defer mu.Unlock()
			want := map[string][]string{
				"STS": {"POST /"},
				"IMDS": {
					"PUT /latest/api/token", "GET /latest/meta-data/iam/security-credentials/",
					"GET /latest/meta-data/iam/security-credentials/text",
				},
			}[place]
			if !slices.Equal(asked, want) {
				t.Errorf("AWS was asked for %q", asked)
			}
			s.hidesTokens(t)
		})
	}
}
