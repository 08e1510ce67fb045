package simulate

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestAppendString(t *testing.T) {
	for _, text := range []string{"", "plain", "a\"b\\c", "line\nline", "\x00\x1f\x7f", "<&>'", "ümlaut 漢字 😀 \u2028"} {
		var back string
		got := string(appendString(nil, text))
		if err := json.Unmarshal([]byte(got), &back); err != nil || back != text {
			t.Errorf("%q: %s, %v", text, got, err)
		}
		if got != string(appendString(nil, []byte(text))) || strings.ContainsAny(got, "\n\x00\x7f") {
			t.Errorf("%q: %s", text, got)
		}
	}
	if got := string(appendString(nil, "a\xffb\xe2\x82")); got != "\"a\uFFFDb\uFFFD\uFFFD\"" {
		t.Errorf("not UTF-8: %+q", got)
	}
}
