package main

import (
	"strings"
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

// What the section nfpms cannot mean is refused.
func TestContentsThatAreNotKnown(t *testing.T) {
	t.Parallel()
	const nfpms = "nfpms:\n  - package_name: ratelimit\n    bindir: /usr/bin\n"
	for text, want := range map[string]string{
		"nfpms: []":                                               "nfpms has 0 items, want 1",
		nfpms + "    epoch: 1":                                    "field epoch not found",
		nfpms + "    mtime: '{{ .Tag }}'":                         "no entry for key",
		nfpms + "    contents: [{dst: /a}]":                       ": no such file",
		nfpms + "    contents: [{src: '*.go', dst: /a}]":          "files for /a, whose name does not end with /",
		nfpms + "    contents: [{src: a, dst: /a, type: ghost}]":  `/a: the type "ghost" is not known`,
		nfpms + "    overrides: {deb: {scripts: {preremove: x}}}": "open x: no such file",
	} {
		_, err := request{format: "deb", version: "1.2.3", binary: "main.go"}.contents([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
