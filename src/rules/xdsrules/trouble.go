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

// trouble describes on one line why there is no stream: an error of gRPC, or the reason why ctx ended.
func (w *Watcher) trouble(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	s, isStatus := status.FromError(err)
	var what string
	switch {
	case errors.Is(err, io.EOF):
		what = "the server ended the stream"
	case !isStatus:
		what = err.Error()
	case s.Code() == codes.Unavailable:
		what = s.Message()
	default:
		what = fmt.Sprintf("%s (%s)", s.Message(), s.Code())
	}
	text := fmt.Sprintf("xds server %s: %s", w.cfg.Server, oneLine(w.secrets.Replace(what)))
	for line := range strings.Lines(adviceText) {
		if about, fix, _ := strings.Cut(line, " -> "); strings.Contains(text, about) {
			return errors.New(text + "; " + strings.TrimSpace(fix))
		}
	}
	return errors.New(text)
}

// secretsOf returns a replacer that hides the values of headers, whole and word by word: a server may quote the token that it
// refuses, and its text appears in the log and in the readiness endpoint. Longer values are replaced first.
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
