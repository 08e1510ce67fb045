package check

import (
	"testing"

	"ratelimit/src/rules"
)

// Texts of rule files cannot end a command of GitHub and begin another.
func TestGitHubCommandEscapes(t *testing.T) {
	t.Parallel()
	p := rules.Problem{Pos: rules.Pos{File: "a\nb,c:d%", Line: 1}, Message: "50% of\r\n::error::x", Fix: "a, b: c"}
	const want = "::error file=a%0Ab%2Cc%3Ad%25,line=1::50%25 of%0D%0A::error::x; a, b: c"
	if got := gitHubCommand("error", p); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
