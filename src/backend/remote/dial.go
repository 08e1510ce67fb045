package remote

import (
	"context"
	"crypto/tls"
	"net"
	"time"
)

// The pause between two attempts to connect before the first call doubles from
// ConnectLeast up to ConnectMost.
const ConnectLeast, ConnectMost = 100 * time.Millisecond, 10 * time.Second

// Dialer connects to servers.
type Dialer struct {
	// Timeout bounds connecting, the handshake of TLS included.
	Timeout time.Duration
	// TLS is nil for none. Where it names no server, that of the address is
	// meant.
	TLS *tls.Config
}

// Dial connects to addr. Raw is the connection below TLS, conn itself without.
func (d *Dialer) Dial(ctx context.Context, network, addr string) (conn, raw net.Conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	var nd net.Dialer
	if raw, err = nd.DialContext(ctx, network, addr); err != nil || d.TLS == nil {
		return raw, raw, err
	}
	cfg := d.TLS
	if cfg.ServerName == "" { // also where it is not verified: proxies choose by it
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			host = addr
		}
		cfg = cfg.Clone()
		cfg.ServerName = host
	}
	secure := tls.Client(raw, cfg)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = raw.Close() // it never worked
		return nil, nil, err
	}
	return secure, raw, nil
}
