package service

import (
	"context"
	"fmt"

	"ratelimit/src/files/secrets"
	"ratelimit/src/frontend/access"
)

// openSecrets sets what clients must send, from variables or files.
func (f *foundation) openSecrets() error {
	for _, s := range []struct {
		to              *access.Secrets
		variable        string
		fixed, fromFile string
	}{
		{&f.debugTokens, "DEBUG_TOKEN_FILE", f.Settings.DebugToken, f.Settings.DebugTokenFile},
		{&f.respPasswords, "RESP_PASSWORD_FILE", f.Settings.RESP.Password, f.Settings.RESP.PasswordFile},
	} {
		if *s.to = access.Fixed(s.fixed); s.fromFile == "" {
			continue
		}
		file, err := secrets.Open(s.fromFile)
		if err != nil {
			return fmt.Errorf("%s: %w", s.variable, err)
		}
		*s.to = file.Valid
		f.run(func(ctx context.Context) error {
			return file.Run(ctx, func(err error) {
				if err != nil {
					f.log.Warnf("%s: %v; the old secrets stay valid", s.variable, err)
				} else {
					f.log.Infof("%s has changed: %d of its secrets are valid", s.variable, len(file.Valid()))
				}
			})
		})
	}
	return nil
}

// ownToken returns the token that this process sends to the debug ports of other replicas: the first one.
func (f *foundation) ownToken() string {
	if f.debugTokens == nil {
		return ""
	}
	return f.debugTokens()[0]
}
