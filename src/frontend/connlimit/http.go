package connlimit

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
)

// HTTP makes srv call Busy on a connection of a Listener when it has read a complete
// request, and Answered after the answer. A client that is still sending its request is
// idle. Call HTTP before srv.Serve; the listener may speak TLS over a Listener.
func HTTP(srv *http.Server) {
	srv.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, limited(c))
	}
	srv.ConnState = func(c net.Conn, state http.ConnState) {
		if c := limited(c); c != nil && state == http.StateIdle {
			c.Answered()
		}
	}
	handler := srv.Handler
	srv.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, _ := r.Context().Value(connKey{}).(*Conn)
		switch {
		case c == nil: // from another listener
		case r.ContentLength == 0:
			c.Busy()
		default:
			read := *r // a copy, since net/http looks at the type of its own body
			read.Body = &body{r.Body, c}
			r = &read
		}
		handler.ServeHTTP(w, r)
	})
}

type connKey struct{}

// FromContext returns the account of a request's connection; nil if it is not one of a
// Listener with a budget.
func FromContext(ctx context.Context) *Account {
	if c, _ := ctx.Value(connKey{}).(*Conn); c != nil {
		return c.Account
	}
	return nil
}

// limited returns c, or the connection under the TLS of c, if that is a Conn, else nil.
func limited(c net.Conn) *Conn {
	if secure, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = secure.NetConn()
	}
	limit, _ := c.(*Conn)
	return limit
}

// body is the body of a request on the connection of.
type body struct {
	io.ReadCloser
	of *Conn
}

// Read reads, and calls Busy at the end.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.of.Busy()
	}
	return n, err
}
