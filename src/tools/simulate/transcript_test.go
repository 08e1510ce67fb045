package simulate

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"ratelimit/testbed/redistest"
)

// The tree of limits of bradennapier's gist about redis-cell.
const gistTree = `
schema:
  user:
    children:
      "*":
        limits: [15, 30, 60]
        children:
          trade:
            limits: [5, 10, 15]
`

// TestGistTranscript replays what the gist prints: a hundred times the two
// levels of user:alex:trade, as [limited, limit, remaining, retry after, reset
// after] in whole seconds, cut off, and both folded into one. The first call is
// not printed; the others follow it a millisecond apart.
func TestGistTranscript(t *testing.T) {
	var requests, want strings.Builder
	for call := 1; call <= 101; call++ {
		ms := call - 1 // since the first call
		fmt.Fprintf(
			&requests, `{"at":"%dms","request":{"domain":"rules","descriptors":[{"entries":[{"key":"user","value":"alex"},{"key":"trade"}]}]}}`+"\n", ms)
		// 16 and 6 pass. Each puts 2 s, and 1.5 s, on the wait.
		user := [5]int{0, 16, 16 - call, -1, (2000*call - ms) / 1000}
		if call > 16 {
			user = [5]int{1, 16, 0, (2000 - ms) / 1000, (16*2000 - ms) / 1000}
		}
		trade := [5]int{0, 6, 6 - call, -1, (1500*call - ms) / 1000}
		if call > 6 {
			trade = [5]int{1, 6, 0, (1500 - ms) / 1000, (6*1500 - ms) / 1000}
		}
		both := [5]int{
			max(user[0], trade[0]), min(user[1], trade[1]), min(user[2], trade[2]),
			max(user[3], trade[3]), max(user[4], trade[4]),
		}
		if call > 1 {
			fmt.Fprintf(&want, "%v %v\n%v\n", user, trade, both)
		}
	}
	// Some of its lines, word for word.
	printed := strings.Split(want.String(), "\n")
	for call, lines := range map[int][2]string{
		2:   {"[0 16 14 -1 3] [0 6 4 -1 2]", "[0 6 4 -1 3]"},
		6:   {"[0 16 10 -1 11] [0 6 0 -1 8]", "[0 6 0 -1 11]"},
		7:   {"[0 16 9 -1 13] [1 6 0 1 8]", "[1 6 0 1 13]"},
		16:  {"[0 16 0 -1 31] [1 6 0 1 8]", "[1 6 0 1 31]"},
		17:  {"[1 16 0 1 31] [1 6 0 1 8]", "[1 6 0 1 31]"},
		101: {"[1 16 0 1 31] [1 6 0 1 8]", "[1 6 0 1 31]"},
	} {
		if got := [2]string(printed[2*call-4 : 2*call-2]); got != lines {
			t.Fatalf("call %d is printed as %q, want %q", call, got, lines)
		}
	}
	for name, cfg := range map[string]Config{
		"memory": {},
		"Redis":  {Backend: newRedis(t, redistest.Start(t, redistest.Options{})), KeyPrefix: "simulate-1:"},
	} {
		cfg.Rules = load(t, gistTree)
		out, _, err := simulated(t, cfg, strings.NewReader(requests.String()))
		if err != nil {
			t.Fatal(err)
		}
		if got := transcript(t, out); got != want.String() {
			t.Errorf("%s:\n got %s\nwant %s", name, got, want.String())
		}
	}
}

// transcript is what the gist prints of decisions.
func transcript(t *testing.T, decisions []byte) string {
	t.Helper()
	var b strings.Builder
	for i, line := range strings.Split(strings.TrimSpace(string(decisions)), "\n") {
		var decision struct {
			Verdicts [1][2]struct {
				Rule             string
				Over             bool
				Limit, Remaining int
				Retry            *int `json:"retry_after_us"`
				Reset            int  `json:"reset_after_us"`
			}
		}
		if err := json.Unmarshal([]byte(line), &decision); err != nil {
			t.Fatal(err)
		}
		var levels [2][5]int
		for j, v := range decision.Verdicts[0] {
			if rule := [2]string{"user.*", "user.*.trade"}[j]; v.Rule != rule {
				t.Fatalf("level %d is called %s", j, v.Rule)
			}
			levels[j] = [5]int{0, v.Limit, v.Remaining, -1, v.Reset / 1e6}
			if v.Over {
				levels[j][0], levels[j][3] = 1, *v.Retry/1e6
			}
		}
		if i == 0 {
			continue
		}
		a, c := levels[0], levels[1]
		fmt.Fprintf(&b, "%v %v\n[%d %d %d %d %d]\n", a, c, max(a[0], c[0]), min(a[1], c[1]), min(a[2], c[2]), max(a[3], c[3]),
			max(a[4], c[4]))
	}
	return b.String()
}
