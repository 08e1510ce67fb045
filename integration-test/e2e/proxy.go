package main

import (
	"io"
	"net"
	"sync"
	"time"
)

// delayProxy passes connections on to a server, and replies back after a delay. Replies do not wait for each other.
type delayProxy struct {
	listener net.Listener
	target   string
	delay    time.Duration
	wg       sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	closed bool
	conns  []net.Conn
}

func startDelayProxy(target string, delay time.Duration) (*delayProxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &delayProxy{listener: l, target: target, delay: delay}
	p.wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.relay(client) })
		}
	})
	return p, nil
}

func (p *delayProxy) addr() string { return p.listener.Addr().String() }

// close ends all connections and waits for their goroutines.
func (p *delayProxy) close() error {
	err := p.listener.Close()
	p.mu.Lock()
	p.closed = true
	for _, c := range p.conns {
		_ = c.Close() // the other side may have closed it
	}
	p.mu.Unlock()
	p.wg.Wait()
	return err
}

// keep lets close end a connection. It reports false if close has run.
func (p *delayProxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, c)
	return !p.closed
}

// reply is bytes to deliver at an instant.
type reply struct {
	bytes []byte
	due   time.Time
}

func (p *delayProxy) relay(client net.Conn) {
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = client.Close() // the client learns it that way
		return
	}
	closeBoth := func() { _, _ = client.Close(), server.Close() }
	defer closeBoth()
	if !p.keep(client) || !p.keep(server) {
		return
	}
	replies := make(chan reply, 4096)
	p.wg.Go(func() {
		defer closeBoth()
		for r := range replies {
			time.Sleep(time.Until(r.due))
			if _, err := client.Write(r.bytes); err != nil {
				for range replies { // the reader below ends soon
				}
				return
			}
		}
	})
	p.wg.Go(func() {
		defer close(replies)
		for {
			buffer := make([]byte, 16<<10)
			n, err := server.Read(buffer)
			if err != nil {
				return
			}
			replies <- reply{buffer[:n], time.Now().Add(p.delay)}
		}
	})
	_, _ = io.Copy(server, client) // an error ends the connection
}
