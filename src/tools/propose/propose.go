// Package propose proposes limits from recorded traffic.
//
//	propose.go   finds the limits that each request is charged to, and adds up what subjects use
//	usage.go     what the subjects of one rule used, in bounded memory
//	report.go    percentiles, what a limit would have refused, and the proposal
//	rulefile.go  the rule files with the proposed limits
//	command.go
package propose

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/limiter"
	"ratelimit/src/operator/callertext"
	"ratelimit/src/rules"
	"ratelimit/src/tools/simulate"
)

// traffic is what a recording tells about the rules of a set.
type traffic struct {
	usages  []usage // by Rule.Index
	sampler sampler

	lines     uint64 // with a request
	lost      uint64 // requests that the recording lacks
	invalid   uint64 // requests that the service refuses as invalid
	unmatched uint64 // requests without a descriptor that a limit applies to
	from, to  time.Time
}

// measure adds up the requests of a recording, and calls progress after each one. It follows at most that many
// subjects. It needs no store: which limits a request is charged to does not depend on their counters.
func measure(
	ctx context.Context, set *rules.Set, cfg simulate.Config, most int, progress func(*traffic),
) (*traffic, error) {
	t := &traffic{usages: make([]usage, set.RuleSlots()), sampler: sampler{max: most}}
	m := measurer{traffic: t, set: set, limiter: limiter.New(limiter.Config{EscapeKeys: true})}
	for line, err := range simulate.Lines(ctx, cfg) {
		if err == nil && line.Lost > 0 {
			t.lost += line.Lost
			continue
		}
		if err == nil {
			err = m.add(ctx, line)
		}
		if err != nil {
			return nil, err
		}
		progress(t)
	}
	return t, nil
}

type measurer struct {
	*traffic
	set     *rules.Set
	limiter *limiter.Limiter
	answer  limiter.Answer // reused for each request
}

func (m *measurer) add(ctx context.Context, line *simulate.Line) error {
	if m.lines == 0 {
		m.from = line.At
	}
	m.lines++
	m.to = line.At
	err := line.Refusal
	if err == nil {
		req := *line.Request
		req.Now = line.At
		if err = m.limiter.Prepare(ctx, m.set, &req, &m.answer, m.answer.OwnBatch(&req)); err == nil {
			m.addCharges(&req)
			return nil
		}
	}
	if !errors.Is(err, limiter.ErrInvalidRequest) {
		return fmt.Errorf("line %d: %w", line.Number, err)
	}
	m.invalid++
	return nil
}

// addCharges adds what the request charges: no dry runs, refunds and settlements of holds.
func (m *measurer) addCharges(req *limiter.Request) {
	found := false
	for i := range m.answer.Statuses {
		st := &m.answer.Statuses[i]
		for j := range st.Charges {
			c := &st.Charges[j]
			if c.Rule == nil {
				continue
			}
			found = true
			if c.Op == algorithm.Charge && c.RequestedAmount > 0 && c.Rule.Reserve == nil ||
				c.Op == algorithm.Force && st.Op == algorithm.Charge { // with reserve_on_check
				h := hit{c.CounterKey, c.Algorithm, req.Now.UnixNano(), c.RequestedAmount}
				m.sampler.add(&m.usages[c.Rule.Index], h, func() string {
					return callertext.Descriptor(c.Rule.AppendCounterEntries(nil, req.Descriptors[i].Entries))
				})
			}
		}
	}
	if !found {
		m.unmatched++
	}
}
