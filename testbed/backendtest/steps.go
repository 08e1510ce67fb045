package backendtest

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

const (
	charge = algorithm.Charge
	look   = algorithm.Look
	refund = algorithm.Refund
	force  = algorithm.Force
)

// table is a limit and hits on one key, with the verdicts that each store must return.
type table struct {
	name  string
	limit algorithm.Limit
	steps []step
}

// step is one hit of a table and its verdict.
type step struct {
	line           int           // the number of the line in steps.txt
	at             time.Duration // the time since epoch
	op             algorithm.Op
	amount         uint64
	over, interval bool
	after          uint64
	remaining      uint64
	retry, reset   time.Duration
}

//go:embed steps.txt
var stepsText string

// readTables parses steps.txt.
func readTables(t *testing.T) (tables []table) {
	t.Helper()
	parseTables(t, "steps.txt", stepsText, func(name string) {
		tables = append(tables, table{name: name})
	}, func(line string) (err error) {
		tables[len(tables)-1].limit, err = readLimit(line)
		return err
	}, func(number int, line string) error {
		st, err := readStep(line)
		st.line = number
		last := &tables[len(tables)-1]
		last.steps = append(last.steps, st)
		return err
	})
	return tables
}

// parseTables parses a file of tables. It calls start with the name of each table, limit with the line of its limit,
// and step with the line of each step.
func parseTables(t *testing.T, file, text string, start func(name string), limit func(line string) error,
	step func(number int, line string) error,
) {
	t.Helper()
	parseLines(t, file, text, func(number int, line string) error {
		if name, ok := strings.CutPrefix(line, "== "); ok {
			start(name)
			return nil
		}
		if !strings.Contains(line, " -> ") {
			return limit(line)
		}
		return step(number, line)
	})
}

// readLimit parses the line of a table that describes its limit.
func readLimit(line string) (l algorithm.Limit, err error) {
	var kind, period, interval, refused string
	if _, err = fmt.Sscanf(line, "%s max %d period %s burst %d interval %s refused hits %s", &kind, &l.Max, &period,
		&l.Burst, &interval, &refused); err != nil {
		return l, err
	}
	l.Kind, _ = algorithm.ParseKind(kind)
	l.CountBlocked = refused == "counted"
	return l, readDurations([]string{period, interval}, &l.Period, &l.MinInterval)
}

// readStep parses a line such as "10s charge 1 -> passes after 1, remaining 1, retry 0s, reset 50s".
func readStep(line string) (st step, err error) {
	var at, op, verdict, retry, reset string
	line = strings.ReplaceAll(line, ",", " ")
	if _, err = fmt.Sscanf(line, "%s %s %d -> %s after %d remaining %d retry %s reset %s", &at, &op, &st.amount,
		&verdict, &st.after, &st.remaining, &retry, &reset); err != nil {
		return st, err
	}
	st.op = opNamed(op)
	st.over, st.interval = verdict != "passes", verdict == "interval"
	return st, readDurations([]string{at, retry, reset}, &st.at, &st.retry, &st.reset)
}

// opNamed returns the operation with that name.
func opNamed(name string) algorithm.Op {
	ops := []algorithm.Op{charge, look, refund, force}
	return ops[slices.IndexFunc(ops, func(op algorithm.Op) bool { return op.String() == name })]
}

// readDurations parses durations; "never" is algorithm.Never.
func readDurations(words []string, to ...*time.Duration) (err error) {
	for i, word := range words {
		if *to[i] = algorithm.Never; word != "never" && err == nil {
			*to[i], err = time.ParseDuration(word)
		}
	}
	return err
}

func (suite *Suite) testSteps(t *testing.T, open func(*testing.T) backend.Backend) {
	for _, tt := range readTables(t) {
		if !suite.supports(&tt.limit) || suite.inexact(&tt) {
			continue
		}
		t.Run(tt.limit.Kind.String()+"/"+tt.name, func(t *testing.T) {
			store := open(t)
			for _, want := range tt.steps {
				v := send(t, store, epoch.Add(want.at),
					backend.Hit{Key: []byte("k"), Limit: &tt.limit, Op: want.op, Amount: want.amount})[0]
				got := step{
					want.line, want.at, want.op, want.amount, v.Over, v.WithinMinInterval, v.After,
					v.Remaining, v.RetryAfter, v.ResetAfter,
				}
				if got != want {
					t.Fatalf("steps.txt:%d:\n got %+v\nwant %+v", want.line, got, want)
				}
			}
		})
	}
}

// inexact reports whether the clock is set back in a table of a kind for which the store is not exact then.
func (suite *Suite) inexact(tt *table) bool {
	inOrder := slices.IsSortedFunc(tt.steps, func(a, b step) int { return int(a.at - b.at) })
	return !inOrder && slices.Contains(suite.InexactBackwards, tt.limit.Kind)
}
