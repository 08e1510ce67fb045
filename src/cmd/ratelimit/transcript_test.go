package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"ratelimit/testbed/testfiles"
)

var (
	// startOfFile begins a file of a transcript: "-- rules/a.yaml --".
	startOfFile = regexp.MustCompile(`(?m)^-- (.*) --\n`)
	// realTime is the only part of an output that each run without a service has its own of.
	realTime = regexp.MustCompile(`\bin [0-9.]+(µs|ms|s), [0-9]+ requests/s`)
	// realInstant and realWait are parts of what a service answers.
	realInstant = regexp.MustCompile(`\b20\d\d-\d\d-\d\d([ T])\d\d:\d\d:\d\d(\.\d+)?(Z| [A-Z]{3,4}\b| [+-]\d\d\b|)`)
	realWait    = regexp.MustCompile(`\bwhole again in [0-9hms.]+`)
)

// TestTranscripts plays the files in testdata/commands. A file has commands, each with what it prints, and then files
// in the directory of the commands. Lines of the output are indented, and lines of the error output begin with "! ".
// The last line is the exit status, unless it is 0. DIR stands for the directory. A command that ends with "< NAME"
// reads a file, and one that ends with "> NAME" writes one.
//
// If there is a file service.yaml, commands ask a service with these rules, of the domain d, at ADDRESS. It has
// answered the requests in the file requests: words such as user=eve.
//
// With -update the test writes what the commands print now.
func TestTranscripts(t *testing.T) {
	t.Setenv("SHADOW_MODE", "true") // Settings of the service have no effect on these commands.
	t.Setenv("CACHE_KEY_PREFIX", "x")
	t.Setenv("RATELIMIT_ADDRESS", "")
	t.Setenv("DEBUG_TOKEN", "")
	names, err := filepath.Glob("testdata/commands/*.txt")
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		path, err := filepath.Abs(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txt"), func(t *testing.T) { playTranscript(t, path) })
	}
}

func playTranscript(t *testing.T, path string) {
	t.Helper()
	text := testfiles.Read(t, path)
	dir := t.TempDir()
	t.Chdir(dir)
	script, files := string(text), ""
	if at := startOfFile.FindStringIndex(script); at != nil {
		script, files = script[:at[0]], script[at[0]:]
	}
	texts := startOfFile.Split(files, -1)
	for i, name := range startOfFile.FindAllStringSubmatch(files, -1) {
		writeFile(t, name[1], texts[i+1])
	}
	known := []string{dir, "DIR"}
	if s := serveTranscript(t); s != nil {
		known = append(known, s.rules, "service.yaml", s.address("debug"), "ADDRESS")
	}
	replacer := strings.NewReplacer(known...)
	var got strings.Builder
	for line := range strings.Lines(script) {
		switch command, isCommand := strings.CutPrefix(line, "$ "); {
		case isCommand:
			text := replacer.Replace(playCommand(t, strings.TrimSpace(command)))
			if len(known) > 2 {
				text = hideTimes(text)
			}
			got.WriteString(line + text + "\n")
		case strings.HasPrefix(line, "#"):
			got.WriteString(line)
		}
	}
	if *update {
		testfiles.Write(t, path, got.String()+files)
	}
	wanted := strings.Split(script, "\n")
	for i, line := range strings.Split(got.String(), "\n") {
		if (i >= len(wanted) || line != wanted[i]) && !*update {
			t.Fatalf("%s:%d: got\n%s\nwant\n%s", filepath.Base(path), i+1, line, wanted[min(i, len(wanted)-1)])
		}
	}
}

// hideTimes replaces instants and waits that a service answers.
func hideTimes(text string) string {
	text = realWait.ReplaceAllString(text, "whole again in TIME")
	return realInstant.ReplaceAllString(text, "YYYY-MM-DD${1}HH:MM:SS")
}

// serveTranscript starts a service with the rules in service.yaml, and sends it the requests. It returns nil if there
// is no such file.
func serveTranscript(t *testing.T) *running {
	t.Helper()
	rules, err := os.ReadFile("service.yaml")
	if err != nil {
		return nil
	}
	requests := testfiles.Read(t, "requests")
	s := launch(t, string(rules))
	s.until("ready", s.healthy)
	for line := range strings.FieldsSeq(string(requests)) {
		key, value, _ := strings.Cut(line, "=")
		if _, err := s.post(key, value); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("RATELIMIT_ADDRESS", s.address("debug"))
	return s
}

// playCommand returns what a command prints, and its exit status unless it is 0, in the form of a transcript.
func playCommand(t *testing.T, line string) string {
	t.Helper()
	line, output, _ := strings.Cut(line, " > ")
	line, input, _ := strings.Cut(line, " < ")
	in := []byte(nil)
	if input != "" {
		var err error
		if in, err = os.ReadFile(input); err != nil {
			t.Fatal(err)
		}
	}
	code, out, errOut := callWithInput(t, string(in), strings.Fields(line)...)
	if output != "" {
		writeFile(t, output, out)
		out = ""
	}
	text := indented("  ", out) + indented("! ", realTime.ReplaceAllString(errOut, "in TIME"))
	if code != 0 {
		text += "exit " + strconv.Itoa(code) + "\n"
	}
	return text
}

// indented returns text with a prefix before each line that is not empty.
func indented(prefix, text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line != "\n" {
			b.WriteString(prefix)
		}
		b.WriteString(strings.TrimSuffix(line, "\n") + "\n")
	}
	return b.String()
}
