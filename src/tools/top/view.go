package top

import (
	"fmt"
	"strings"
	"time"

	"ratelimit/src/tools/output"
)

// model is the state of the live view. Its methods have no side effects, so tests call them with keys, sizes and times.
type model struct {
	width, height int // in cells of the terminal
	sortBy        string
	window        string
	firstRule     int // firstRule is the index of the first rule on the screen.

	snapshot  *snapshot
	fetchedAt time.Time // fetchedAt is when snapshot arrived.
	problem   error     // problem is the error of the last fetch; nil if it succeeded.
}

// press applies a key. It reports whether the view ends.
func (m *model) press(k key) (quit bool) {
	page := max(1, m.layout().rules)
	switch k {
	case keyQuit:
		return true
	case keySortAdmitted:
		m.sortBy, m.firstRule = sortAdmitted, 0
	case keySortDenied:
		m.sortBy, m.firstRule = sortDenied, 0
	case keySortName:
		m.sortBy, m.firstRule = sortName, 0
	case keyMinute:
		m.window = windowMinute
	case keyHour:
		m.window = windowHour
	case keyUp:
		m.firstRule--
	case keyDown:
		m.firstRule++
	case keyPageUp:
		m.firstRule -= page
	case keyPageDown:
		m.firstRule += page
	case keyFirst:
		m.firstRule = 0
	case keyLast:
		m.firstRule = len(m.snapshot.Rates.Rules)
	}
	m.arrange()
	return false
}

// resize applies the size of the terminal.
func (m *model) resize(width, height int) {
	m.width, m.height = width, height
	m.arrange()
}

// receive applies the result of a fetch at now. After an error the last snapshot stays on the screen.
func (m *model) receive(s *snapshot, err error, now time.Time) {
	m.problem = err
	if err == nil {
		m.snapshot, m.fetchedAt = s, now
		m.arrange()
	}
}

// arrange sorts the rules and keeps firstRule within them.
func (m *model) arrange() {
	m.snapshot.sort(m.sortBy)
	m.firstRule = max(0, min(m.firstRule, len(m.snapshot.Rates.Rules)-m.layout().rules))
}

// layout is how many rows of each table the screen has, without titles. A table without rows is left out.
type layout struct{ domains, rules, denied, hot int }

// layout divides the screen among the tables. Rules get what the others leave.
func (m *model) layout() layout {
	const (
		headLines  = 1 // the line of the state
		footLines  = 1 // the line of the keys
		tableLines = 2 // an empty line and the titles
	)
	s := m.snapshot
	l := layout{domains: 1} // the line for all domains
	if n := len(s.Rates.Domains); n > 1 {
		l.domains += min(n, max(1, m.height/10))
	}
	subjects := max(2, m.height/8)
	if m.height >= 14 {
		l.denied = subjects
	}
	if m.height >= 20 {
		l.hot = subjects
	}
	used := headLines + len(m.snapshot.quotaLines()) + len(m.problemLines()) + footLines
	for _, rows := range []int{l.domains, l.denied, l.hot} {
		if rows > 0 {
			used += tableLines + rows
		}
	}
	l.rules = max(1, m.height-used-tableLines)
	return l
}

// problemLines has the problem of the last fetch and those of the service.
func (m *model) problemLines() []string {
	lines := m.snapshot.problemLines()
	if m.problem != nil {
		lines = append([]string{output.Printable(m.problem.Error())}, lines...)
	}
	return lines
}

// style is how a line looks.
type style int

const (
	plainStyle style = iota
	titleStyle
	alertStyle
	dimStyle
)

// line is a line of the screen.
type line struct {
	text  string
	style style
}

// view returns the lines of the screen at now, at most as many as fit.
func (m *model) view(now time.Time) (lines []line) {
	add := func(s style, texts ...string) {
		for _, text := range texts {
			lines = append(lines, line{text, s})
		}
	}
	addTable := func(texts []string, first, rows int) {
		if rows <= 0 {
			return
		}
		add(plainStyle, "")
		add(titleStyle, texts[0])
		rest := texts[1:][min(first, len(texts)-1):]
		add(plainStyle, rest[:min(rows, len(rest))]...)
		add(plainStyle, make([]string, max(0, rows-len(rest)))...)
	}
	s, l := m.snapshot, m.layout()
	state := s.stateLine()
	if m.problem != nil {
		state = "as of " + age(now.Sub(m.fetchedAt)) + " ago: " + state
	}
	add(titleStyle, state)
	add(plainStyle, s.quotaLines()...)
	add(alertStyle, m.problemLines()...)
	addTable(s.domainLines(m.width), 0, l.domains)
	addTable(s.ruleLines(m.width), m.firstRule, l.rules)
	addTable(subjectLines(m.width, deniedTitle, s.Window, s.Denied), 0, l.denied)
	addTable(subjectLines(m.width, hotTitle, s.Window, s.Hot), 0, l.hot)
	lines = lines[:max(0, min(len(lines), m.height-1))]
	add(dimStyle, m.help(l))
	return lines[:max(0, min(len(lines), m.height))]
}

// help returns the line of keys and of what they have chosen.
func (m *model) help(l layout) string {
	shown := len(m.snapshot.Rates.Rules)
	return fmt.Sprintf("q quit  a/d/n sort: %s  m/h subjects: %s  arrows: rules %d-%d of %d", m.sortBy, m.window,
		min(m.firstRule+1, shown), min(m.firstRule+l.rules, shown), m.snapshot.Rates.MatchingRules)
}

// Control sequences of terminals. The program writes no others.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // the second screen, without a cursor
	leaveScreen = "\x1b[0m\x1b[?25h\x1b[?1049l"
	startOfPage = "\x1b[H"
	clearLine   = "\x1b[K"
	restOfPage  = "\x1b[J"
	plainText   = "\x1b[0m"
)

// styleSequences are those of each style. No style needs color to be understood.
var styleSequences = map[style]string{titleStyle: "\x1b[1m", alertStyle: "\x1b[1;31m", dimStyle: "\x1b[2m"}

// frame returns the bytes that draw lines on a screen of a width. It shortens lines, and quotes those that are not printable, so that
// texts of callers never control the terminal.
func frame(lines []line, width int) string {
	var b strings.Builder
	b.WriteString(startOfPage)
	for i, l := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		text := output.Shorten(output.Printable(l.text), width)
		if sequence := styleSequences[l.style]; sequence != "" {
			text = sequence + text + plainText
		}
		b.WriteString(clearLine + text) // In this order, because after a full line the cursor still stands on its last character.
	}
	return b.String() + restOfPage
}
