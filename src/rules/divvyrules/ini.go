package divvyrules

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"ratelimit/src/rules"
)

// ParseINI reads a rule file of divvy in its INI form. A section is a rule, and its name the operation: pairs of key=value with blanks
// between them, in quotes where they hold blanks, `=` or `]`. `[default]` matches everything.
//
// If there are problems, the configuration is good only for finding more of them. It is nil if the text is not UTF-8.
func ParseINI(file string, data []byte) (cfg *rules.DomainConfig, problems, warnings rules.Problems) {
	f := newReader(file)
	if !f.problems.CheckUTF8(file, data) {
		return nil, f.problems, nil
	}
	r := iniReader{reader: f, sections: make(map[string]rules.Pos)}
	for line := range strings.Lines(strings.TrimPrefix(string(data), "\ufeff")) {
		r.line++
		r.read(strings.TrimRight(line, "\r\n"))
	}
	cfg = f.config()
	return cfg, f.problems, f.warnings
}

// iniReader reads line by line.
type iniReader struct {
	*reader
	line     int
	text     string // of the line
	sections map[string]rules.Pos
	rule     *divvyRule // the section that is being read; nil: none yet, or one that is refused
	refused  bool       // the section is one that is refused: its keys are passed over
}

// at is the place where the last part of the line begins.
func (r *iniReader) at(last string) rules.Pos {
	return rules.Pos{File: r.file, Line: r.line, Col: utf8.RuneCountInString(strings.TrimSuffix(r.text, last)) + 1}
}

func (r *iniReader) read(line string) {
	r.text = line
	text := strings.TrimLeft(line, " \t")
	switch {
	case text == "" || isComment(text):
	case text[0] == '[':
		r.section(text)
	default:
		r.field(text)
	}
}

func isComment(text string) bool { return text[0] == ';' || text[0] == '#' }

// section reads the head of a rule.
func (r *iniReader) section(text string) {
	skipped := r.skipped
	r.rule, r.refused, r.skipped = nil, true, true
	s := sectionReader{rest: text[1:]}
	pairs, err := s.pairs()
	if err != nil {
		r.problems.Add(r.at(s.rest), err.fix, "%s", err.what)
		return
	}
	at, written := r.at(text), strings.TrimSuffix(text, s.rest)
	if rest := strings.TrimLeft(s.rest, " \t"); rest != "" && !isComment(rest) {
		r.problems.Add(r.at(rest), "put it into a line of its own, or put a `;` before it",
			"there is more behind the section %s: %s", rules.Shorten(written), rules.Quote(rest))
		return
	}
	if other, taken := r.sections[written]; taken {
		r.problems.Add(at, "join the two; for a canary of the same rule use the JSON form",
			"the section %s is here twice, the first is at %v", rules.Shorten(written), other)
		return
	}
	r.sections[written] = at
	if s.rest != "" {
		r.differs(at, "with more than %s in the line it does not see the section", rules.Shorten(written))
	}
	slices.Sort(s.odd)
	for _, odd := range slices.Compact(s.odd) {
		r.differs(at, "%s", odd)
	}
	for i := range pairs {
		pairs[i].Pos = at
	}
	r.rules = append(r.rules, divvyRule{at: at, text: written, operation: pairs, fields: make(map[string]value)})
	r.rule, r.refused, r.skipped = &r.rules[len(r.rules)-1], false, skipped
}

// field reads a line `key = value`.
func (r *iniReader) field(text string) {
	at := r.at(text)
	key, rest, ok := strings.Cut(text, "=")
	key = strings.TrimRight(key, " \t")
	switch {
	case !ok:
		r.problems.Add(at, "write `key = value`, or `[key=value]` for a section, or put a `;` before it",
			"the line is neither: %s", rules.Quote(text))
		return
	case r.rule == nil && r.refused:
		return
	case r.rule == nil:
		r.problems.Add(at, "write `[default]`, or another section, above it", "the key %s stands before the first section",
			rules.Quote(key))
		return
	}
	v, what := iniValue(strings.TrimSpace(rest))
	v.at = r.at(strings.TrimLeft(rest, " \t"))
	if what != "" {
		r.problems.Add(v.at, "close it, with nothing but a comment behind it", "%s of %s: %s", key, rules.Shorten(r.rule.text), what)
	}
	if !slices.Contains(ruleKeys, key) {
		r.unknown(at, key, ruleKeys)
		return
	}
	if _, twice := r.rule.fields[key]; twice {
		r.warnings.Add(at, "remove one of them", "the key %s is here twice; the last one wins", key)
	}
	r.rule.fields[key] = v
}

// Texts without quotes: a value goes up to a comment, a word of a section up to a blank, `=` or `]`. A backslash before one of the
// characters of escapes is dropped.
var (
	bareValue    = regexp.MustCompile(`^(?:\\[\\;#]|[^;#])*`)
	bareWord     = regexp.MustCompile(`^(?:\\[\\;#.]|[^ \t=\]])*`)
	valueEscapes = regexp.MustCompile(`\\([\\;#])`)
	wordEscapes  = regexp.MustCompile(`\\([\\;#.])`)
)

// iniValue reads what stands behind `=`: in quotes or not. Without quotes null, true and false are no text.
func iniValue(text string) (v value, what string) {
	if text != "" && (text[0] == '"' || text[0] == '\'') {
		inside, rest, closed := strings.Cut(text[1:], text[:1])
		rest = strings.TrimLeft(rest, " \t")
		switch {
		case !closed:
			what = fmt.Sprintf("the quote is not closed: %s", rules.Quote(text))
		case rest != "" && !isComment(rest):
			what = fmt.Sprintf("there is more behind the quote: %s", rules.Quote(rest))
		}
		return value{kind: isText, text: inside}, what
	}
	v = value{kind: isText, text: strings.TrimSpace(valueEscapes.ReplaceAllString(bareValue.FindString(text), "$1"))}
	switch v.text {
	case "null":
		v.kind = isNull
	case "true", "false":
		v.kind = isBool
	}
	return v, ""
}

// sectionReader reads the name of a section, up to its `]`.
type sectionReader struct {
	rest string
	odd  []string // what divvy itself reads otherwise
}

type sectionError struct{ what, fix string }

func (s *sectionReader) pairs() (pairs []rules.PairConfig, err *sectionError) {
	words, bare := 0, ""
	for {
		s.rest = strings.TrimLeft(s.rest, " \t")
		switch {
		case s.rest == "":
			return nil, &sectionError{"the section has no end", "add a `]`"}
		case s.rest[0] == ']' && words == 0:
			return nil, &sectionError{"the section has no name", "write `[default]` for a rule that matches everything"}
		case s.rest[0] == ']':
			s.rest = s.rest[1:]
			if words == 1 && bare == "default" {
				return nil, nil
			}
			return pairs, nil
		}
		words++
		key, quoted, err := s.word()
		if err != nil {
			return nil, err
		}
		value, equals := "", false
		if s.rest != "" && s.rest[0] == '=' {
			s.rest, equals = s.rest[1:], true
			if value, _, err = s.word(); err != nil {
				return nil, err
			}
		}
		switch {
		case s.rest != "" && s.rest[0] == '=':
			return nil, &sectionError{"there is a second `=`, which divvy would drop with what stands behind it", "put the value in quotes if it is meant"}
		case s.rest != "" && s.rest[0] != ']' && s.rest[0] != ' ' && s.rest[0] != '\t':
			return nil, &sectionError{"there is something behind the quotes", "put a blank there, or all of it into the quotes"}
		}
		if !equals && !quoted {
			bare = key
		}
		if len(pairs) == rules.MaxPairs {
			return nil, &sectionError{fmt.Sprintf("the section has more than %d keys", rules.MaxPairs), "use fewer"}
		}
		if _, twice := valueOf(pairs, key); twice {
			return nil, &sectionError{fmt.Sprintf("the key %s is here twice", rules.Quote(key)), "remove one of them"}
		}
		pairs = append(pairs, rules.PairConfig{Key: key, Pattern: value})
	}
}

// word reads text in quotes, or up to a blank, `=` or `]`.
func (s *sectionReader) word() (word string, quoted bool, err *sectionError) {
	if s.rest != "" && s.rest[0] == '"' {
		inside, rest, closed := strings.Cut(s.rest[1:], `"`)
		if !closed {
			return "", true, &sectionError{"the quote is not closed", "add a `\"`"}
		}
		s.rest = rest
		s.odd = append(s.odd, fmt.Sprintf("it takes the quotes around %s for a part of it", rules.Quote(inside)))
		return inside, true, nil
	}
	written := bareWord.FindString(s.rest)
	s.rest = s.rest[len(written):]
	unescaped := wordEscapes.ReplaceAllString(written, "")
	for _, c := range ";#" {
		if strings.ContainsRune(unescaped, c) {
			s.odd = append(s.odd, fmt.Sprintf("it takes what begins with `%c` for a comment", c))
		}
	}
	if strings.Contains(unescaped, ".") {
		s.odd = append(s.odd, "it splits the section at the dots")
	}
	return wordEscapes.ReplaceAllString(written, "$1"), false, nil
}
