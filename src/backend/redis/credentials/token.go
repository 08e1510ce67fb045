// Package credentials gives connections to Redis what they authenticate with: a password, the text of a file, or tokens
// that expire.
//
//	a program, or package awsiam ──► Keeper, which fetches ahead of time ──► Source ──► AUTH
//
// A connection gets a token when it opens, and a newer one, in place, before that one expires. No error and no format
// verb shows a secret.
package credentials

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"time"
)

// Token is what a connection authenticates with. Without a user and a password it needs no AUTH.
type Token struct {
	User     string // empty: the default user
	Password string
	Expires  time.Time // zero: never
}

// Format writes no secret, whatever the verb.
func (t Token) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, "token until "+t.Expires.Format(time.RFC3339))
}

// Source gives tokens. It is safe for concurrent use.
type Source interface {
	// Run fetches tokens until ctx ends. The other methods need it.
	Run(ctx context.Context)
	// Token returns a token for a new connection. It waits for one until ctx ends.
	Token(ctx context.Context) (Token, error)
	// Renewed returns a token that expires later than one that expires at that time, if there is one. It does not wait.
	Renewed(expires time.Time) (Token, bool)
	// Refused says that the server refused a token.
	Refused()
}

// PerConnection is a Source that is asked for each connection, and whose tokens never expire.
type PerConnection func() (user, password string, err error)

// Run implements Source.
func (PerConnection) Run(context.Context) {}

// Token implements Source.
func (f PerConnection) Token(context.Context) (t Token, err error) {
	t.User, t.Password, err = f()
	return t, err
}

// Renewed implements Source.
func (PerConnection) Renewed(time.Time) (Token, bool) { return Token{}, false }

// Refused implements Source.
func (PerConnection) Refused() {}

// A connection renews its token after a random share of its life, so that connections and replicas do not do so at
// once. Until then there is a newer one, since a Keeper fetches it after half of the life.
const (
	earliestRenewal = 0.6
	latestRenewal   = 0.8
	// renewalRetries is how often a connection asks for a newer token in what is left of the life of its own.
	renewalRetries  = 8
	minRenewalPause = 100 * time.Millisecond
	maxRenewalPause = 30 * time.Second
)

// RenewalTime returns when a connection should renew a token that it got now. It is zero for one that never expires.
func RenewalTime(now, expires time.Time) time.Time {
	if expires.IsZero() {
		return time.Time{}
	}
	share := earliestRenewal + (latestRenewal-earliestRenewal)*rand.Float64()
	return now.Add(max(time.Duration(share*float64(expires.Sub(now))), minRenewalPause))
}

// RetryTime returns when a connection should ask again for a newer token than that which expires at that time.
func RetryTime(now, expires time.Time) time.Time {
	pause := min(max(expires.Sub(now)/renewalRetries, minRenewalPause), maxRenewalPause)
	return now.Add(pause + rand.N(pause/4))
}
