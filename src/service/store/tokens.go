package store

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"ratelimit/src/backend/redis"
	"ratelimit/src/backend/redis/credentials"
	"ratelimit/src/backend/redis/credentials/awsiam"
	"ratelimit/src/operator/throttle"
	"ratelimit/src/settings"
)

// mintTokens sets the credentials in rc if tokens are minted for p. The names of its settings begin with prefix.
func (s *Store) mintTokens(p *Pool, rc *redis.Config, at settings.Redis, prefix string) error {
	command := func(variable, line, user string) (credentials.Source, error) {
		c, err := credentials.NewCommand(credentials.CommandConfig{
			Line: line, User: user, Environ: commandEnvironment(os.Environ()), OnReport: s.newMinter(p, variable),
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w: write a program with its arguments", variable, err)
		}
		return c, nil
	}
	var err error
	switch {
	case at.AuthCommand != "":
		rc.Credentials, err = command(prefix+"AUTH_COMMAND", at.AuthCommand, at.AuthUser)
	case at.IAM.On:
		rc.Credentials = awsiam.New(awsiam.Config{
			Service: at.IAM.Service, CacheName: at.IAM.CacheName, UserID: at.IAM.UserID, Region: at.IAM.Region,
			Serverless: at.IAM.Serverless, Getenv: os.Getenv, OnReport: s.newMinter(p, prefix+"AWS_IAM_AUTH"),
		})
	}
	if err == nil && rc.Sentinel != nil && at.SentinelAuthCommand != "" {
		rc.Sentinel.Credentials, err = command(prefix+"SENTINEL_AUTH_COMMAND", at.SentinelAuthCommand, "")
	}
	return err
}

// commandEnvironment returns the environment of a program that mints tokens: that of this process without the settings
// of the service, some of which are secrets.
func commandEnvironment(environ []string) (list []string) {
	own := make(map[string]bool)
	for _, v := range settings.Table() {
		own[v.Name] = true
	}
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		if !own[name] && !strings.HasPrefix(name, "OTEL_") && !strings.HasPrefix(name, settings.NotifyURLPrefix) {
			list = append(list, variable)
		}
	}
	return list
}

// minter tells how the minting of tokens goes: in the log, and in a note for health checks.
type minter struct {
	variable string // that turns it on

	mu   sync.Mutex // guards last
	last credentials.Report
}

// newMinter returns what a source of tokens for p reports to.
func (s *Store) newMinter(p *Pool, variable string) func(credentials.Report) {
	m, warnings := &minter{variable: variable}, throttle.New(1, time.Minute)
	p.minters = append(p.minters, m)
	return func(r credentials.Report) {
		m.mu.Lock()
		hadFailed := m.last.Err != nil
		m.last = r
		m.mu.Unlock()
		switch {
		case r.Err == nil && hadFailed:
			s.cfg.Log.Warnf("%s gives new credentials again", variable)
		case r.Err != nil:
			if _, ok := warnings.Pass(time.Now()); ok || !hadFailed {
				s.cfg.Log.Warnf("%s: %v; it is tried again", m.note(time.Now()), r.Err)
			}
		}
	}
}

// note says that minting fails, and until when the last credentials may be used; "": it does not fail.
func (m *minter) note(now time.Time) string {
	m.mu.Lock()
	r := m.last
	m.mu.Unlock()
	switch {
	case r.Err == nil:
		return ""
	case !r.Left || !r.Ends.IsZero() && !now.Before(r.Ends):
		return m.variable + " gives no credentials, and there are none left: no connection can be opened"
	case r.Ends.IsZero():
		return m.variable + " gives no new credentials; the last ones stay in use"
	}
	return fmt.Sprintf("%s gives no new credentials; the last ones end at %s", m.variable,
		r.Ends.UTC().Format(time.RFC3339))
}
