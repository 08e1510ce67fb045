// Package man writes the manual pages of the program from its commands, flags and help texts.
package man

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ratelimit/src/tools/command"
)

//go:embed help.txt
var help string

// Command returns `ratelimit man`. version returns the version that stands in the footer of each page.
func Command(version string) *cobra.Command {
	oneDirectory := func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return errors.New("name one directory for the pages: ratelimit man DIR")
		}
		return nil
	}
	cmd := command.New(help, oneDirectory, func(cmd *cobra.Command, args []string) error {
		if err := os.MkdirAll(args[0], 0o755); err != nil {
			return err
		}
		for _, page := range append([]*cobra.Command{cmd.Root()}, pages(cmd.Root())...) {
			name := filepath.Join(args[0], pageName(page)+".1")
			if err := os.WriteFile(name, []byte(Page(page, version)), 0o644); err != nil {
				return err
			}
		}
		return nil
	})
	cmd.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	return cmd
}

// pages returns the commands below root that have a page of their own.
func pages(root *cobra.Command) (list []*cobra.Command) {
	for _, c := range root.Commands() {
		if c.IsAvailableCommand() && c.Name() != "completion" { // Cobra makes the help text of completion.
			list = append(list, c)
		}
	}
	return list
}

// pageName returns the name of a command's page: ratelimit-check.
func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// Page returns the manual page of a command in the macros of man(7).
func Page(cmd *cobra.Command, version string) string {
	p := &page{}
	p.macro("TH", strings.ToUpper(pageName(cmd)), "1", "", "ratelimit "+version, "User Commands")
	p.macro("SH", "NAME")
	p.text(pageName(cmd) + ` \- ` + escape(cmd.Short))
	p.macro("SH", "SYNOPSIS")
	p.synopsis(cmd)
	p.macro("SH", "DESCRIPTION")
	p.body(cmd.Long)
	if !cmd.HasParent() {
		p.macro("SH", "COMMANDS")
		for _, c := range pages(cmd) {
			p.item(escape(c.Name()), escape(c.Short))
		}
		p.item("completion", "Generate the completion script for bash, zsh, fish or powershell")
		p.item("help", "Show the help text of a command")
	}
	p.macro("SH", "OPTIONS")
	cmd.InitDefaultHelpFlag()
	cmd.Flags().VisitAll(p.flag)
	p.macro("SH", "EXIT STATUS")
	p.item("0", "The command succeeded.")
	p.item("1", "It failed; the reason is on stderr. The description names exceptions.")
	p.item("2", "The command or its input is invalid.")
	p.macro("SH", "EXAMPLES")
	p.literal(strings.Split(cmd.Example, "\n"))
	p.macro("SH", "SEE ALSO")
	p.seeAlso(cmd)
	return p.String()
}

type page struct{ strings.Builder }

// macro writes a line that calls a macro.
func (p *page) macro(name string, args ...string) {
	p.WriteString("." + name)
	for _, a := range args {
		fmt.Fprintf(p, " %q", a)
	}
	p.WriteByte('\n')
}

// text writes a line of text that is already escaped.
func (p *page) text(line string) {
	if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
		p.WriteString(`\&`)
	}
	p.WriteString(line + "\n")
}

// item writes a term in bold with its meaning below it. Both are already escaped.
func (p *page) item(term, meaning string) {
	p.macro("TP")
	p.text(`\fB` + term + `\fR`)
	p.text(meaning)
}

func (p *page) synopsis(cmd *cobra.Command) {
	line := strings.TrimPrefix(cmd.UseLine(), cmd.CommandPath())
	if !cmd.HasParent() {
		p.text(`\fBratelimit\fR [\fIcommand\fR] [\fIflags\fR]`)
		return
	}
	p.text(`\fB` + escape(cmd.CommandPath()) + `\fR` + escape(line))
}

// body writes a help text. Lines that start with two blanks are a list or an example and keep their breaks, unless they
// are the rows of a table of variables. Other lines are filled.
func (p *page) body(text string) {
	var literal []string
	startsParagraph := false
	for line := range strings.Lines(text + "\n\n") {
		line = strings.TrimRight(line, "\n")
		name, row, _ := strings.Cut(strings.TrimPrefix(line, "  "), "  ")
		isIndented := strings.HasPrefix(line, "  ")
		isRow := isIndented && isVariable(name)
		if isIndented && !isRow {
			literal = append(literal, line)
			continue
		}
		if literal != nil {
			p.macro("PP")
			p.literal(literal)
			literal, startsParagraph = nil, true
		}
		switch {
		case isRow:
			p.variable(name, row)
			startsParagraph = true
		case line == "":
			startsParagraph = true
		default:
			if startsParagraph {
				p.macro("PP")
			}
			p.text(escape(line))
			startsParagraph = false
		}
	}
}

// variable writes a row of a table of variables: its type, default and meaning are separated by two blanks or more.
func (p *page) variable(name, row string) {
	kind, row, _ := strings.Cut(strings.TrimLeft(row, " "), "  ")
	fallback, meaning, _ := strings.Cut(strings.TrimLeft(row, " "), "  ")
	p.item(escape(name), escape(fmt.Sprintf("%s, default %s: %s", kind, fallback, strings.TrimLeft(meaning, " "))))
}

// isVariable reports whether a word names an environment variable: capitals, digits, underscores, and <NAME>.
func isVariable(word string) bool {
	return len(word) > 1 && strings.Trim(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_<>") == ""
}

// literal writes lines as they are, indented.
func (p *page) literal(lines []string) {
	p.macro("RS", "4")
	p.macro("nf")
	for _, line := range lines {
		p.text(escape(strings.TrimPrefix(line, "  ")))
	}
	p.macro("fi")
	p.macro("RE")
}

func (p *page) flag(f *pflag.Flag) {
	if f.Hidden {
		return
	}
	kind, usage := pflag.UnquoteUsage(f)
	term := "--" + f.Name
	if f.Shorthand != "" {
		term = "-" + f.Shorthand + ", " + term
	}
	term = escape(term)
	if kind != "" {
		term += `\fR \fI` + escape(kind)
	}
	if d := f.DefValue; d != "" && d != "false" && d != "0" && d != "[]" && d != "0s" {
		usage += " (default " + d + ")"
	}
	p.item(term, escape(usage))
}

func (p *page) seeAlso(cmd *cobra.Command) {
	if cmd.HasParent() {
		p.text(`\fBratelimit\fR(1)`)
		return
	}
	var names []string
	for _, c := range pages(cmd) {
		names = append(names, `\fB`+escape(pageName(c))+`\fR(1)`)
	}
	p.text(strings.Join(names, ",\n"))
}

// escape returns text without the characters that roff interprets. Hyphens stay hyphens that can be copied.
func escape(text string) string {
	return strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`, "…", `\&...`).Replace(text)
}
