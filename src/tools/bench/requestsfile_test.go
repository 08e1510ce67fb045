package bench

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"ratelimit/testbed/testfiles"
)

const oneLine = `{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}` + "\n"

func TestRequestsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "requests.jsonl")
	text := oneLine + "\n \r\n" + strings.ReplaceAll(oneLine, `"v"`, `"w"`) + strings.TrimSpace(oneLine)
	testfiles.Write(t, path, text)
	l, err := newLoad(&Config{RequestsFile: path})
	if err != nil {
		t.Fatal(err)
	}
	pick := l.newPicker(1, len(l.messages))
	var got []string
	for call := range uint64(4) {
		got = append(got, shown(t, l.messages[pick(call)]))
	}
	if want := []string{"d: k=v", "d: k=w", "d: k=v", "d: k=v"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, err := newLoad(&Config{RequestsFile: path + ".none"}); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestRequestsFileProblems(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"", "f: no requests in it"},
		{"\n\n", "f: no requests in it"},
		{oneLine + "\n" + `{"domian":"d"}`, `f:3: not a RateLimitRequest as JSON: column 2: unknown field "domian"`},
		{`{"domain":1}`, "f:1: not a RateLimitRequest as JSON: column 11: invalid value for string field domain: 1"},
		{oneLine + "{", "f:2: not a RateLimitRequest as JSON: unexpected EOF"},
		{"nonsense", "f:1: not a RateLimitRequest as JSON: column 1: invalid value nonsense"},
		{
			oneLine + strings.TrimSpace(oneLine) + oneLine,
			"f:2: not a RateLimitRequest as JSON: column 69: unexpected token {",
		},
		{oneLine + `{"domain":"` + strings.Repeat("x", maxLine), "f:2: the line is longer than 1 MiB"},
	} {
		l := Load{maxBytes: maxLoadBytes}
		if err := l.addLines("f", strings.NewReader(tt.text)); err == nil || err.Error() != tt.want {
			t.Errorf("%.40q: got %v, want %s", tt.text, err, tt.want)
		}
	}
	l := Load{maxBytes: maxLoadBytes}
	if err := l.addLines("f", io.MultiReader(strings.NewReader(oneLine),
		iotest.ErrReader(io.ErrClosedPipe))); !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
}

// A file without end is given up.
func TestRequestsFileTakesBoundedMemory(t *testing.T) {
	line := `{"domain":"` + strings.Repeat("x", 100_000) + `"}` + "\n"
	l := Load{maxBytes: 1 << 20}
	err := l.addLines("f", strings.NewReader(strings.Repeat(line, 20)))
	if want := "f:11: the requests take more than 1 MiB of memory: take fewer or shorter ones"; err == nil ||
		err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	l = Load{maxBytes: 1 << 20}
	err = l.addLines("f", strings.NewReader(strings.Repeat("{}\n", 20_000)))
	if want := "f:16385: "; err == nil || !strings.HasPrefix(err.Error(), want) { // 2^20 / 64
		t.Errorf("got %v, want %s", err, want)
	}
}
