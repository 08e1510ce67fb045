package main

import (
	"fmt"
	"net"
	"time"
)

// notifySystemd tells systemd that the service is ready, if socket is not empty. socket is $NOTIFY_SOCKET, which
// systemd sets for units of Type=notify: the path of a datagram socket, or @ and an abstract name.
func notifySystemd(socket string) error {
	if socket == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err == nil {
		_ = conn.SetWriteDeadline(time.Now().Add(time.Second)) // An open socket takes deadlines.
		_, err = conn.Write([]byte("READY=1"))
		_ = conn.Close() // A datagram is sent at once.
	}
	if err != nil {
		return fmt.Errorf("NOTIFY_SOCKET=%s: cannot tell systemd that the service is ready: %w; use Type=exec in the unit",
			socket, err)
	}
	return nil
}
