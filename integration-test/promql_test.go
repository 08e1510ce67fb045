package integration

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// query is what an expression of PromQL asks for. That it is PromQL at all is
// for promtool to say.
type query struct {
	metrics []metricUse
	by      []string // labels that results are grouped by
}

type metricUse struct {
	name     string
	matchers []matcher
}

// matcher is label="value", or with another of =, !=, =~, !~.
type matcher struct{ label, op, value string }

var (
	promToken = regexp.MustCompile(
		`"(?:[^"\\]|\\.)*"|\[[^\]]*\]|[a-zA-Z_:][a-zA-Z0-9_:]*|[0-9][0-9a-zA-Z.]*|[{}()]|=~|!~|!=|=|,|[^\s]`)
	promKeyword = regexp.MustCompile(`^(by|without|on|ignoring|group_left|group_right|and|or|unless|bool|offset)$`)
)

// parseQuery takes an expression apart as far as names go.
func parseQuery(expr string) query {
	var q query
	tokens := promToken.FindAllString(expr, -1)
	next := func(i int) string {
		if i < len(tokens) {
			return tokens[i]
		}
		return ""
	}
	isName := regexp.MustCompile(`^[a-zA-Z_:]`).MatchString
	for i := 0; i < len(tokens); i++ {
		switch token := tokens[i]; {
		case !isName(token):
		case promKeyword.MatchString(token):
			if next(i+1) != "(" || slices.Contains([]string{"and", "or", "unless", "bool", "offset"}, token) {
				continue
			}
			for i += 2; i < len(tokens) && tokens[i] != ")"; i++ {
				if tokens[i] != "," {
					q.by = append(q.by, tokens[i])
				}
			}
		case next(i+1) == "(" || aggregates.MatchString(token):
		default:
			use := metricUse{name: token}
			if next(i+1) == "{" {
				for i += 2; i < len(tokens) && tokens[i] != "}"; i++ {
					if tokens[i] != "," {
						use.matchers = append(use.matchers, matcher{tokens[i], next(i + 1), strings.Trim(next(i+2), `"`)})
						i += 2
					}
				}
			}
			q.metrics = append(q.metrics, use)
		}
	}
	return q
}

// aggregates may have by (…) before their argument.
var aggregates = regexp.MustCompile(`^(sum|count|min|max|avg|topk|bottomk|quantile|group|stddev|stdvar|count_values)$`)

func TestParseQuery(t *testing.T) {
	for _, test := range []struct{ expr, want string }{
		{`up`, `up`},
		{`rate(a_total{b="c,}", d!~"e|f"}[5m]) > 0.5e3`, `a_total b="c,}" d!~"e|f"`},
		{`histogram_quantile(0.99, sum by (le, job) (rate(a_bucket[5m] offset 1h)))`, `a_bucket by le job`},
		{`sum(a) by (b) / on (c) group_left (d) e{} and f unless g or vector(1)`, `a; e; f; g by b c d`},
		{`a and (b)`, `a; b`},
		{`max by (job) (a) == bool 1`, `a by job`},
		{`absent(a) or time() - b:c`, `a; b:c`},
	} {
		q := parseQuery(test.expr)
		var got []string
		for _, m := range q.metrics {
			text := m.name
			for _, l := range m.matchers {
				text += fmt.Sprintf(" %s%s%q", l.label, l.op, l.value)
			}
			got = append(got, text)
		}
		text := strings.Join(got, "; ")
		if len(q.by) > 0 {
			text += " by " + strings.Join(q.by, " ")
		}
		if text != test.want {
			t.Errorf("%s\ngot  %s\nwant %s", test.expr, text, test.want)
		}
	}
}

// scraped is what scrapes have: the values of each label of each metric.
type scraped map[string]map[string]map[string]bool

var (
	sampleLine  = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? `)
	sampleLabel = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"`)
)

// add adds the text of a scrape.
func (s scraped) add(text string) {
	for line := range strings.Lines(text) {
		m := sampleLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if s[m[1]] == nil {
			s[m[1]] = make(map[string]map[string]bool)
		}
		for _, l := range sampleLabel.FindAllStringSubmatch(m[2], -1) {
			if s[m[1]][l[1]] == nil {
				s[m[1]][l[1]] = make(map[string]bool)
			}
			s[m[1]][l[1]][l[2]] = true
		}
	}
}

// given are labels that Prometheus adds to what it scrapes.
var given = []string{"job", "instance"}

// problems says what an expression asks for that no scrape has.
func (s scraped) problems(expr string) (problems []string) {
	q := parseQuery(expr)
	if len(q.metrics) == 0 {
		return []string{"it asks for no metric"}
	}
	known := slices.Clone(given)
	for _, use := range q.metrics {
		labels, ok := s[use.name]
		if !ok {
			problems = append(problems, "there is no metric "+use.name)
			continue
		}
		known = slices.AppendSeq(known, maps.Keys(labels))
		for _, m := range use.matchers {
			switch {
			case slices.Contains(given, m.label):
			case labels[m.label] == nil:
				problems = append(problems, fmt.Sprintf("%s has no label %s", use.name, m.label))
			case (m.op == "=" || m.op == "!=") && !labels[m.label][m.value]:
				problems = append(problems, fmt.Sprintf("%s never has %s=%q", use.name, m.label, m.value))
			}
		}
	}
	for _, label := range q.by {
		if !slices.Contains(known, label) {
			problems = append(problems, "there is no label "+label)
		}
	}
	return problems
}

// yields tells whether the results of an expression have a label.
func (s scraped) yields(expr, label string) bool {
	q := parseQuery(expr)
	if len(q.by) > 0 {
		return slices.Contains(q.by, label)
	}
	return slices.Contains(given, label) ||
		slices.ContainsFunc(q.metrics, func(use metricUse) bool { return s[use.name][label] != nil })
}

func TestScraped(t *testing.T) {
	s := make(scraped)
	s.add("# HELP a_total x.\n# TYPE a_total counter\na_total{b=\"c\",d=\"e \\\"f\\\"\"} 1\nup 1\n")
	for expr, want := range map[string]string{
		`up`:                         "",
		`rate(a_total{b="c"}[1m])`:   "",
		`sum by (d, job) (a_total)`:  "",
		`a_total{b=~"x"}`:            "",
		`down`:                       "there is no metric down",
		`a_total{b="x"}`:             `a_total never has b="x"`,
		`a_total{x="c"}`:             "a_total has no label x",
		`sum by (x) (a_total) + up`:  "there is no label x",
		`vector(1)`:                  "it asks for no metric",
		`up{instance=~"$instance"}`:  "",
		`a_total{b!="x"} unless bad`: `a_total never has b="x"; there is no metric bad`,
	} {
		if got := strings.Join(s.problems(expr), "; "); got != want {
			t.Errorf("%s: got %q, want %q", expr, got, want)
		}
	}
}
