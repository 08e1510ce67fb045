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
	"ratelimit/src/operator/debugport"
	"ratelimit/src/operator/output"
	"ratelimit/src/operator/replicas"
)

// subjectFactor is how many more subjects each replica lists than the sums have: one of the first in all may not be
// among the first of each.
const subjectFactor = 5

// fetchAll asks all replicas, and returns the sums of those that answer. It returns an error if none does.
func fetchAll(ctx context.Context, clients []*debugport.Client, f filter) (*snapshot, error) {
	if len(clients) == 1 {
		return fetch(ctx, clients[0], f)
	}
	each := f
	each.subjects = min(subjectFactor*f.subjects, operator.MaxListed)
	parts := make([]replicas.Part, len(clients))
	errs := debugport.Each(ctx, len(clients), func(ctx context.Context, i int) error {
		c := clients[i]
		one, err := fetch(ctx, c, each)
		if _, hasAddress := errors.AsType[*debugport.Error](err); err != nil && !hasAddress {
			err = fmt.Errorf("%s: %w", c.Address, err)
		}
		if parts[i] = (replicas.Part{Address: c.Address, Err: err}); err == nil {
			parts[i].State, parts[i].Rates, parts[i].Hot, parts[i].Denied = one.State, one.Rates, one.Hot, one.Denied
		}
		return err
	})
	first := slices.Index(errs, nil)
	if first < 0 {
		return nil, errors.Join(errs...)
	}
	sum := replicas.Sum(parts, f.subjects)
	addresses := make([]string, len(clients))
	for i, c := range clients {
		addresses[i] = c.Address
	}
	return &snapshot{
		Address: strings.Join(addresses, ","), Window: f.window, State: parts[first].State, Rates: sum.Rates,
		Denied: sum.Denied, Hot: sum.Hot, Replicas: sum.Replicas,
	}, nil
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
	lines = wrapAll(lines, cells)
	columns := slices.Concat(output.Columns("REPLICA"), rateColumns, output.Numbers("SHARE %"), output.Columns("STATE"))
	table := output.Table(cells, columns, rows)
	for i := range rows {
		if !strings.HasPrefix(table[i+1], output.Printable(rows[i][0])) { // There is no room for whole addresses.
			for j, name := range output.DistinctParts(addressesOf(s.Replicas)) {
				rows[j][0] = name
			}
			table = output.Table(cells, columns, rows)
			break
		}
	}
	return append(table, lines...)
}

func addressesOf(list []operator.Replica) (addresses []string) {
	for i := range list {
		addresses = append(addresses, list[i].Address)
	}
	return addresses
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
