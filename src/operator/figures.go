package operator

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"ratelimit/src/metrics"
	"ratelimit/src/operator/history"
	"ratelimit/src/operator/subjects"
	"ratelimit/src/operator/unmatched"
	"ratelimit/src/quota"
)

// Component is the state of one part of the service.
type Component struct {
	Name string `json:"name"`
	// NotReadyReason says why the component is not ready. It is empty if the component is ready.
	NotReadyReason string `json:"why,omitempty"`
	// Note is further information, such as the number of domains.
	Note string `json:"note,omitempty"`
	// IsWarning says that Note tells of something to repair, though the component is ready.
	IsWarning bool `json:"warning,omitempty"`
}

// State is the state of this process.
type State struct {
	Version   string    `json:"version"`
	Commit    string    `json:"commit"`
	Now       time.Time `json:"now"`
	StartedAt time.Time `json:"started_at"`
	// Ready says whether this process should receive traffic. Components has the reasons if not.
	Ready      bool        `json:"ready"`
	Components []Component `json:"components"`
	// Store is "memory", "redis" or "memcached".
	Store string `json:"store"`
	// StoreSince is when the store began, or ceased, to answer. It is zero if the store never changed
	// its state, as is memory.
	StoreSince time.Time   `json:"store_since,omitzero"`
	Rules      LoadedRules `json:"rules"`
	// Outages are the stores of which a server does not answer. There are two at most: Redis, and that of limits by the
	// second.
	Outages []Outage `json:"outages,omitempty"`
	// OnStoreFailure are the values of on_store_failure that decide by the rules in force, when the store does not answer.
	// It is empty for memory.
	OnStoreFailure []string `json:"on_store_failure,omitempty"`
	// Replicas is how many replicas share the store, 0 if this is unknown.
	Replicas int `json:"replicas"`
	// Quotas are the totals of quotas. It is nil if no proxy has any.
	Quotas *quota.Totals `json:"quotas,omitempty"`
	// Unmatched is the traffic of the last hour that no rule applies to: that of unknown domains first, then by name.
	Unmatched []Unmatched `json:"unmatched"`
}

// LoadedRules describes the rules in force.
type LoadedRules struct {
	Hash    string `json:"hash"` // the same for the same rules.
	Domains int    `json:"domains"`
	Rules   int    `json:"rules"`
	Files   int    `json:"files"`
	// LoadedAt is the time of the last reload that changed the rules. It is zero if no rules were loaded.
	LoadedAt time.Time `json:"loaded_at,omitzero"`
	// Problems are the mistakes that the last reload refused. It is empty if there were none.
	Problems []string `json:"problems"`
}

type (
	// PerSecond are rates over the last 10 seconds.
	PerSecond = history.PerSecond
	// RequestsPerSecond are rates of requests over the last 10 seconds.
	RequestsPerSecond = history.RequestsPerSecond
	// History are the rates of the last hour.
	History = history.Hour
	// Subject is what a limit counts.
	Subject = subjects.Subject
	// Unmatched is traffic that no rule applies to.
	Unmatched = unmatched.Traffic
)

// Rates are the rates of the whole service, of each domain, and of some rules. They count decisions, except Requests.
type Rates struct {
	Total    PerSecond         `json:"total"`
	Requests RequestsPerSecond `json:"requests"`
	Domains  []DomainRates     `json:"domains"` // the busiest first.
	Rules    []RuleRates       `json:"rules"`
	// MatchingRules is how many rules the search finds. Rules is one page of them.
	MatchingRules int `json:"matching_rules"`
	// Unmatched is that of State, whatever the search is. It is nil in updates of the page, which have the state beside.
	Unmatched []Unmatched `json:"unmatched,omitzero"`
}

// CompareUnmatched compares traffic in the order in which State and Rates list it.
func CompareUnmatched(a, b Unmatched) int { return unmatched.Compare(a, b) }

// DomainRates are the rates of one domain. In JSON the rates stand beside its name.
type DomainRates struct {
	Domain string `json:"domain"`
	PerSecond
}

// RuleRates are the rates of one rule. In JSON the rates stand beside its name.
type RuleRates struct {
	Domain string `json:"domain"`
	Rule   string `json:"rule"`  // the full name of the rule, as in /rlconfig, such as "domain.key_value".
	Limit  string `json:"limit"` // the limit for people, such as "10 per minute".
	PerSecond
	Holds *Holds `json:"holds,omitempty"` // nil for rules without holds.
	// Leases are nil for rules that are counted exactly.
	Leases *Leases `json:"leases,omitempty"`
	// Shares are the replicas' shares in the decisions, 0 to 1, if the rates are the sums of several replicas.
	Shares []float64 `json:"shares,omitempty"`
}

// Holds are the holds of a rule that this process opened.
type Holds = metrics.Holds

// Leases are what this process holds of the counters of a leased rule.
type Leases struct {
	Counters  int    `json:"counters"`  // how many counters it holds units of, or did in their window.
	Contended int    `json:"contended"` // those of Counters of which little is left, so that replicas give back units.
	Held      uint64 `json:"held"`      // units that are charged in the store, and that no hit has used.
}

// LeasesText returns the leases of r for people: "99.9 % by lease, 530 held, 1 of 3 counters contended". It is empty
// without leases.
func (r *RuleRates) LeasesText() string {
	if r.Leases == nil {
		return ""
	}
	share := ""
	if total := r.Total(); total > 0 {
		share = fmt.Sprintf("%.1f %% by lease, ", 100*max(0, total-r.LeaseMisses-r.Fallback-r.Failed)/total)
	}
	return fmt.Sprintf("%s%d held, %d of %d counters contended", share, r.Leases.Held, r.Leases.Contended, r.Leases.Counters)
}

// The orders of a RatesQuery.
const (
	OrderBusiest = "busiest" // by decisions per second, the busiest first, then by name.
	OrderTree    = "tree"    // by domain and name, each rule before those that extend its name.
)

// RatesQuery asks for a page of the list of rules.
type RatesQuery struct {
	Search string // a part of the full name, in any case. Empty: all rules.
	Order  string // OrderBusiest, which empty also means, or OrderTree.
	Offset int    // how many rules are left out first.
	Limit  int    // how many rules are returned at most.
}

// The kinds and windows of a TopQuery.
const (
	TopHot       = "hot"    // asks for the subjects with most hits.
	TopDenied    = "denied" // asks for the subjects with most denied hits.
	WindowMinute = "minute"
	WindowHour   = "hour"
	WindowDay    = "day"
)

// TopQuery asks for subjects.
type TopQuery struct {
	Kind   string // TopHot or TopDenied.
	Window string // WindowMinute, WindowHour or WindowDay.
	Domain string // empty for all domains.
	Rule   string // empty for all rules of Domain.
	Limit  int    // how many subjects are returned at most.
}

// MaxListed is how many rules, subjects, denials, buckets and proxies a question over HTTP can ask for.
const MaxListed = 1000

// Values returns q as the query of /api/top.
func (q TopQuery) Values() url.Values {
	v := url.Values{"kind": {q.Kind}, "window": {q.Window}, "limit": {strconv.Itoa(min(q.Limit, MaxListed))}}
	if q.Domain != "" {
		v.Set("domain", q.Domain)
	}
	if q.Rule != "" {
		v.Set("rule", q.Rule)
	}
	return v
}

// NeverRetry is Denial.RetryAfterSeconds of a request that will never be admitted.
const NeverRetry = -1

// Denial is a sampled denial.
type Denial struct {
	// grows by one with each sampled denial of this process. The first one follows from the time of its start, so IDs also
	// grow over a restart.
	ID uint64    `json:"id"`
	At time.Time `json:"at"`
	// of the request: "grpc", "json", "divvy" or "resp", or "rlqs" if a proxy decided it by a quota.
	Protocol string `json:"protocol"`
	Domain   string `json:"domain"`
	Rule     string `json:"rule"`    // empty for a limit that came with the request.
	Subject  string `json:"subject"` // the descriptor, as key=value,key=value. Callers chose its text.
	Counter  string `json:"counter"`
	// RetryAfterSeconds is the time after which the same request would be admitted, or NeverRetry.
	RetryAfterSeconds float64 `json:"retry_after_seconds"`
	// Reason says why the request was denied if the store did not answer. It is empty for other denials.
	Reason  string `json:"reason,omitempty"`
	Skipped uint64 `json:"skipped"` // how many denials since the last sample were not sampled.
	// Replica is the address of the replica that denied, if the denials are of several replicas. It is empty for the one
	// that lists them.
	Replica string `json:"replica,omitempty"`
}

// Replica is one of several replicas whose figures are added up.
type Replica struct {
	Address string `json:"address"`
	// IsThis marks the replica that adds up. Commands, which are no replica, mark none.
	IsThis bool `json:"this,omitempty"`
	// Error says why the replica is not in the sums. It is empty if the replica is.
	Error string `json:"error,omitempty"`
	// SameAs is the address of a replica of the sums that is the same process. Error says so, too.
	SameAs   string            `json:"same_as,omitempty"`
	Share    float64           `json:"share"` // of the decisions, 0 to 1.
	Total    PerSecond         `json:"total"`
	Requests RequestsPerSecond `json:"requests"`
	State    *State            `json:"state,omitempty"` // nil with an Error.
}

// Sum are the figures of several replicas.
type Sum struct {
	Rates  Rates     // the sums. Rules has the busiest ones of each replica, in any order.
	Hot    []Subject // of the last minute, as Denied.
	Denied []Subject
	Quotas *Quotas // nil if no proxy has any.
	// Replicas has all replicas, in the order of the shares in rates and subjects.
	Replicas []Replica
	// Denials are the newest sampled denials of the other replicas. FirstDenial is the number of the first one. Each
	// further one has the next number, also in later sums.
	Denials     []Denial
	FirstDenial uint64
}

// SumFigures are the sums of the figures of this replica and of others. The functions ask these, which takes up to some
// seconds. They return an error if ctx ends before, or if too many questions wait. Callers must not change what they
// return.
type SumFigures struct {
	Sum func(ctx context.Context) (*Sum, error)
	Top func(ctx context.Context, q TopQuery) ([]Subject, error)
	// ok is false if no replica has a history of the rule or domain.
	History func(ctx context.Context, domain, rule string) (h History, ok bool, err error)
}
