package record

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ratelimit/src/frontend/admin"
	"ratelimit/src/operator"
)

// service records some lines.
type service struct {
	lines []string
	query admin.RecordQuery
	err   error
	// after runs behind the lines.
	after func(ctx context.Context, write func([]byte) error) error
}

func (s *service) Record(ctx context.Context, q admin.RecordQuery, _ operator.Client, write func([]byte) error) error {
	s.query = q
	if s.err != nil {
		return s.err
	}
	if err := write(nil); err != nil {
		return err
	}
	for _, line := range s.lines {
		if err := write([]byte(line)); err != nil {
			return err
		}
	}
	if s.after != nil {
		return s.after(ctx, write)
	}
	return nil
}

// call runs `ratelimit record` on a service.
func call(t *testing.T, s *service, args ...string) (out, errOut string, err error) {
	t.Helper()
	server := httptest.NewServer(admin.DebugPages{Record: s.Record}.Handler())
	defer server.Close()
	var text, messages bytes.Buffer
	cmd := Command()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(&text)
	cmd.SetErr(&messages)
	cmd.SetArgs(append([]string{"--address", server.URL}, args...))
	err = cmd.ExecuteContext(t.Context())
	return text.String(), messages.String(), err
}

const (
	okLine   = `{"at":"2026-11-27T08:00:00.123456789Z","request":{"domain":"\",\"lost\":9"},"answer":"OK"}` + "\n"
	lostLine = `{"at":"2026-11-27T08:00:00.123456789Z","lost":12}` + "\n"
)

// TestRecord checks what is written, and what is said about it.
func TestRecord(t *testing.T) {
	t.Parallel()
	s := &service{lines: []string{okLine + okLine, lostLine}}
	out, errOut, err := call(t, s, "--sample", "1/20", "--by", "user", "--domain", "d", "--for", "1h",
		"--max-bytes", "999")
	if out != okLine+okLine+lostLine || err != nil || !strings.HasPrefix(errOut, "2 requests in ") ||
		!strings.HasSuffix(errOut, fmt.Sprintf("s, %d bytes; 12 more were lost, so answers of a replay may differ\n",
			len(out))) {
		t.Errorf("%v\n%s%s", err, out, errOut)
	}
	if want := (admin.RecordQuery{
		Percent: 5, ByKey: "user", Domain: "d", For: time.Hour,
		MaxBytes: 999,
	}); s.query != want {
		t.Errorf("asked for %+v, want %+v", s.query, want)
	}
	file := filepath.Join(t.TempDir(), "requests.jsonl")
	out, errOut, err = call(t, s, "-o", file, "--max-bytes", fmt.Sprint(len(okLine)))
	text, _ := os.ReadFile(file)
	info, statErr := os.Stat(file)
	if out != "" || string(text) != okLine || err != nil || statErr != nil || info.Mode().Perm() != 0o600 ||
		!strings.HasSuffix(errOut, "; ended by --max-bytes\n") {
		t.Errorf("%v %v\n%s%s%s", err, info, out, text, errOut)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args string
		err  error
		want string
	}{
		{
			"", operator.Refuse(http.StatusTooManyRequests, "4 recordings run"),
			"status 429: 4 recordings run",
		},
		{"-o /nowhere/x", nil, "the recording cannot be written: open /nowhere/x"},
		{"--address 127.0.0.1:1", nil, "connection refused: start the service"},
	} {
		_, _, err := call(t, &service{err: tt.err}, strings.Fields(tt.args)...)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v; want %s", tt.args, err, tt.want)
		}
	}
}

// TestEarlyEnds checks recordings that end before their time: with Ctrl-C, which is no error, and with a lost
// connection.
func TestEarlyEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	s := &service{lines: []string{okLine}, after: func(ctx context.Context, write func([]byte) error) error {
		cancel()
		err := write([]byte(okLine)) // A request before Ctrl-C, whose line is on its way.
		<-ctx.Done()
		return err
	}}
	server := httptest.NewServer(admin.DebugPages{Record: s.Record}.Handler())
	defer server.Close()
	var out, errOut bytes.Buffer
	cmd := Command()
	cmd.SetOut(&out)
	cmd.SetErr(&errOut)
	cmd.SetArgs([]string{"--address", server.URL, "--for", "1h"})
	if err := cmd.ExecuteContext(ctx); err != nil || !strings.HasSuffix(errOut.String(), "; ended early\n") ||
		out.String() != okLine+okLine {
		t.Errorf("%v: %s%s", err, out.String(), errOut.String())
	}
	s = &service{
		lines: []string{okLine},
		after: func(context.Context, func([]byte) error) error { panic(http.ErrAbortHandler) },
	}
	text, said, err := call(t, s)
	if text != okLine || err == nil || !strings.Contains(err.Error(), "the recording broke off") ||
		!strings.HasPrefix(said, "1 request ") {
		t.Errorf("%v, %s%s", err, text, said)
	}
}
