package main

import (
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestNotifySystemd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	sockets := []string{filepath.Join(dir, "notify")}
	if runtime.GOOS == "linux" {
		sockets = append(sockets, "@"+strings.ReplaceAll(dir, "/", "-")) // An abstract name of this test alone.
	}
	for _, socket := range sockets {
		conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		if err := notifySystemd(socket); err != nil {
			t.Error(err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		message := make([]byte, 100)
		n, err := conn.Read(message)
		if err != nil || string(message[:n]) != "READY=1" {
			t.Errorf("%s: got %q, %v", socket, message[:n], err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := notifySystemd(""); err != nil {
		t.Errorf("without a socket: %v", err)
	}
	if err := notifySystemd(filepath.Join(dir, "none")); err == nil || !strings.Contains(err.Error(), "NOTIFY_SOCKET=") {
		t.Errorf("without a listener: %v", err)
	}
}
