package admin

import (
	"net/http"

	"ratelimit/src/operator"
)

// candidate returns the candidate rules with lists that are never null in JSON.
func (a figuresAPI) candidate(limit int) (operator.Candidate, bool) {
	c, ok := a.figures.Candidate(limit)
	c.Problems, c.NewDomains, c.RemovedDomains = listOf(c.Problems), listOf(c.NewDomains), listOf(c.RemovedDomains)
	c.DifferingRules, c.Subjects, c.Examples = listOf(c.DifferingRules), listOf(c.Subjects), listOf(c.Examples)
	return c, ok
}

type candidatePage struct{ api figuresAPI }

func (page candidatePage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := parseParameters(r.URL.RawQuery, []string{"format", "limit"})
	format, limit := p.oneOf("format", "text", "json", "rlconfig"), p.limit(defaultSubjects)
	w.Header().Set("Cache-Control", "no-store")
	if p.err != nil {
		http.Error(w, p.err.Error(), http.StatusBadRequest)
		return
	}
	c, ok := page.api.candidate(limit)
	switch {
	case !ok:
		http.Error(w, "there are no candidate rules: set RUNTIME_CANDIDATE_SUBDIRECTORY to a directory beside that of the "+
			"rules", http.StatusNotFound)
	case format == "json":
		writeJSON(w, http.StatusOK, c)
	case format == "rlconfig":
		streamPage(w, "text/plain; charset=utf-8", c.WriteRules)
	default:
		streamPage(w, "text/plain; charset=utf-8", c.WriteText)
	}
}
