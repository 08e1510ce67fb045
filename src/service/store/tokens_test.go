package store

import (
	"errors"
	"slices"
	"testing"
	"time"

	"ratelimit/src/backend/redis/credentials"
)

// A program that mints tokens gets what programs of clouds need, and no setting of the service.
func TestCommandEnvironment(t *testing.T) {
	t.Parallel()
	got := commandEnvironment([]string{
		"PATH=/bin", "HOME=/", "AWS_REGION=r", "AZURE_CLIENT_ID=a", "VAULT_TOKEN=v", "DEBUG_TOKEN=secret",
		"REDIS_AUTH=secret", "REDIS_URL=redis://:secret@a", "RESP_PASSWORD=secret", "OTEL_EXPORTER_OTLP_HEADERS=secret",
		"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=a:secret", "NOTIFY_URL_OPS=https://a/secret",
	})
	want := []string{"PATH=/bin", "HOME=/", "AWS_REGION=r", "AZURE_CLIENT_ID=a", "VAULT_TOKEN=v"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// The note says until when the last credentials serve, and has no reason, which callers must not see.
func TestMintingNote(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	broken := errors.New("secret")
	for _, tt := range []struct {
		last credentials.Report
		want string
	}{
		{credentials.Report{}, ""},
		{credentials.Report{Left: true, Ends: now}, ""},
		{
			credentials.Report{Err: broken, Left: true, Ends: now.Add(time.Minute)},
			"V gives no new credentials; the last ones end at 2026-11-29T12:01:00Z",
		},
		{
			credentials.Report{Err: broken, Left: true, Ends: now},
			"V gives no credentials, and there are none left: no connection can be opened",
		},
		{credentials.Report{Err: broken}, "V gives no credentials, and there are none left: no connection can be opened"},
		{credentials.Report{Err: broken, Left: true}, "V gives no new credentials; the last ones stay in use"},
	} {
		m := &minter{variable: "V", last: tt.last}
		if got := m.note(now); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.last, got, tt.want)
		}
	}
}
