package action

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// comments stands for the comments on a pull request at GitHub's API.
type comments struct {
	*httptest.Server
	mu     sync.Mutex
	bodies []string // guarded by mu
}

// newComments starts a server with the bodies of comments that are there.
func newComments(t *testing.T, bodies ...string) *comments {
	t.Helper()
	c := &comments{bodies: bodies}
	c.Server = httptest.NewServer(c)
	t.Cleanup(c.Close)
	return c
}

// all returns the comments.
func (c *comments) all() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.bodies...)
}

func (c *comments) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var sent struct{ Body string }
	if data, err := io.ReadAll(r.Body); err != nil || len(data) > 0 && json.Unmarshal(data, &sent) != nil ||
		r.Header.Get("Authorization") != "Bearer secret" {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	var id, page int
	switch {
	case r.Method == "GET" && r.URL.Path == "/repos/me/shop/issues/7/comments" && r.FormValue("per_page") == "100":
		type comment struct {
			ID   int    `json:"id"`
			Body string `json:"body"`
		}
		if _, err := fmt.Sscan(r.FormValue("page"), &page); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
		list := []comment{}
		for i := (page - 1) * 100; i < min(page*100, len(c.bodies)); i++ {
			list = append(list, comment{i, c.bodies[i]})
		}
		_ = json.NewEncoder(w).Encode(list) // The client sees a broken answer.
	case r.Method == "POST" && r.URL.Path == "/repos/me/shop/issues/7/comments":
		c.bodies = append(c.bodies, sent.Body)
	case r.Method == "PATCH":
		if _, err := fmt.Sscanf(r.URL.Path, "/repos/me/shop/issues/comments/%d", &id); err != nil || id >= len(c.bodies) {
			http.NotFound(w, r)
			return
		}
		c.bodies[id] = sent.Body
	default:
		http.NotFound(w, r)
	}
}

// pullRequest returns the values that GitHub's runner has for a pull request of a repository.
func pullRequest(c *comments, head string) map[string]string {
	return map[string]string{
		"github.base_ref": "main", "github.token": "secret", "github.action_ref": "v1",
		"github.action_repository": "me/ratelimit",
		"github.server_url":        c.URL, "github.api_url": c.URL, "github.repository": "me/shop",
		"github.event.pull_request.number": "7", "github.event.pull_request.head.repo.full_name": head,
	}
}

// TestWorkflow runs the example's workflow on changes.
func TestWorkflow(t *testing.T) {
	t.Parallel()
	ratelimit := program(t)
	var action composite
	readYAML(t, "action.yml", &action)
	var workflow struct {
		Jobs map[string]struct{ Steps []step }
	}
	readYAML(t, "examples/rules-repo/.github/workflows/rate-limits.yaml", &workflow)
	const mark, other = "<!-- ratelimit diff rules -->\n", "looks good to me"
	for _, tt := range []struct {
		what       string
		changes    map[string]string
		head       string // the repository of the branch.
		before     []string
		code       int
		comments   []string // the start of each comment afterwards.
		annotation string
	}{
		{
			"tighter",
			map[string]string{"rules/shop.yaml": shop(fourAMinute)},
			"me/shop",
			[]string{other},
			0,
			[]string{other, mark + "### Rate limits: 1 rule tightened"},
			"",
		},
		{
			"once more",
			map[string]string{"rules/shop.yaml": shop(fourAMinute)},
			"me/shop",
			[]string{mark + "old", other},
			0,
			[]string{mark + "### Rate limits: 1 rule tightened", other},
			"",
		},
		{
			"of a fork",
			map[string]string{"rules/shop.yaml": shop(fourAMinute)},
			"you/shop",
			[]string{other},
			0,
			[]string{other},
			"",
		},
		{
			"a mistake",
			map[string]string{"rules/shop.yaml": shop(mistake)},
			"me/shop",
			[]string{other},
			1,
			[]string{other},
			mistakeAt,
		},
		{
			"a mistake in the candidate",
			map[string]string{"next/shop.yaml": shop(mistake)},
			"me/shop", nil, 1,
			[]string{mark + "### Rate limits: no change"},
			strings.Replace(mistakeAt, "rules/", "next/", 1),
		},
	} {
		t.Run(tt.what, func(t *testing.T) {
			t.Parallel()
			dir, c, code, out := newRepository(t, tt.changes), newComments(t, tt.before...), 0, ""
			for _, s := range workflow.Jobs["rules"].Steps {
				switch name, _, _ := strings.Cut(s.Uses, "@"); name {
				case "actions/checkout":
				case "OWNER/ratelimit":
					inputs := map[string]string{"binary": ratelimit}
					for name, value := range s.With {
						inputs[name] = value
					}
					r, outputs := action.run(t, dir, inputs, pullRequest(c, tt.head))
					code, out = max(code, r.code), out+r.out
					if s.With["rules"] == "rules" && r.code == 0 && !strings.HasPrefix(outputs["summary"], mark) {
						t.Errorf("the summary is %q", outputs["summary"])
					}
				default:
					t.Errorf("this test does not know %s", s.Uses)
				}
			}
			if code != tt.code {
				t.Errorf("exit %d, want %d\n%s", code, tt.code, out)
			}
			expect(t, out, tt.annotation)
			got := c.all()
			if len(got) != len(tt.comments) {
				t.Fatalf("comments %q, want %q\n%s", got, tt.comments, out)
			}
			for i := range got {
				expect(t, got[i], tt.comments[i])
			}
		})
	}
}

// The comment to replace may be on a later page of GitHub's list.
func TestCommentOnSecondPage(t *testing.T) {
	t.Parallel()
	program(t)
	bodies := make([]string, 130)
	bodies[120] = "<!-- ratelimit diff rules -->\nold"
	c, dir := newComments(t, bodies...), t.TempDir()
	const report = "<!-- ratelimit diff rules -->\n\"quoted\" \\ and ünicode\n"
	write(t, dir, map[string]string{"report": report})
	env := map[string]string{"REPORT": "report", "TOKEN": "secret", "REPOSITORY": "me/shop", "NUMBER": "7", "API": c.URL}
	r := call(t, dir, env, "bash", path(t, "deploy/ci/comment.sh"))
	if got := c.all(); r.code != 0 || len(got) != 130 || got[120] != report {
		t.Errorf("exit %d, %d comments\n%s", r.code, len(got), r.out)
	}
	env["TOKEN"] = "wrong"
	if r := call(t, dir, env, "bash", path(t, "deploy/ci/comment.sh")); r.code == 0 || !strings.Contains(r.out, "400") ||
		strings.Contains(r.out, "wrong") {
		t.Errorf("with a wrong token: exit %d\n%s", r.code, r.out)
	}
}
