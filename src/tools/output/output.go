// Package output writes what commands print: text for people, and JSON for programs.
package output

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
)

// Plural returns "1 file" or "2 files". n is an integer of any type.
func Plural(n any, what string) string {
	text := fmt.Sprintf("%d %s", n, what)
	if text != "1 "+what {
		text += "s"
	}
	return text
}

// Printable returns text, in quotes if it has characters that are not printable: these could move the cursor or the columns of a
// table.
func Printable(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(text)
	}
	return text
}

// WriteJSON writes v as an indented JSON object.
func WriteJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
