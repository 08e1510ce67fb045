package secrets

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ratelimit/testbed/testfiles"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	testfiles.Write(t, path, text)
}

// The steps of a rotation, and mistakes, which change nothing.
func TestRotation(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "token")
	write(t, path, "old\n")
	synctest.Test(t, func(t *testing.T) {
		f, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		said := make(chan string, 10)
		ctx, stop := context.WithCancel(t.Context())
		go func() {
			_ = f.Run(ctx, func(err error) {
				if err == nil {
					said <- "changed"
				} else {
					said <- err.Error()
				}
			})
		}()
		for i, step := range []struct {
			text, said string
			want       []string
		}{
			{"old\n", "", []string{"old"}},
			{"old\nnew\n", "changed", []string{"old", "new"}},
			{"new\nold\n", "changed", []string{"new", "old"}},
			{"", "0 lines with a secret: write one", []string{"new", "old"}},
			{"a\nb\nc", "", []string{"new", "old"}}, // A file that stays unusable is said once.
			{"new\r\n\r\n", "changed", []string{"new"}},
			{strings.Repeat("x", maxFileBytes+1), "larger than 65536 bytes", []string{"new"}},
			{"new", "changed", []string{"new"}},
		} {
			write(t, path, step.text)
			time.Sleep(3*checkInterval + checkInterval/2)
			synctest.Wait()
			var got string
			for len(said) > 0 {
				got += <-said
			}
			if (got == "") != (step.said == "") || !strings.Contains(got, step.said) || !slices.Equal(f.Valid(), step.want) {
				t.Errorf("step %d: %q is valid, said %q", i, f.Valid(), got)
			}
		}
		stop()
		synctest.Wait()
	})
}

func TestOpen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	three := filepath.Join(dir, "three")
	write(t, three, "secret-a\nsecret-b\nsecret-c\n")
	for path, want := range map[string]string{
		filepath.Join(dir, "none"): "no such file", dir: "is a directory", three: "3 lines with a secret",
	} {
		_, err := Open(path)
		if text := fmt.Sprint(err); !strings.Contains(text, want) || strings.Contains(text, "secret-") ||
			!strings.Contains(text, path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
