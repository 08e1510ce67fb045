// Package access tells clients with a secret, and those on this host, from others, and bounds guesses of secrets.
package access

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net/netip"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
)

// Secrets returns the secrets that are valid now: one, or two while clients change from one to the other. Nil means
// that none is needed.
type Secrets func() []string

// Fixed returns Secrets of one secret. They are nil if it is empty.
func Fixed(secret string) Secrets {
	if secret == "" {
		return nil
	}
	return func() []string { return []string{secret} }
}

// IsSecret reports whether sent is one of the secrets. The time that it takes depends on their number only. Nothing
// equals an empty secret.
func IsSecret[T string | []byte](sent T, secrets Secrets) bool {
	if secrets == nil {
		return false
	}
	got, isOne := sha256.Sum256([]byte(sent)), false // Hashes have the same length.
	for _, secret := range secrets() {
		want := sha256.Sum256([]byte(secret))
		if subtle.ConstantTimeCompare(got[:], want[:]) == 1 && secret != "" {
			isOne = true
		}
	}
	return isOne
}

// IsOnThisHost reports whether a client with this address and port is on the same host.
func IsOnThisHost(remoteAddr string) bool {
	addr, err := netip.ParseAddrPort(remoteAddr)
	return err == nil && addr.Addr().Unmap().IsLoopback()
}

// guessLimit is how many wrong secrets a client may send: 10 at once, and 10 in each minute.
var guessLimit = algorithm.Limit{Kind: algorithm.GCRA, Max: 10, Burst: 9, Period: time.Minute}

// Attempts bounds how often a client may send a wrong secret. It has 128 KiB for clients, and evicts those that it
// refuses last. The attempts of an address count together; those of an IPv6 network of 64 bits, too, because one host
// may have all addresses there.
type Attempts struct{ counters *memory.Store }

// NewAttempts returns an Attempts without clients.
func NewAttempts() (*Attempts, error) {
	counters, err := memory.New(memory.Config{MaxBytes: memory.MinBytes})
	return &Attempts{counters}, err
}

// Add counts an attempt of the client with this address and port. It returns 0 if the attempt is allowed, else the time
// until the next one is.
func (a *Attempts) Add(remoteAddr string) time.Duration {
	return a.take(remoteAddr, algorithm.Charge).RetryAfter
}

// Forgive takes the last attempt of a client back, because its secret was right.
func (a *Attempts) Forgive(remoteAddr string) { a.take(remoteAddr, algorithm.Refund) }

func (a *Attempts) take(remoteAddr string, op algorithm.Op) backend.Verdict {
	hit := backend.Hit{Key: []byte(clientKey(remoteAddr)), Limit: &guessLimit, Op: op, Amount: 1}
	v, _ := backend.TakeHit(context.Background(), a.counters, hit) // The hit is valid, and memory always answers.
	return v
}

func clientKey(remoteAddr string) string {
	addr, err := netip.ParseAddrPort(remoteAddr)
	if err != nil {
		return remoteAddr
	}
	ip := addr.Addr().Unmap()
	if ip.Is6() {
		return netip.PrefixFrom(ip.WithZone(""), 64).Masked().String()
	}
	return ip.String()
}
