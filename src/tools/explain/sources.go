package explain

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"ratelimit/src/backend/memory"
	"ratelimit/src/frontend/rls"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// Files explains a request, a RateLimitRequest as proto3 JSON, by rules without counters.
// escapeKeys writes keys as CACHE_KEY_FORMAT=v2 does.
func Files(ctx context.Context, set *rules.Set, request []byte, escapeKeys bool) (*Report, error) {
	req, err := rls.ParseJSON(request)
	if err != nil {
		return nil, fmt.Errorf("the request is not a RateLimitRequest: %w", err)
	}
	empty, err := memory.New(memory.Config{MaxBytes: memory.MinBytes})
	if err != nil {
		return nil, err
	}
	l := limiter.New(limiter.Config{Backend: empty, EscapeKeys: escapeKeys})
	l.Use(set)
	var a limiter.Answer
	if err := l.Look(ctx, req, &a); err != nil {
		return nil, err
	}
	return Of(req, &a, false), nil
}

// maxReport bounds the bytes that are read of a service's answer.
const maxReport = 256 << 20

// Service asks the debug port of the service at the URL at about a request, a
// RateLimitRequest as proto3 JSON. The answer may take as long as timeout.
func Service(ctx context.Context, at string, request []byte, timeout time.Duration) (*Report, error) {
	if !strings.Contains(at, "://") {
		at = "http://" + at
	}
	u, err := url.Parse(at)
	if err != nil {
		return nil, err
	}
	if strings.Trim(u.Path, "/") == "" {
		u.Path = "/explain"
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(request))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxReport))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", u.Redacted(), err)
	}
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		return nil, fmt.Errorf("%s does not explain (%s); name the debug port of a service, http://localhost:6070", u.Redacted(), resp.Status)
	default:
		return nil, fmt.Errorf("%s: %s: %s", u.Redacted(), resp.Status, bytes.TrimSpace(text[:min(len(text), 1000)]))
	}
	report := new(Report)
	if err := json.Unmarshal(text, report); err != nil {
		return nil, fmt.Errorf("%s does not explain; is it the debug port of a service that can?", u.Redacted())
	}
	return report, nil
}
