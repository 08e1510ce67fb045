package integration

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"gopkg.in/yaml.v3"
)

const (
	tokenBudgetDir  = repository + "/examples/token-budget"
	tokenBudgetPage = "docs/recipes/token-budgets.md"
)

// inAYear makes the windows of a rule file long, so that a test does not meet the end of one.
func inAYear(t *testing.T, rules *document) { rules.set(t, "unit", "year") }

// used waits until the counter of a user has the tokens, because Envoy does not wait for a settlement.
func (r *holdsRecipe) used(t *testing.T, user string, want int) {
	t.Helper()
	r.until(t, fmt.Sprintf("%s used %d", user, want), func() error {
		text, err := get("http://" + r.debug + "/explain?domain=llm&hits=0&descriptors=user=" + user)
		if used := fmt.Sprintf(" %d used", want); err == nil && !strings.Contains(string(text), used) {
			err = fmt.Errorf("no %q in\n%s", used, text)
		}
		return err
	})
}

// exampleNumber returns the number that an example's rule file or Envoy configuration has under key.
func exampleNumber(t *testing.T, file, key string) int {
	t.Helper()
	nodes := readYAML(t, file).at(key)
	if len(nodes) != 1 {
		t.Fatalf("%s has %d keys %s, want one", file, len(nodes), key)
	}
	number, err := strconv.Atoi(nodes[0].Value)
	if err != nil {
		t.Fatalf("%s: %s: %v", file, key, err)
	}
	return number
}

// settleByHeader makes the configuration read the tokens from a header of the response, as the recipe says.
func settleByHeader(t *testing.T, config *document) {
	t.Helper()
	var change struct {
		HitsAddend struct {
			Format string `yaml:"format"`
		} `yaml:"hits_addend"`
	}
	if err := yaml.Unmarshal([]byte(blocks(t, tokenBudgetPage, "yml", "hits_addend:")[0]), &change); err != nil {
		t.Fatal(err)
	}
	config.set(t, "format", change.HitsAddend.Format)
}

// addItems adds the items of the page's block that begins with begin to the lists under key.
func addItems(t *testing.T, d *document, key, begin string) {
	t.Helper()
	var items yaml.Node
	if err := yaml.Unmarshal([]byte(blocks(t, tokenBudgetPage, "yml", begin)[0]), &items); err != nil {
		t.Fatal(err)
	}
	for _, list := range d.at(key) {
		list.Content = append(slices.Clone(items.Content[0].Content), list.Content...)
	}
}

// The recipe for budgets of tokens, with a real Envoy: what a response used replaces what was reserved for it.
func TestTokenBudget(t *testing.T) {
	backend := func(w http.ResponseWriter, r *http.Request) {
		kind, tokens := r.Header.Get("x-kind"), r.Header.Get("x-tokens")
		w.Header().Set("Content-Type", kind)
		switch kind {
		case "application/json":
			_, _ = fmt.Fprintf(w, `{"choices": [{"message": {"content": "Hello"}}], "usage": {"total_tokens": %s}}`, tokens)
		case "text/event-stream":
			_, _ = fmt.Fprintf(w, "data: {\"usage\": null}\n\ndata: {\"usage\": {\"total_tokens\": %s}}\n\ndata: [DONE]\n\n",
				tokens)
		default:
			w.WriteHeader(http.StatusInternalServerError)
		}
	}
	r := startHoldsRecipe(t, "token-budget", "llm.yaml", nil, func(t *testing.T, rules *document) {
		inAYear(t, rules)
		rules.set(t, "requests_per_unit", "2000")
		rules.set(t, "hold", "2s")
	}, backend)
	plain, events := r.envoy(t, nil), r.envoy(t, func(t *testing.T, config *document) {
		addItems(t, config, "http_filters", "- name: envoy.filters.http.sse_to_metadata")
	})
	for i, step := range []struct {
		front              *front
		user, kind, tokens string
		want, used         int
	}{
		{plain, "alex", "application/json", "400", 200, 400},
		{plain, "alex", "application/json", "900", 200, 1300}, // more than reserved
		{plain, "alex", "", "", 500, 1300},                    // an error is free
		{plain, "alex", "application/json", "0", 200, 1300},
		{plain, "alex", "application/json", "300", 200, 1600},
		{plain, "alex", "application/json", "1", 429, 1600}, // no room for a reservation
		{plain, "kim", "application/json", "10", 200, 10},
		{plain, "kim", "text/event-stream", "10", 200, 510}, // keeps its reservation
		{events, "kim", "text/event-stream", "30", 200, 540},
	} {
		status, _, err := step.front.send(call{
			path: "/v1/chat/completions", header: fmt.Sprintf("x-user: %s, x-kind: %s, x-tokens: %s", step.user, step.kind,
				step.tokens),
		})
		if err != nil {
			t.Fatal(err)
		}
		if status != step.want {
			t.Errorf("request %d: status %d, want %d", i+1, status, step.want)
		}
		r.used(t, step.user, step.used)
	}
}

// Envoy answers 429 to the fifth request that a user has in progress. Refused requests use no tokens.
func TestTokenBudgetAndConcurrency(t *testing.T) {
	r := startHoldsRecipe(t, "token-budget", "llm.yaml", nil, func(t *testing.T, rules *document) {
		inAYear(t, rules)
		addItems(t, rules, "descriptors", "- key: slots")
	}, streams{}.serve)
	f := r.envoy(t, func(t *testing.T, config *document) { addItems(t, config, "rate_limits", "- actions:") })
	f.fill(t, 4)
	r.used(t, "alex", 4*exampleNumber(t, tokenBudgetDir+"/envoy.yaml", "number"))
}

// The pages of the recipes show the rule file as it is, without the path of the schema, which is another one where a
// reader puts it, and parts of Envoy's configuration, with less indentation, which lead to the file.
func TestHoldsPages(t *testing.T) {
	for page, dir := range map[string]string{
		tokenBudgetPage:               "examples/token-budget",
		"docs/recipes/concurrency.md": "examples/concurrency",
	} {
		files, err := filepath.Glob(filepath.Join(repository, dir, "rules/*.yaml"))
		if err != nil || len(files) != 1 {
			t.Fatalf("%s: %v, %v, want one rule file", dir, files, err)
		}
		name, err := filepath.Rel(repository, files[0])
		if err != nil {
			t.Fatal(err)
		}
		text := regexp.MustCompile(`^# yaml-language-server: .*\n`).ReplaceAllString(read(t, name), "")
		if !strings.Contains(read(t, page), "```yaml\n"+text+"```") {
			t.Errorf("%s does not show %s as it is", page, name)
		}
		_, section, _ := strings.Cut(read(t, page), "\n## Envoy\n")
		section, _, _ = strings.Cut(section, "\n## ")
		parts := regexp.MustCompile("(?s)```yml\n(.*?)```").FindAllStringSubmatch(section, -1)
		for _, part := range parts {
			if !strings.Contains(withoutIndent(read(t, dir+"/envoy.yaml")), withoutIndent(part[1])) {
				t.Errorf("%s/envoy.yaml has no such part:\n%s", dir, part[1])
			}
		}
		if len(parts) < 3 || !strings.Contains(section, "("+"../../"+dir+"/envoy.yaml)") {
			t.Errorf("%s has %d parts of envoy.yaml, or no link to it", page, len(parts))
		}
	}
}

func withoutIndent(text string) string {
	return regexp.MustCompile(`(?m)^ +`).ReplaceAllString(text, "")
}

// model is the backend of the recipe. It answers with a random number of tokens, and keeps a record of its own.
type model struct {
	reserved, budget int

	mu        sync.Mutex
	undecided int           // calls that the model waits for: they are neither refused nor here; guarded by mu
	decided   chan struct{} // closed when undecided is 0; guarded by mu
	open      int           // reserved tokens of calls that the model has not answered; guarded by mu
	settled   int           // tokens of its answers; guarded by mu
	excess    int           // tokens of its answers beyond what was reserved for them; guarded by mu
	most      int           // the most that settled and open have been beyond budget and excess; guarded by mu
}

// decide counts a call that is refused or here, and returns what to wait for before the model answers.
func (m *model) decide() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.undecided--; m.undecided == 0 {
		close(m.decided)
	}
	return m.decided
}

func (m *model) serve(w http.ResponseWriter, _ *http.Request) {
	m.mu.Lock()
	m.open += m.reserved
	m.most = max(m.most, m.settled+m.open-m.budget-m.excess)
	m.mu.Unlock()
	<-m.decide()
	tokens := 1 + rand.IntN(2*m.reserved-200) // less than reserved on average, and often more
	m.mu.Lock()
	m.open -= m.reserved
	m.settled += tokens
	m.excess += max(tokens-m.reserved, 0)
	m.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("x-tokens", strconv.Itoa(tokens))
	_, _ = fmt.Fprintf(w, `{"choices": [{"message": {"content": "Hello"}}], "usage": {"total_tokens": %d}}`, tokens)
}

// burst makes calls at once and returns how many got each status. The model answers when undecided calls are refused or
// at the model.
func (m *model) burst(t *testing.T, f *front, calls, undecided int) map[int]int {
	m.mu.Lock()
	m.undecided, m.decided = undecided, make(chan struct{})
	m.mu.Unlock()
	var all sync.WaitGroup
	statuses := make(chan int, calls)
	for range calls {
		all.Go(func() {
			status, _, err := f.send(call{path: "/v1/chat/completions", header: "x-user: alex"})
			if err != nil {
				t.Error(err)
			}
			if status != http.StatusOK {
				m.decide()
			}
			statuses <- status
		})
	}
	all.Wait()
	close(statuses)
	count := make(map[int]int)
	for status := range statuses {
		count[status]++
	}
	return count
}

// A thousand calls at once never use more than the budget and what settlements exceed their reservations, by the record
// of the model. The service has counted what the model has.
func TestTokenBudgetOfParallelCalls(t *testing.T) {
	t.Parallel()
	const calls = 1000
	for store, env := range holdStores {
		for source, change := range map[string]func(*testing.T, *document){
			"a header": settleByHeader, "the body": func(*testing.T, *document) {},
		} {
			t.Run(store+", tokens in "+source, func(t *testing.T) {
				m := &model{
					reserved: exampleNumber(t, tokenBudgetDir+"/envoy.yaml", "number"),
					budget:   exampleNumber(t, tokenBudgetDir+"/rules/llm.yaml", "requests_per_unit"),
				}
				r := startHoldsRecipe(t, "token-budget", "llm.yaml", env(t), inAYear, m.serve)
				f := r.envoy(t, change)
				room := m.budget / m.reserved
				if count, want := m.burst(t, f, calls, calls),
					(map[int]int{200: room, 429: calls - room}); !maps.Equal(count, want) {
					t.Errorf("these statuses came this often: %v, want %v", count, want)
				}
				count := m.burst(t, f, calls, 1)
				if count[200] == 0 || count[429] == 0 || count[200]+count[429] != calls {
					t.Errorf("these statuses came this often: %v, want some of 200 and 429", count)
				}

				m.mu.Lock()
				defer m.mu.Unlock()
				t.Logf("then %v; the model used %d tokens, %d more than reserved", count, m.settled, m.excess)
				if over := max(m.most, m.settled-m.budget-m.excess); over > 0 {
					t.Errorf("%d tokens too many were settled or open at once", over)
				}
				r.used(t, "alex", m.settled)
			})
		}
	}
}

// asGateway makes the configuration ask as Envoy AI Gateway does: for 0 units before a request and for its tokens at
// the end, without the name of a hold. A response without tokens charges nothing.
func asGateway(t *testing.T, config *document) {
	t.Helper()
	for _, actions := range config.at("actions") {
		actions.Content = actions.Content[:1]
	}
	config.set(t, "number", "0")
	config.set(t, "format", "%DYNAMIC_METADATA(llm:tokens)%")
}

// A gateway that asks first and charges later admits all calls that arrive before the first charge. With
// reserve_on_check it admits those for whose estimate there is room, and what they use exceeds the budget by at most
// what they use beyond the estimate.
func TestReserveOnCheck(t *testing.T) {
	t.Parallel()
	const calls, budget, estimate = 1000, 200_000, 500
	for name, c := range map[string]struct {
		limit string
		first int // calls of the first burst that pass
	}{
		"nothing is reserved": {"", calls},
		"an estimate":         {fmt.Sprintf("reserve_on_check: {estimate: %d, for: 10m}", estimate), budget / estimate},
		"a learned estimate":  {"reserve_on_check: {estimate: learned, for: 10m}", 100}, // A hundredth of the budget at first.
	} {
		for store, env := range holdStores {
			t.Run(name+", "+store, func(t *testing.T) {
				m := &model{reserved: estimate, budget: budget}
				r := startHoldsRecipe(t, "token-budget", "llm.yaml", env(t), func(t *testing.T, rules *document) {
					limit := fmt.Sprintf("{unit: year, requests_per_unit: %d, %s}", budget, c.limit)
					var n yaml.Node
					if err := yaml.Unmarshal([]byte(limit), &n); err != nil {
						t.Fatal(err)
					}
					*rules.at("rate_limit")[0] = *n.Content[0]
				}, m.serve)
				f := r.envoy(t, asGateway)
				first := m.burst(t, f, calls, calls)
				used, excess := m.settled, m.excess
				if want := (map[int]int{200: c.first, 429: calls - c.first}); c.first < calls && !maps.Equal(first, want) ||
					first[200] != c.first {
					t.Errorf("these statuses came this often: %v, want %v", first, want)
				}
				r.used(t, "alex", used)
				second := m.burst(t, f, calls, 1)
				r.used(t, "alex", m.settled)
				t.Logf("first %v used %d, %d more than estimated; then %v used %d more", first, used, excess, second,
					m.settled-used)
				if c.limit != "" && m.settled > budget+m.excess {
					t.Errorf("%d of %d are used, and only %d of them are more than estimated", m.settled, budget, m.excess)
				}
			})
		}
	}
}
