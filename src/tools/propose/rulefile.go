package propose

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"ratelimit/src/operator/output"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/yamlrules"
)

// byKeys returns a rule file with one rule, which counts by keys.
func byKeys(domain string, keys []string, unit string) []byte {
	var match, per []string
	for _, key := range keys {
		match, per = append(match, quoted(key)+`: "*"`), append(per, quoted(key))
	}
	return fmt.Appendf(nil, "domain: %s\nrules:\n  - match: {%s}\n    per: [%s]\n"+
		"    rate_limit: {unit: %s, requests_per_unit: 1}\n", quoted(domain), strings.Join(match, ", "),
		strings.Join(per, ", "), unit)
}

// quoted returns text in the double quotes of JSON, which YAML reads, too.
func quoted(text string) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(text) // Text always encodes, and memory takes it.
	return strings.TrimSpace(b.String())
}

// edit is a new number in a rule file, and the comment above it.
type edit struct {
	yamlrules.NumberPlace
	rule    *RuleReport
	comment []string
}

// propose returns the files with the proposed limits, and adds to the report what they lack.
func (rep *Report) propose(files []filerules.File, opt compile.Options) ([]filerules.File, error) {
	changed := slices.Clone(files)
	for i := range changed {
		changed[i].Data = rep.proposeIn(&files[i])
	}
	set, _, err := filerules.Load(changed, opt)
	if err != nil {
		return nil, fmt.Errorf("the rules with the proposed limits have mistakes, so nothing is written: %w", err)
	}
	for i, r := range slices.DeleteFunc(slices.Clone(set.Rules()), func(r *rules.Rule) bool { return r.Unlimited }) {
		if rep := &rep.Rules[i]; r.RequestsPerUnit() != rep.written {
			return nil, fmt.Errorf("%s: the limit would be %d instead of %d, so nothing is written; write the file in a plainer "+
				"way", rep.Rule, r.RequestsPerUnit(), rep.written)
		}
	}
	return changed, nil
}

// proposeIn returns the text of a file with the proposed limits of its rules.
func (rep *Report) proposeIn(f *filerules.File) []byte {
	places := yamlrules.RequestsPlaces(f.Name, f.Data)
	var edits []edit
	for i := range rep.Rules {
		r := &rep.Rules[i]
		if r.rule.Pos.File != f.Name || r.Proposed == 0 {
			continue
		}
		if place, ok := places[r.rule.Pos]; ok {
			edits = append(edits, edit{place, r, rep.comment(r)})
			r.written = r.Proposed
			rep.proposedRules++
		} else {
			rep.NotWritten = append(rep.NotWritten, fmt.Sprintf("%s: %v has no plain requests_per_unit of its own; change "+
				"the limit to %d by hand", r.Rule, r.rule.Pos, r.Proposed))
		}
	}
	slices.SortFunc(edits, func(a, b edit) int { return cmp.Compare(a.Start, b.Start) })
	var out []byte
	isJSON := strings.EqualFold(filepath.Ext(f.Name), ".json") // It has no comments.
	if len(edits) > 0 && !isJSON {
		out = append(out, rep.headComment()...)
	}
	done := 0
	for i, e := range edits {
		// The comments of all numbers of a line stand above it.
		if !isJSON && (i == 0 || edits[i-1].LineStart != e.LineStart) {
			out = append(out, f.Data[done:e.LineStart]...)
			done = e.LineStart
			line := f.Data[e.LineStart:]
			indent := line[:len(line)-len(bytes.TrimLeft(line, " "))]
			for _, other := range edits[i:] {
				if other.LineStart != e.LineStart {
					break
				}
				for _, text := range other.comment {
					out = append(append(append(append(out, indent...), "# "...), text...), '\n')
				}
			}
		}
		out = append(out, f.Data[done:e.Start]...)
		out = fmt.Append(out, e.rule.Proposed)
		done = e.End
	}
	return append(out, f.Data[done:]...)
}

// headComment returns the first line of a file with proposed limits.
func (rep *Report) headComment() string {
	return fmt.Sprintf("# Limits by `ratelimit propose` from %s: %s, %s to %s.\n", output.Printable(rep.Source),
		output.Plural(rep.Requests, "request"), rep.From.Format(time.RFC3339), rep.To.Format(time.RFC3339))
}

// comment returns the lines above a proposed limit. They name no subject.
func (rep *Report) comment(r *RuleReport) []string {
	proposed := r.Limits[len(r.Limits)-1]
	lines := []string{
		fmt.Sprintf("%s use in one window: p50 %d, p90 %d, p99 %d, max %d.", output.Plural(r.Subjects, "subject"), r.Used.P50,
			r.Used.P90, r.Used.P99, r.Used.Max),
		fmt.Sprintf("%d refuses %s of subjects and %s of hits; at most %s of subjects are asked for.", r.Proposed,
			percentText(proposed.SubjectsPercent), percentText(proposed.HitsPercent), percentText(rep.RefuseAtMost)),
	}
	if r.burstStays() {
		lines = append(lines, fmt.Sprintf("%d pass at once as before, so it can refuse more.", r.rule.Limit.Capacity()))
	}
	if r.Limit != "" {
		lines = append(lines, fmt.Sprintf("It was %d.", r.rule.RequestsPerUnit()))
	}
	return lines
}

// write writes the files to path: the file of a single file, else a directory with the names below root.
func write(files []filerules.File, root, path string, isDirectory bool) error {
	for _, f := range files {
		target := path
		if isDirectory {
			inside, err := filepath.Rel(root, f.Name)
			if err != nil {
				return err
			}
			target = filepath.Join(path, inside)
			if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
				return err
			}
		}
		if err := os.WriteFile(target, f.Data, 0o644); err != nil { //nolint:gosec // Rule files are for all to read.
			return err
		}
	}
	return nil
}

// checkOutput returns an error if the proposal would replace a file or a directory.
func checkOutput(path string) error {
	switch _, err := os.Lstat(path); {
	case err == nil:
		return fmt.Errorf("--output %s: it exists; name a new file, or a new directory for a directory of rules", path)
	case errors.Is(err, os.ErrNotExist):
		return nil
	default:
		return fmt.Errorf("--output: %w", err)
	}
}
