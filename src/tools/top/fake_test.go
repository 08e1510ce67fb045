package top

import (
	"bytes"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"ratelimit/src/frontend/admin"
	"ratelimit/src/operator"
)

// fakeService is a service with fixed content.
type fakeService struct {
	state operator.State
	rates operator.Rates
	top   map[string][]operator.Subject // the subjects of each kind.

	mu      sync.Mutex
	queries []operator.TopQuery
}

func (s *fakeService) State() operator.State { return s.state }

// Rates returns the rules whose name contains search, the busiest first.
func (s *fakeService) Rates(q operator.RatesQuery) operator.Rates {
	r := s.rates
	r.Rules = slices.DeleteFunc(slices.Clone(r.Rules),
		func(r operator.RuleRates) bool { return !strings.Contains(r.Rule, q.Search) })
	r.MatchingRules = len(r.Rules)
	r.Rules = r.Rules[:min(q.Limit, len(r.Rules))]
	return r
}

func (s *fakeService) Top(q operator.TopQuery) []operator.Subject {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queries = append(s.queries, q)
	return s.top[q.Kind]
}

// figures returns the figures of s, which has no others.
func (s *fakeService) figures() *operator.Figures {
	return &operator.Figures{State: s.State, Rates: s.Rates, Top: s.Top}
}

// start serves s and returns its address.
func (s *fakeService) start(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(admin.DebugPages{Figures: s.figures()}.Handler())
	t.Cleanup(server.Close)
	return server.URL
}

func ruleRates(domain, rule, limit string, admitted, denied float64) operator.RuleRates {
	return operator.RuleRates{
		Domain: domain, Rule: rule, Limit: limit,
		PerSecond: operator.PerSecond{Admitted: admitted, Denied: denied},
	}
}

// example is a service with two domains and three rules.
func example() *fakeService {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	state := operator.State{
		Version: "v1.2.3", Now: now, StartedAt: now.Add(-27 * time.Hour), Ready: true, Store: "redis",
		StoreSince: now.Add(-90 * time.Second), Replicas: 2,
	}
	state.Rules = operator.LoadedRules{Domains: 2, Rules: 3, Files: 1, LoadedAt: now.Add(-5 * time.Minute)}
	rates := operator.Rates{Total: operator.PerSecond{
		Admitted: 1234.5, Denied: 12, Near: 3.25, Shadow: 0.01,
		Fallback: 2e6,
	}, Requests: operator.RequestsPerSecond{Admitted: 806, Denied: 6}}
	rates.Domains = []operator.DomainRates{
		{Domain: "accounts", PerSecond: operator.PerSecond{Admitted: 1200, Denied: 2}},
		{Domain: "shop", PerSecond: operator.PerSecond{Admitted: 34.5, Denied: 10}},
	}
	rates.Rules = []operator.RuleRates{
		ruleRates("accounts", "accounts.login", "3 per 5 minutes", 1200, 2),
		ruleRates("shop", "shop.path_/pay", "10 per second", 34.5, 10),
		ruleRates("shop", "shop.ip", "100 per minute", 0, 0),
	}
	return &fakeService{state: state, rates: rates, top: map[string][]operator.Subject{
		operator.TopDenied: {{
			Domain: "shop", Rule: "shop.path_/pay", Subject: "path=/pay,user=eve", PerSecond: 9.5,
			Hits: 570,
		}},
		operator.TopHot: {
			{Domain: "accounts", Rule: "accounts.login", Subject: "login=alex", PerSecond: 800, Hits: 48000},
			{Domain: "shop", Rule: "shop.path_/pay", Subject: "path=/pay,user=eve", PerSecond: 10, Hits: 600},
		},
	}}
}

// call runs `ratelimit top` with the address and args.
func call(t *testing.T, address string, args ...string) (out string, err error) {
	t.Helper()
	var b bytes.Buffer
	cmd := Command()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(&b)
	cmd.SetErr(&b)
	cmd.SetArgs(append(args, "--address", address))
	err = cmd.ExecuteContext(t.Context())
	return strings.ReplaceAll(b.String(), strings.TrimPrefix(address, "http://"), "ADDRESS"), err
}
