//go:build linux

package siege

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ratelimit/testbed/harness"
)

// chatterbox is a proxy that adds a reply when it is told to.
type chatterbox struct {
	addr, target, reply string

	mu    sync.Mutex // guards links
	links map[*chatterLink]struct{}
}

type chatterLink struct {
	client  net.Conn
	server  net.Conn
	writing sync.Mutex // guards writes to the client
	replied time.Time  // guarded by writing; zero before the first reply
	closed  chan struct{}
}

func startChatterbox(t *testing.T, target, reply string) (*chatterbox, error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &chatterbox{addr: l.Addr().String(), target: target, reply: reply, links: make(map[*chatterLink]struct{})}
	t.Cleanup(func() {
		_ = l.Close()
		c.mu.Lock()
		defer c.mu.Unlock()
		for link := range c.links {
			_ = link.client.Close()
		}
	})
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				_ = client.Close()
				continue
			}
			c.run(&chatterLink{client: client, server: server, closed: make(chan struct{})})
		}
	}()
	return c, nil
}

// run passes bytes on until the client closes.
func (c *chatterbox) run(link *chatterLink) {
	c.mu.Lock()
	c.links[link] = struct{}{}
	c.mu.Unlock()
	go func() {
		_, _ = io.Copy(link.server, link.client)
		close(link.closed)
		_ = link.server.Close()
		_ = link.client.Close()
		c.mu.Lock()
		delete(c.links, link)
		c.mu.Unlock()
	}()
	go func() {
		_, _ = io.Copy(link, link.server)
		_ = link.client.Close()
	}()
}

// Write sends replies of the store to the client.
func (link *chatterLink) Write(p []byte) (int, error) {
	link.writing.Lock()
	defer link.writing.Unlock()
	link.replied = time.Now()
	return link.client.Write(p)
}

// interject adds a reply to each connection that has replies, and waits until the
// client has closed it.
func (c *chatterbox) interject() (added int, err error) {
	c.mu.Lock()
	var links []*chatterLink
	for link := range c.links {
		links = append(links, link)
	}
	c.mu.Unlock()
	for _, link := range links {
		link.writing.Lock()
		used := time.Since(link.replied) < time.Second
		if used {
			_, err = io.WriteString(link.client, c.reply)
		}
		link.writing.Unlock()
		if err != nil || !used {
			err = nil // it is being closed, or is not for calls
			continue
		}
		added++
		select {
		case <-link.closed:
		case <-time.After(5 * time.Second):
			return added, errStillOpen
		}
	}
	return added, nil
}

// fakeCluster answers as one node of a cluster that has a node for each slot.
type fakeCluster struct {
	addr  string
	asked atomic.Int64 // for the layout
}

const clusterSlots = 16384

// beforeFakeCluster starts it and has the service count in it.
func beforeFakeCluster(x *trial, o *options) {
	l := harness.Listen(x)
	f := &fakeCluster{addr: l.Addr().String()}
	x.state = f
	slots := slotsReply()
	x.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go f.serve(conn, slots)
		}
	}()
	o.env = append(o.env, "BACKEND_TYPE=redis", "REDIS_TYPE=cluster", "REDIS_URL="+f.addr, "STORE_FAILURE_MODE=local",
		"REPLICAS=1", "REDIS_TIMEOUT=100ms")
}

// slotsReply gives each slot a node of its own on the loopback network, where
// nothing listens.
func slotsReply() string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", clusterSlots)
	for slot := range clusterSlots {
		host := fmt.Sprintf("127.77.%d.%d", slot>>8, slot&0xff)
		id := fmt.Sprintf("%040x", slot)
		fmt.Fprintf(&b, "*3\r\n:%d\r\n:%d\r\n*3\r\n$%d\r\n%s\r\n:%d\r\n$%d\r\n%s\r\n", slot, slot, len(host), host, 1,
			len(id), id)
	}
	return b.String()
}

// serve answers what clients ask before they count.
func (f *fakeCluster) serve(conn net.Conn, slots string) {
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	for {
		words, err := command(in)
		if err != nil {
			return
		}
		reply := "+OK\r\n"
		switch strings.ToUpper(words[0]) {
		case "PING":
			reply = "+PONG\r\n"
		case "CLUSTER":
			f.asked.Add(1)
			reply = slots
		}
		if _, err := io.WriteString(conn, reply); err != nil {
			return
		}
	}
}

// command reads one of Redis' protocol.
func command(in *bufio.Reader) ([]string, error) {
	number := func(mark byte) (int, error) {
		line, err := in.ReadString('\n')
		if err != nil {
			return 0, err
		}
		if line[0] != mark {
			return 0, errors.New("no command")
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := number('*')
	if err != nil || n < 1 || n > 10_000 {
		return nil, errors.Join(err, errors.New("no command"))
	}
	words := make([]string, n)
	for i := range words {
		size, err := number('$')
		if err != nil || size < 0 || size > 1<<20 {
			return nil, errors.Join(err, errors.New("no word"))
		}
		word := make([]byte, size+2)
		if _, err := io.ReadFull(in, word); err != nil {
			return nil, err
		}
		words[i] = string(word[:size])
	}
	return words, nil
}

// The proxy passes everything on, and adds what it is told to.
func TestChatterbox(t *testing.T) {
	echo := harness.Listen(t)
	t.Cleanup(func() { _ = echo.Close() })
	go func() {
		conn, err := echo.Accept()
		if err == nil {
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}
	}()
	c, err := startChatterbox(t, echo.Addr().String(), "extra\n")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", c.addr)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Now().Add(harness.Deadline)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "one\n"); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	if line, err := in.ReadString('\n'); line != "one\n" {
		t.Fatalf("%q, %v", line, err)
	}
	go func() {
		if line, err := in.ReadString('\n'); line != "extra\n" {
			t.Errorf("%q, %v, want the extra reply", line, err)
		}
		_ = conn.Close()
	}()
	if added, err := c.interject(); added != 1 || err != nil {
		t.Errorf("%d replies were added: %v", added, err)
	}
}
