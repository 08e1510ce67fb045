package top

import (
	"context"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"ratelimit/src/operator/output"
)

// refreshInterval is how often the live view asks the service.
const refreshInterval = time.Second

// Control sequences of terminals. The program writes no others.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // the second screen, without a cursor
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	startOfPage = "\x1b[H"
	clearLine   = "\x1b[K"
	restOfPage  = "\x1b[J"
)

// watch draws s and then, once a second, what next returns, on the second screen of the terminal out, until ctx ends.
// After an error of next the last snapshot stays, with its age and the error. size returns the width and the height in
// cells.
func watch(ctx context.Context, out io.Writer, size func() (width, height int), s *snapshot,
	next func(context.Context) (*snapshot, error),
) (err error) {
	if _, err := io.WriteString(out, enterScreen); err != nil {
		return err
	}
	defer func() {
		if _, leaveErr := io.WriteString(out, leaveScreen); err == nil {
			err = leaveErr
		}
	}()
	refresh := time.NewTicker(refreshInterval)
	defer refresh.Stop()
	at := time.Now()
	var problem error
	for {
		width, height := size()
		if _, err := io.WriteString(out, frame(s.screen(width, height, time.Since(at), problem), width)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-refresh.C:
		}
		var newer *snapshot
		if newer, problem = next(ctx); problem == nil {
			s, at = newer, time.Now()
		}
	}
}

// frame returns the bytes that draw lines on a screen of a width. It shortens lines, and quotes those that are not
// printable, so that texts of callers never control the terminal.
func frame(lines []string, width int) string {
	var b strings.Builder
	b.WriteString(startOfPage)
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		// In this order, because after a full line the cursor still stands on its last character.
		b.WriteString(clearLine + output.Shorten(output.Printable(line), width))
	}
	return b.String() + restOfPage
}

// terminalSize returns the size of out in cells, or 80 by 24 if the terminal does not tell.
func terminalSize(out *os.File) (width, height int) {
	width, height, err := term.GetSize(int(out.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		return 80, 24
	}
	return width, height
}
