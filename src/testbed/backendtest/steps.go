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

type step struct {
	line           int           // in steps.txt
	at             time.Duration // after epoch
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
	for i, line := range strings.Split(stepsText, "\n") {
		var err error
		switch name, isName := strings.CutPrefix(line, "== "); {
		case line == "" || line[0] == '#':
		case isName:
			tables = append(tables, table{name: name})
		case strings.Contains(line, " -> "):
			last := &tables[len(tables)-1]
			var st step
			st, err = readStep(line)
			st.line = i + 1
			last.steps = append(last.steps, st)
		default:
			tables[len(tables)-1].limit, err = readLimit(line)
		}
		if err != nil {
			t.Fatalf("steps.txt:%d: %v", i+1, err)
		}
	}
	return tables
}

func readLimit(line string) (l algorithm.Limit, err error) {
	var kind, period, interval, refused string
	if _, err = fmt.Sscanf(line, "%s max %d period %s burst %d interval %s refused hits %s", &kind, &l.Max, &period, &l.Burst, &interval, &refused); err != nil {
		return l, err
	}
	l.Kind, _ = algorithm.ParseKind(kind)
	l.CountBlocked = refused == "counted"
	return l, readWaits([]string{period, interval}, &l.Period, &l.MinInterval)
}

func readStep(line string) (st step, err error) {
	var at, op, verdict, retry, reset string
	line = strings.ReplaceAll(line, ",", " ")
	if _, err = fmt.Sscanf(line, "%s %s %d -> %s after %d remaining %d retry %s reset %s", &at, &op, &st.amount, &verdict, &st.after, &st.remaining, &retry, &reset); err != nil {
		return st, err
	}
	st.op = opNamed(op)
	st.over, st.interval = verdict != "passes", verdict == "interval"
	return st, readWaits([]string{at, retry, reset}, &st.at, &st.retry, &st.reset)
}

func opNamed(name string) algorithm.Op {
	ops := []algorithm.Op{charge, look, refund, force}
	return ops[slices.IndexFunc(ops, func(op algorithm.Op) bool { return op.String() == name })]
}

func readWaits(words []string, to ...*time.Duration) (err error) {
	for i, word := range words {
		if *to[i] = algorithm.Never; word != "never" && err == nil {
			*to[i], err = time.ParseDuration(word)
		}
	}
	return err
}

func (suite *Suite) testSteps(t *testing.T, open func(*testing.T) backend.Backend) {
	for _, tt := range readTables(t) {
		if !suite.can(&tt.limit) || suite.mayNotStepBack(&tt) {
			continue
		}
		t.Run(tt.limit.Kind.String()+"/"+tt.name, func(t *testing.T) {
			store := open(t)
			for _, want := range tt.steps {
				v := send(t, store, epoch.Add(want.at), backend.Hit{Key: []byte("k"), Limit: &tt.limit, Op: want.op, Amount: want.amount})[0]
				got := step{want.line, want.at, want.op, want.amount, v.Over, v.Interval, v.After, v.Remaining, v.RetryAfter, v.ResetAfter}
				if got != want {
					t.Fatalf("steps.txt:%d:\n got %+v\nwant %+v", want.line, got, want)
				}
			}
		})
	}
}

// mayNotStepBack reports whether the clock is set back in a table for which the store is not exact then.
func (suite *Suite) mayNotStepBack(tt *table) bool {
	inOrder := slices.IsSortedFunc(tt.steps, func(a, b step) int { return int(a.at - b.at) })
	return !inOrder && slices.Contains(suite.Forward, tt.limit.Kind)
}
