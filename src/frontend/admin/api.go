package admin

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"ratelimit/src/operator"
	"ratelimit/src/rules"
)

// Bounds on what one answer of /api lists.
const (
	defaultRules    = 100
	defaultSubjects = 20
	defaultDenials  = 100
)

type figuresAPI struct {
	figures *operator.Figures
	sum     *operator.SumFigures // nil if there is only this replica.
}

type apiPage struct {
	path, help string
	parameters []string // the names of the query parameters.
	// answer returns the body. If p has an error afterwards, the body is not used.
	answer func(ctx context.Context, p *parameters) any
}

func (a figuresAPI) pages() []apiPage {
	return []apiPage{
		{
			"/api/state", "state of this process, its store and its rules, as JSON", nil,
			func(context.Context, *parameters) any { return a.state() },
		},
		{
			"/api/rates", "decisions per second of domains and rules, as JSON; ?search=TEXT&order=busiest|tree&" +
				"offset=0&limit=100&replicas=this|all",
			[]string{"search", "order", "offset", "limit", "replicas"},
			a.rates,
		},
		{
			"/api/history", "decisions per second of the last hour, as JSON; ?domain=D&rule=R&replicas=this|all",
			[]string{"domain", "rule", "replicas"},
			a.history,
		},
		{
			"/api/top", "subjects with most hits or denials, as JSON; " +
				"?kind=hot|denied&window=minute|hour&domain=D&rule=R&limit=20&replicas=this|all",
			[]string{"kind", "window", "domain", "rule", "limit", "replicas"},
			a.top,
		},
		{
			"/api/quotas", "quotas of proxies, those with most demand first, as JSON; " +
				"?domain=D&bucket=key=value,key=value&limit=20&proxies=10",
			[]string{"domain", "bucket", "limit", "proxies"},
			a.quotas,
		},
		{"/api/denials", "sampled denials, as JSON; ?after=ID&limit=100", []string{"after", "limit"}, a.denials},
	}
}

// ServeHTTP answers the page as JSON, or 400 if a parameter is not allowed.
func (page apiPage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := parseParameters(r.URL.RawQuery, page.parameters)
	var body any
	if p.err == nil {
		body = page.answer(r.Context(), p)
	}
	w.Header().Set("Cache-Control", "no-store")
	switch {
	case p.err != nil:
		http.Error(w, p.err.Error(), http.StatusBadRequest)
	case p.unavailable != nil:
		http.Error(w, p.unavailable.Error(), http.StatusServiceUnavailable)
	case p.notFound != "":
		http.Error(w, p.notFound, http.StatusNotFound)
	default:
		writeJSON(w, http.StatusOK, body)
	}
}

// state returns the state with lists that are never null in JSON.
func (a figuresAPI) state() operator.State {
	s := a.figures.State()
	s.Components, s.Rules.Problems, s.Unmatched = listOf(s.Components), listOf(s.Rules.Problems), listOf(s.Unmatched)
	return s
}

// sums returns the sums of several replicas if the parameter asks for them and there are several; else nil.
func (a figuresAPI) sums(p *parameters) *operator.SumFigures {
	if p.oneOf("replicas", "this", "all") == "all" {
		return a.sum
	}
	return nil
}

func (a figuresAPI) rates(ctx context.Context, p *parameters) any {
	q := operator.RatesQuery{
		Search: p.text("search"), Order: p.oneOf("order", operator.OrderBusiest, operator.OrderTree),
		Offset: p.number("offset", 0, 0, 1<<31-1), Limit: p.limit(defaultRules),
	}
	sums := a.sums(p)
	if p.err != nil {
		return nil
	}
	if sums == nil {
		return a.ratesOf(nil, q)
	}
	sum, err := sums.Sum(ctx)
	p.unavailable = err
	return a.ratesOf(sum, q)
}

// ratesOf returns the rates of this replica, or those of sum if it is not nil, with lists that are never null in JSON.
func (a figuresAPI) ratesOf(sum *operator.Sum, q operator.RatesQuery) operator.Rates {
	var r operator.Rates
	if sum != nil {
		r = a.figures.RatesAmong(sum.Rates, q)
	} else {
		r = a.figures.Rates(q)
	}
	r.Domains, r.Rules, r.Unmatched = listOf(r.Domains), listOf(r.Rules), listOf(r.Unmatched)
	return r
}

func (a figuresAPI) history(ctx context.Context, p *parameters) any {
	domain, rule := p.text("domain"), p.text("rule")
	if domain == "" && rule != "" {
		p.err = fmt.Errorf("rule %q without its domain: add domain=", rule)
	}
	sums := a.sums(p)
	if p.err != nil {
		return nil
	}
	var h operator.History
	var ok bool
	if sums != nil {
		h, ok, p.unavailable = sums.History(ctx, domain, rule)
	} else {
		h, ok = a.figures.History(domain, rule)
	}
	if !ok {
		p.notFound = fmt.Sprintf("there is no history of domain %q, rule %q; /api/rates lists domains and rules",
			domain, rule)
	}
	for _, list := range []*[]float64{&h.Admitted, &h.Denied, &h.Near, &h.Shadow, &h.Fallback, &h.Failed, &h.Unmatched} {
		*list = listOf(*list)
	}
	return h
}

func (a figuresAPI) top(ctx context.Context, p *parameters) any {
	q := operator.TopQuery{
		Kind:   p.oneOf("kind", operator.TopHot, operator.TopDenied),
		Window: p.oneOf("window", operator.WindowMinute, operator.WindowHour, operator.WindowDay),
		Domain: p.text("domain"),
		Rule:   p.text("rule"),
		Limit:  p.limit(defaultSubjects),
	}
	if q.Domain == "" && q.Rule != "" && p.err == nil {
		p.err = fmt.Errorf("rule %q without its domain: add domain=", q.Rule)
	}
	sums := a.sums(p)
	if p.err != nil {
		return nil
	}
	if sums == nil {
		return listOf(a.figures.Top(q))
	}
	list, err := sums.Top(ctx, q)
	p.unavailable = err
	return listOf(list)
}

func (a figuresAPI) denials(_ context.Context, p *parameters) any {
	after, limit := p.id("after"), p.limit(defaultDenials)
	if p.err != nil {
		return nil
	}
	return listOf(a.figures.Denials(after, limit))
}

// listOf returns list, or an empty list instead of nil, which JSON would write as null.
func listOf[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// parameters are the parameters of a query. Its methods read one parameter and keep the first error.
type parameters struct {
	values   url.Values
	err      error
	notFound string // says what the parameters name that is not there.
	// unavailable says why the answer is not known now.
	unavailable error
}

// parseParameters parses a query that may have each of names once.
func parseParameters(query string, names []string) *parameters {
	values, err := url.ParseQuery(query)
	if err != nil {
		return &parameters{err: fmt.Errorf("the query %q is not valid: %w", query, err)}
	}
	p := &parameters{values: values}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		switch {
		case !slices.Contains(names, name) && len(names) == 0:
			p.fail("unknown parameter %q; this page takes none", name)
		case !slices.Contains(names, name):
			p.fail("unknown parameter %q; this page takes %s", name, strings.Join(names, ", "))
		case len(values[name]) > 1:
			p.fail("parameter %s is given %d times; give it once", name, len(values[name]))
		}
	}
	return p
}

func (p *parameters) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf(format, args...)
	}
}

func (p *parameters) text(name string) string { return p.values.Get(name) }

// oneOf returns the parameter, which must be one of allowed, or the first of allowed if the query does not have it.
func (p *parameters) oneOf(name string, allowed ...string) string {
	value := p.values.Get(name)
	if value == "" {
		return allowed[0]
	}
	if !slices.Contains(allowed, value) {
		p.fail("%s=%q is not allowed; it is %s", name, value, rules.JoinWithOr(allowed))
	}
	return value
}

// number returns the parameter, which must be a whole number from lowest to highest, or unset if the query does not
// have it.
func (p *parameters) number(name string, unset, lowest, highest int) int {
	text := p.values.Get(name)
	if text == "" {
		return unset
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < lowest || n > highest {
		p.fail("%s=%q is not allowed; it is a whole number from %d to %d", name, text, lowest, highest)
	}
	return n
}

func (p *parameters) limit(unset int) int { return p.number("limit", unset, 1, operator.MaxListed) }

// id returns the parameter, which must be the ID of a denial, or 0 if the query does not have it.
func (p *parameters) id(name string) uint64 {
	text := p.values.Get(name)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		p.fail("%s=%q is not allowed; it is the id of a denial, or 0", name, text)
	}
	return n
}
