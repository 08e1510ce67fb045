package main

import (
	"embed"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"ratelimit/src/settings"
)

// helpTexts have a file for each command: the line of its usage, what it does in one line,
// then its long description and its examples. {settings} and {divvy settings} stand for
// tables of variables.
//
//go:embed help/*.txt
var helpTexts embed.FS

var helpTables = sync.OnceValue(func() *strings.Replacer {
	return strings.NewReplacer("{settings}", tableText(settings.Table()), "{divvy settings}", tableText(settings.DivvyTable()))
})

// newCommand returns the command that runs run, with the texts of help/NAME.txt. It takes
// flags only, unless the caller sets its Args.
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

// tableText is a table of settings for a terminal.
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

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// progressLine returns a function that replaces the last line of a terminal, as fmt.Sprintf
// does it; "" clears the line. If w is no terminal, the function does nothing.
func progressLine(w io.Writer) func(format string, args ...any) {
	if !isTerminal(w) {
		return func(string, ...any) {}
	}
	return func(format string, args ...any) { fmt.Fprintf(w, "\r\x1b[K"+format, args...) }
}
