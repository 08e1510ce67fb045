package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"ratelimit/src/settings"
)

// defaultPorts are the ports that the service listens on, by their variables. DIVVY_PORT has its default only with a
// rule file of divvy.
var defaultPorts = map[string]string{"DIVVY_PORT": "8321"}

// docs/ports.md has a row for each port that the service listens on, with its default, and no other page has such a
// table.
func TestDocumentsPorts(t *testing.T) {
	t.Parallel()
	rows := tableRows(document(t, "docs/ports.md"), "port")
	listeners := 0
	for _, v := range settings.Table() {
		isPort := v.Type == "port" && slices.Contains([]string{"Listeners", "Divvy", "RESP"}, v.Section)
		if !isPort && v.Name != "PROMETHEUS_ADDR" {
			continue
		}
		listeners++
		want := strings.TrimPrefix(v.Default, ":")
		if want == "" {
			want = "–"
		}
		if port := defaultPorts[v.Name]; port != "" {
			want = port
		}
		i := slices.IndexFunc(rows, func(row []string) bool { return slices.Contains(words(row[1]), v.Name) })
		if i < 0 || strings.TrimSpace(rows[i][0]) != want {
			t.Errorf("docs/ports.md has no row for %s with the port %s", v.Name, want)
		}
	}
	if listeners != len(rows) {
		t.Errorf("docs/ports.md has %d rows, and the service %d ports", len(rows), listeners)
	}
	port := regexp.MustCompile(`(?m)^\|.*\b(8081|8080|6070|9090)\b`)
	for _, page := range append(documents(t), "SECURITY.md") {
		if page == "docs/ports.md" || strings.HasPrefix(page, "docs/settings") {
			continue
		}
		for table := range strings.SplitSeq(withoutCode(document(t, page)), "\n\n") {
			found := make(map[string]bool)
			for _, m := range port.FindAllStringSubmatch(table, -1) {
				found[m[1]] = true
			}
			if len(found) > 2 {
				t.Errorf("%s has a table of ports, too: link to docs/ports.md", page)
			}
		}
	}
}

// The variables on the pages for planning exist.
func TestDocumentsPlanning(t *testing.T) {
	t.Parallel()
	for _, page := range []string{"ports", "regions", "sizing", "when-not-to-use", "migrating-from-others"} {
		for _, name := range words(document(t, "docs/"+page+".md")) {
			name, _, _ = strings.Cut(name, "=")
			isKnown := slices.ContainsFunc(settings.Table(), func(v settings.Variable) bool { return v.Name == name })
			if regexp.MustCompile(`^[A-Z]+_[A-Z_]+$`).MatchString(name) && !isKnown {
				t.Errorf("docs/%s.md names %s, which is no setting", page, name)
			}
		}
	}
}
