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
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/yamlrules"
)

// reader turns YAML into a File and collects problems. Its methods read one value each; name is the value's name in
// messages.
type reader struct {
	file *File
	rules.Problems
}

// valueReader reads the value of a key and stores it.
type valueReader = func(v *yamlrules.Value, name string)

// storeIn returns a valueReader that stores the result of read in target.
func storeIn[T any](target *T, read func(*yamlrules.Value, string) T) valueReader {
	return func(v *yamlrules.Value, name string) { *target = read(v, name) }
}

// readLater returns v itself, for a value that is read after the other keys of its map.
func readLater(v *yamlrules.Value, _ string) *yamlrules.Value { return v }

// fields reads a map whose possible keys are those of known. It returns false, and reports a problem, if v is not a
// map.
func (r *reader) fields(v *yamlrules.Value, name string, known map[string]valueReader) bool {
	isMap := v.Kind == compile.KindMap
	if !isMap {
		r.Add(v.Pos, "write keys and values below it", "%s is %v, not a map", name, v.Kind)
	}
	for i := range v.Fields {
		f := &v.Fields[i]
		key := f.Name
		if known[key] == nil {
			fix := "known in " + name + ": " + strings.Join(slices.Sorted(maps.Keys(known)), ", ")
			if key = rules.NearestWord(f.Name, maps.Keys(known)); key != "" {
				fix = "did you mean `" + key + "`?"
			}
			r.Add(f.Pos, fix, "unknown key %s", rules.Quote(f.Name))
		}
		if read := known[key]; read != nil { // A misspelt key is read too, or else it would also be reported as missing.
			read(&f.Value, key)
		}
	}
	return isMap
}

// each calls read with each item of a list.
func (r *reader) each(v *yamlrules.Value, name string, read func(*yamlrules.Value)) {
	if v.Kind != compile.KindList && !v.IsNull() {
		r.Add(v.Pos, "write `- ...` for each", "%s is %v, not a list", name, v.Kind)
	}
	for i := range v.Items {
		read(&v.Items[i])
	}
}

// requiredList calls read with each item of list, the value of the key name in parent. A missing or empty list is the
// problem.
func (r *reader) requiredList(parent, list *yamlrules.Value, name, problem string, read func(*yamlrules.Value)) {
	if list == nil {
		r.Add(parent.Pos, "add `"+name+":` and a list", "%s", problem)
		return
	}
	r.each(list, name, read)
	if list.IsNull() || list.Kind == compile.KindList && len(list.Items) == 0 {
		r.Add(list.Pos, "add one", "%s", problem)
	}
}

func (r *reader) text(v *yamlrules.Value, name string) string {
	if !v.IsScalar() {
		r.Add(v.Pos, "write text", "%s is %v, not text", name, v.Kind)
	}
	return v.Text
}

// optionalText reads text. A null value is an empty text.
func (r *reader) optionalText(v *yamlrules.Value, name string) string {
	if v.IsNull() {
		return ""
	}
	return r.text(v, name)
}

func (r *reader) bytes(v *yamlrules.Value, name string) []byte { return []byte(r.text(v, name)) }

func (r *reader) flag(v *yamlrules.Value, name string) bool {
	if v.Kind != compile.KindBool {
		r.Add(v.Pos, "write true or false", "%s is %v, not true or false", name, v.Kind)
	}
	return v.Bool
}

// invalid reports a scalar that its reader cannot parse.
func (r *reader) invalid(v *yamlrules.Value, name, fix string) {
	r.Add(v.Pos, fix, "%s is invalid: %s", name, quoteValue(v))
}

// number reads a whole number up to most. As in proto3 JSON, the number may be in quotes.
func (r *reader) number(v *yamlrules.Value, name string, most uint64) uint64 {
	n, err := strconv.ParseUint(v.Text, 10, 64)
	if v.Kind == compile.KindInt && v.Int >= 0 {
		n, err = uint64(v.Int), nil
	}
	if err != nil || n > most {
		r.invalid(v, name, fmt.Sprintf("write a whole number from 0 to %d", most))
	}
	return n
}

func (r *reader) uint64(v *yamlrules.Value, name string) uint64 {
	return r.number(v, name, math.MaxUint64)
}

func (r *reader) uint32(v *yamlrules.Value, name string) uint32 {
	return uint32(r.number(v, name, math.MaxUint32))
}

// numberText reads a whole number and returns it as text.
func (r *reader) numberText(v *yamlrules.Value, name string) string {
	return fmt.Sprint(r.uint64(v, name))
}

const durationFix = "write a duration like 1m30s, 500ms or 0s"

// duration reads a duration such as 1m30s. It reports another value as invalid, with the fix.
func (r *reader) duration(v *yamlrules.Value, name, fix string) time.Duration {
	d, err := time.ParseDuration(v.Text)
	if err != nil || d < 0 {
		r.invalid(v, name, fix)
		return 0
	}
	return d
}

// resetTime reads a duration and returns it as text.
func (r *reader) resetTime(v *yamlrules.Value, name string) string {
	return r.duration(v, name, durationFix).String()
}

// wait reads a duration, or "never", and returns it as waitText writes it.
func (r *reader) wait(v *yamlrules.Value, name string) string {
	if v.Text == waitText(algorithm.Never) {
		return v.Text
	}
	return r.duration(v, name, durationFix+", or never").String()
}

// instant reads a time from 1970 to 2148, the years that stores support.
func (r *reader) instant(v *yamlrules.Value, name string) time.Time {
	at, err := time.Parse(time.RFC3339, v.Text)
	if err != nil || at.Before(time.Unix(0, 0)) || at.After(latestTime) {
		r.invalid(v, name, "write an instant like 2026-01-01T00:00:00Z, from 1970 to 2148")
		return defaultStart
	}
	return at
}

// code reads the code of an answer.
func (r *reader) code(v *yamlrules.Value, name string) string {
	if v.Text != limiter.CodeName(false) && v.Text != limiter.CodeName(true) {
		r.Add(v.Pos, "write OK or OVER_LIMIT", "%s is %s", name, quoteValue(v))
	}
	return v.Text
}

// quoteValue returns a value for a message: a scalar in quotes, or the type of another value.
func quoteValue(v *yamlrules.Value) string {
	if v.IsScalar() {
		return rules.Quote(v.Text)
	}
	return v.Kind.String()
}
