package top

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// openTerminal returns a terminal of 100 by 30 cells, and the end that its keyboard and its screen are at.
func openTerminal(t *testing.T) (user, program *os.File) {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("there are no terminals here: %v", err)
	}
	t.Cleanup(func() { _ = user.Close() })
	conn, err := user.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var number int
	controlErr := conn.Control(func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err == nil {
			number, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	})
	if err != nil || controlErr != nil {
		t.Fatal(err, controlErr)
	}
	program, err = os.OpenFile(filepath.Join("/dev/pts", strconv.Itoa(number)), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = program.Close() })
	setSize(t, program, 100, 30)
	return user, program
}

func setSize(t *testing.T, terminal *os.File, width, height uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ,
		&unix.Winsize{Col: width, Row: height}); err != nil {
		t.Fatal(err)
	}
}

// shown returns what the program writes until text has appeared.
func shown(t *testing.T, user *os.File, text string) string {
	t.Helper()
	if err := user.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	buffer := make([]byte, 1<<16)
	for !strings.Contains(all.String(), text) {
		n, err := user.Read(buffer)
		if err != nil {
			t.Fatalf("no %q, but %v after\n%q", text, err, all.String())
		}
		all.Write(buffer[:n])
	}
	return all.String()
}

// The live view in a real terminal.
func TestInTerminal(t *testing.T) {
	t.Setenv("TERM", "xterm")
	user, program := openTerminal(t)
	cmd := Command()
	cmd.SetOut(program)
	cmd.SetArgs([]string{"--address", example().start(t), "--sort", "denied"})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- cmd.ExecuteContext(ctx) }()
	if first := shown(t, user, "path=/pay,user=eve"); !strings.HasPrefix(first, enterScreen) {
		t.Errorf("the screen begins with %q", first)
	}
	setSize(t, program, 24, 30)
	shown(t, user, "…")
	cancel()
	shown(t, user, leaveScreen)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A terminal that knows no control sequences gets a snapshot, as wide as it is.
func TestDumbTerminal(t *testing.T) {
	t.Setenv("TERM", "dumb")
	user, program := openTerminal(t)
	cmd := Command()
	cmd.SetIn(program)
	cmd.SetOut(program)
	cmd.SetArgs([]string{"--address", example().start(t)})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if text := shown(t, user, "shop.path_/pay\r\n"); strings.Contains(text, "\x1b") ||
		!strings.Contains(text, "HOTTEST") && !strings.Contains(text, "MOST DENIED") {
		t.Errorf("got %q", text)
	}
}
