package connlimit

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
)

// TrackHTTPServer makes srv call MarkBusy on a Conn when it has read a complete request, and MarkAnswered after the
// answer. So a client that is still sending its request is idle. It must be called before srv.Serve. Connections may be
// a Conn, or TLS over a Conn; others are ignored.
func TrackHTTPServer(srv *http.Server) {
	srv.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, connContextKey{}, unwrapConn(c))
	}
	srv.ConnState = func(c net.Conn, state http.ConnState) {
		if c := unwrapConn(c); c != nil && state == http.StateIdle {
			c.MarkAnswered()
		}
	}
	handler := srv.Handler
	srv.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, _ := r.Context().Value(connContextKey{}).(*Conn)
		switch {
		case c == nil:
		case r.ContentLength == 0:
			c.MarkBusy()
		default:
			withBody := *r // r is copied, because net/http checks the type of its own r.Body.
			withBody.Body = &requestBody{r.Body, c}
			r = &withBody
		}
		handler.ServeHTTP(w, r)
	})
}

type connContextKey struct{}

// AccountFromContext returns the account of an HTTP request's connection; nil without a Conn or a budget.
func AccountFromContext(ctx context.Context) *MemoryAccount {
	if c, _ := ctx.Value(connContextKey{}).(*Conn); c != nil {
		return c.MemoryAccount
	}
	return nil
}

// unwrapConn returns c, or the connection under the TLS of c, as a *Conn; nil if it is no *Conn.
func unwrapConn(c net.Conn) *Conn {
	if secure, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = secure.NetConn()
	}
	conn, _ := c.(*Conn)
	return conn
}

// requestBody is the body of a request that came on conn.
type requestBody struct {
	io.ReadCloser
	conn *Conn
}

// Read reads from the body, and makes the connection busy at its end.
func (b *requestBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.conn.MarkBusy()
	}
	return n, err
}
