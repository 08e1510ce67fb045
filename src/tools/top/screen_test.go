package top

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"ratelimit/src/operator"
	"ratelimit/src/operator/output"
)

// hostile is a text that would control a terminal.
const hostile = "\x1b]0;title\a\x1b[2J\u009b31m\r\n\u202e\x7fend"

// Nothing that the service answers controls the terminal.
func TestHostileTexts(t *testing.T) {
	t.Parallel()
	s := example()
	s.state.Version, s.state.Store = hostile, hostile
	s.state.Components = []operator.Component{{Name: hostile, NotReadyReason: hostile}}
	s.state.Rules.Problems = []string{hostile}
	s.rates.Domains[0].Domain = hostile
	s.rates.Rules[0] = ruleRates(hostile, hostile, hostile, 1, 1)
	s.rates.Unmatched = []operator.Unmatched{{Domain: hostile, Descriptor: hostile, Why: hostile, DidYouMean: hostile}}
	s.top[operator.TopHot][0] = operator.Subject{Domain: hostile, Rule: hostile, Subject: hostile}
	s.top[operator.TopDenied][0] = s.top[operator.TopHot][0]
	address := s.start(t)
	for _, args := range [][]string{
		nil,
		{"--json"},
		{"--domain", hostile},
		{"--domain", hostile + "x"},
		{"--rule", hostile + "x"},
		{"--sort", hostile},
	} {
		out, err := call(t, address, args...)
		if err != nil {
			out += err.Error()
		}
		expectPrintable(t, out)
	}
	var shown snapshot
	text, err := call(t, address, "--json")
	if err != nil || json.Unmarshal([]byte(text), &shown) != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for width := 1; width < 250; width += 7 {
		expectPrintable(t, withoutSequences(frame(shown.screen(width, 60, 0, errors.New(hostile)), width)))
	}
}

func expectPrintable(t *testing.T, text string) {
	t.Helper()
	for line := range strings.SplitSeq(text, "\n") {
		if output.Printable(line) != line {
			t.Errorf("the terminal gets %q", line)
		}
	}
}

// withoutSequences removes the control sequences that watch writes.
func withoutSequences(text string) string {
	for _, s := range []string{enterScreen, leaveScreen, startOfPage, clearLine, restOfPage, "\r"} {
		text = strings.ReplaceAll(text, s, "")
	}
	return text
}

// exampleSnapshot returns a snapshot with a number of rules, of which each has fewer admitted and more denied than the
// one before.
func exampleSnapshot(rules int) *snapshot {
	e := example()
	s := &snapshot{
		Address: "a:6070", Window: operator.WindowMinute, State: e.state, Rates: e.rates,
		Denied: e.top[operator.TopDenied], Hot: e.top[operator.TopHot],
	}
	s.Rates.Rules = nil
	for i := range rules {
		s.Rates.Rules = append(s.Rates.Rules,
			ruleRates("shop", fmt.Sprintf("shop.r%02d", (i*7)%rules), "1 per day", float64(rules-i), float64(i)))
	}
	s.Rates.MatchingRules = rules
	return s
}

func TestScreen(t *testing.T) {
	t.Parallel()
	s := exampleSnapshot(12)
	s.sort(sortDenied)
	want := `as of 12s ago: a:6070: ready; redis (answering for 1m); 3 rules in 2 domains, l…
a:6070: connection refused
812 requests/s: 806 admitted, 6.0 denied, 0 failed; the tables count decisions,…

DOMAIN    ADMITTED/s  DENIED/s  NEAR/s  SHADOW/s  FALLBACK/s  FAILED/s
(all)           1234        12     3.2      <0.1        2.0M         0
shop              34        10       0         0           0         0
accounts        1200       2.0       0         0           0         0

RULE      ADMITTED/s  DENIED/s  NEAR/s  SHADOW/s  FALLBACK/s  FAILED/s
shop.r05         1.0        11       0         0           0         0
shop.r10         2.0        10       0         0           0         0
shop.r03         3.0       9.0       0         0           0         0
shop.r08         4.0       8.0       0         0           0         0

MOST DENIED, LAST MINUTE  PER SECOND  HITS  RULE
path=/pay,user=eve               9.5   570  shop.path_/pay

HOTTEST, LAST MINUTE  PER SECOND   HITS  RULE
login=alex                   800  48000  accounts.login
path=/pay,user=eve            10    600  shop.path_/pay

8 more rules; a taller terminal shows more, --domain those of one domain`
	lines := s.screen(80, 23, 12*time.Second, errors.New("a:6070: connection refused"))
	if got := withoutSequences(frame(lines, 80)); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// With traffic without a rule, and in an outage, a small terminal has rules as well. Problems are wrapped, so their
// ends are seen.
func TestSmallScreen(t *testing.T) {
	t.Parallel()
	for _, size := range [][2]int{{80, 24}, {100, 30}} {
		s := exampleSnapshot(12)
		for i := range 9 {
			s.Rates.Unmatched = append(s.Rates.Unmatched, operator.Unmatched{Domain: "shop", Descriptor: fmt.Sprint("usr=", i)})
			s.Denied, s.Hot = append(s.Denied, s.Denied[0]), append(s.Hot, s.Hot[0])
			s.Rates.Domains = append(s.Rates.Domains, operator.DomainRates{Domain: fmt.Sprint("domain", i)})
		}
		s.State.Rules.Problems = []string{
			"/srv/" + strings.Repeat("directory/", 5) + "rules.yaml:12:5: `unit: fortnight` is no unit",
		}
		s.State.Outages = []operator.Outage{{Store: "Redis", SilentServers: 1, Servers: 1}}
		s.State.OnStoreFailure = []string{"local"}
		lines := s.screen(size[0], size[1], 0, nil)
		text := strings.Join(lines, "\n")
		if len(lines) > size[1] || strings.Count(text, "\nshop.r") < 3 {
			t.Errorf("%v: %d lines, want three rules in\n%s", size, len(lines), text)
		}
		for _, want := range []string{
			"`unit: fortnight` is no unit", "DEGRADED: Redis has not answered", "usr=0",
			" more rules; a taller terminal shows more, --domain those of one domain",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("%v: no %q in\n%s", size, want, text)
			}
		}
	}
}

// Where whole addresses have no room, what all replicas share is left out.
func TestNarrowReplicas(t *testing.T) {
	t.Parallel()
	s := exampleSnapshot(3)
	state := s.State
	for _, address := range []string{"127.0.0.1:16070", "127.0.0.1:26070"} {
		s.Replicas = append(s.Replicas, operator.Replica{Address: address, State: &state})
	}
	for width, want := range map[int][2]string{
		100: {"…16070 ", "…26070 "}, 200: {"127.0.0.1:16070 ", "127.0.0.1:26070 "},
	} {
		lines := s.replicaLines(width)
		for i, start := range want {
			if !strings.HasPrefix(lines[i+1], start) {
				t.Errorf("%d: %s, want %s", width, lines[i+1], start)
			}
		}
	}
}

// Whatever the size of the terminal, the screen fits.
func TestSizes(t *testing.T) {
	t.Parallel()
	s := exampleSnapshot(40)
	for height := 1; height < 80; height++ {
		for _, width := range []int{1, 10, 40, 79, 80, 81, 200} {
			lines := strings.Split(withoutSequences(frame(s.screen(width, height, 0, errors.New("gone")), width)), "\n")
			for _, l := range lines {
				if output.Cells(l) > width {
					t.Fatalf("%d x %d: a line of %d: %s", width, height, output.Cells(l), l)
				}
			}
			if len(lines) > height || height > 16 && height < 50 && len(lines) != height {
				t.Errorf("%d x %d: %d lines", width, height, len(lines))
			}
		}
	}
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	for r, want := range map[float64]string{
		0: "0", -1: "0", 0.049: "<0.1", 0.05: "0.1", 9.94: "9.9", 9.95: "10",
		1234.4: "1234", 2.04e6: "2.0M",
	} {
		if got := rate(r); got != want {
			t.Errorf("%v: %s, want %s", r, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		-1: "0s", 59 * time.Second: "59s", time.Hour - 1: "59m",
		47 * time.Hour: "47h", 49 * time.Hour: "2d",
	} {
		if got := ageText(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}
