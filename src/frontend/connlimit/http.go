package connlimit

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
)

// HTTP has srv tell the connections of its Listener when a request has been read as
// a whole, so that they are busy, and when it was answered. A caller that is still
// sending its request is idle, however slowly it does so. Call HTTP before srv.Serve;
// the listener may speak TLS over a Listener.
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
		c := FromContext(r.Context())
		switch {
		case c == nil: // not of a Listener
		case r.ContentLength == 0:
			c.Busy()
		default:
			read := *r // net/http goes by the type of its own body
			read.Body = &body{r.Body, c}
			r = &read
		}
		handler.ServeHTTP(w, r)
	})
}

type connKey struct{}

// FromContext returns the connection that a request came on; nil if it came on none of
// a Listener.
func FromContext(ctx context.Context) *Conn {
	c, _ := ctx.Value(connKey{}).(*Conn)
	return c
}

// limited returns the Conn that c is, or that TLS is spoken over; nil: neither.
func limited(c net.Conn) *Conn {
	if secure, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = secure.NetConn()
	}
	limit, _ := c.(*Conn)
	return limit
}

// body is the body of a request on of.
type body struct {
	io.ReadCloser
	of *Conn
}

// Read reads, and says at the end that the request has been read.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.of.Busy()
	}
	return n, err
}
