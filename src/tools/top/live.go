package top

import (
	"context"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

const (
	// refreshInterval is how often the live view asks the service.
	refreshInterval = time.Second
	// sizeInterval is how often it asks the terminal for its size.
	sizeInterval = 200 * time.Millisecond
)

// screen is a terminal that shows the live view.
type screen struct {
	out  io.Writer
	keys <-chan string              // keys has what the terminal sends; nil if there is no keyboard.
	size func() (width, height int) // size returns the size in cells.
}

// fetched is the result of a fetch. panicked is the value of a panic, nil without one.
type fetched struct {
	snapshot *snapshot
	err      error
	panicked any
}

// runLive shows m until ctx ends or a key quits. fetch is called in another goroutine, which ends before runLive returns, with
// the window of subjects. m must have a snapshot.
func runLive(ctx context.Context, m *model, sc screen, fetch func(ctx context.Context, window string) (*snapshot, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	results := make(chan fetched)
	running := false
	start := func() {
		if running {
			return
		}
		running = true
		go func(window string) {
			var f fetched
			defer func() {
				f.panicked = recover() // The goroutine of the terminal panics with it, after it has restored the terminal.
				results <- f
			}()
			f.snapshot, f.err = fetch(ctx, window)
		}(m.window)
	}
	defer func() {
		cancel()
		if running {
			<-results
		}
	}()
	refresh, resize := time.NewTicker(refreshInterval), time.NewTicker(sizeInterval)
	defer refresh.Stop()
	defer resize.Stop()
	m.resize(sc.size())
	var pending string
	for {
		if _, err := io.WriteString(sc.out, frame(m.view(time.Now()), m.width)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-refresh.C:
			start()
		case f := <-results:
			running = false
			if f.panicked != nil {
				panic(f.panicked)
			}
			m.receive(f.snapshot, f.err, time.Now())
		case <-resize.C:
			width, height := sc.size()
			if width == m.width && height == m.height {
				continue
			}
			m.resize(width, height)
		case sent, isOpen := <-sc.keys:
			if !isOpen {
				sc.keys = nil // The terminal has gone; SIGHUP follows.
				continue
			}
			window := m.window
			keys, rest := decodeKeys(pending + sent)
			pending = rest
			for _, k := range keys {
				if m.press(k) {
					return nil
				}
			}
			if m.window != window {
				start()
			}
		}
	}
}

// withTerminal calls show with the terminal out, on its second screen. If in is a terminal, too, its keys are sent at once and without
// echo. The terminal is as before when withTerminal returns or panics.
func withTerminal(in io.Reader, out *os.File, show func(screen) error) (err error) {
	sc := screen{out: out, size: func() (width, height int) { return terminalSize(out) }}
	if keyboard, ok := in.(*os.File); ok && term.IsTerminal(int(keyboard.Fd())) {
		state, err := term.MakeRaw(int(keyboard.Fd()))
		if err != nil {
			return err
		}
		defer func() { _ = term.Restore(int(keyboard.Fd()), state) }() // If it fails, the terminal has gone.
		sc.keys = readKeys(keyboard)
	}
	defer func() {
		if _, leaveErr := io.WriteString(out, leaveScreen); err == nil {
			err = leaveErr
		}
	}()
	if _, err := io.WriteString(out, enterScreen); err != nil {
		return err
	}
	return show(sc)
}

// readKeys returns a channel with what keyboard sends. Its goroutine ends with keyboard or the process, because a read of a terminal
// cannot be stopped.
func readKeys(keyboard io.Reader) <-chan string {
	keys := make(chan string, 64)
	go func() {
		defer close(keys)
		buffer := make([]byte, 256)
		for {
			n, err := keyboard.Read(buffer)
			if err != nil {
				return
			}
			select {
			case keys <- string(buffer[:n]):
			default: // The view has ended, or keys arrive faster than it draws.
			}
		}
	}()
	return keys
}

// terminalSize returns the size of out in cells, or 80 by 24 if the terminal does not tell.
func terminalSize(out *os.File) (width, height int) {
	width, height, err := term.GetSize(int(out.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		return 80, 24
	}
	return width, height
}
