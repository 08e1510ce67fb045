package ruletest

import "ratelimit/src/limiter"

// FirstRequest is the request of the first step.
func (f *File) FirstRequest() *limiter.Request { return &f.tests[0].steps[0].request }
