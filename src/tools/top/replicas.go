package top

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"ratelimit/src/operator"
	"ratelimit/src/operator/output"
	"ratelimit/src/operator/replicas"
	"ratelimit/src/tools/reach"
)

// replica is what one of several replicas tells.
type replica struct {
	Address string `json:"address"`
	// Error says why the replica is not in the sums. It is empty if the replica is.
	Error    string                     `json:"error,omitempty"`
	Share    float64                    `json:"share"` // of the decisions, 0 to 1.
	Total    operator.PerSecond         `json:"total"`
	Requests operator.RequestsPerSecond `json:"requests"`
	State    *operator.State            `json:"state,omitempty"` // nil with an Error.
}

// subjectFactor is how many more subjects each replica lists than the sums have: one of the first in all may not be
// among the first of each.
const subjectFactor = 5

// fetchAll asks all replicas, and returns the sums of those that answer. It returns an error if none does.
func fetchAll(ctx context.Context, clients []*reach.Client, f filter) (*snapshot, error) {
	if len(clients) == 1 {
		return fetch(ctx, clients[0], f)
	}
	each := f
	each.subjects = min(subjectFactor*f.subjects, maxListed)
	parts := make([]*snapshot, len(clients))
	errs := reach.Each(ctx, len(clients), func(ctx context.Context, i int) (err error) {
		c := clients[i]
		if parts[i], err = fetch(ctx, c, each); err == nil {
			return nil
		} else if _, hasAddress := errors.AsType[*reach.Error](err); hasAddress {
			return err
		}
		return fmt.Errorf("%s: %w", c.Address, err)
	})
	addresses := make([]string, len(clients))
	for i, c := range clients {
		addresses[i] = c.Address
		isSame := func(p *snapshot) bool { return p.State.StartedAt.Equal(parts[i].State.StartedAt) }
		if errs[i] != nil {
			parts[i] = &snapshot{}
		} else if at := slices.IndexFunc(parts[:i], isSame); at >= 0 {
			parts[i], errs[i] = &snapshot{}, fmt.Errorf("%s: this is the replica at %s", c.Address, addresses[at])
		}
	}
	if !slices.Contains(errs, nil) {
		return nil, errors.Join(errs...)
	}
	s := sum(parts, addresses, errs, f.subjects)
	s.Address, s.Window = strings.Join(addresses, ","), f.window
	return s, nil
}

// sum adds up parts. Those with an error are empty.
func sum(parts []*snapshot, addresses []string, errs []error, limit int) *snapshot {
	var rates []operator.Rates
	var denied, hot [][]operator.Subject
	var shares []float64
	for _, p := range parts {
		rates, denied, hot = append(rates, p.Rates), append(denied, p.Denied), append(hot, p.Hot)
		shares = append(shares, p.Rates.Total.Total())
	}
	replicas.ToShares(shares)
	s := &snapshot{
		Rates: replicas.Rates(rates), Denied: replicas.Subjects(denied, limit), Hot: replicas.Subjects(hot, limit),
		State: parts[slices.Index(errs, nil)].State,
	}
	for i, p := range parts {
		r := replica{Address: addresses[i], Share: shares[i], Total: p.Rates.Total, Requests: p.Rates.Requests}
		if errs[i] != nil {
			r.Error = errs[i].Error()
		} else {
			r.State = &p.State
		}
		s.Replicas = append(s.Replicas, r)
	}
	return s
}

// replicaLines returns the table of the replicas, and what is wrong with each. cells is the width of the terminal; 0:
// no bound.
func (s *snapshot) replicaLines(cells int) (lines []string) {
	var rows [][]string
	for i := range s.Replicas {
		r := &s.Replicas[i]
		if r.Error != "" {
			rows = append(rows, []string{r.Address, "-", "-", "-", "-", "-", "-", "-", "not in the sums: see below"})
			lines = append(lines, output.Printable(r.Error))
			continue
		}
		one := snapshot{Address: r.Address, State: *r.State, Rates: operator.Rates{Requests: r.Requests}}
		rows = append(rows, rateCells(r.Address, r.Total, percent(r.Share), one.stateText()))
		for _, line := range slices.Concat(one.outageLines(), one.quotaLines(), one.problemLines()) {
			lines = append(lines, r.Address+": "+line)
		}
	}
	columns := slices.Concat(output.Columns("REPLICA"), rateColumns, output.Numbers("SHARE %"), output.Columns("STATE"))
	return append(output.Table(cells, columns, rows), lines...)
}

// percent returns a share in whole per cents: "0", "<1", "65".
func percent(share float64) string {
	if share > 0 && share < 0.005 {
		return "<1"
	}
	return strconv.Itoa(int(math.Round(100 * share)))
}

// sharesText returns the shares of the replicas in per cent, in their order: "65/35".
func sharesText(shares []float64) string {
	var parts []string
	for _, share := range shares {
		parts = append(parts, percent(share))
	}
	return strings.Join(parts, "/")
}

// withShares returns columns and rows with the shares of the replicas before the last column, if s has several.
func (s *snapshot) withShares(columns []output.Column, rows [][]string, shares func(row int) []float64,
) ([]output.Column, [][]string) {
	if s.Replicas == nil {
		return columns, rows
	}
	last := len(columns) - 1
	for i := range rows {
		rows[i] = slices.Insert(rows[i], last, sharesText(shares(i)))
	}
	return slices.Insert(columns, last, output.Numbers("SHARES %")...), rows
}
