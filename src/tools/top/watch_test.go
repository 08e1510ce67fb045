package top

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fakeTerminal is a terminal in tests.
type fakeTerminal struct {
	mu            sync.Mutex
	out           strings.Builder
	width, height int
}

func (f *fakeTerminal) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.out.Write(p)
}

// all returns what was written, and last the frame that was written last.
func (f *fakeTerminal) all() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.out.String()
}

func (f *fakeTerminal) last() string {
	frames := strings.Split(f.all(), startOfPage)
	return withoutSequences(frames[len(frames)-1])
}

func (f *fakeTerminal) resize(width, height int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.width, f.height = width, height
}

func (f *fakeTerminal) size() (width, height int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.width, f.height
}

// The live view follows the service and the size of the terminal, survives failures, and leaves the terminal as it was.
func TestWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		terminal := &fakeTerminal{width: 100, height: 30}
		var failing, hanging atomic.Bool
		rules := 3
		next := func(ctx context.Context) (*snapshot, error) {
			if failing.Load() {
				return nil, errors.New("gone")
			}
			if hanging.Load() {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			rules++
			return exampleSnapshot(rules), nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- watch(ctx, terminal, terminal.size, exampleSnapshot(3), next) }()
		for _, step := range []struct {
			act  func()
			want string // is on the screen after 1.1 s
		}{
			{func() {}, "\nshop.r03 "},
			{func() { terminal.resize(12, 10) }, "a:6070: rea…"},
			{func() { terminal.resize(100, 30); failing.Store(true) }, "as of 1s ago: a:6070: ready"},
			{func() {}, "\ngone\n"},
			{func() { failing.Store(false) }, "\nshop.r05 "},
			{func() { hanging.Store(true) }, "\nshop.r05 "},
		} {
			step.act()
			time.Sleep(1100 * time.Millisecond)
			synctest.Wait()
			if got := terminal.last(); !strings.Contains(got, step.want) {
				t.Errorf("no %s in\n%s", step.want, got)
			}
		}
		cancel()
		if err := <-done; err != nil || !strings.HasPrefix(terminal.all(), enterScreen) ||
			!strings.HasSuffix(terminal.all(), leaveScreen) {
			t.Errorf("%v after %q", err, terminal.all())
		}
	})
}
