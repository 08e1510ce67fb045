package xdsrules

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The Watcher's reasons to end a stream.
var (
	errReload     = errors.New("asked to fetch the rules again")
	errNotReading = fmt.Errorf("the server has not read what it was sent for %v", sendTimeout)
)

// Trouble is the reason why there is no stream to the server.
type Trouble struct {
	Server string
	What   string
	Fix    string // may be empty
}

// Error is one line.
func (t *Trouble) Error() string {
	text := fmt.Sprintf("xds server %s: %s", t.Server, t.What)
	if t.Fix != "" {
		text += "; " + t.Fix
	}
	return text
}

// trouble describes an error of gRPC.
func (w *Watcher) trouble(ctx context.Context, err error) *Trouble {
	t := &Trouble{Server: w.cfg.Server}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	s, isStatus := status.FromError(err)
	switch {
	case errors.Is(err, io.EOF):
		t.What = "the server ended the stream"
	case !isStatus:
		t.What = err.Error()
	case s.Code() == codes.Unavailable:
		t.What = s.Message()
	default:
		t.What = fmt.Sprintf("%s (%s)", s.Message(), s.Code())
	}
	t.What = oneLine(w.secrets.Replace(t.What))
	for line := range strings.Lines(adviceText) {
		if about, fix, _ := strings.Cut(line, " -> "); strings.Contains(t.What, about) {
			t.Fix = strings.TrimSpace(fix)
			break
		}
	}
	return t
}

// secretsOf returns a replacer that hides the values of headers, whole and word by word: a
// server may quote the token that it refuses, and its text appears in the log and in the
// readiness endpoint. Longer values are replaced first.
func secretsOf(headers map[string]string) *strings.Replacer {
	var texts, pairs []string
	for _, value := range headers {
		texts = append(append(texts, value), strings.Fields(value)...)
	}
	slices.SortFunc(texts, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	for _, text := range texts {
		if len(text) >= 4 { // shorter words are too common
			pairs = append(pairs, text, "…")
		}
	}
	return strings.NewReplacer(pairs...)
}

// adviceText is how to fix errors: on each line a part of an error's text, " -> ", and what to do about it. The first line that
// fits counts. gRPC returns errors of the connection as text only.
//
//go:embed advice.txt
var adviceText string

// maxText bounds texts of the server in the log, and texts sent to it, in bytes.
const maxText = 4 << 10

// oneLine returns text as one line of bounded length.
func oneLine(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
	return cut(text)
}

// cut bounds a text, and makes it valid UTF-8, which protobuf demands.
func cut(text string) string {
	if len(text) > maxText {
		text = text[:maxText-len("...")] + "..."
	}
	return strings.ToValidUTF8(text, "?")
}
