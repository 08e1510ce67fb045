package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"ratelimit/src/settings"
)

// settingsText is the table of settings for a terminal.
func settingsText() string { return tableText(settings.Table()) }

func tableText(table []settings.Variable) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	section := ""
	for _, v := range table {
		if v.Section != section {
			section = v.Section
			fmt.Fprintf(w, "%s:\n", section)
		}
		fallback := v.Default
		if fallback == "" {
			fallback = "(empty)"
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", v.Name, v.Type, fallback, strings.ReplaceAll(v.Meaning, "`", ""))
	}
	_ = w.Flush() // a strings.Builder takes everything
	return strings.TrimRight(b.String(), "\n")
}
