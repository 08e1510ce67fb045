package integration

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
)

const tokenBudgetDir = repository + "/examples/token-budget"

// The recipe for budgets of tokens, with a real Envoy: what a response used is charged
// after it, and a user without budget is refused before the model is asked.
func TestTokenBudget(t *testing.T) {
	envoyBinary(t)
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if tokens := r.Header.Get("x-tokens"); tokens != "" {
			_, _ = fmt.Fprintf(w, `{"choices": [{"message": {"content": "Hello"}}], "usage": {"total_tokens": %s}}`, tokens)
			return
		}
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = fmt.Fprint(w, `{"error": {"message": "no"}}`)
	}))
	t.Cleanup(model.Close)

	rules := newRuleDir(t)
	rules.put(t, "llm.yaml", read(t, filepath.Join("examples", "token-budget", "rules", "llm.yaml")))
	s := startService(t, rules.env()...)
	config := readYAML(t, tokenBudgetDir+"/envoy.yaml")
	config.move(t, map[string]string{
		"0.0.0.0:8888":   anyPort,
		"model:8000":     strings.TrimPrefix(model.URL, "http://"),
		"ratelimit:8081": s.grpc,
	})
	config.set(t, "timeout", "5s") // patience with a busy machine
	p, address := startEnvoy(t, "front", config)
	f := &front{process: p, url: "http://" + address}

	// charged waits until the counter of a user has the tokens, as Envoy does not wait for it.
	charged := func(user string, want int) {
		t.Helper()
		p.until(t, fmt.Sprintf("%s used %d", user, want), func() error {
			text, err := get("http://" + s.debug + "/explain?domain=llm&hits=0&descriptors=user=" + user)
			if used := fmt.Sprintf("%d used", want); err == nil && !strings.Contains(string(text), used) {
				err = fmt.Errorf("no %q in\n%s", used, text)
			}
			return err
		})
	}
	for i, step := range []struct {
		user, tokens string
		want, used   int
	}{
		{"alex", "400", 200, 400},
		{"alex", "500", 200, 900},
		{"alex", "", 500, 900}, // an error is free
		{"alex", "300", 200, 1200},
		{"alex", "1", 429, 1200},
		{"kim", "10", 200, 10},
	} {
		header := "x-user: " + step.user
		if step.tokens != "" {
			header += ",x-tokens: " + step.tokens
		}
		status, _, err := f.send(call{path: "/v1/chat/completions", header: header})
		if err != nil {
			t.Fatal(err)
		}
		if status != step.want {
			t.Errorf("request %d: status %d, want %d", i+1, status, step.want)
		}
		charged(step.user, step.used)
	}
}

// The page of the recipe shows both files as they are.
func TestTokenBudgetPage(t *testing.T) {
	page := read(t, "docs/recipes/token-budgets.md")
	for name, block := range map[string]string{"rules/llm.yaml": "yaml", "envoy.yaml": "yml"} {
		text := read(t, filepath.Join("examples", "token-budget", name))
		if !strings.Contains(page, "```"+block+"\n"+text+"```") {
			t.Errorf("docs/recipes/token-budgets.md does not show %s as it is", name)
		}
	}
}
