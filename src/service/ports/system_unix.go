//go:build unix

package ports

import (
	"errors"
	"math"
	"net"
	"os"
	"syscall"
)

// boundTCP is a TCP address without a listener: bind was called, and listen was not.
type boundTCP struct {
	file *os.File
	addr net.Addr
}

// bindTCP takes the address addr, host:port. A wildcard address is that of IPv6 and IPv4, as with net.Listen.
func bindTCP(addr string) (boundSocket, error) {
	tcp, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return nil, err
	}
	var v6 syscall.SockaddrInet6
	v6.Port = tcp.Port
	copy(v6.Addr[:], tcp.IP.To16())
	var v4 syscall.SockaddrInet4
	v4.Port = tcp.Port
	copy(v4.Addr[:], tcp.IP.To4())
	if zone, err := net.InterfaceByName(tcp.Zone); err == nil {
		v6.ZoneId = uint32(zone.Index)
	}
	isWildcard := len(tcp.IP) == 0 || tcp.IP.IsUnspecified()
	if !isWildcard && tcp.IP.To4() != nil {
		return bindSocket(syscall.AF_INET, &v4, addr)
	}
	if isWildcard {
		v6.Addr = [16]byte{}
	}
	bound, err := bindSocket(syscall.AF_INET6, &v6, addr)
	if err != nil && isWildcard && !errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, syscall.EACCES) {
		return bindSocket(syscall.AF_INET, &v4, addr) // The system has no IPv6.
	}
	return bound, err
}

// bindSocket makes a TCP socket of a family and binds it to an address, whose text is addr.
func bindSocket(family int, address syscall.Sockaddr, addr string) (boundSocket, error) {
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM, syscall.IPPROTO_TCP)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	b := &boundTCP{file: os.NewFile(uintptr(fd), addr)}
	// Connections of an earlier process may still be closing on the port.
	if err = os.NewSyscallError("setsockopt",
		syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)); err == nil && family == syscall.AF_INET6 {
		err = os.NewSyscallError("setsockopt", syscall.SetsockoptInt(fd, syscall.IPPROTO_IPV6, syscall.IPV6_V6ONLY, 0))
	}
	if err == nil {
		err = os.NewSyscallError("bind", syscall.Bind(fd, address))
	}
	if err == nil {
		b.addr, err = localAddr(fd)
	}
	if err != nil {
		b.release()
		return nil, &net.OpError{Op: "listen", Net: "tcp", Err: err}
	}
	return b, nil
}

// localAddr returns the address of a bound socket.
func localAddr(fd int) (net.Addr, error) {
	bound, err := syscall.Getsockname(fd)
	if err != nil {
		return nil, os.NewSyscallError("getsockname", err)
	}
	if v4, ok := bound.(*syscall.SockaddrInet4); ok {
		return &net.TCPAddr{IP: v4.Addr[:], Port: v4.Port}, nil
	}
	v6 := bound.(*syscall.SockaddrInet6)
	addr := &net.TCPAddr{IP: v6.Addr[:], Port: v6.Port}
	if link, err := net.InterfaceByIndex(int(v6.ZoneId)); v6.ZoneId != 0 && err == nil {
		addr.Zone = link.Name
	}
	return addr, nil
}

func (b *boundTCP) Addr() net.Addr { return b.addr }

func (b *boundTCP) listen() (net.Listener, error) {
	defer b.release() // The listener has a descriptor of its own.
	if err := syscall.Listen(int(b.file.Fd()), maxBacklog); err != nil {
		return nil, os.NewSyscallError("listen", err)
	}
	return net.FileListener(b.file)
}

// maxBacklog is how many connections may wait for Accept. The kernel lowers it to its own bound, such as
// net.core.somaxconn.
const maxBacklog = 1<<16 - 1

func (b *boundTCP) release() { _ = b.file.Close() } // The socket was not used, so an error of Close loses nothing.

// OpenFiles returns how many files the process may have open; 0: not known. Go raises the soft limit to the hard one
// before main.
func OpenFiles() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return int(min(uint64(limit.Cur), math.MaxInt32))
}
