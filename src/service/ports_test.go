package service

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

func TestTakenPorts(t *testing.T) {
	l := harness.Listen(t)
	defer func() { _ = l.Close() }()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ variable, name string }{
		{"PORT", "http"},
		{"GRPC_PORT", "grpc"},
		{"DEBUG_PORT", "debug"},
		{"DIVVY_PORT", "divvy"},
		{"RESP_PORT", "resp"},
	} {
		s := launch(t, oneRule, tt.variable+"="+port)
		want := fmt.Sprintf("the %s port 127.0.0.1:%s is taken: stop what listens there, or set %s", tt.name, port,
			tt.variable)
		if err := s.wait(); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestUnixSocket(t *testing.T) { eachEngine(t, testUnixSocket) }

func testUnixSocket(t *testing.T, engine string) {
	path := filepath.Join(t.TempDir(), "s")
	// A killed process leaves a socket file on which no process answers.
	old, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	old.SetUnlinkOnClose(false)
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	s := launch(t, oneRule, engine, "GRPC_UDS="+path)
	s.until("ready", s.healthy)
	if err := callAt("unix://"+path, "d", []string{"ip"}); err != nil {
		t.Error(err)
	}
	if err := launch(t, oneRule, engine, "GRPC_UDS="+path).wait(); err == nil ||
		!strings.Contains(err.Error(), "is taken") {
		t.Errorf("a second start: %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	testfiles.Write(t, file, "mine")
	if err := launch(t, oneRule, engine, "GRPC_UDS="+file).wait(); err == nil ||
		!strings.Contains(err.Error(), "is no socket") {
		t.Errorf("a file in the way: %v", err)
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "mine" {
		t.Errorf("the file is gone: %v", err)
	}
}
