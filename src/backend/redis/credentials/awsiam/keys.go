package awsiam

import (
	"cmp"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"ratelimit/src/files"
)

// provider gets keys of AWS from the first place that the environment names, in the order of AWS' own programs:
// variables, a web identity (EKS), the endpoint of a container (EKS Pod Identity, ECS), the metadata of an instance.
type provider struct {
	getenv func(name string) string
	region string
	direct *http.Client // for endpoints on this host, without a proxy
	sts    *http.Client
	reads  files.Reads
}

// stepTimeout bounds one request for keys.
const stepTimeout = 3 * time.Second

func newProvider(getenv func(string) string, region string) *provider {
	client := func(proxy func(*http.Request) (*url.URL, error)) *http.Client {
		return &http.Client{
			Timeout:       stepTimeout,
			Transport:     &http.Transport{Proxy: proxy, DisableKeepAlives: true},
			CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("it answers with a redirect") },
		}
	}
	return &provider{getenv: getenv, region: region, direct: client(nil), sts: client(http.ProxyFromEnvironment)}
}

func (p *provider) fetch(ctx context.Context) (k keys, err error) {
	place := ""
	switch {
	case p.getenv("AWS_ACCESS_KEY_ID") != "" && p.getenv("AWS_SECRET_ACCESS_KEY") != "":
		place = "AWS_ACCESS_KEY_ID"
		k = keys{
			id: p.getenv("AWS_ACCESS_KEY_ID"), secret: p.getenv("AWS_SECRET_ACCESS_KEY"),
			session: p.getenv("AWS_SESSION_TOKEN"),
		}
	case p.getenv("AWS_WEB_IDENTITY_TOKEN_FILE") != "" && p.getenv("AWS_ROLE_ARN") != "":
		place = "STS, for AWS_ROLE_ARN"
		k, err = p.fromWebIdentity(ctx)
	case p.containerURL() != "":
		place = "the container's endpoint"
		k, err = p.fromContainer(ctx)
	case strings.EqualFold(p.getenv("AWS_EC2_METADATA_DISABLED"), "true"):
		err = errors.New("no variable names keys, and AWS_EC2_METADATA_DISABLED is true: set AWS_ROLE_ARN and " +
			"AWS_WEB_IDENTITY_TOKEN_FILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
	default:
		place = "the instance's metadata"
		k, err = p.fromInstance(ctx)
	}
	if err == nil && (k.id == "" || len(k.secret) < minSecretBytes) {
		err = fmt.Errorf("an access key id of %d bytes with a secret of %d", len(k.id), len(k.secret))
	}
	if err != nil && place != "" {
		err = fmt.Errorf("%s: %w", place, err)
	}
	return k, err
}

// minSecretBytes is less than any secret of AWS has. FIPS 140-3 allows no shorter keys of HMAC.
const minSecretBytes = 16

// answer is a response, and how far the clock of its server is ahead.
type answer struct {
	body []byte
	skew time.Duration
}

const maxAnswerBytes = 64 << 10

// ask sends a request and returns the response, if its status is 200. Errors have nothing of the response but what
// explain finds in it.
func ask(c *http.Client, r *http.Request, explain func(body []byte) string) (a answer, err error) {
	response, err := c.Do(r)
	if err != nil {
		if inner, ok := errors.AsType[*url.Error](err); ok {
			err = inner.Err // The URL may have a secret in its query.
		}
		return a, fmt.Errorf("%s: %w", r.URL.Host, err)
	}
	defer func() { _ = response.Body.Close() }()
	a.body, err = io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes))
	switch {
	case err != nil:
		return a, fmt.Errorf("%s: %w", r.URL.Host, err)
	case response.StatusCode != http.StatusOK:
		return a, fmt.Errorf("%s: status %d%s", r.URL.Host, response.StatusCode, explain(a.body))
	}
	if at, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		a.skew = skewOf(at, time.Now())
	}
	return a, nil
}

func noExplanation([]byte) string { return "" }

// minSkew is the least difference of clocks that counts: a date has whole seconds, and the way takes time.
const minSkew = 10 * time.Second

// skewOf returns how far a server whose clock shows there is ahead of this host.
func skewOf(there, here time.Time) time.Duration {
	if skew := there.Sub(here); skew.Abs() >= minSkew {
		return skew
	}
	return 0
}

// fromWebIdentity changes the token of a service account into keys of a role, with STS.
func (p *provider) fromWebIdentity(ctx context.Context) (k keys, err error) {
	path := p.getenv("AWS_WEB_IDENTITY_TOKEN_FILE")
	token, err := p.reads.File(ctx, path)
	if err != nil {
		return k, err
	}
	form := url.Values{
		"Action": {"AssumeRoleWithWebIdentity"}, "Version": {"2011-06-15"}, "RoleArn": {p.getenv("AWS_ROLE_ARN")},
		"RoleSessionName":  {cmp.Or(p.getenv("AWS_ROLE_SESSION_NAME"), "ratelimit")},
		"WebIdentityToken": {strings.TrimSpace(string(token))},
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.stsURL(), strings.NewReader(form.Encode()))
	if err != nil {
		return k, errors.New("AWS_ENDPOINT_URL_STS or AWS_ENDPOINT_URL is no URL")
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	a, err := ask(p.sts, r, stsErrorCode)
	if err != nil {
		return k, err
	}
	var reply struct {
		Keys keysAnswer `xml:"AssumeRoleWithWebIdentityResult>Credentials"`
	}
	return reply.Keys.keys(r, a, xml.Unmarshal(a.body, &reply))
}

func (p *provider) stsURL() string {
	if set := cmp.Or(p.getenv("AWS_ENDPOINT_URL_STS"), p.getenv("AWS_ENDPOINT_URL")); set != "" {
		return set
	}
	domain := "amazonaws.com"
	if strings.HasPrefix(p.region, "cn-") {
		domain = "amazonaws.com.cn"
	}
	return "https://sts." + p.region + "." + domain + "/"
}

// stsErrorCode returns the code of an error of STS, such as ", ExpiredToken".
func stsErrorCode(body []byte) string {
	var reply struct {
		Code string `xml:"Error>Code"`
	}
	if xml.Unmarshal(body, &reply) != nil || reply.Code == "" || len(reply.Code) > 64 {
		return ""
	}
	return fmt.Sprintf(", %q", reply.Code)
}

// keysAnswer is what STS answers as XML, and containers and instances as JSON.
type keysAnswer struct {
	AccessKeyID     string `json:"AccessKeyId" xml:"AccessKeyId"`
	SecretAccessKey string
	Token           string `xml:"SessionToken"`
	Expiration      time.Time
}

// keys returns the keys in the answer a to r. err is that of parsing it.
func (c *keysAnswer) keys(r *http.Request, a answer, err error) (keys, error) {
	if err != nil {
		return keys{}, fmt.Errorf("%s: the answer has no keys", r.URL.Host)
	}
	return keys{c.AccessKeyID, c.SecretAccessKey, c.Token, localTime(c.Expiration, a.skew), a.skew}, nil
}

func (p *provider) askKeys(r *http.Request) (k keys, err error) {
	a, err := ask(p.direct, r, noExplanation)
	if err != nil {
		return k, err
	}
	var c keysAnswer
	return c.keys(r, a, json.Unmarshal(a.body, &c))
}

// localTime returns the time by the clock of this host. A zero time stays.
func localTime(there time.Time, skew time.Duration) time.Time {
	if there.IsZero() {
		return there
	}
	return there.Add(-skew)
}

// The hosts of the endpoints for containers that may be asked without TLS, besides those of this host.
var containerHosts = map[string]bool{"169.254.170.2": true, "169.254.170.23": true, "fd00:ec2::23": true}

// containerURL returns the endpoint for keys of a container. It is empty if there is none.
func (p *provider) containerURL() string {
	if path := p.getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"); path != "" {
		return "http://169.254.170.2" + path
	}
	return p.getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI")
}

// fromContainer asks the endpoint of EKS Pod Identity or ECS.
func (p *provider) fromContainer(ctx context.Context) (k keys, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.containerURL(), nil)
	if err != nil {
		return k, errors.New("AWS_CONTAINER_CREDENTIALS_FULL_URI is no URL")
	}
	host := r.URL.Hostname()
	isHere := host == "localhost" || net.ParseIP(host).IsLoopback() || containerHosts[host]
	if r.URL.Scheme != "https" && !isHere {
		return k, fmt.Errorf("AWS_CONTAINER_CREDENTIALS_FULL_URI names %s, which must use https", host)
	}
	token := p.getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN")
	if path := p.getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"); path != "" {
		data, err := p.reads.File(ctx, path)
		if err != nil {
			return k, err
		}
		token = strings.TrimSpace(string(data))
	}
	if token != "" {
		r.Header.Set("Authorization", token)
	}
	return p.askKeys(r)
}

// fromInstance asks the metadata of an EC2 instance, by IMDSv2: first for a session, then for the role, then for keys.
func (p *provider) fromInstance(ctx context.Context) (k keys, err error) {
	base := strings.TrimSuffix(cmp.Or(p.getenv("AWS_EC2_METADATA_SERVICE_ENDPOINT"), "http://169.254.169.254"), "/")
	session := ""
	request := func(method, path string) (*http.Request, error) {
		r, err := http.NewRequestWithContext(ctx, method, base+path, nil)
		if err != nil {
			return nil, errors.New("AWS_EC2_METADATA_SERVICE_ENDPOINT is no URL")
		}
		if session != "" {
			r.Header.Set("X-Aws-Ec2-Metadata-Token", session)
		}
		return r, nil
	}
	r, err := request(http.MethodPut, "/latest/api/token")
	if err != nil {
		return k, err
	}
	r.Header.Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "60")
	a, err := ask(p.direct, r, noExplanation)
	if err != nil {
		return k, err
	}
	session = strings.TrimSpace(string(a.body))
	const roles = "/latest/meta-data/iam/security-credentials/"
	if r, err = request(http.MethodGet, roles); err != nil {
		return k, err
	}
	if a, err = ask(p.direct, r, noExplanation); err != nil {
		return k, fmt.Errorf("the role: %w", err)
	}
	role, _, _ := strings.Cut(strings.TrimSpace(string(a.body)), "\n")
	if role == "" {
		return k, errors.New("the instance has no role")
	}
	if r, err = request(http.MethodGet, roles+url.PathEscape(role)); err != nil {
		return k, err
	}
	return p.askKeys(r)
}
