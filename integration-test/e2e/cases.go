package main

import "fmt"

// testCase is one row: one of our servers, what it is asked, and how many calls
// it has at a time.
type testCase struct {
	Name     string  `json:"name"`
	Store    store   `json:"store"`
	Workload string  `json:"workload"` // of `ratelimit bench`
	InFlight int     `json:"in_flight"`
	Target   float64 `json:"target,omitempty"` // the most that the ratio may be; 0: none
	want     string  // what every call is answered
}

// store says which of our servers a case is about.
type store string

const (
	inMemory     store = "memory"
	inRedis      store = "redis"
	inLocalCache store = "local-cache" // in front of Redis, for limits that are used up
)

const (
	connections = 2
	keys        = 100_000 // values that uniform and multi ask about
)

// The cases, with the targets that the project holds itself to.
var cases = []testCase{
	{Name: "memory, 100k keys", Store: inMemory, Workload: "uniform", InFlight: 32, Target: 1.25, want: "OK"},
	{Name: "memory, 100k keys", Store: inMemory, Workload: "uniform", InFlight: 256, Target: 1.25, want: "OK"},
	{Name: "memory, 100k keys", Store: inMemory, Workload: "uniform", InFlight: 1, Target: 1.3, want: "OK"},
	{Name: "memory, 4 descriptors", Store: inMemory, Workload: "multi", InFlight: 32, want: "OK"},
	{Name: "Redis, 100k keys", Store: inRedis, Workload: "uniform", InFlight: 32, Target: 2.2, want: "OK"},
	{Name: "Redis, one hot key", Store: inRedis, Workload: "hot", InFlight: 32, Target: 1.9, want: "OK"},
	{Name: "over limit, local cache", Store: inLocalCache, Workload: "overlimit", InFlight: 32, Target: 1.25, want: "OVER_LIMIT"},
}

// rules let everything pass but the key of the workload overlimit. An hour's
// windows rarely end during a run, so few keys are new to the store; the year is
// there because a window's first call would be OK.
const rules = `domain: bench
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 1000000000}
  - key: user
    value: overlimit
    rate_limit: {unit: year, requests_per_unit: 1}
`

func (c *testCase) title() string { return c.Name + ", " + c.load() }

func (c *testCase) load() string { return fmt.Sprintf("%d x %d", connections, c.InFlight) }

func withoutRedis(list []testCase) (rest []testCase) {
	for _, c := range list {
		if c.Store == inMemory {
			rest = append(rest, c)
		}
	}
	return rest
}
