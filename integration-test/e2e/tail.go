package main

import (
	"context"
	"fmt"
	"strings"

	"ratelimit/src/tools/bench"
)

// tailStores are the stores whose durations at half load are measured.
var tailStores = []store{inMemory, inRedis, inFarRedis}

var storeNames = map[store]string{
	inMemory: "memory", inRedis: "Redis", inLocalCache: "local cache", inLeases: "leased",
	inFarRedis: fmt.Sprintf("Redis %d ms away", farAway.Milliseconds()),
}

func tailTitle(s store) string { return "half load, " + storeNames[s] }

// tailLoad is what saturates a service; at half of its rate, calls have room for four times as many in flight.
var tailLoad = load{Client: lean, Workload: "uniform", Connections: connections, InFlight: 32}

// tailReport is the durations of calls at half load on one store.
type tailReport struct {
	Store   store         `json:"store"`
	Engines []*engineTail `json:"engines"`
	Rounds  []tailRound   `json:"rounds"`
}

// engineTail sums up the rounds of one engine.
type engineTail struct {
	Engine string  `json:"engine"`
	P50    *spread `json:"p50_us,omitempty"`
	P99    *spread `json:"p99_us,omitempty"`
	// Worse is the p99 as a multiple of that of the last engine, which is today's.
	Worse *spread `json:"p99_ratio,omitempty"`
}

// tailRound is a round: the engines one after the other, at half of what the last engine answers when calls follow each
// other.
type tailRound struct {
	Round   int             `json:"round"` // from 1
	Rate    float64         `json:"rate"`  // calls due a second
	Results []*bench.Result `json:"results,omitempty"`
	Problem string          `json:"problem,omitempty"`
}

func newTailReport(s store, engines []string) *tailReport {
	t := &tailReport{Store: s}
	for _, e := range engines {
		t.Engines = append(t.Engines, &engineTail{Engine: e})
	}
	return t
}

func (l *lab) tail(ctx context.Context, s store, round int) tailRound {
	r := tailRound{Round: round, Results: make([]*bench.Result, len(l.opt.engines))}
	last := len(l.opt.engines) - 1
	service := func(i int) server { return l.services[serviceKey{s, l.opt.engines[i]}] }
	saturated, err := l.generate(ctx, &tailLoad, service(last), "OK", round)
	if err != nil {
		r.Problem = "saturated: " + err.Error()
		return r
	}
	paced := tailLoad
	paced.InFlight *= 4
	paced.Rate = max(1, saturated.Rate/2)
	r.Rate = paced.Rate
	for n := range l.opt.engines {
		i := n
		if round%2 == 0 {
			i = last - n
		}
		if r.Results[i], err = l.generate(ctx, &paced, service(i), "OK", round); err != nil {
			r.Problem = l.opt.engines[i] + ": " + err.Error()
			return r
		}
	}
	return r
}

func (t *tailReport) add(r tailRound) {
	t.Rounds = append(t.Rounds, r)
	p99 := func(r tailRound, i int) float64 { return float64(r.Results[i].Latency.P99) }
	for i, e := range t.Engines {
		over := func(value func(tailRound) float64) *spread {
			return spreadOver(t.Rounds, func(r tailRound) bool { return r.Problem == "" }, value)
		}
		e.P50 = over(func(r tailRound) float64 { return float64(r.Results[i].Latency.P50) })
		e.P99 = over(func(r tailRound) float64 { return p99(r, i) })
		e.Worse = over(func(r tailRound) float64 { return p99(r, i) / p99(r, len(t.Engines)-1) })
	}
}

func (t *tailReport) problem() string {
	return problemOf(t.Rounds, func(r tailRound) (int, string) { return r.Round, r.Problem })
}

func (t *tailReport) String() string {
	last := t.Rounds[len(t.Rounds)-1]
	if last.Problem != "" {
		return tailTitle(t.Store) + ": " + last.Problem
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %.0f/s:", tailTitle(t.Store), last.Rate)
	for i, e := range t.Engines {
		fmt.Fprintf(&b, "  %s p50 %d µs, p99 %d µs", e.Engine, last.Results[i].Latency.P50, last.Results[i].Latency.P99)
	}
	return b.String()
}

var tailHead = []string{"half load", "engine", "calls/s", "p50", "p99", "lowest – highest", "p99 ratio", "target"}

// rows are the rows below tailHead.
func (t *tailReport) rows() (rows [][]string) {
	for _, e := range t.Engines {
		row := []string{storeNames[t.Store], e.Engine, "–", "–", "–", "–", "–", ""}
		if e.P99 != nil {
			rate := spreadOver(t.Rounds, func(r tailRound) bool { return r.Problem == "" },
				func(r tailRound) float64 { return r.Rate })
			row = []string{
				storeNames[t.Store], e.Engine, fmt.Sprintf("%.0f", rate.Median), fmt.Sprintf("%.0f µs", e.P50.Median),
				fmt.Sprintf("%.0f µs", e.P99.Median),
				fmt.Sprintf("%.0f – %.0f", e.P99.Lowest, e.P99.Highest), fmt.Sprintf("%.2f", e.Worse.Median), "",
			}
			if e.Engine == h2 && len(t.Engines) > 1 {
				row[len(row)-1] = verdict(1, e.Worse)
			}
		}
		rows = append(rows, row)
	}
	return rows
}
