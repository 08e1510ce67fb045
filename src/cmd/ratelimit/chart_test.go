package main

import (
	"path/filepath"
	"strings"
	"testing"

	"ratelimit/src/settings"
	"ratelimit/testbed/testfiles"
)

// holdChartFile compares a generated file of the Helm chart with what it must be, or writes it with -update.
func holdChartFile(t *testing.T, name, want string) {
	t.Helper()
	path := "deploy/helm/ratelimit/files/" + name
	if *update {
		testfiles.Write(t, filepath.Join(projectRoot, path), want)
		return
	}
	if document(t, path) != want {
		t.Errorf("%s is out of date: run `make docs`", path)
	}
}

// A chart reads no files outside its directory, so it has copies.
func TestDocumentsInTheChart(t *testing.T) {
	holdChartFile(t, "alerts.yaml", document(t, "examples/monitoring/alerts.yaml"))
	holdChartFile(t, "dashboard.json", document(t, "examples/monitoring/dashboard.json"))
	// Its first line is for readers of kustomize's files.
	_, rules, _ := strings.Cut(document(t, "examples/kubernetes/rules/api.yaml"), "\n")
	holdChartFile(t, "api.yaml", rules)
}

// The chart has a list of all settings, and so refuses misspelled ones.
func TestSettingsInTheChart(t *testing.T) {
	names := []string{"GOMAXPROCS", "GOMEMLIMIT"} // Go's runtime reads them.
	for _, v := range settings.Table() {
		if !strings.Contains(v.Name, "<") { // The chart takes the names with a free part by their beginning.
			names = append(names, v.Name)
		}
	}
	holdChartFile(t, "settings.txt", strings.Join(names, "\n")+"\n")
}
