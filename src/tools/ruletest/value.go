package ruletest

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/rules"
	"ratelimit/src/rules/yamlrules"
)

// reader turns YAML into a File and notes problems. The functions that read a value get
// the value and its name for messages.
type reader struct {
	file *File
	rules.Problems
}

// keys are the keys that a map may have, each with the function that reads its value.
type keys map[string]func(v *yamlrules.Value, what string)

// to stores in target what read returns.
func to[T any](target *T, read func(*yamlrules.Value, string) T) func(*yamlrules.Value, string) {
	return func(v *yamlrules.Value, what string) { *target = read(v, what) }
}

// itself returns v, to be read after the other keys.
func itself(v *yamlrules.Value, _ string) *yamlrules.Value { return v }

// fields reads a map. It reports whether v was one.
func (r *reader) fields(v *yamlrules.Value, what string, known keys) bool {
	fields, ok := v.Fields()
	if !ok {
		r.Add(v.Pos, "write keys and values below it", "%s is %s, not a map", what, v.Type())
		return false
	}
	for i := range fields {
		f := &fields[i]
		name := f.Name
		if known[name] == nil {
			fix := "known in " + what + ": " + strings.Join(slices.Sorted(maps.Keys(known)), ", ")
			if name = rules.Near(f.Name, maps.Keys(known)); name != "" {
				fix = "did you mean `" + name + "`?"
			}
			r.Add(f.Pos, fix, "unknown key %s", rules.Quote(f.Name))
		}
		if read := known[name]; read != nil { // also for a misspelled key, which would be missed, too
			read(&f.Value, name)
		}
	}
	return true
}

// each reads the items of a list.
func (r *reader) each(v *yamlrules.Value, what string, read func(*yamlrules.Value)) {
	items, ok := v.Items()
	if !ok {
		r.Add(v.Pos, "write `- ...` for each", "%s is %s, not a list", what, v.Type())
	}
	for i := range items {
		read(&items[i])
	}
}

// filled is each for a list below v that has to be there, with at least one item.
func (r *reader) filled(v, list *yamlrules.Value, what, without string, read func(*yamlrules.Value)) {
	if list == nil {
		r.Add(v.Pos, "add `"+what+":` and a list", "%s", without)
		return
	}
	r.each(list, what, read)
	if items, ok := list.Items(); ok && len(items) == 0 {
		r.Add(list.Pos, "add one", "%s", without)
	}
}

func (r *reader) text(v *yamlrules.Value, what string) string {
	text, ok := v.Text()
	if !ok {
		r.Add(v.Pos, "write text", "%s is %s, not text", what, v.Type())
	}
	return text
}

// optionalText is text, or empty if there is nothing.
func (r *reader) optionalText(v *yamlrules.Value, what string) string {
	if v.Null() {
		return ""
	}
	return r.text(v, what)
}

func (r *reader) bytes(v *yamlrules.Value, what string) []byte { return []byte(r.text(v, what)) }

func (r *reader) flag(v *yamlrules.Value, what string) bool {
	value, ok := v.Bool()
	if !ok {
		r.Add(v.Pos, "write true or false", "%s is %s, not true or false", what, v.Type())
	}
	return value
}

// number reads a whole number, which proto3 JSON may have in quotes.
func (r *reader) number(v *yamlrules.Value, what string, most uint64) uint64 {
	text, _ := v.Text()
	n, err := strconv.ParseUint(text, 10, 64)
	if i, ok := v.Int(); ok && i >= 0 {
		n, err = uint64(i), nil
	}
	if err != nil || n > most {
		r.Add(v.Pos, fmt.Sprintf("write a whole number from 0 to %d", most), "%s is invalid: %s", what, shown(v))
	}
	return n
}

func (r *reader) uint64(v *yamlrules.Value, what string) uint64 {
	return r.number(v, what, math.MaxUint64)
}

func (r *reader) uint32(v *yamlrules.Value, what string) uint32 {
	return uint32(r.number(v, what, math.MaxUint32))
}

// count is uint64 as text.
func (r *reader) count(v *yamlrules.Value, what string) string { return fmt.Sprint(r.uint64(v, what)) }

// duration reads "1m30s".
func (r *reader) duration(v *yamlrules.Value, what string) time.Duration {
	return r.durationOr(v, what, "")
}

func (r *reader) durationOr(v *yamlrules.Value, what, orNever string) time.Duration {
	text, _ := v.Text()
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		r.Add(v.Pos, "write a duration like 1m30s, 500ms or 0s"+orNever, "%s is invalid: %s", what, shown(v))
		return 0
	}
	return d
}

// period is duration as text.
func (r *reader) period(v *yamlrules.Value, what string) string { return r.duration(v, what).String() }

// wait reads a duration or "never", as waits writes it.
func (r *reader) wait(v *yamlrules.Value, what string) string {
	if text, _ := v.Text(); text == waits(algorithm.Never) {
		return text
	}
	return r.durationOr(v, what, ", or never").String()
}

// instant reads a time in the years that stores work with.
func (r *reader) instant(v *yamlrules.Value, what string) time.Time {
	text := r.text(v, what)
	at, err := time.Parse(time.RFC3339, text)
	if err != nil || at.Before(time.Unix(0, 0)) || at.After(latest) {
		r.Add(v.Pos, "write an instant like 2026-01-01T00:00:00Z, from 1970 to 2148", "%s is invalid: %s", what, rules.Quote(text))
		return defaultStart
	}
	return at
}

// code reads the code of an answer.
func (r *reader) code(v *yamlrules.Value, what string) string {
	text, _ := v.Text()
	if text != code(false) && text != code(true) {
		r.Add(v.Pos, "write OK or OVER_LIMIT", "%s is %s", what, shown(v))
	}
	return text
}

// shown is a value as a message shows it.
func shown(v *yamlrules.Value) string {
	if text, ok := v.Text(); ok {
		return rules.Quote(text)
	}
	return v.Type()
}
