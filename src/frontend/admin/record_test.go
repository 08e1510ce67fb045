package admin

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"ratelimit/src/operator"
	"ratelimit/testbed/harness"
)

// fakeRecordings write lines, and then wait for the end of the context if they are asked to.
type fakeRecordings struct {
	lines  []string
	waits  bool
	err    error
	query  RecordQuery
	client operator.Client
}

func (f *fakeRecordings) Record(ctx context.Context, q RecordQuery, client operator.Client,
	write func([]byte) error,
) error {
	f.query, f.client = q, client
	if f.err != nil {
		return f.err
	}
	if err := write(nil); err != nil {
		return err
	}
	for _, line := range f.lines {
		if err := write([]byte(line)); err != nil {
			return err
		}
	}
	for f.waits && ctx.Err() == nil {
		if err := write(nil); err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// TestRecordQuery checks what the query of /api/record says.
func TestRecordQuery(t *testing.T) {
	t.Parallel()
	all := RecordQuery{100, "", "", time.Minute, 64 << 20}
	for _, tt := range []struct {
		query string
		want  RecordQuery
		err   string
	}{
		{"", all, ""},
		{"sample=0.5%25&by=user&domain=d&for=1h&max_bytes=7", RecordQuery{0.5, "user", "d", time.Hour, 7}, ""},
		{"sample=1/20", RecordQuery{5, "", "", time.Minute, 64 << 20}, ""},
		{"sample=1/0", RecordQuery{}, `sample "1/0": write a percentage`},
		{"sample=0/5", RecordQuery{}, "write a percentage"},
		{"sample=2/1", RecordQuery{}, "write a percentage"},
		{"sample=5", RecordQuery{}, "write a percentage"},
		{"sample=NaN%25", RecordQuery{}, "write a percentage"},
		{"sample=0%25", RecordQuery{}, "write a percentage"},
		{"sample=101%25", RecordQuery{}, "write a percentage"},
		{"by=", RecordQuery{}, "by has 0 bytes"},
		{"by=" + strings.Repeat("x", 257), RecordQuery{}, "by has 257 bytes"},
		{"for=0s", RecordQuery{}, `for is "0s": write a duration above 0s and up to 24h0m0s`},
		{"for=25h", RecordQuery{}, "up to 24h0m0s"},
		{"for=x", RecordQuery{}, "for is"},
		{"max_bytes=0", RecordQuery{}, `max_bytes is "0": write 1 to 1073741824`},
		{"max_bytes=1073741825", RecordQuery{}, "max_bytes is"},
		{"domain=a&domain=b", RecordQuery{}, `give "domain" once`},
		{"x=1", RecordQuery{}, `unknown parameter "x"`},
		{"%zz", RecordQuery{}, "the query cannot be read"},
	} {
		got, err := parseRecordQuery(tt.query)
		switch {
		case err != nil && (tt.err == "" || !strings.Contains(err.Error(), tt.err)),
			err == nil && (tt.err != "" || got != tt.want):
			t.Errorf("%s: %+v, %v; want %+v, %s", tt.query, got, err, tt.want, tt.err)
		}
	}
}

// TestWhoMayRecord checks who gets a recording, which has what callers sent.
func TestWhoMayRecord(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		hasToken bool
		remote   string
		header   [2]string
		err      error
		want     int
	}{
		{name: "this host", remote: "127.0.0.1:9", want: http.StatusOK},
		{name: "another host", remote: "10.0.0.9:9", want: http.StatusForbidden},
		{name: "another host with the token", hasToken: true, remote: "10.0.0.9:9", want: http.StatusOK},
		{
			name: "a proxy on this host", remote: "127.0.0.1:9", header: [2]string{"X-Forwarded-For", "10.0.0.9"},
			want: http.StatusForbidden,
		},
		{
			name: "a page of another site", hasToken: true, remote: "127.0.0.1:9",
			header: [2]string{"Sec-Fetch-Site", "cross-site"}, want: http.StatusForbidden,
		},
		{
			name: "one too many", hasToken: true, remote: "127.0.0.1:9",
			err:  operator.Refuse(http.StatusTooManyRequests, "full"),
			want: http.StatusTooManyRequests,
		},
	} {
		f := &fakeRecordings{lines: []string{"{}\n"}, err: tt.err}
		r := httptest.NewRequest(http.MethodGet, "/api/record?by=user", nil)
		r.RemoteAddr = tt.remote
		if tt.header[0] != "" {
			r.Header.Set(tt.header[0], tt.header[1])
		}
		w := httptest.NewRecorder()
		DebugPages{Record: f.Record, HasToken: tt.hasToken}.Handler().ServeHTTP(w, r)
		if w.Code != tt.want || (w.Code == http.StatusOK) != (w.Body.String() == "\n{}\n") ||
			w.Code != http.StatusOK && f.query.ByKey != "" && tt.err == nil {
			t.Errorf("%s: %d %q, want %d", tt.name, w.Code, w.Body, tt.want)
		}
	}
	for _, method := range []string{http.MethodPost, http.MethodHead} {
		f := &fakeRecordings{}
		r, w := httptest.NewRequest(method, "/api/record", nil), httptest.NewRecorder()
		DebugPages{Record: f.Record, HasToken: true}.Handler().ServeHTTP(w, r)
		if f.query != (RecordQuery{}) || (w.Code == http.StatusOK) != (method == http.MethodHead) {
			t.Errorf("%s: %d, started %+v", method, w.Code, f.query)
		}
	}
}

// TestRecordEnds checks the bytes of a recording and why it ended.
func TestRecordEnds(t *testing.T) {
	t.Parallel()
	lines := []string{"{\"a\":1}\n{\"b\":2}\n", "{\"c\":3}\n{\"d\":4}\n"} // 8 bytes each
	for _, tt := range []struct{ query, want, end string }{
		{"for=1h&max_bytes=1000", "\n" + lines[0] + lines[1], RecordEndTime},
		{"for=1h&max_bytes=32", "\n" + lines[0] + lines[1], RecordEndTime},
		{"for=1h&max_bytes=31", "\n" + lines[0] + "{\"c\":3}\n", RecordEndMaxBytes},
		{"for=1h&max_bytes=16", "\n" + lines[0], RecordEndMaxBytes},
		{"for=1h&max_bytes=7", "\n", RecordEndMaxBytes},
	} {
		server := httptest.NewServer(DebugPages{Record: (&fakeRecordings{lines: lines}).Record}.Handler())
		resp, err := http.Get(server.URL + "/api/record?" + tt.query)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || strings.TrimRight(string(text), "\n") != strings.TrimRight(tt.want, "\n") ||
			resp.Trailer.Get(RecordEndTrailer) != tt.end {
			t.Errorf("%s: %v, %q, ended by %s; want %q, %s", tt.query, err, text, resp.Trailer.Get(RecordEndTrailer),
				tt.want, tt.end)
		}
		server.Close()
	}
}

// TestRecordOverTCP checks that a recording outlives the server's timeouts, and ends when its client does not read or
// has gone.
func TestRecordOverTCP(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	record := func(ctx context.Context, _ RecordQuery, _ operator.Client, write func([]byte) error) error {
		var err error
		for err == nil && ctx.Err() == nil {
			err = write([]byte(strings.Repeat("x", 1000) + "\n"))
			time.Sleep(10 * time.Millisecond)
		}
		ended <- errors.Join(err, ctx.Err())
		return err
	}
	listener := harness.Listen(t)
	server := &http.Server{
		Handler: DebugPages{Record: record}.Handler(), ReadTimeout: 500 * time.Millisecond,
		WriteTimeout: 500 * time.Millisecond,
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + listener.Addr().String() + "/api/record?for=1h")
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(resp.Body)
	for n := 0; n < 100 && lines.Scan(); n++ { // a second.
	}
	if err := lines.Err(); err != nil {
		t.Errorf("the recording broke off: %v", err)
	}
	_ = resp.Body.Close()
	if err := <-ended; err == nil {
		t.Error("the recording went on without its client")
	}
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != http.ErrServerClosed {
		t.Error(err)
	}
}
