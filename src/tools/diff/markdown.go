package diff

import (
	"fmt"
	"strings"

	"ratelimit/src/operator/output"
)

// maxMarkdownBytes bounds the Markdown. A comment on GitHub has at most 65,536 characters.
const maxMarkdownBytes = 60_000

// maxMarkdownCell bounds a text of callers or of rule files, in bytes.
const maxMarkdownCell = 300

// markdown writes lines up to maxMarkdownBytes.
type markdown struct {
	strings.Builder
	omitted int // counts the lines that had no room.
}

// line adds a line, or counts it as omitted if there is no room for it.
func (m *markdown) line(format string, args ...any) {
	text := fmt.Sprintf(format, args...) + "\n"
	if m.omitted > 0 && text != "\n" || m.Len()+len(text) > maxMarkdownBytes {
		m.omitted++
		return
	}
	m.WriteString(text)
}

// Markdown returns the report as a comment on a pull request. Scripts find the comment again by its first line.
func (r *Report) Markdown(most listed) string {
	m := new(markdown)
	m.line("<!-- ratelimit diff -->")
	m.line("### Rate limits: %s", r.summary())
	if r.Replay != nil {
		m.line("\n%s", r.Replay.summary())
		if r.Replay.AsRecorded < r.Replay.Recorded {
			m.line("The old rules answer %d of %d requests as recorded.", r.Replay.AsRecorded, r.Replay.Recorded)
		}
	}
	if len(r.Rules) > 0 {
		m.line("\n| change | rule | before | after | notes |\n|---|---|---|---|---|")
	}
	for i := range r.Rules[:min(len(r.Rules), most.rules)] {
		r.Rules[i].writeMarkdown(m)
	}
	if more := len(r.Rules) - most.rules; more > 0 {
		m.line("\nand %s", output.Plural(more, "more changed rule"))
	}
	for _, n := range r.names() {
		if len(n.list) > 0 {
			m.line("\n%s: %s", n.title, code(output.First(n.list, most.rules)))
		}
	}
	for i := range r.NewWarnings[:min(len(r.NewWarnings), most.rules)] {
		m.line("\n- new warning: %s", code(warningText(&r.NewWarnings[i])))
	}
	if r.Replay != nil {
		r.Replay.writeMarkdown(m, most)
	}
	if m.omitted > 0 {
		fmt.Fprintf(m, "\n%s left out: this comment would be too long\n", output.Plural(m.omitted, "line"))
	}
	return m.String()
}

func (c *RuleChange) writeMarkdown(m *markdown) {
	name := cell(c.Rule)
	if c.OldName != "" {
		name += " (was " + cell(c.OldName) + ")"
	}
	var notes []string
	for _, line := range c.details() {
		if !strings.HasPrefix(line, "limit: ") {
			notes = append(notes, cell(line))
		}
	}
	m.line("| %s | %s | %s | %s | %s |", c.Kind, name, cell(c.OldLimit), cell(c.Limit), strings.Join(notes, "<br>"))
}

func (r *Replay) writeMarkdown(m *markdown, most listed) {
	if len(r.Rules) == 0 {
		return
	}
	for _, table := range r.tables(most) {
		titles, dashes := "|", "|"
		for _, c := range table.columns {
			titles, dashes = titles+" "+strings.ToLower(c.Title)+" |",
				dashes+map[bool]string{false: "---|", true: "---:|"}[c.IsNumber]
		}
		m.line("\n%s\n%s", titles, dashes)
		for _, row := range table.rows {
			cells := "|"
			for i, text := range row {
				if !table.columns[i].IsNumber {
					text = cell(text)
				}
				cells += " " + text + " |"
			}
			m.line("%s", cells)
		}
		if table.more > 0 {
			m.line("\nand %d more", table.more)
		}
	}
	m.line("\n<details><summary>examples</summary>\n")
	for i := range r.Rules[:min(len(r.Rules), most.rules)] {
		for _, e := range r.Rules[i].Examples {
			m.line("- line %d, %s: %s to %s", e.Line, code(e.Request), e.Old, e.New)
		}
	}
	m.line("\n</details>")
}

// cell returns text as code in a cell of a table.
func cell(text string) string { return strings.ReplaceAll(code(text), "|", `\|`) }

// code returns text as code. Texts of callers cannot close the code, and mention no one.
func code(text string) string {
	if text == "" {
		return ""
	}
	if text = output.Printable(text); len(text) > maxMarkdownCell {
		text = strings.ToValidUTF8(text[:maxMarkdownCell], "") + "…"
	}
	return "`" + strings.ReplaceAll(text, "`", "'") + "`"
}
