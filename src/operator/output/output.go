// Package output writes what commands print: text for people, JSON for programs, and annotations for GitHub.
package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/term"
)

// Plural returns "1 file" or "2 files". n is an integer of any type.
func Plural(n any, what string) string {
	text := fmt.Sprintf("%d %s", n, what)
	if text != "1 "+what {
		text += "s"
	}
	return text
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Printable returns text, in quotes if it has characters that are not printable: these could move the cursor or the
// columns of a table.
func Printable(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(text)
	}
	return text
}

// ShellWord returns text as one word of a POSIX shell.
func ShellWord(text string) string {
	const plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./:=,@%+"
	if text != "" && text[0] != '-' && strings.Trim(text, plain) == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// First returns the first names in printable form, and how many more there are: "a, b and 3 more".
func First(names []string, most int) string {
	var list []string
	for _, name := range names[:min(len(names), most)] {
		list = append(list, Printable(name))
	}
	text := strings.Join(list, ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// WriteLines writes text, one line for each element.
func WriteLines(w io.Writer, lines []string) error {
	_, err := io.WriteString(w, strings.Join(lines, "\n")+"\n")
	return err
}

// WriteJSON writes v as an indented JSON object. Characters that are not printable are escaped, because some of them
// control terminals.
func WriteJSON(w io.Writer, v any) error { return writeJSON(w, v, "  ") }

// WriteJSONLine is WriteJSON on one line.
func WriteJSONLine(w io.Writer, v any) error { return writeJSON(w, v, "") }

func writeJSON(w io.Writer, v any, indent string) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(escape(text.Bytes()))
	return err
}

// gitHubText escapes the text of a workflow command of GitHub; gitHubValue escapes its parameters, such as the file
// name.
var (
	gitHubText  = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	gitHubValue = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
)

// Annotation is a text that GitHub shows at a line of a file. The zero values of File, Line and Col mean that there is
// none.
type Annotation struct {
	Severity  string // "notice", "warning" or "error".
	File      string // a path below the directory of the checkout.
	Line, Col int    // Line and Col start at 1.
	Text      string
}

// String returns the workflow command that makes the annotation: one line, whatever the texts are.
func (a Annotation) String() string {
	var place []string
	if a.File != "" {
		place = append(place, "file="+gitHubValue.Replace(a.File))
	}
	if a.Line > 0 {
		place = append(place, fmt.Sprintf("line=%d", a.Line))
	}
	if a.Col > 0 {
		place = append(place, fmt.Sprintf("col=%d", a.Col))
	}
	command := a.Severity
	if len(place) > 0 {
		command += " " + strings.Join(place, ",")
	}
	return "::" + command + "::" + gitHubText.Replace(a.Text)
}
