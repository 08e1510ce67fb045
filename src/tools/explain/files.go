package explain

import (
	"context"
	"fmt"

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
