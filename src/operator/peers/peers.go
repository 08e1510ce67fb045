// Package peers asks the other replicas of a service for their figures, and adds them up with those of this replica.
//
// Each replica is asked for its own figures only, so questions do not go round. All viewers share the answers: one
// goroutine asks, one question after the other, and only when somebody looks.
package peers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"ratelimit/src/operator"
	"ratelimit/src/operator/debugport"
	"ratelimit/src/operator/replicas"
)

const (
	// defaultTimeout is that of Config.Timeout.
	defaultTimeout = time.Second
	// maxAnswerBytes and maxObjects bound an answer: its length, and how many objects of JSON it may have.
	maxAnswerBytes = 2 << 20
	maxObjects     = 20_000
	// retryAfter is how long a replica is not asked that did not answer, so that it delays few answers.
	retryAfter = 5 * time.Second
	// resolveEvery is how often dns:/// addresses are looked up again.
	resolveEvery = 5 * time.Second
	// maxAge is how old an answer may be that several viewers share. Histories change every ten seconds.
	maxAge        = 900 * time.Millisecond
	maxHistoryAge = 4 * time.Second
	// patience is how long a question waits for those before it.
	patience = 5 * time.Second
	// Bounds on what each replica is asked for. subjectFactor is as in `ratelimit top`.
	maxRules      = 1000
	sumSubjects   = 20
	subjectFactor = 5
	maxBuckets    = 20
	maxProxies    = 10
	// newDenials is how many denials a replica is asked for at a time, and keptDenials how many are kept of all.
	newDenials  = 100
	keptDenials = 1000
)

// Config is the configuration of Peers.
type Config struct {
	// Addresses are the debug ports of all replicas, each host:port or dns:///name:port. This replica may be among them.
	Addresses []string
	// Port says how to reach them. New sets its bounds.
	Port debugport.Config
	// Timeout is how long a replica may take to answer all that one question asks. Defaults to a second.
	Timeout time.Duration
	// Own are the figures of this replica.
	Own *operator.Figures
}

// Peers adds up the figures of this replica and its peers. Run must run meanwhile.
type Peers struct {
	cfg       Config
	questions chan question

	// Only the goroutine of Run uses the fields below.
	peers       []*peer          // in the order of the addresses.
	problems    []replicas.Part  // an element for each name that was not found.
	resolvedAt  time.Time        // zero before the first look-up.
	answers     map[string]timed // by question.
	counted     map[*peer]bool   // the peers that the last sum has: not this replica, and no process twice.
	order       []*peer          // the peers of the last sum, which has this replica before them, and problems behind.
	denials     []operator.Denial
	firstDenial uint64 // the number of the first of denials.
}

// question is a question for Run.
type question struct {
	key    string // the same for the same question.
	maxAge time.Duration
	ask    func(ctx context.Context) any
	answer chan any // has room for the answer.
}

// timed is an answer, and when it was complete.
type timed struct {
	answer any
	at     time.Time
	maxAge time.Duration
}

// peer is a replica at an address.
type peer struct {
	client     *debugport.Client
	name       string // in its certificate; empty for the host of the address.
	err        error  // why it did not answer. Nil if it did.
	askAgain   time.Time
	lastDenial uint64 // the ID of the newest denial that it told.
}

// New returns Peers. It asks nobody yet.
func New(cfg Config) (*Peers, error) {
	cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	cfg.Port.Timeout, cfg.Port.MaxAnswerBytes, cfg.Port.MaxAnswerObjects = cfg.Timeout, maxAnswerBytes, maxObjects
	cfg.Port.IgnoreProxy = true // A proxy would see the token.
	if len(cfg.Addresses) > debugport.MaxReplicas {
		return nil, fmt.Errorf("%d addresses: name at most %d", len(cfg.Addresses), debugport.MaxReplicas)
	}
	for _, address := range cfg.Addresses {
		client, err := cfg.Port.New(strings.TrimPrefix(address, "dns:///"), "")
		if err != nil {
			return nil, err
		}
		client.Close()
	}
	return &Peers{cfg: cfg, questions: make(chan question), answers: make(map[string]timed)}, nil
}

// Figures returns the sums.
func (p *Peers) Figures() *operator.SumFigures {
	return &operator.SumFigures{Sum: p.sum, Top: p.top, History: p.history}
}

// Run answers questions until ctx ends. Its error is always nil.
func (p *Peers) Run(ctx context.Context) error {
	defer func() {
		for _, peer := range p.peers {
			peer.client.Close()
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case q := <-p.questions:
			now := time.Now()
			maps.DeleteFunc(p.answers, func(_ string, t timed) bool { return now.Sub(t.at) > t.maxAge })
			known, isKnown := p.answers[q.key]
			if !isKnown {
				p.resolve(ctx, now)
				known = timed{q.ask(ctx), time.Now(), q.maxAge}
				p.answers[q.key] = known
			}
			q.answer <- known.answer
		}
	}
}

var errBusy = errors.New("the replicas are being asked for other figures; try again")

// ask returns the answer to a question.
func ask[T any](ctx context.Context, p *Peers, key string, maxAge time.Duration, ask func(context.Context) T,
) (answer T, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errBusy)
	defer cancel()
	q := question{key, maxAge, func(ctx context.Context) any { return ask(ctx) }, make(chan any, 1)}
	select {
	case p.questions <- q:
	case <-ctx.Done():
		return answer, context.Cause(ctx)
	}
	select {
	case found := <-q.answer:
		return found.(T), nil
	case <-ctx.Done():
		return answer, context.Cause(ctx)
	}
}

// resolve finds the addresses of the peers, if it is time to. It keeps what is known of the peers that remain.
func (p *Peers) resolve(ctx context.Context, now time.Time) {
	if !p.resolvedAt.IsZero() && now.Sub(p.resolvedAt) < resolveEvery {
		return
	}
	p.resolvedAt = now
	var found []*peer
	var problems []replicas.Part
	for _, entry := range p.cfg.Addresses {
		addresses, name, err := p.cfg.Port.Resolve(ctx, entry)
		if err != nil {
			problems = append(problems, replicas.Part{Address: entry, Err: err})
		}
		for _, address := range addresses {
			next, err := p.find(address, name)
			switch {
			case err != nil: // Its certificates cannot be read now.
				problems = append(problems, replicas.Part{Address: address, Err: fmt.Errorf("%s: %w", address, err)})
			case slices.ContainsFunc(found, func(o *peer) bool { return o.client.String() == next.client.String() }):
			case len(found) == debugport.MaxReplicas:
				problems = append(problems, replicas.Part{
					Address: next.client.Address,
					Err:     fmt.Errorf("%s: at most %d replicas are asked", next.client.Address, debugport.MaxReplicas),
				})
			default:
				found = append(found, next)
			}
		}
	}
	for _, old := range p.peers {
		if !slices.Contains(found, old) {
			old.client.Close()
		}
	}
	p.peers, p.problems = found, problems[:min(len(problems), debugport.MaxReplicas)]
}

// find returns the peer at address. It is a new one if it is not known, or did not answer last: certificates may have
// changed.
func (p *Peers) find(address, name string) (*peer, error) {
	client, err := p.cfg.Port.New(address, name)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(p.peers, func(o *peer) bool { return o.client.String() == client.String() && o.name == name })
	switch {
	case at < 0:
		return &peer{client: client, name: name}, nil
	case p.peers[at].err != nil:
		p.peers[at].client.Close()
		p.peers[at].client = client
	}
	return p.peers[at], nil
}

// each calls ask for each peer that isAsked chooses, at the same time, but for those that lately did not answer. It
// returns the last errors of all peers.
func (p *Peers) each(ctx context.Context, isAsked func(*peer) bool,
	ask func(ctx context.Context, i int, peer *peer) error,
) []error {
	now := time.Now()
	var group sync.WaitGroup
	for i, peer := range p.peers {
		if now.Before(peer.askAgain) || !isAsked(peer) {
			continue
		}
		group.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
			defer cancel()
			peer.err = ask(ctx, i, peer)
		})
	}
	group.Wait()
	errs := make([]error, len(p.peers))
	for i, peer := range p.peers {
		if errs[i] = peer.err; peer.err != nil && !now.Before(peer.askAgain) {
			peer.askAgain = time.Now().Add(retryAfter)
		}
	}
	return errs
}

// thisReplica is the address of this replica, as long as it has not found itself at one.
const thisReplica = "this replica"

const sumKey = "sum"

// sum returns the sums of all figures.
func (p *Peers) sum(ctx context.Context) (*operator.Sum, error) {
	return ask(ctx, p, sumKey, maxAge, p.askSum)
}

// eachCounted is each for the peers that the sum has. It makes the sum if that is too old.
func (p *Peers) eachCounted(ctx context.Context, ask func(ctx context.Context, i int, peer *peer) error) []error {
	if _, isKnown := p.answers[sumKey]; !isKnown {
		p.answers[sumKey] = timed{p.askSum(ctx), time.Now(), maxAge}
	}
	return p.each(ctx, func(peer *peer) bool { return p.counted[peer] }, ask)
}

func (p *Peers) askSum(ctx context.Context) *operator.Sum {
	own := p.cfg.Own
	quotas := own.Quotas(operator.QuotaQuery{Buckets: maxBuckets, Proxies: maxProxies})
	this := replicas.Part{
		Address: thisReplica, IsThis: true, State: own.State(), Rates: own.Rates(operator.RatesQuery{Limit: maxRules}),
		Hot: own.Top(topQuery(operator.TopHot)), Denied: own.Top(topQuery(operator.TopDenied)),
	}
	if !quotas.Total.IsZero() {
		this.Quotas = &quotas
	}
	parts, denials := make([]replicas.Part, len(p.peers)), make([][]operator.Denial, len(p.peers))
	errs := p.each(ctx, func(*peer) bool { return true }, func(ctx context.Context, i int, peer *peer) (err error) {
		parts[i], denials[i], err = peer.fetch(ctx)
		return err
	})
	all, others := []replicas.Part{this}, []*peer(nil)
	var newer []operator.Denial
	for i, peer := range p.peers {
		part := parts[i]
		part.Address, part.Err = peer.client.Address, errs[i]
		if all[0].Address == thisReplica && part.Err == nil && part.State.StartedAt.Equal(this.State.StartedAt) {
			all[0].Address = part.Address
			continue
		}
		all, others = append(all, part), append(others, peer)
		for _, d := range denials[i] {
			d.Replica = part.Address
			newer, peer.lastDenial = append(newer, d), max(peer.lastDenial, d.ID)
		}
	}
	s := replicas.Sum(append(all, p.problems...), sumSubjects)
	p.counted = make(map[*peer]bool)
	for i, peer := range others {
		p.counted[peer] = s.Replicas[i+1].Error == ""
	}
	for i := range s.Replicas {
		if state := s.Replicas[i].State; state != nil {
			state.Unmatched = nil // The rates have the sum.
		}
	}
	p.order = others
	slices.SortStableFunc(newer, func(a, b operator.Denial) int { return a.At.Compare(b.At) })
	p.denials = append(p.denials, newer...)
	surplus := max(0, len(p.denials)-keptDenials)
	p.denials, p.firstDenial = p.denials[surplus:], p.firstDenial+uint64(surplus)
	s.Denials, s.FirstDenial = slices.Clone(p.denials), p.firstDenial
	return s
}

func topQuery(kind string) operator.TopQuery {
	return operator.TopQuery{Kind: kind, Window: operator.WindowMinute, Limit: subjectFactor * sumSubjects}
}

// fetch asks for all figures, and the denials since the last time.
func (peer *peer) fetch(ctx context.Context) (part replicas.Part, denials []operator.Denial, err error) {
	get := func(path string, query url.Values, answer any) {
		if err == nil {
			err = peer.client.Get(ctx, path, query, answer)
		}
	}
	get("/api/state", nil, &part.State)
	get("/api/rates", url.Values{"limit": {strconv.Itoa(maxRules)}}, &part.Rates)
	get("/api/top", topQuery(operator.TopHot).Values(), &part.Hot)
	get("/api/top", topQuery(operator.TopDenied).Values(), &part.Denied)
	after := strconv.FormatUint(peer.lastDenial, 10)
	get("/api/denials", url.Values{"after": {after}, "limit": {strconv.Itoa(newDenials)}}, &denials)
	if part.State.Quotas != nil {
		part.Quotas = new(operator.Quotas)
		query := url.Values{"limit": {strconv.Itoa(maxBuckets)}, "proxies": {strconv.Itoa(maxProxies)}}
		get("/api/quotas", query, part.Quotas)
	}
	if err != nil {
		return replicas.Part{}, nil, err
	}
	part.Rates.Rules = part.Rates.Rules[:min(maxRules, len(part.Rates.Rules))]
	return part, denials[:min(newDenials, len(denials))], peer.check(&part)
}

// check returns an error if figures are so large that they are none, or that sums of them are no JSON.
func (peer *peer) check(part *replicas.Part) error {
	rates := []operator.PerSecond{part.Rates.Total}
	for _, d := range part.Rates.Domains {
		rates = append(rates, d.PerSecond)
	}
	for _, r := range part.Rates.Rules {
		rates = append(rates, r.PerSecond)
	}
	r := part.Rates.Requests
	list := []float64{r.Admitted, r.Denied, r.Fallback, r.Failed}
	for _, r := range rates {
		list = append(list, r.Admitted, r.Denied, r.Near, r.Shadow, r.Fallback, r.Failed, r.Unmatched)
	}
	for _, s := range slices.Concat(part.Hot, part.Denied) {
		list = append(list, s.PerSecond)
	}
	if q := part.Quotas; q != nil {
		list = append(list, q.Total.DemandPerSecond)
		for _, b := range q.Buckets {
			list = append(list, b.DemandPerSecond)
		}
	}
	return peer.checkNumbers(list)
}

// mostPerSecond is more than any replica does.
const mostPerSecond = 1e15

func (peer *peer) checkNumbers(list []float64) error {
	for _, x := range list {
		if !(x >= 0 && x <= mostPerSecond) {
			return fmt.Errorf("%s: %g is no rate", peer.client.Address, x)
		}
	}
	return nil
}

// top returns the sums of subjects. Their shares are in the order of the replicas of sum.
func (p *Peers) top(ctx context.Context, q operator.TopQuery) ([]operator.Subject, error) {
	return ask(ctx, p, "top "+q.Values().Encode(), maxAge, func(ctx context.Context) []operator.Subject {
		each := q
		each.Limit = min(subjectFactor*q.Limit, operator.MaxListed)
		lists := make([][]operator.Subject, len(p.peers))
		errs := p.eachCounted(ctx, func(ctx context.Context, i int, peer *peer) error {
			if err := peer.client.Get(ctx, "/api/top", each.Values(), &lists[i]); err != nil {
				return err
			}
			return peer.check(&replicas.Part{Hot: lists[i]})
		})
		return replicas.Subjects(append([][]operator.Subject{p.cfg.Own.Top(each)}, inOrder(p, lists, errs)...), q.Limit)
	})
}

// inOrder returns the elements of list, which has one for each of p.peers, in the order of the replicas of the sum
// behind this one. Those that are not in the sum, or have an error, are empty.
func inOrder[T any](p *Peers, list []T, errs []error) (of []T) {
	for _, peer := range p.order {
		var one T
		if i := slices.Index(p.peers, peer); i >= 0 && p.counted[peer] && errs[i] == nil {
			one = list[i]
		}
		of = append(of, one)
	}
	return append(of, make([]T, len(p.problems))...)
}

// foundHistory is a history, if there is one.
type foundHistory struct {
	operator.History
	ok bool
}

// history returns the sum of the histories of the replicas that have one.
func (p *Peers) history(ctx context.Context, domain, rule string) (operator.History, bool, error) {
	query := url.Values{}
	for name, value := range map[string]string{"domain": domain, "rule": rule} {
		if value != "" {
			query.Set(name, value)
		}
	}
	h, err := ask(ctx, p, "history "+query.Encode(), maxHistoryAge, func(ctx context.Context) foundHistory {
		lists := make([]*operator.History, len(p.peers))
		errs := p.eachCounted(ctx, func(ctx context.Context, i int, peer *peer) error {
			h, err := peer.history(ctx, query)
			lists[i] = h
			return err
		})
		var all []operator.History
		if own, ok := p.cfg.Own.History(domain, rule); ok {
			all = append(all, own)
		}
		for _, h := range inOrder(p, lists, errs) {
			if h != nil {
				all = append(all, *h)
			}
		}
		return foundHistory{replicas.History(all), len(all) > 0}
	})
	return h.History, h.ok, err
}

const (
	maxSteps    = 1000 // of a history.
	stepSeconds = 10
)

// history returns the history that a query asks for; nil if the peer has none.
func (peer *peer) history(ctx context.Context, query url.Values) (*operator.History, error) {
	h := new(operator.History)
	err := peer.client.Get(ctx, "/api/history", query, h)
	if problem, ok := errors.AsType[*debugport.Error](err); ok && problem.IsNotFound() {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	lines := [][]float64{h.Admitted, h.Denied, h.Near, h.Shadow, h.Fallback, h.Failed, h.Unmatched}
	longest := slices.MaxFunc(lines, func(a, b []float64) int { return cmp.Compare(len(a), len(b)) })
	if age := time.Since(h.Start); h.StepSeconds != stepSeconds || len(longest) > maxSteps || age.Abs() > 24*time.Hour {
		return nil, fmt.Errorf("%s: its history is not that of the last hour; is its clock right?", peer.client.Address)
	}
	return h, peer.checkNumbers(slices.Concat(lines...))
}
