package monitoring

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"
)

// Every shipped alert has a fault that causes it.
func TestEveryAlertHasAFault(t *testing.T) {
	t.Parallel()
	var file struct {
		Groups []struct {
			Rules []struct{ Alert, For, Expr string }
		}
	}
	if err := yaml.Unmarshal([]byte(hurried(read(t, "alerts.yaml"))), &file); err != nil {
		t.Fatal(err)
	}
	caused := map[string]int{"RatelimitAbsent": 1}
	for _, f := range faults {
		for _, name := range f.alerts {
			caused[name]++
		}
	}
	for _, rule := range file.Groups[0].Rules {
		if caused[rule.Alert] != 1 {
			t.Errorf("%s has %d faults, want 1", rule.Alert, caused[rule.Alert])
		}
		if rule.For != "1s" || regexp.MustCompile(`\d[mh]\b`).MatchString(rule.Expr) {
			t.Errorf("%s is not in a hurry: for %s, %s", rule.Alert, rule.For, rule.Expr)
		}
		delete(caused, rule.Alert)
	}
	if len(caused) > 0 {
		t.Errorf("no alerts: %v", caused)
	}
}

// Each alert fires while its fault lasts, and is resolved after the repair. Then every panel of the dashboard shows
// something.
func TestFaults(t *testing.T) {
	if !*full {
		t.Skip("takes three minutes: make monitoring-check")
	}
	l := startLab(t)
	l.await(t, "", []string{"RatelimitAbsent"}, true)
	t.Run("fault", func(t *testing.T) {
		t.Run("absent", func(t *testing.T) {
			t.Parallel()
			l.scrape(t, "absent", startService(t, goodRules))
			l.await(t, "", []string{"RatelimitAbsent"}, false)
		})
		for _, f := range faults {
			t.Run(f.name, func(t *testing.T) {
				t.Parallel()
				start := time.Now()
				repair := f.cause(t, l, f.name)
				l.await(t, f.name, f.alerts, true)
				fired := time.Since(start)
				repair()
				l.await(t, f.name, f.alerts, false)
				t.Logf("%s: fired after %.0f s, resolved %.0f s later", strings.Join(f.alerts, ", "), fired.Seconds(),
					(time.Since(start) - fired).Seconds())
			})
		}
	})
	t.Run("dashboard", func(t *testing.T) { checkDashboard(t, l) })
}

// mayBeZero has panels whose values may all be 0 in this run, with the reason.
var mayBeZero = map[string]string{
	"left by proxies that are gone": "all streams stay open until the end",
	"replicas":                      "0 without on_store_failure: local",
}

// checkDashboard asks for every panel, with all jobs, instances and domains, since the start of the lab.
func checkDashboard(t *testing.T, l *lab) {
	type target struct{ Expr, LegendFormat string }
	var board struct {
		Annotations struct{ List []target }
		Panels      []struct {
			Title   string
			Targets []target
		}
		Templating struct {
			List []struct{ Name, Type, Definition string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, "dashboard.json")), &board); err != nil {
		t.Fatal(err)
	}
	variables := []string{"$__rate_interval", "10s"}
	for _, v := range board.Templating.List {
		if m := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(v.Definition); m != nil {
			list, err := l.query(strings.NewReplacer("$job", ".*").Replace("count by (" + m[2] + ") (" + m[1] + ")"))
			if err != nil || !slices.ContainsFunc(list, func(s series) bool { return s.Metric[m[2]] != "" }) {
				t.Errorf("$%s has no values: %v %v", v.Name, list, err)
			}
			variables = append(variables, "$"+v.Name, ".*")
		}
	}
	shown, queries := strings.NewReplacer(variables...), 0
	check := func(title string, q target) {
		queries++
		list, err := l.query(shown.Replace(q.Expr))
		name := strings.TrimSpace(regexp.MustCompile(`\{\{\w+\}\}`).ReplaceAllString(q.LegendFormat, ""))
		switch {
		case err != nil:
			t.Errorf("%s: %s: %v", title, q.Expr, err)
		case len(list) == 0:
			t.Errorf("%s: %s shows nothing", title, q.Expr)
		case mayBeZero[name] == "" && !slices.ContainsFunc(list, func(s series) bool { return !s.isZero() }):
			t.Errorf("%s: %s is always 0", title, q.Expr)
		}
		for _, m := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(q.LegendFormat, -1) {
			if slices.ContainsFunc(list, func(s series) bool { _, has := s.Metric[m[1]]; return !has && len(s.Metric) > 0 }) {
				t.Errorf("%s: %s: series without the label %s of the legend: %v", title, q.Expr, m[1], list[0].Metric)
			}
		}
	}
	for _, p := range board.Panels {
		for _, q := range p.Targets {
			check(p.Title, q)
		}
	}
	for _, q := range board.Annotations.List {
		check("annotation", q)
	}
	t.Log(fmt.Sprint(queries, " queries of the dashboard"))
}
