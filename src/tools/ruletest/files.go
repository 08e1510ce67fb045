package ruletest

import (
	"context"
	"os"
	"regexp"
	"slices"
	"strings"

	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/tools/check"
)

// Summary is the outcome of several files. Its JSON form is stable.
type Summary struct {
	Passed int      `json:"passed"`
	Failed int      `json:"failed"`
	Bad    int      `json:"bad"` // counts files whose tests could not run because of problems.
	Files  []Result `json:"files"`
}

// RunPaths runs the tests of files and of directories. If pick is not nil, it runs only tests whose names match pick.
func RunPaths(ctx context.Context, paths []string, pick *regexp.Regexp) *Summary {
	sum := &Summary{Files: []Result{}}
	seen := make(map[string]bool) // paths may name a file and also the directory that has it
	for _, path := range paths {
		files, problems := readPath(path)
		if len(problems) > 0 {
			sum.add(badResult(path, problems))
		}
		for _, f := range files {
			if seen[f.Name] {
				continue
			}
			seen[f.Name] = true
			if tests, problems := Read(f.Name, f.Data); len(problems) > 0 {
				sum.add(badResult(f.Name, problems))
			} else {
				sum.add(tests.Run(ctx, pick))
			}
		}
	}
	return sum
}

func (s *Summary) add(r Result) {
	for i := range r.Tests {
		if r.Tests[i].Passed {
			s.Passed++
		} else {
			s.Failed++
		}
	}
	if len(r.Problems) > 0 {
		s.Bad++
	}
	s.Files = append(s.Files, r)
}

// readPath reads a file of tests, or all files of tests in a directory.
func readPath(path string) ([]filerules.File, rules.Problems) {
	files, _, err := filerules.Read(path)
	problems := check.Problems(err)
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return files, problems
	}
	files = slices.DeleteFunc(files, func(f filerules.File) bool {
		return !strings.HasSuffix(f.Name, "_test.yaml") && !strings.HasSuffix(f.Name, "_test.yml")
	})
	if len(files) == 0 && len(problems) == 0 {
		problems = rules.Problems{{
			Pos: rules.Pos{File: path}, Message: "there are no tests here",
			Fix: "name them *_test.yaml, or name the file itself",
		}}
	}
	return files, problems
}
