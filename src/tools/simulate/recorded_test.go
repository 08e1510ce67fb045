package simulate

import (
	"fmt"
	"strings"
	"testing"
)

// TestRecordedAnswers checks what the table says of a recording: which answers are those of the replay, and how many
// requests it lacks.
func TestRecordedAnswers(t *testing.T) {
	t.Parallel()
	line := func(second int, answer string) string {
		return fmt.Sprintf(
			`{"at":"%ds","request":{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"a"}],"hitsAddend":"15"}]}%s}`,
			second, answer)
	}
	const ok, over = `,"answer":"OK"`, `,"answer":"OVER_LIMIT"`
	for _, tt := range []struct {
		lines []string
		want  string // want has the lines of the table about the recording.
	}{
		{[]string{line(0, ""), line(1, "")}, ""},
		{[]string{line(0, ok), line(1, over), line(60, ok)}, "answers as recorded: all 3\n"},
		{
			[]string{line(0, over), `{"at":"0s","lost":3}`, line(1, over), `{"at":"2s","lost":4}`, line(60, ok)},
			"requests that the recording lacks: 7; later answers on their counters may differ\nanswers as recorded: 2 of 3; " +
				"the first other one is on line 1\n",
		},
	} {
		_, summary, err := simulated(t, Config{Rules: load(t, trafficRules), Backend: newMemory(t)},
			strings.NewReader(strings.Join(tt.lines, "\n")))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for text := range strings.Lines(string(summary)) {
			if strings.Contains(text, "record") {
				got += text
			}
		}
		if got != tt.want {
			t.Errorf("%v:\ngot\n%swant\n%s", tt.lines, got, tt.want)
		}
	}
	requests := 0
	for r, err := range Requests(t.Context(),
		Config{In: strings.NewReader(line(0, ok) + "\n" + `{"at":"0s","lost":3}` + "\n" + line(1, over)), Name: "stdin"}) {
		if requests++; err != nil || r.Request == nil {
			t.Errorf("%+v, %v", r, err)
		}
	}
	if requests != 2 {
		t.Errorf("%d requests", requests)
	}
}
