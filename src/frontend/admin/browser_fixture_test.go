package admin

import (
	"fmt"
	"math"
	"net"
	"net/http"
	"testing"
	"time"

	"ratelimit/src/frontend/access"
	"ratelimit/src/limiter"
	"ratelimit/src/operator"
	"ratelimit/src/rules"
)

// operatorPort is a debug port that can stop and start again on the same address.
type operatorPort struct {
	t       *testing.T
	figures *fakeFigures
	address string
	token   string
	sum     *operator.SumFigures // nil without peers
	server  *http.Server

	limiter  *limiter.Limiter
	limits   Limits
	counters ChangeCounters // nil for no page
}

// newOperatorPort returns a debug port, whose parts each of with may replace.
func newOperatorPort(t *testing.T, with ...func(*operatorPort)) *operatorPort {
	return newOperatorPortWith(t, "", nil, with...)
}

func newOperatorPortWith(t *testing.T, token string, sum *operator.SumFigures,
	with ...func(*operatorPort),
) *operatorPort {
	now := time.Now()
	f := newFakeFigures()
	f.state = operator.State{
		Version: "1.2.3", Commit: "abcdef0123456789", Now: now, StartedAt: now.Add(-3 * time.Hour), Ready: true,
		Store: "redis", StoreSince: now.Add(-50 * time.Minute), Replicas: 3,
		Components: []operator.Component{{Name: "rules", Note: "2 domains"}, {Name: "redis_pool"}},
		Rules: operator.LoadedRules{
			Hash: "8f14e45fceea167a5a36dedd4bea2543", Domains: 2, Rules: 121, Files: 4,
			LoadedAt: now.Add(-20 * time.Minute),
		},
	}
	f.rates = operator.Rates{
		Total:    operator.PerSecond{Admitted: 1234.5, Denied: 56.7, Near: 12, Shadow: 3},
		Requests: operator.RequestsPerSecond{Admitted: 640, Denied: 41},
		Domains: []operator.DomainRates{
			{
				Domain:    "api",
				PerSecond: operator.PerSecond{Admitted: 1200, Denied: 56, Near: 12, Shadow: 3},
			},
			{Domain: "mail", PerSecond: operator.PerSecond{Admitted: 34.5, Denied: 0.7}},
		},
	}
	f.rates.Rules = []operator.RuleRates{{
		Domain: "api", Rule: "api.tenant", Limit: "9000 per minute",
		PerSecond: operator.PerSecond{Admitted: 99},
	}}
	for i := range 60 {
		f.rates.Rules = append(f.rates.Rules,
			operator.RuleRates{
				Domain: "api", Rule: fmt.Sprintf("api.tenant.path_/v1/things/%d", i), Limit: "100 per second",
				PerSecond: operator.PerSecond{Admitted: float64(80 / (i + 1)), Denied: float64(20 / (i + 1))},
			},
			operator.RuleRates{
				Domain: "mail", Rule: fmt.Sprintf("mail.to_%d@example.org", i), Limit: "5 per hour",
				PerSecond: operator.PerSecond{},
			})
	}
	p := &operatorPort{
		t: t, figures: f, address: "127.0.0.1:0", token: token, sum: sum, limiter: limiter.New(limiter.Config{}),
		limits: newChangeable(t, limitsRules, 10),
	}
	p.limiter.UseRules(new(rules.Set))
	for _, replace := range with {
		replace(p)
	}
	p.start()
	t.Cleanup(p.stop)
	return p
}

func (p *operatorPort) start() {
	p.t.Helper()
	listener, err := net.Listen("tcp", p.address)
	if err != nil {
		p.t.Fatal(err)
	}
	p.address = listener.Addr().String()
	pages := DebugPages{
		SortedFigures: func(func(string, int64) bool) {}, Components: func() []operator.Component { return nil },
		Figures: p.figures.source(), SumFigures: p.sum,
		Limiter: p.limiter, Limits: p.limits, ChangeCounters: p.counters,
	}
	p.server = &http.Server{
		Handler:     RequireToken(access.Fixed(p.token), newAttempts(p.t), pages.Handler()),
		ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
	}
	go func(s *http.Server) { _ = s.Serve(listener) }(p.server)
}

func (p *operatorPort) stop() { _ = p.server.Close() }

func (p *operatorPort) url() string { return "http://" + p.address + "/" }

// fillForPictures gives figures what a busy service could have.
func fillForPictures(f *fakeFigures) {
	now := time.Now()
	f.state.Rules.Rules = 46
	f.rates.Requests = operator.RequestsPerSecond{Admitted: 618, Denied: 48.3}
	f.candidate = exampleCandidate("tenant=acme,path=/v1/search")
	f.quotas = exampleQuotas("env=prod,name=web")
	const steps = 360
	f.hour = &operator.History{Start: now.Add(-time.Hour), StepSeconds: 10}
	for i := range steps {
		wave, burst := math.Sin(float64(i)/60), math.Max(0, 1-math.Abs(float64(i-230))/25)
		jitter := float64((i*7919)%97) / 97
		f.hour.Admitted = append(f.hour.Admitted, 1100+250*wave+60*jitter)
		f.hour.Denied = append(f.hour.Denied, 30+10*wave+20*jitter+420*burst)
		f.hour.Near = append(f.hour.Near, 90+20*jitter+110*burst)
		f.hour.Shadow = append(f.hour.Shadow, 12+6*jitter)
		f.hour.Fallback, f.hour.Failed = append(f.hour.Fallback, 0), append(f.hour.Failed, 0)
	}
	tenants := []string{"acme", "globex", "initech", "umbrella", "hooli", "stark", "wayne", "wonka"}
	paths := []string{"/v1/search", "/v1/orders", "/v1/export", "/login"}
	f.top = make(map[string][]operator.Subject)
	f.rates.Rules = []operator.RuleRates{
		{
			Domain: "api", Rule: "api.tenant", Limit: "60000 per minute",
			PerSecond: operator.PerSecond{Admitted: 812, Denied: 24, Near: 61},
		},
		{
			Domain: "mail", Rule: "mail.recipient", Limit: "20 per hour",
			PerSecond: operator.PerSecond{Admitted: 8.4, Denied: 0.7},
		},
	}
	for i, path := range paths {
		f.rates.Rules = append(f.rates.Rules,
			operator.RuleRates{
				Domain: "api", Rule: "api.tenant.path_" + path, Limit: fmt.Sprintf("%d per second", 50/(i+1)),
				PerSecond: operator.PerSecond{Admitted: 240 / float64(i+1), Denied: 20 / float64(i+1), Near: 8 / float64(i+1)},
			})
	}
	for i := range 40 {
		f.rates.Rules = append(f.rates.Rules,
			operator.RuleRates{
				Domain: "api", Rule: fmt.Sprintf("api.worker_batch-%02d", i+1),
				Limit: "10 per second, 40 at once", PerSecond: operator.PerSecond{Admitted: float64(9 - i%9)},
			})
	}
	for i, tenant := range tenants {
		hot := operator.Subject{Domain: "api", Rule: "api.tenant", Subject: "tenant=" + tenant, Hits: uint64(21000 / (i + 1))}
		hot.PerSecond = float64(hot.Hits) / 60
		denied := operator.Subject{
			Domain: "api", Rule: "api.tenant.path_" + paths[i%4],
			Subject: "tenant=" + tenant + ",path=" + paths[i%4], Hits: uint64(1300 / (i + 1)),
		}
		denied.PerSecond = float64(denied.Hits) / 60
		f.top[operator.TopHot], f.top[operator.TopDenied] = append(f.top[operator.TopHot], hot),
			append(f.top[operator.TopDenied], denied)
	}
	for i := range 30 {
		tenant, path := tenants[i%len(tenants)], paths[i%len(paths)]
		f.deny(operator.Denial{
			At: now.Add(time.Duration(i-30) * 700 * time.Millisecond), Protocol: "grpc", Domain: "api",
			Rule: "api.tenant.path_" + path, Subject: "tenant=" + tenant + ",path=" + path,
			Counter: "api_tenant_" + tenant + "_path_" + path + "_1795476060", RetryAfterSeconds: float64(i%7) * 0.4,
			Skipped: uint64(i % 3 * 17),
		})
	}
}

// exampleCandidate returns candidate rules with differences. Subjects and the names of rules are text.
func exampleCandidate(text string) *operator.Candidate {
	now := time.Now()
	return &operator.Candidate{
		Directory: "/rules/next/config", Hash: "0123456789abcdef", Domains: 2, Rules: 45, Files: 4,
		LoadedAt: now.Add(-time.Hour), Since: now.Add(-time.Hour),
		RemovedDomains: []string{"mail"},
		Requests: operator.CandidateRequests{
			Same:                 1_203_441,
			CandidateDifferences: operator.CandidateDifferences{WouldDeny: 812, WouldAdmit: 44, WouldBeError: 3}, NotJudged: 17,
			NotSampled: 98_000,
		}, SampledPercent: 38.6,
		DifferingRules: []operator.CandidateRule{
			{
				Domain: "api", Rule: "api." + text, LiveLimit: "60000 per minute", CandidateLimit: "50000 per minute",
				CandidateDifferences: operator.CandidateDifferences{WouldDeny: 812},
			},
			{
				Domain: "api", Rule: "api.ip", LiveLimit: "10 per second",
				CandidateDifferences: operator.CandidateDifferences{WouldAdmit: 44, WouldBeError: 3},
			},
		},
		DifferingRuleCount: 2,
		Subjects: []operator.CandidateSubject{{
			Result: "would_deny", Domain: "api", Rule: "api." + text,
			Subject: text, Requests: 700,
		}, {
			Result: "would_admit", Domain: "api", Rule: "api.ip", Subject: "ip=10.0.0.7",
			Requests: 44,
		}},
		Examples: []operator.CandidateExample{
			{
				ID: 8, At: now, Result: "would_deny", Protocol: "grpc", Domain: "api", Rule: "api." + text, Subject: text,
				RetryAfterSeconds: 2.5,
			}, {
				ID: 3, At: now, Result: "would_admit", Protocol: "json", Domain: "api", Rule: "api.ip",
				Subject: "ip=10.0.0.7", RetryAfterSeconds: operator.NeverRetry,
			},
		},
	}
}
