//go:build linux

package xdsrules

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials/insecure"

	"ratelimit/testbed/harness"
)

// Each connection has the kernel look after its peer, whatever copies of the
// credentials gRPC makes.
func TestProbing(t *testing.T) {
	l := harness.Listen(t)
	t.Cleanup(func() { _ = l.Close() })
	dialer := net.Dialer{KeepAlive: -1}
	conn, err := dialer.DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, _, err := (probingCredentials{insecure.NewCredentials()}).Clone().ClientHandshake(t.Context(), "x",
		conn); err != nil {
		t.Fatal(err)
	}
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for name, option := range map[string]struct{ level, option, want int }{
		"on":       {unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		"idle":     {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 30},
		"interval": {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 5},
		"count":    {unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 4},
	} {
		err := raw.Control(func(fd uintptr) {
			if got, err := unix.GetsockoptInt(int(fd), option.level, option.option); err != nil || got != option.want {
				t.Errorf("%s: %d, %v", name, got, err)
			}
		})
		if err != nil {
			t.Error(err)
		}
	}
}
