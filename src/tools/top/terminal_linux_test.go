package top

import (
	"io"
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
	if err := unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: width, Row: height}); err != nil {
		t.Fatal(err)
	}
}

// modes returns the settings of a terminal.
func modes(t *testing.T, terminal *os.File) unix.Termios {
	t.Helper()
	state, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *state
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

// The live view in a real terminal: keys, sizes, and the terminal as before when it ends.
func TestInTerminal(t *testing.T) {
	t.Setenv("TERM", "xterm")
	user, program := openTerminal(t)
	before := modes(t, program)
	address := example().start(t)
	cmd := Command()
	cmd.SetIn(program)
	cmd.SetOut(program)
	cmd.SetArgs([]string{address})
	done := make(chan error, 1)
	go func() { done <- cmd.ExecuteContext(t.Context()) }()
	if first := shown(t, user, "rules 1-3 of 3"); !strings.HasPrefix(first, enterScreen) {
		t.Errorf("the screen begins with %q", first)
	}
	if modes(t, program) == before {
		t.Error("the keys are not sent at once")
	}
	for _, step := range []struct{ sent, want string }{
		{"d", "sort: denied"},
		{"h", "LAST HOUR"},
		{"\x1b[B\x1b[B", "rules 1-3 of 3"},
	} {
		if _, err := io.WriteString(user, step.sent); err != nil {
			t.Fatal(err)
		}
		shown(t, user, step.want)
	}
	setSize(t, program, 24, 30)
	shown(t, user, "…")
	if _, err := io.WriteString(user, "q"); err != nil {
		t.Fatal(err)
	}
	shown(t, user, leaveScreen)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if modes(t, program) != before {
		t.Error("the terminal is not as before")
	}
}

// A panic leaves the terminal as before, too.
func TestTerminalAfterPanic(t *testing.T) {
	user, program := openTerminal(t)
	before := modes(t, program)
	func() {
		defer func() {
			if p := recover(); p != "a bug" {
				t.Errorf("panicked with %v", p)
			}
		}()
		_ = withTerminal(program, program, func(screen) error { panic("a bug") })
	}()
	shown(t, user, enterScreen+leaveScreen)
	if modes(t, program) != before {
		t.Error("the terminal is not as before")
	}
}

// A terminal that knows no control sequences gets a snapshot, as wide as it is.
func TestDumbTerminal(t *testing.T) {
	t.Setenv("TERM", "dumb")
	user, program := openTerminal(t)
	cmd := Command()
	cmd.SetIn(program)
	cmd.SetOut(program)
	cmd.SetArgs([]string{example().start(t)})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if text := shown(t, user, "shop.path_/pay\r\n"); strings.Contains(text, "\x1b") || !strings.Contains(text, "HOTTEST") && !strings.Contains(text, "MOST DENIED") {
		t.Errorf("got %q", text)
	}
}
