// Package awsiam mints the tokens with which ElastiCache and MemoryDB authenticate users of IAM: presigned requests,
// which are signed in this process.
//
//	environment, STS, container or instance ──► keys of AWS ──► SigV4 ──► a token of 15 minutes for each connection
package awsiam

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"ratelimit/src/backend/redis/credentials"
)

// Config describes a cache and who connects to it.
type Config struct {
	Service    string // "elasticache" or "memorydb"
	CacheName  string // of the replication group, the serverless cache or the cluster of MemoryDB
	UserID     string // the user in Redis, whose id and name are equal
	Region     string // such as eu-central-1
	Serverless bool   // it is a serverless cache
	// Getenv returns the variables that name the keys of AWS: AWS_ACCESS_KEY_ID and others.
	Getenv func(name string) string
	// OnReport, if set, is called after each attempt to get keys.
	OnReport func(credentials.Report)
}

// tokenLife is how long a token is valid: AWS accepts no more.
const tokenLife = 15 * time.Minute

// Source is a credentials.Source that signs a token for each connection.
type Source struct {
	*credentials.Keeper[keys]
	request request
	user    string
}

// New returns a Source. It asks for no keys yet.
func New(cfg Config) *Source {
	s := &Source{
		user: cfg.UserID,
		request: request{
			host: strings.ToLower(cfg.CacheName), region: cfg.Region, service: cfg.Service, life: tokenLife,
			query: map[string]string{"Action": "connect", "User": cfg.UserID},
		},
	}
	if cfg.Serverless {
		s.request.query["ResourceType"] = "ServerlessCache"
	}
	p := newProvider(cfg.Getenv, cfg.Region)
	s.Keeper = credentials.NewKeeper(func(ctx context.Context) (keys, time.Time, error) {
		k, err := p.fetch(ctx)
		return k, k.expires, err
	}, cfg.OnReport)
	return s
}

// Token implements credentials.Source.
func (s *Source) Token(ctx context.Context) (credentials.Token, error) {
	k, _, err := s.Get(ctx)
	if err != nil {
		return credentials.Token{}, fmt.Errorf("no keys of AWS: %w", err)
	}
	return s.sign(k, time.Now()), nil
}

// Renewed implements credentials.Source.
func (s *Source) Renewed(expires time.Time) (credentials.Token, bool) {
	k, _, ok := s.Peek()
	if !ok {
		return credentials.Token{}, false
	}
	t := s.sign(k, time.Now())
	return t, t.Expires.After(expires)
}

// sign returns a token that is valid from now on. It ends with its keys.
func (s *Source) sign(k keys, now time.Time) credentials.Token {
	t := credentials.Token{User: s.user, Password: s.request.presign(k, now.Add(k.skew)), Expires: now.Add(tokenLife)}
	if !k.expires.IsZero() && k.expires.Before(t.Expires) {
		t.Expires = k.expires
	}
	return t
}

type keys struct {
	id, secret, session string
	expires             time.Time     // by the clock of this host; zero: never
	skew                time.Duration // how far the clock of AWS is ahead of that of this host
}

// Format writes no secret, whatever the verb.
func (k keys) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, "keys until "+k.expires.Format(time.RFC3339))
}
