package main

import (
	"embed"
	"fmt"
	"io"
	"strings"
	"sync"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"ratelimit/src/service"
	"ratelimit/src/settings"
)

// helpTexts have a file for each command: a line of usage, a line of summary, an empty line,
// a description, "Examples:" and examples. {settings} and {divvy settings} are replaced by
// tables of variables.
//
//go:embed help/*.txt
var helpTexts embed.FS

var helpTables = sync.OnceValue(func() *strings.Replacer {
	return strings.NewReplacer("{settings}", tableText(settings.Table()), "{divvy settings}", tableText(settings.DivvyTable()))
})

// newCommand returns a command with the texts of help/NAME.txt. It takes no arguments, only
// flags, unless the caller sets Args.
func newCommand(name string, run func(cmd *cobra.Command, args []string) error) *cobra.Command {
	text, err := helpTexts.ReadFile("help/" + name + ".txt")
	if err != nil {
		panic(err) // the file is missing in the source code
	}
	head, body, _ := strings.Cut(string(text), "\n\n")
	long, examples, _ := strings.Cut(body, "Examples:\n")
	cmd := &cobra.Command{Args: noWords, RunE: run}
	cmd.Use, cmd.Short, _ = strings.Cut(head, "\n")
	cmd.Long = helpTables().Replace(strings.TrimSpace(long))
	cmd.Example = strings.TrimRight(examples, "\n")
	return cmd
}

// tableText returns a table of settings for a terminal.
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

// progressLine returns a function that overwrites the last line of the terminal w with
// formatted text; "" clears the line. If w is no terminal, the function does nothing.
func progressLine(w io.Writer) func(format string, args ...any) {
	if !service.IsTerminal(w) {
		return func(string, ...any) {}
	}
	return func(format string, args ...any) { fmt.Fprintf(w, "\r\x1b[K"+format, args...) }
}
