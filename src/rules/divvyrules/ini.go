package divvyrules

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
)

// ParseINI reads a rule file of divvy in its INI form. A section is a rule, and its name the operation: pairs of
// key=value with blanks between them, in quotes where they hold blanks, `=` or `]`. `[default]` matches everything.
//
// If there are problems, the configuration is good only for finding more of them. It is nil if the text is not UTF-8.
func ParseINI(file string, data []byte) (cfg *compile.DomainConfig, problems, warnings rules.Problems) {
	f := newReader(file)
	if !f.problems.CheckUTF8(file, data) {
		return nil, f.problems, nil
	}
	r := iniReader{reader: f, posBySectionHead: make(map[string]rules.Pos)}
	for line := range strings.Lines(strings.TrimPrefix(string(data), "\ufeff")) {
		r.lineNumber++
		r.readLine(strings.TrimRight(line, "\r\n"))
	}
	cfg = f.domainConfig()
	return cfg, f.problems, f.warnings
}

type iniReader struct {
	*reader
	lineNumber       int                  // that of the line that is read, from 1
	lineText         string               // that line without its end
	posBySectionHead map[string]rules.Pos // the keys are heads as written
	// the rule whose section is being read. It is nil before the first section and in a refused one
	currentRule      *divvyRule
	inRefusedSection bool // set in a section whose head has a problem: its fields are not read
}

// posOf returns the position of rest, the last part of the line.
func (r *iniReader) posOf(rest string) rules.Pos {
	return rules.Pos{
		File: r.file, Line: r.lineNumber,
		Col: utf8.RuneCountInString(strings.TrimSuffix(r.lineText, rest)) + 1,
	}
}

func (r *iniReader) readLine(line string) {
	r.lineText = line
	text := strings.TrimLeft(line, " \t")
	switch {
	case text == "" || isComment(text):
	case text[0] == '[':
		r.readSectionHead(text)
	default:
		r.readField(text)
	}
}

func isComment(text string) bool { return text[0] == ';' || text[0] == '#' }

func (r *iniReader) readSectionHead(text string) {
	skipped := r.hasSkippedRule
	r.currentRule, r.inRefusedSection, r.hasSkippedRule = nil, true, true
	s := sectionHeadReader{iniReader: r, unreadText: text[1:]}
	pairs, ok := s.readPairs()
	if !ok {
		return
	}
	at, written := r.posOf(text), strings.TrimSuffix(text, s.unreadText)
	if rest := strings.TrimLeft(s.unreadText, " \t"); rest != "" && !isComment(rest) {
		r.problems.Add(r.posOf(rest), "put it into a line of its own, or put a `;` before it",
			"there is more behind the section %s: %s", rules.Shorten(written), rules.Quote(rest))
		return
	}
	if other, taken := r.posBySectionHead[written]; taken {
		r.problems.Add(at, "join the two; for a canary of the same rule use the JSON form",
			"the section %s is here twice, the first is at %v", rules.Shorten(written), other)
		return
	}
	r.posBySectionHead[written] = at
	if s.unreadText != "" {
		r.warnDivvyDiffers(at, "with more than %s in the line it does not see the section", rules.Shorten(written))
	}
	slices.Sort(s.divvyDifferences)
	for _, difference := range slices.Compact(s.divvyDifferences) {
		r.warnDivvyDiffers(at, "%s", difference)
	}
	for i := range pairs {
		pairs[i].Pos = at
	}
	r.rules = append(r.rules, divvyRule{
		pos: at, operationText: written, operationPairs: pairs,
		valueByKey: make(map[string]scalar),
	})
	r.currentRule, r.inRefusedSection, r.hasSkippedRule = &r.rules[len(r.rules)-1], false, skipped
}

// readField reads a line `key = value`.
func (r *iniReader) readField(text string) {
	at := r.posOf(text)
	key, rest, ok := strings.Cut(text, "=")
	key = strings.TrimRight(key, " \t")
	switch {
	case !ok:
		r.problems.Add(at, "write `key = value`, or `[key=value]` for a section, or put a `;` before it",
			"the line is neither: %s", rules.Quote(text))
		return
	case r.inRefusedSection:
		return
	case r.currentRule == nil:
		r.problems.Add(at, "write `[default]`, or another section, above it", "the key %s stands before the first section",
			rules.Quote(key))
		return
	}
	v, problem := parseINIValue(strings.TrimSpace(rest))
	v.pos = r.posOf(strings.TrimLeft(rest, " \t"))
	if problem != "" {
		r.problems.Add(v.pos, "close it, with nothing but a comment behind it", "%s of %s: %s", key,
			rules.Shorten(r.currentRule.operationText), problem)
	}
	if !slices.Contains(ruleFieldKeys, key) {
		r.warnUnknownKey(at, key, ruleFieldKeys)
		return
	}
	if _, twice := r.currentRule.valueByKey[key]; twice {
		r.warnings.Add(at, "remove one of them", "the key %s is here twice; the last one wins", key)
	}
	r.currentRule.valueByKey[key] = v
}

// These patterns match text without quotes: a value ends at a comment; a word of a section ends at a blank, `=` or `]`.
// The backslash of an escape is dropped.
var (
	unquotedValuePattern = regexp.MustCompile(`^(?:\\[\\;#]|[^;#])*`)
	unquotedWordPattern  = regexp.MustCompile(`^(?:\\[\\;#.]|[^ \t=\]])*`)
	valueEscapePattern   = regexp.MustCompile(`\\([\\;#])`)
	wordEscapePattern    = regexp.MustCompile(`\\([\\;#.])`)
)

// parseINIValue reads the text behind `=`. The problem is empty if there is none.
func parseINIValue(text string) (v scalar, problem string) {
	if text != "" && (text[0] == '"' || text[0] == '\'') {
		inside, rest, closed := strings.Cut(text[1:], text[:1])
		rest = strings.TrimLeft(rest, " \t")
		switch {
		case !closed:
			problem = fmt.Sprintf("the quote is not closed: %s", rules.Quote(text))
		case rest != "" && !isComment(rest):
			problem = fmt.Sprintf("there is more behind the quote: %s", rules.Quote(rest))
		}
		return scalar{text: inside}, problem
	}
	text = strings.TrimSpace(valueEscapePattern.ReplaceAllString(unquotedValuePattern.FindString(text), "$1"))
	return scalar{text: text, isNull: text == "null"}, ""
}

// sectionHeadReader reads the head of a section, up to its `]`.
type sectionHeadReader struct {
	*iniReader
	unreadText       string   // the part of the line that is not read yet
	divvyDifferences []string // what divvy 1.7.1 reads differently in this head
}

// refuseSection reports a problem at the rest of the line. It returns the results of readPairs for such a head.
func (s *sectionHeadReader) refuseSection(problem, fix string) (pairs []compile.MatchPairConfig, ok bool) {
	s.problems.Add(s.posOf(s.unreadText), fix, "%s", problem)
	return nil, false
}

// readPairs returns the pairs of the head; ok is false if it has a problem.
func (s *sectionHeadReader) readPairs() (pairs []compile.MatchPairConfig, ok bool) {
	words, bareKey := 0, ""
	for {
		s.unreadText = strings.TrimLeft(s.unreadText, " \t")
		switch {
		case s.unreadText == "":
			return s.refuseSection("the section has no end", "add a `]`")
		case s.unreadText[0] == ']' && words == 0:
			return s.refuseSection("the section has no name", "write `[default]` for a rule that matches everything")
		case s.unreadText[0] == ']':
			s.unreadText = s.unreadText[1:]
			if words == 1 && bareKey == "default" {
				return nil, true
			}
			return pairs, true
		}
		words++
		key, quoted, closed := s.readWord()
		value, equals := "", false
		if closed && strings.HasPrefix(s.unreadText, "=") {
			s.unreadText, equals = s.unreadText[1:], true
			value, _, closed = s.readWord()
		}
		if !equals && !quoted {
			bareKey = key
		}
		_, twice := patternForKey(pairs, key)
		switch {
		case !closed:
			return s.refuseSection("the quote is not closed", "add a `\"`")
		case strings.HasPrefix(s.unreadText, "="):
			return s.refuseSection("there is a second `=`, which divvy would drop with what stands behind it",
				"separate pairs by blanks, or put the value in quotes if it is meant")
		case s.unreadText != "" && !strings.ContainsAny(s.unreadText[:1], "] \t"):
			return s.refuseSection("there is something behind the quotes", "put a blank there, or all of it into the quotes")
		case len(pairs) == compile.MaxKeysPerRule:
			return s.refuseSection(fmt.Sprintf("the section has more than %d keys", compile.MaxKeysPerRule), "use fewer")
		case twice:
			return s.refuseSection(fmt.Sprintf("the key %s is here twice", rules.Quote(key)), "remove one of them")
		}
		pairs = append(pairs, compile.MatchPairConfig{Key: key, Pattern: value})
	}
}

// readWord reads text in quotes, or text up to a blank, `=` or `]`. closed is false if a quote has no end.
func (s *sectionHeadReader) readWord() (word string, quoted, closed bool) {
	if strings.HasPrefix(s.unreadText, `"`) {
		inside, rest, closed := strings.Cut(s.unreadText[1:], `"`)
		if closed {
			s.unreadText = rest
			s.divvyDifferences = append(s.divvyDifferences,
				fmt.Sprintf("it takes the quotes around %s for a part of it", rules.Quote(inside)))
		}
		return inside, true, closed
	}
	written := unquotedWordPattern.FindString(s.unreadText)
	s.unreadText = s.unreadText[len(written):]
	unescaped := wordEscapePattern.ReplaceAllString(written, "")
	for _, c := range ";#" {
		if strings.ContainsRune(unescaped, c) {
			s.divvyDifferences = append(s.divvyDifferences, fmt.Sprintf("it takes what begins with `%c` for a comment", c))
		}
	}
	if strings.Contains(unescaped, ".") {
		s.divvyDifferences = append(s.divvyDifferences, "it splits the section at the dots")
	}
	return wordEscapePattern.ReplaceAllString(written, "$1"), false, true
}
