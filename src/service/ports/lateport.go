package ports

import (
	"context"
	"net"
	"sync"
)

// lateListener has its address from the start, but clients cannot connect before open: their attempts are refused, as
// if nothing listened there. Accept waits for open.
type lateListener struct {
	socket  boundSocket
	mu      sync.Mutex
	inner   net.Listener  // nil before open; guarded by mu.
	isEnded bool          // set by Close; guarded by mu.
	changed chan struct{} // closed by the first call of open or Close.
}

// boundSocket is an address that this process has taken.
type boundSocket interface {
	Addr() net.Addr
	listen() (net.Listener, error) // listen lets clients connect. It is called once at most.
	release()                      // release gives up the address, unless listen was called.
}

func newLateListener(socket boundSocket) *lateListener {
	return &lateListener{socket: socket, changed: make(chan struct{})}
}

// open lets clients connect, and reports whether they could not before. It does nothing after Close, and after the
// first call.
func (l *lateListener) open() (isNew bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isEnded || l.inner != nil {
		return false, nil
	}
	if l.inner, err = l.socket.listen(); err != nil {
		return false, err
	}
	close(l.changed)
	return true, nil
}

// Accept waits for open and then for a client.
func (l *lateListener) Accept() (net.Conn, error) {
	<-l.changed
	l.mu.Lock()
	inner := l.inner
	l.mu.Unlock()
	if inner == nil {
		return nil, net.ErrClosed
	}
	return inner.Accept()
}

// Close ends Accept and gives up the address.
func (l *lateListener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inner != nil {
		return l.inner.Close()
	}
	if !l.isEnded {
		l.isEnded = true
		close(l.changed)
		l.socket.release()
	}
	return nil
}

// Addr returns the address, even before open.
func (l *lateListener) Addr() net.Addr { return l.socket.Addr() }

// lateUnixSocket is the path of a unix socket. Its file appears when clients can connect, because clients wait for the
// file.
type lateUnixSocket struct{ path string }

func (s lateUnixSocket) Addr() net.Addr { return &net.UnixAddr{Name: s.path, Net: "unix"} }

func (s lateUnixSocket) listen() (net.Listener, error) {
	return new(net.ListenConfig).Listen(context.Background(), "unix", s.path)
}

func (s lateUnixSocket) release() {}
