package rls

import (
	"net"

	"google.golang.org/grpc/credentials"

	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/frontend/tlsconn"
)

// chargedTLS charges what TLS keeps to an account of its own. The other memory of a connection is charged from the end
// of its handshake.
type chargedTLS struct {
	credentials.TransportCredentials
	budget *connlimit.MemoryBudget
}

// ServerHandshake does the TLS handshake.
func (c chargedTLS) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	// The server learns of the close from its next read or write.
	account := c.budget.OpenAccount(func(int64) { _ = raw.Close() })
	input := tlsconn.NewInput(raw, account)
	conn, info, err := c.TransportCredentials.ServerHandshake(input)
	if err != nil {
		account.Close()
		return nil, nil, err
	}
	input.EndHandshake()
	return &chargedConn{conn, input, account}, info, nil
}

// Clone returns a copy, as credentials.TransportCredentials requires.
func (c chargedTLS) Clone() credentials.TransportCredentials {
	c.TransportCredentials = c.TransportCredentials.Clone()
	return c
}

// chargedConn is a connection with TLS over input.
type chargedConn struct {
	net.Conn
	input   *tlsconn.Input
	account *connlimit.MemoryAccount
}

// Read reads from the connection.
func (c *chargedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.input.UseData(n)
	return n, err
}

// Close closes the connection.
func (c *chargedConn) Close() error {
	c.account.Close()
	return c.Conn.Close()
}
