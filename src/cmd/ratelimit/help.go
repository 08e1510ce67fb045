package main

import (
	"cmp"
	"embed"
	"fmt"
	"strings"
	"sync"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"ratelimit/src/settings"
	"ratelimit/src/tools/command"
)

// helpTexts have a file for each command of this package, in the form that command.New parses. newCommand replaces
// {settings} and {divvy settings} by tables of variables.
//
//go:embed help/*.txt
var helpTexts embed.FS

var helpTables = sync.OnceValue(func() *strings.Replacer {
	return strings.NewReplacer("{settings}", settingsText(settings.Table()), "{divvy settings}",
		settingsText(settings.DivvyTable()))
})

// newCommand returns a command with the texts of the file help/NAME.txt.
func newCommand(name string, check cobra.PositionalArgs,
	run func(cmd *cobra.Command, args []string) error,
) *cobra.Command {
	text, err := helpTexts.ReadFile("help/" + name + ".txt")
	if err != nil {
		panic(err) // A file is missing in the source code.
	}
	return command.New(helpTables().Replace(string(text)), check, run)
}

func settingsText(table []settings.Variable) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	section := ""
	for _, v := range table {
		if v.Section != section {
			section = v.Section
			fmt.Fprintf(w, "%s:\n", section)
		}
		meaning := strings.ReplaceAll(v.Meaning, "`", "")
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", v.Name, v.Type, cmp.Or(v.Default, "(empty)"), meaning)
	}
	_ = w.Flush() // A strings.Builder returns no error.
	return strings.TrimRight(b.String(), "\n")
}
