package main

import (
	"testing"
	"time"
)

func TestPackageVersion(t *testing.T) {
	t.Parallel()
	committed := time.Date(2026, 11, 29, 3, 6, 0, 0, time.UTC)
	for described, want := range map[string]string{
		"v1.2.3":                 "1.2.3",
		"1.2.3":                  "1.2.3",
		"v1.2.3-rc.1":            "1.2.3-rc.1",
		"v1.2.3-4-gabcdef":       "1.2.3+4.gabcdef",
		"v1.2.3-4-gabcdef-dirty": "1.2.3+4.gabcdef.dirty",
		"v1.2.3-dirty":           "1.2.3+dirty",
		"v1.2.3-rc.1-4-gabcdef":  "1.2.3-rc.1.4.gabcdef",
		"01820cda":               "0.0.0+20261129030600.01820cda",
		"dev":                    "0.0.0+20261129030600.dev",
	} {
		if got := packageVersion(described, committed); got != want {
			t.Errorf("%s: %s, want %s", described, got, want)
		}
	}
}
